"""What a call costs when its rollout has had many before: `bin/bench overhead --calls`.

Theory of operation
One rollout makes 1,000 calls on one connection, in blocks of ten, and every block is followed by the same one through
the bare pass-through, so that what the machine does meanwhile falls on both. Told is the CPU time a call around the
1st, 10th, 100th, 400th and 1,000th, the median of the blocks around it, beside the bare pass-through's of the same
calls. First calls are seen in ten rollouts that make no other, tenth ones in three more that make ten.

- `unrelated`: every prompt has 16,000 tokens and nothing in common with another, so every call is a root.
- `subagents`: conversations of ten calls, each prompt 500 tokens longer than the last, around 16,000: one behind the
  other in one rollout, as subagents are.
- `one conversation`: each prompt is 500 tokens longer than the last, up to 500,000. A prompt of 500,000 tokens is 2 MB
  of request and 3 MB of reply for everyone: here the ratio to the bare pass-through is what is flat, or is not.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks import interpreter, load, plan, report, systems, wire
from benchmarks.corpus import TURN_TOKENS, Corpus, request_body
from benchmarks.systems import System
from benchmarks.upstream import Flow, serve

Case = Literal["unrelated", "subagents", "one conversation"]
CASES: tuple[Case, ...] = ("unrelated", "subagents", "one conversation")

POINTS = (1, 10, 100, 400, 1_000)
BLOCK = 10
AROUND = 3
"""Blocks whose median is told, up to the point."""

PROMPT = 16_000
FLAT = 1.25
"""Of the cost at the 10th call: beyond, a call costs more for what came before it."""

DOCUMENT = systems.ROOT / "docs" / "overhead-calls.json"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What a call costs around the nth of its rollout."""

    case: Case
    call: int
    prompt_tokens: int
    treering_cpu_ms: float
    bare_cpu_ms: float
    treering_ms_p50: float
    bare_ms_p50: float
    # CPU time a call by the bare pass-through's.
    cpu_by_bare: float
    # Treering's CPU time by that around the 10th call.
    by_tenth: float | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Ten calls of both."""

    # Of its last call, from 1.
    call: int
    prompt_tokens: int
    cpu_ms: tuple[float, float]
    total_ms: tuple[float, float]


def ask_of(case: Case, n: int, *, rollout: int = 0) -> plan.Ask:
    """Return the nth call, from 0, of a rollout; no two rollouts have anything in common."""
    if case == "unrelated":
        return plan.Ask(0, plan.starts_of(1_500 * rollout + n, PROMPT), PROMPT)
    if case == "subagents":
        conversation, turn = divmod(n, BLOCK)
        start = plan.starts_of(1_500 * rollout + conversation, PROMPT)
        return plan.Ask(0, start, PROMPT + TURN_TOKENS * (turn - BLOCK // 2))
    return plan.Ask(0, rollout * plan.STRIDE, TURN_TOKENS * (n + 2))


def points(case: Case, first: Sequence[Block], tenth: Sequence[Block], blocks: Sequence[Block]) -> list[Point]:
    """Return what is told of a rollout; `first` are of rollouts with one call, `tenth` of such with ten. Pure."""
    made = []
    for at in POINTS:
        if at > BLOCK:
            near = [block for block in blocks if block.call <= at][-AROUND:]
        else:
            near = list(first) if at == 1 else [*tenth, *blocks[:1]]
        if not near or (at > 1 and near[-1].call < at):
            continue
        ours, bare = (statistics.median(block.cpu_ms[i] for block in near) for i in (0, 1))
        made.append(
            Point(
                case=case,
                call=at,
                prompt_tokens=near[-1].prompt_tokens,
                treering_cpu_ms=round(ours, 3),
                bare_cpu_ms=round(bare, 3),
                treering_ms_p50=round(statistics.median(block.total_ms[0] for block in near), 3),
                bare_ms_p50=round(statistics.median(block.total_ms[1] for block in near), 3),
                cpu_by_bare=round(ours / max(bare, 1e-3), 2),
            )
        )
    beside = next((point.treering_cpu_ms for point in made if point.call == BLOCK), None)
    if not beside:
        return made
    return [msgspec.structs.replace(point, by_tenth=round(point.treering_cpu_ms / beside, 2)) for point in made]


def verdict(made: Sequence[Point]) -> str:
    """Return a sentence on whether a call's cost grows with its rollout's calls. Pure."""
    last = [point for point in made if point.call == POINTS[-1] and point.case != "one conversation"]
    told = [f"{point.case} {point.by_tenth:.2f} x" for point in last if point.by_tenth is not None]
    if not told:
        return "not measured to the 1,000th call"
    flat = all((point.by_tenth or 0.0) <= FLAT for point in last)
    return f"the 1,000th call beside the 10th, CPU time: {', '.join(told)}: {'flat' if flat else 'not flat'}"


class _Rollout:
    """The calls of both systems, a block at a time."""

    def __init__(self, both: Sequence[System], corpus: Corpus, flow: Flow) -> None:
        self._both = both
        self._corpus = corpus
        self._flow = flow
        self._keys: list[list[str]] = []
        self._clients: list[load.Client] = []

    async def begin(self) -> None:
        self._keys = [await asyncio.to_thread(system.open, 1) for system in self._both]
        self._clients = [await load.Client.connect(system.url, self._flow) for system in self._both]

    async def end(self, calls: int) -> None:
        for client in self._clients:
            client.close()
        for system in self._both:
            await asyncio.to_thread(system.close_round, {0: calls})

    async def block(self, asks: Sequence[plan.Ask], *, last: int) -> Block:
        bodies = [request_body(self._corpus, ask.start, ask.n_prompt, streamed=False) for ask in asks]
        cpu, total = [0.0, 0.0], [0.0, 0.0]
        # Which of the two begins changes.
        for i in (0, 1) if last // BLOCK % 2 else (1, 0):
            system, client = self._both[i], self._clients[i]
            before = system.cpu_ms()
            took = []
            for ask, body in zip(asks, bodies, strict=True):
                bench = wire.Ask(start=ask.start, n_prompt=ask.n_prompt).header()
                head = load.head_of(body, key=self._keys[i][0], bench=bench)
                async with asyncio.timeout(load.ROUND_LIMIT_S):
                    sample, _ = await client.ask(load.Request(call=0, head=head, body=body))
                took.append(sample.total_ms)
            # The writer is still at work on the last ones.
            await asyncio.sleep(0.03)
            cpu[i] = (system.cpu_ms() - before) / len(asks)
            total[i] = statistics.median(took)
        size = sum(ask.n_prompt for ask in asks) // len(asks)
        return Block(call=last, prompt_tokens=size, cpu_ms=(cpu[0], cpu[1]), total_ms=(total[0], total[1]))


async def measure(*, calls: int = POINTS[-1], cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """Measure, printing as it goes; return the run as JSON's values. Raises RuntimeError."""
    corpus, flow = Corpus(), Flow()
    server, upstream = await serve(wire.Wire(corpus), flow)
    made: list[Point] = []
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as folder, systems.one_core() as pinned:
        treering = await asyncio.to_thread(systems.start_treering, upstream, Path(folder))
        bare = await asyncio.to_thread(systems.start_bare, upstream, Path(folder))
        rollout = _Rollout([treering, bare], corpus, flow)
        try:
            # What is done once in a process's life is none of a first call's cost.
            await _whole(rollout, "subagents", 5 * BLOCK, number=1)
            sys.stdout.write(heading())
            for case in cases:
                first = []
                for n in range(BLOCK):
                    await rollout.begin()
                    first.append(await rollout.block([ask_of(case, 0, rollout=2 + n)], last=BLOCK * n))
                    await rollout.end(1)
                tenth = [(await _whole(rollout, case, BLOCK, number=20 + n))[0] for n in range(AROUND)]
                found = points(case, first, tenth, await _whole(rollout, case, calls, number=0))
                made += found
                loads.append(os.getloadavg()[0])
                sys.stdout.write("".join(map(table_line, found)))
                sys.stdout.flush()
        finally:
            treering.stop()
            bare.stop()
            server.close()
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "benchmark": "overhead-calls",
        "version": report.VERSION,
        "at": at,
        "host": {"cores": os.cpu_count() or 1, "load": round(sum(loads) / len(loads), 2)},
        "python": interpreter.describe(),
        "pinned": pinned,
        "rows": [msgspec.to_builtins(point) for point in made],
        "verdict": verdict(made),
    }


async def _whole(rollout: _Rollout, case: Case, calls: int, *, number: int) -> list[Block]:
    await rollout.begin()
    blocks = []
    for at in range(0, calls, BLOCK):
        asks = [ask_of(case, n, rollout=number) for n in range(at, min(at + BLOCK, calls))]
        blocks.append(await rollout.block(asks, last=at + len(asks)))
    await rollout.end(calls)
    return blocks


_COLUMNS = (
    "case",
    "call",
    "prompt",
    "treering ms",
    "bare ms",
    "treering CPU ms",
    "bare CPU ms",
    "by bare",
    "by the 10th",
)


def heading() -> str:
    """Return the table's two first lines, in Markdown."""
    return report.line(_COLUMNS) + report.rule(_COLUMNS, words=(0,))


def table_line(point: Point) -> str:
    """Return a point as a line of the table."""
    return report.line(
        (
            point.case,
            f"{point.call:,}",
            f"{point.prompt_tokens:,}",
            report.shown(point.treering_ms_p50),
            report.shown(point.bare_ms_p50),
            report.shown(point.treering_cpu_ms),
            report.shown(point.bare_cpu_ms),
            report.shown(point.cpu_by_bare),
            report.shown(point.by_tenth),
        )
    )
