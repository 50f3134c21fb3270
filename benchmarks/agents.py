"""So many agents at once in front of one system, each at its own times, and what they saw.

Each agent has a connection of its own, and a rollout's calls on it one after the other. What its prompts go on from is
said before the clock starts. A call is due when its agent would make it behind no proxy; `behind` is how late that was,
and of it `late` what passed although the agent was free to make it: the machine's own fault.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from benchmarks import load, pace, systems, traffic, wire
from benchmarks.corpus import TOOLS, Corpus
from benchmarks.systems import System, Treering
from benchmarks.traffic import Rollout, Traffic, Turn
from benchmarks.upstream import Flow

WARM_S = 0.03
"""Between two calls that are made before the clock starts."""

_WARM_REPLY = 8

HURRY_S = 0.002
"""Between two tokens once the clock has stopped: the longest reply under way would take 40 s more."""

DRAIN_S = 120.0
"""For the replies under way at the end; past this something hangs."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One call as its agent saw it."""

    turn: Turn
    # After the time at which an agent without a proxy would have sent it; and of that what the machine is to blame for.
    behind_ms: float
    late_ms: float
    # Beyond what the engine takes.
    first_added_ms: float
    gaps_ms: array[float]
    whole: bool
    # Due while the clock ran, and whole while it ran.
    counted: bool
    in_time: bool


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the measured time took."""

    system_cpu_ms: float
    # Of this process: agents and engine.
    own_cpu_ms: float
    engine_late_ms: array[float]


class Seat:
    """One agent's place: its connection, and its rollout's key."""

    def __init__(self, client: load.Client, key: str) -> None:
        self.client = client
        self.key = key
        self.busy = asyncio.Lock()


class Agents:
    """So many rollouts at once, in front of one system."""

    def __init__(self, system: System, corpus: Corpus, engine: pace.Pace, calls: list[int]) -> None:
        """`calls` holds the number of the last call, over all systems and levels."""
        self._system = system
        self._corpus = corpus
        self._engine = engine
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self.seen: list[Seen] = []
        # By key, what was answered: prompt and reply of each call.
        self.asked: dict[str, Counter[tuple[int, int]]] = {}
        self.failed: list[str] = []
        self._start = self._end = 0.0

    async def run(self, rollouts: Sequence[Rollout], drawn: Traffic, seconds: float, ramp_s: float = 0.0) -> Cost:
        """Warm up, let agents begin over `ramp_s`, run for so long, and let what is under way end."""
        keys = await asyncio.to_thread(self._system.open, len(rollouts))
        spare = iter(await asyncio.to_thread(self._system.open, max(8, len(rollouts))))
        seats = [Seat(await self._connect(), key) for key in keys]
        async with asyncio.TaskGroup() as group:
            for seat, one in zip(seats, rollouts, strict=True):
                for turn in one.warm:
                    group.create_task(self._warm(seat, turn))
                    await asyncio.sleep(WARM_S)
        both = (self._system, systems.direct(""))
        begins = self._loop.time()
        self._start = begins + ramp_s
        self._end = self._start + seconds
        async with asyncio.timeout(ramp_s + seconds + DRAIN_S):
            async with asyncio.TaskGroup() as group:
                for seat, one in zip(seats, rollouts, strict=True):
                    group.create_task(self._agent(seat, one, drawn, spare, begins))
                await asyncio.sleep(ramp_s)
                before = [each.cpu_ms() for each in both]
                self._engine.late_ms = array("d")
                await asyncio.sleep(seconds)
                took, own = (each.cpu_ms() - at for each, at in zip(both, before, strict=True))
                late = self._engine.late_ms
                self._engine.late_ms = array("d")
                self._engine.token_s = HURRY_S
        for seat in seats:
            seat.client.close()
        return Cost(system_cpu_ms=took, own_cpu_ms=own, engine_late_ms=late)

    async def _connect(self) -> load.Client:
        return await load.Client.connect(self._system.url, Flow())

    async def _warm(self, seat: Seat, turn: Turn) -> None:
        async with seat.busy:
            # With a short reply, which the next prompt begins with too: what matters is that its own was seen.
            short = msgspec.structs.replace(turn, n_reply=_WARM_REPLY)
            await self._call(seat, short, self._loop.time(), self._loop.time())

    async def _agent(self, seat: Seat, one: Rollout, drawn: Traffic, spare: Iterator[str], begins: float) -> None:
        due = free = begins
        while True:
            for turn in one.turns:
                due += turn.gap_s
                if due >= self._end:
                    return
                await asyncio.sleep(max(0.0, max(due, free) - self._loop.time()))
                if self._loop.time() >= self._end:
                    return
                free = await self._call(seat, turn, due, free)
                due += traffic.nominal_s(turn)
            one = drawn.fresh()
            seat.key = next(spare, seat.key)

    async def _call(self, seat: Seat, turn: Turn, due: float, free: float) -> float:
        """Make a call; return when its reply was whole. One that fails is noted, and the agent goes on without it."""
        self._calls[0] += 1
        call = self._calls[0]
        ask = wire.Ask(start=turn.start, n_prompt=turn.n_prompt, streamed=True, call=call, n_sampled=turn.n_reply)
        body = self._body(turn)
        head = load.head_of(body, key=seat.key, bench=ask.header())
        sent = self._loop.time()
        try:
            sample, reply = await seat.client.ask(load.Request(call=call, head=head, body=body), check=True)
        except ConnectionError as error:
            self.failed.append(str(error))
            seat.client.close()
            seat.client = await self._connect()
            return self._loop.time()
        self.asked.setdefault(seat.key, Counter())[turn.n_prompt, turn.n_reply] += 1
        ended = self._loop.time()
        expected = self._engine.expected.pop(call, (0, 0))
        first = sample.first_token_ms or 0.0
        self.seen.append(
            Seen(
                turn=turn,
                behind_ms=(sent - due) * 1000,
                late_ms=(sent - max(due, free)) * 1000,
                first_added_ms=first - self._engine.first_s * 1000,
                gaps_ms=sample.gaps_ms,
                whole=(reply.crc, sample.n_bytes) == expected,
                counted=0 < self._start <= due < self._end,
                in_time=ended < self._end,
            )
        )
        return ended

    def _body(self, turn: Turn) -> bytes:
        return msgspec.json.encode(
            {
                "model": "bench",
                "max_tokens": 4096,
                "messages": [
                    {"role": role, "content": self._corpus.text(start, end)}
                    for role, start, end in traffic.messages(turn)
                ],
                "tools": TOOLS,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )


def held_against(treering: Treering, asked: dict[str, Counter[tuple[int, int]]]) -> tuple[int, int]:
    """Return how many calls are in the record, and how many that were made are not, by their numbers of tokens."""
    recorded = missing = 0
    rollouts = treering.ids_by_secret
    for key, wanted in asked.items():
        found = Counter(
            (each["n_prompt"], each["n_sampled"])
            for each in treering.recorded(rollouts[key])
            if each["status"] == "complete"
        )
        recorded += found.total()
        missing += (wanted - found).total()
    return recorded, missing
