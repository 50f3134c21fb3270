"""Pairs of rounds: every system gets the same calls, one system after the other.

Theory of operation
A round is one system's part of a pair: rollouts are opened, every connection sends its calls one after the other, CPU
time and memory are read, and what was recorded is counted and dropped. Which system begins changes from pair to pair:
none is always the one that finds the machine as the others left it. Which calls are made is `plan.py`'s, how long they
took `load.py`'s, and what it means `report.py`'s.

The upstream is one of three: the engine that waits with each event for what its client has seen (`paced`), the same
without waiting, and nginx with its replies in files (`Static`), which are written before the pair begins.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from benchmarks import load, plan, report, wire
from benchmarks.corpus import REPLY_TOKENS, Corpus, request_body
from benchmarks.nginx import Static
from benchmarks.plan import Shape
from benchmarks.report import Row, Turn
from benchmarks.systems import System
from benchmarks.upstream import Flow

SETTLE_S = 0.05
"""After a round, before its CPU time is read: the marks of delivery are still being written."""


class Bench:
    """The systems, running, and what is measured on them."""

    def __init__(
        self,
        found: Sequence[System],
        corpus: Corpus,
        flow: Flow,
        *,
        paced: bool = True,
        static: tuple[Static, wire.Wire] | None = None,
    ) -> None:
        self._systems = found
        self._corpus = corpus
        self._flow = flow
        self._paced = paced and static is None
        self._static = static
        self._used = 0
        self._calls = 0

    async def measure(self, shape: Shape, pairs: int) -> list[Row]:
        """Measure one shape on every system, so many times. Raises RuntimeError if a call was not recorded."""
        return report.rows(shape, await self.turns(shape, pairs))

    async def turns(self, shape: Shape, pairs: int) -> dict[str, list[Turn]]:
        """Return each system's part of each pair. Raises RuntimeError if a call was not recorded."""
        systems = [system for system in self._systems if system.streams or not shape.streamed]
        turns: dict[str, list[Turn]] = {system.name: [] for system in systems}
        for system in systems:
            system.reset_peak()
        for pair in range(pairs):
            plans, used = plan.lanes(shape, self._used)
            self._used += used
            asks = [ask for lane in plans for ask in (*lane.warm, *lane.measured)]
            bodies = {ask: request_body(self._corpus, ask.start, ask.n_prompt, streamed=shape.streamed) for ask in asks}
            await self._record(systems, asks, streamed=shape.streamed)
            # A, B, C; then B, C, A.
            first = pair % len(systems)
            for system in (*systems[first:], *systems[:first]):
                turns[system.name].append(await self._turn(system, shape, plans, bodies))
        return turns

    async def check(self) -> None:
        """See that every system answers with what the upstream says, and records it. Raises RuntimeError."""
        ask = plan.Ask(0, 0, 2_000)
        for streamed in (False, True):
            await self._record(self._systems, [ask], streamed=streamed)
            for system in self._systems:
                if system.streams or not streamed:
                    await self._check(system, ask, streamed=streamed)

    async def _check(self, system: System, ask: plan.Ask, *, streamed: bool) -> None:
        keys = await asyncio.to_thread(system.open, 1)
        body = request_body(self._corpus, ask.start, ask.n_prompt, streamed=streamed)
        client = await load.Client.connect(system.url, self._flow)
        async with asyncio.timeout(load.ROUND_LIMIT_S):
            _, reply = await client.ask(self._request(system, ask, keys, body, streamed=streamed), keep=True)
        client.close()
        got = b"".join(reply.kept or [])
        said = "".join(load.contents_of(got, streamed=streamed))
        first = self._corpus.text(ask.n_prompt, ask.n_prompt + REPLY_TOKENS)
        if said != first or reply.streamed != streamed or (streamed and reply.first_token_at is None):
            raise RuntimeError(f"{system.name} did not pass the reply on: {got[:300]!r} … {got[-300:]!r}")
        await asyncio.to_thread(system.close_round, {0: 1})

    async def _record(self, systems: Sequence[System], asks: Sequence[plan.Ask], *, streamed: bool) -> None:
        if self._static is not None:
            static, bytes_of = self._static
            kinds = {system.ids for system in systems}
            wanted = [
                wire.Ask(start=ask.start, n_prompt=ask.n_prompt, streamed=streamed, ids=ids)
                for ask in asks
                for ids in kinds
            ]
            await asyncio.to_thread(static.record, bytes_of, wanted)

    async def _turn(
        self, system: System, shape: Shape, plans: Sequence[plan.LanePlan], bodies: Mapping[plan.Ask, bytes]
    ) -> Turn:
        def request(ask: plan.Ask, keys: Sequence[str]) -> load.Request:
            return self._request(system, ask, keys, bodies[ask], streamed=shape.streamed)

        return await turn(system, plans, request, self._flow)

    def _request(
        self, system: System, ask: plan.Ask, keys: Sequence[str], body: bytes, *, streamed: bool
    ) -> load.Request:
        self._calls += 1
        call = self._calls if self._paced else None
        wanted = wire.Ask(start=ask.start, n_prompt=ask.n_prompt, streamed=streamed, ids=system.ids, call=call)
        told = system.told(body, wanted.header())
        head = load.head_of(told, key=keys[ask.conversation], bench=wanted.header(), target=system.target)
        return load.Request(call=self._calls, head=head, body=told, marks=system.marks)


async def turn(
    system: System,
    plans: Sequence[plan.LanePlan],
    request: Callable[[plan.Ask, Sequence[str]], load.Request],
    flow: Flow,
    *,
    settle_s: float = SETTLE_S,
) -> Turn:
    """Send a system its calls, and return its part of a pair; `request` makes one, given the conversations' keys.

    Raises RuntimeError if a call was not recorded.
    """
    counts = Counter(ask.conversation for lane in plans for ask in (*lane.warm, *lane.measured))
    keys = await asyncio.to_thread(system.open, len(counts))

    def ready(asks: Sequence[plan.Ask]) -> list[load.Request]:
        return [request(ask, keys) for ask in asks]

    lanes = [load.Lane(warm=ready(lane.warm), measured=ready(lane.measured)) for lane in plans]
    before = 0.0

    def warmed() -> None:
        nonlocal before
        before = system.cpu_ms()

    took = await load.run_round(system.url, lanes, flow, warmed=warmed)
    await asyncio.sleep(settle_s)
    made = Turn(round=took, cpu_ms=system.cpu_ms() - before, peak_mib=system.peak_mib())
    await asyncio.to_thread(system.close_round, counts)
    return made
