"""What Treering adds to a call: requests per second, latency, first token, CPU and memory, beside other proxies.

Theory of operation
Load, proxy and upstream share one machine, so a number alone says little; what is told is a ratio. In a pair every
system gets the same calls, one system after the other; ratios are taken within a pair, and the median over the pairs is
the result, since noise that lasts longer than a pair falls on both sides alike. Which system begins changes from pair
to pair. Where the ratios of a row differ too much among themselves it is called too noisy, and no verdict is drawn.

The bare pass-through relays the very bytes that Treering gets, ids and logprobs included. `bare, no ids` gets replies
without them, as an agent's engine would give them with nobody asking: the price of asking.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import dialects, load, plan, report, systems, wire
from benchmarks.corpus import Corpus, request_body
from benchmarks.plan import Shape
from benchmarks.report import Row, Turn
from benchmarks.systems import System
from benchmarks.upstream import Flow, serve

SIZES = (2_000, 16_000, 100_000)

PAIRS = 7
QUICK_PAIRS = 3

# Measured calls of a round, all connections together, by prompt size: streamed, and whole.
_CALLS = {2_000: (40, 480), 16_000: (40, 168), 100_000: (40, 42)}
_QUICK_CALLS = {2_000: (24, 240), 16_000: (16, 96), 100_000: (16, 24)}

DOCUMENT = systems.ROOT / "docs" / "overhead.json"
PAGE = systems.ROOT / "docs" / "performance.md"

SETTLE_S = 0.05
"""After a round, before its CPU time is read: the marks of delivery are still being written."""


def shapes(*, quick: bool) -> list[Shape]:
    """Return what is measured."""
    made = []
    for size in SIZES:
        for streamed in (True, False):
            calls = (_QUICK_CALLS if quick else _CALLS)[size][0 if streamed else 1]
            for case in plan.CASES:
                for connections in (1, 8):
                    each = -(-calls // connections)
                    made.append(
                        Shape(prompt_tokens=size, streamed=streamed, case=case, connections=connections, calls=each)
                    )
    return made


class Bench:
    """The systems, running, and what is measured on them."""

    def __init__(self, found: Sequence[System], corpus: Corpus, flow: Flow) -> None:
        self._systems = found
        self._corpus = corpus
        self._flow = flow
        self._used = 0
        self._calls = 0

    async def measure(self, shape: Shape, pairs: int) -> list[Row]:
        """Measure one shape on every system, so many times. Raises RuntimeError if a call was not recorded."""
        return report.rows(shape, await self.turns(shape, pairs))

    async def turns(self, shape: Shape, pairs: int) -> dict[str, list[Turn]]:
        """Return each system's part of each pair. Raises RuntimeError if a call was not recorded."""
        turns: dict[str, list[Turn]] = {system.name: [] for system in self._systems}
        for system in self._systems:
            system.reset_peak()
        for pair in range(pairs):
            plans, used = plan.lanes(shape, self._used)
            self._used += used
            bodies = {
                ask: request_body(self._corpus, ask.start, ask.n_prompt, streamed=shape.streamed)
                for lane in plans
                for ask in (*lane.warm, *lane.measured)
            }
            # A, B, C; then B, C, A: none is always the one that finds the machine as the others left it.
            first = pair % len(self._systems)
            for system in (*self._systems[first:], *self._systems[:first]):
                turns[system.name].append(await self._turn(system, shape, plans, bodies))
        return turns

    async def check(self) -> None:
        """See that every system answers with what the upstream says, and records it. Raises RuntimeError."""
        for system in self._systems:
            for streamed in (False, True):
                keys = await asyncio.to_thread(system.open, 1)
                ask = plan.Ask(0, 0, 2_000)
                body = request_body(self._corpus, ask.start, ask.n_prompt, streamed=streamed)
                client = await load.Client.connect(system.url, self._flow)
                async with asyncio.timeout(load.ROUND_LIMIT_S):
                    _, reply = await client.ask(self._request(system, ask, keys, body, streamed=streamed), keep=True)
                client.close()
                got = b"".join(reply.kept or [])
                said = "".join(load.contents_of(got, streamed=streamed))
                if said != self._corpus.text(2_000, 2_200) or reply.streamed != streamed:
                    raise RuntimeError(f"{system.name} did not pass the reply on: {got[:300]!r} … {got[-300:]!r}")
                await asyncio.to_thread(system.close_round, {0: 1})

    async def _turn(
        self, system: System, shape: Shape, plans: Sequence[plan.LanePlan], bodies: Mapping[plan.Ask, bytes]
    ) -> Turn:
        counts = Counter(ask.conversation for lane in plans for ask in (*lane.warm, *lane.measured))
        keys = await asyncio.to_thread(system.open, len(counts))

        def ready(asks: Sequence[plan.Ask]) -> list[load.Request]:
            return [self._request(system, ask, keys, bodies[ask], streamed=shape.streamed) for ask in asks]

        lanes = [load.Lane(warm=ready(lane.warm), measured=ready(lane.measured)) for lane in plans]
        before = 0.0

        def warmed() -> None:
            nonlocal before
            before = system.cpu_ms()

        took = await load.run_round(system.url, lanes, self._flow, warmed=warmed)
        await asyncio.sleep(SETTLE_S)
        turn = Turn(round=took, cpu_ms=system.cpu_ms() - before, peak_mib=system.peak_mib())
        await asyncio.to_thread(system.close_round, counts)
        return turn

    def _request(
        self, system: System, ask: plan.Ask, keys: Sequence[str], body: bytes, *, streamed: bool
    ) -> load.Request:
        self._calls += 1
        wanted = wire.Ask(start=ask.start, n_prompt=ask.n_prompt, streamed=streamed, ids=system.ids, call=self._calls)
        head = load.head_of(body, key=keys[ask.conversation], bench=wanted.header())
        return load.Request(call=self._calls, head=head, body=body)


def run(argv: list[str]) -> int:
    """Measure, print a table and a verdict, write FILE; 1 if a system did not start, or lost a call."""
    parser = argparse.ArgumentParser(prog="bin/bench overhead", description="what Treering adds to a call")
    parser.add_argument("--quick", action="store_true", help="Treering and the bare pass-through alone, few pairs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--only", metavar="WORDS", help='only some cases, such as "2000 streamed growing 8"')
    parser.add_argument("--docs", action="store_true", help="write docs/overhead.json and the table in the docs")
    parser.add_argument("--dialects", action="store_true", help="every dialect beside chat, and nothing else")
    parser.add_argument("--tunnel", choices=["ssh"], help="a tunnel on loopback beside the way without, and no more")
    asked = parser.parse_args(argv)
    if asked.tunnel:
        from benchmarks import tunnel

        return tunnel.run(quick=asked.quick, file=asked.json, docs=asked.docs)
    made = dialects.shapes() if asked.dialects else shapes(quick=asked.quick)
    wanted = [shape for shape in made if is_wanted(shape, asked.only)]
    command = " ".join(["bin/bench overhead", *argv])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            told = runner.run(
                dialects.run(wanted, quick=asked.quick, command=command)
                if asked.dialects
                else _run(wanted, quick=asked.quick)
            )
        except RuntimeError as error:
            sys.stderr.write(f"bin/bench overhead: {error}\n")
            return 1
    document = dialects.DOCUMENT if asked.dialects else DOCUMENT
    for file in (asked.json, document if asked.docs else None):
        if file is not None:
            file.write_text(json.dumps(told, indent=1) + "\n")
    if asked.docs:
        with_section = dialects.with_section if asked.dialects else report.with_section
        PAGE.write_text(with_section(PAGE.read_text(), told))
    return 0


async def _run(wanted: Sequence[Shape], *, quick: bool) -> dict[str, Any]:
    """Start everything, measure, and print as it goes; return the run as JSON's values."""
    out = sys.stdout
    corpus, flow = Corpus(), Flow()
    server, upstream = await serve(wire.Wire(corpus), flow)
    made: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as folder, ExitStack() as stack:
        stack.callback(server.close)
        # In a thread: the appliance asks the upstream who it is before it is up.
        started = await asyncio.to_thread(_start, upstream, Path(folder), stack, quick=quick)
        bench = Bench(started, corpus, flow)
        await bench.check()
        loads = [os.getloadavg()[0]]
        out.write(report.heading())
        for shape in wanted:
            for row in await bench.measure(shape, QUICK_PAIRS if quick else PAIRS):
                made.append(row)
                out.write(report.table_line(row))
            out.flush()
            loads.append(os.getloadavg()[0])
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told = report.document(made, at=at, cores=os.cpu_count() or 1, load=sum(loads) / len(loads))
    out.write(f"\n{told['host']['cores']} cores, load {told['host']['load']}. {told['verdict']}\n")
    return told


def _start(upstream: str, folder: Path, stack: ExitStack, *, quick: bool) -> list[System]:
    """Start all systems; `stack` stops them."""

    def keep(system: System) -> System:
        stack.callback(system.stop)
        return system

    bare = keep(systems.start_bare(upstream, folder))
    found = [systems.direct(upstream), bare, keep(systems.start_treering(upstream, folder))]
    if not quick:
        found.append(bare.without_ids())
        nginx = systems.start_nginx(upstream, folder)
        if nginx is not None:
            found.append(keep(nginx))
        else:
            sys.stderr.write("nginx is not on the PATH: its rows are left out\n")
    return found


def is_wanted(shape: Shape, only: str | None) -> bool:
    """Say whether all the words of `only` describe a shape."""
    how = "streamed" if shape.streamed else "plain"
    told = [str(shape.prompt_tokens), how, shape.case, str(shape.connections)]
    return all(word in told for word in (only or "").split())
