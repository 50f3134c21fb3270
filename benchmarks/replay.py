"""`bin/bench replay`: traffic of agents, at the times at which they would make it, through a proxy for a while.

Theory of operation
So many rollouts are under way at once, each an agent with a connection of its own (`traffic.py` draws them). A call is
due when its agent would make it if the proxy took no time; the load does not wait for a slow proxy to be ready for
more. The engine sends each token at its own pace (`pace.py`). All of it, agents and engine, is one process on one core
of its own where there are two; the proxy has the other.

What can go wrong is told apart: an event that the *engine* wrote late, or a call that was *sent* late although its
agent was free, is the fault of the machine, which is then called overloaded, and of what is measured on it only the
counts are told. A token that was seen late behind an engine that was on time is the proxy's.

Nothing may be dropped: each reply's bytes are summed and held against those that the engine sent (without the ids, for
whoever asked for none), and of every rollout the record must hold each call with its numbers of tokens.

A run with `--scale 10` divides lengths of prompts and replies and the agents' pauses by ten: a smaller machine's load,
and not the published shape; the output says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks import interpreter, pace, pages, report, systems, traffic, wire
from benchmarks.agents import Agents, Seen, held_against
from benchmarks.corpus import Corpus
from benchmarks.systems import Treering
from benchmarks.traffic import Traffic

LEVELS = (32, 96, 192, 384)
SECONDS = 25.0
RAMP_S = 15.0
"""Until agents that begin somewhere between two calls are at work as they will be; not counted."""

OVERLOADED_MS = 50.0
"""Of lateness at p99, of the engine's events or of the agents' calls: more than two tokens' time."""

USABLE = 0.7
"""Of a core: beyond, a burst makes agents wait."""

DOCUMENT = systems.ROOT / "docs" / "replay.json"
PAGE = systems.ROOT / "docs" / "performance.md"


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What one system did with so many rollouts at once."""

    system: str
    rollouts: int
    scale: float
    seconds: float
    calls: int
    calls_per_s: float
    tokens_per_s: float
    prompt_tokens_p50: int
    prompt_tokens_p99: int
    reply_tokens_p50: int
    first_added_ms_p50: float
    first_added_ms_p99: float
    # From one token to the next, less the engine's pace.
    gap_added_ms_p50: float
    gap_added_ms_p99: float
    # Of calls, behind the time at which their agents would have made them without a proxy.
    behind_ms_p50: float
    behind_ms_p99: float
    # The machine's own: calls sent, and events written, after their time.
    late_ms_p99: float
    engine_late_ms_p99: float
    overloaded: bool
    cpu_ms_per_call: float
    # Of the process, mean over the time.
    cores: float
    # Of the process that is agents and engine.
    load_cores: float
    peak_mib: float
    # All calls that were made, those before and behind the clock included.
    made: int
    recorded: int | None
    altered: int
    dropped: int
    # Answered with an error, or not at all.
    failed: int


def level_of(
    system: str,
    rollouts: int,
    seen: Sequence[Seen],
    *,
    scale: float,
    seconds: float,
    cpu_ms: float,
    load_cpu_ms: float,
    peak_mib: float,
    engine_late_ms: Sequence[float],
    recorded: int | None,
    dropped: int,
    failed: int = 0,
) -> Level:
    """Return what a level comes to. Pure. Raises ValueError if no call was due while the clock ran."""
    counted = [each for each in seen if each.counted]
    if not counted:
        raise ValueError("no call was due in that time")

    def at(share: float, values: Sequence[float]) -> float:
        return round(report.percentile(values, share), 2)

    firsts, behind = [each.first_added_ms for each in counted], [each.behind_ms for each in counted]
    # The last three events come at once.
    gaps = [gap - traffic.TOKEN_S * 1000 for each in counted if each.in_time for gap in each.gaps_ms[2:-3]]
    prompts = [each.turn.n_prompt for each in counted]
    late, engine_late = at(0.99, [each.late_ms for each in counted]), at(0.99, engine_late_ms or [0.0])
    return Level(
        system=system,
        rollouts=rollouts,
        scale=scale,
        seconds=seconds,
        calls=len(counted),
        calls_per_s=round(len(counted) / seconds, 2),
        tokens_per_s=round(sum(each.turn.n_reply for each in counted) / seconds, 1),
        prompt_tokens_p50=int(statistics.median(prompts)),
        prompt_tokens_p99=int(report.percentile(prompts, 0.99)),
        reply_tokens_p50=int(statistics.median(each.turn.n_reply for each in counted)),
        first_added_ms_p50=at(0.5, firsts),
        first_added_ms_p99=at(0.99, firsts),
        gap_added_ms_p50=at(0.5, gaps or [0.0]),
        gap_added_ms_p99=at(0.99, gaps or [0.0]),
        behind_ms_p50=at(0.5, behind),
        behind_ms_p99=at(0.99, behind),
        late_ms_p99=late,
        engine_late_ms_p99=engine_late,
        overloaded=late > OVERLOADED_MS or engine_late > OVERLOADED_MS,
        cpu_ms_per_call=round(cpu_ms / len(counted), 2),
        cores=round(cpu_ms / 1000 / seconds, 3),
        load_cores=round(load_cpu_ms / 1000 / seconds, 3),
        peak_mib=round(peak_mib, 1),
        made=len(seen),
        recorded=recorded,
        altered=sum(not each.whole for each in seen),
        dropped=dropped,
        failed=failed,
    )


def rule_of(levels: Sequence[Level]) -> str:
    """Return the sizing rule that the levels give: rollouts for a core of Treering's. Pure."""
    own = [level for level in levels if level.system == "treering" and level.cores > 0]
    if not own:
        return "no level of Treering's was measured"
    kept = [level for level in own if not level.overloaded]
    if not kept:
        return "the machine was overloaded at every level: no rule"
    most = max(kept, key=lambda level: level.rollouts)
    fits = int(most.rollouts / most.cores * USABLE)
    reduced = "" if most.scale == 1 else f" of a {most.scale:g}th of the published lengths and pauses"
    return (
        f"{most.rollouts} rollouts{reduced} take {most.cores:.2f} of a core, so one core, {USABLE:.0%} of it used, has"
        f" room for {fits:,}; {most.peak_mib:,.0f} MiB were held at the most, {most.peak_mib / most.rollouts:.1f} MiB a"
        " rollout"
    )


def verdict(levels: Sequence[Level]) -> str:
    """Return a sentence on what was dropped, and who was overloaded. Pure."""
    own = [level for level in levels if level.system == "treering"]
    dropped, altered = sum(level.dropped for level in own), sum(level.altered for level in own)
    made, failed = sum(level.made for level in own), sum(level.failed for level in own)
    said = f"of {made:,} calls through Treering {dropped} are missing in the record and {altered} were not seen whole"
    said += f", {failed} more failed" if failed else ""
    overloaded = [f"{level.system} at {level.rollouts}" for level in levels if level.overloaded]
    return said + (f"; the machine was overloaded with {', '.join(overloaded)}" if overloaded else "")


_COLUMNS = (
    "rollouts", "system", "calls/s", "tokens/s", "first token, added p50", "p99", "gap, added p50", "p99", "behind p50",
    "p99", "sent late p99", "engine late p99", "CPU ms a call", "cores", "peak MiB", "calls", "recorded", "altered",
    "failed",
)  # fmt: skip


def heading() -> str:
    """Return the table's two first lines, in Markdown."""
    return report.line(_COLUMNS) + report.rule(_COLUMNS, words=(1,))


def table_line(level: Level) -> str:
    """Return a level as a line of the table; what an overloaded machine says of a proxy is in brackets."""

    def said(value: float) -> str:
        return f"({value:,.2f})" if level.overloaded else f"{value:,.2f}"

    return report.line(
        (
            f"{level.rollouts}",
            level.system,
            f"{level.calls_per_s:,.1f}",
            f"{level.tokens_per_s:,.0f}",
            said(level.first_added_ms_p50),
            said(level.first_added_ms_p99),
            said(level.gap_added_ms_p50),
            said(level.gap_added_ms_p99),
            said(level.behind_ms_p50),
            said(level.behind_ms_p99),
            f"{level.late_ms_p99:,.1f}",
            f"{level.engine_late_ms_p99:,.1f}",
            f"{level.cpu_ms_per_call:,.2f}",
            f"{level.cores:.2f}",
            f"{level.peak_mib:,.0f}",
            f"{level.made:,}",
            "" if level.recorded is None else f"{level.recorded:,}",
            f"{level.altered}",
            f"{level.failed}",
        )
    )


def section(told: dict[str, Any]) -> str:
    """Return the docs' section on a run, from its document."""
    levels = [msgspec.convert(row, Level) for row in told["rows"]]
    first = levels[0]
    drawn = (
        f"Drawn: prompts of {first.prompt_tokens_p50:,} tokens in the median and {first.prompt_tokens_p99:,} at p99,"
        f" replies of {first.reply_tokens_p50:,}, at {first.rollouts} rollouts; {first.seconds:g} s a level."
    )
    shrunk = "" if first.scale == 1 else f" **Lengths and pauses are a {first.scale:g}th of the published ones.**"
    said = f"{told['verdict'][0].upper()}{told['verdict'][1:]}. The rule: {told['rule']}."
    return f"{pages.run_of(told)} {drawn}{shrunk}\n\n{said}\n\n{heading()}{''.join(map(table_line, levels))}"


def run(argv: list[str]) -> int:
    """Measure and print; 1 if anything was dropped or altered, or failed."""
    parser = argparse.ArgumentParser(prog="bin/bench replay", description=__doc__.partition(":")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a hundredth of the lengths and pauses, two levels, 5 s each"
    )
    parser.add_argument("--levels", default="", metavar="N,…", help="rollouts at once (32,96,192,384)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each level (25)")
    parser.add_argument("--scale", type=float, default=1.0, help="divides prompts, replies and pauses (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--docs", action="store_true", help="write docs/replay.json and the section in the docs")
    asked = parser.parse_args(argv)
    levels = tuple(map(int, asked.levels.split(","))) if asked.levels else LEVELS
    scale, seconds = asked.scale, asked.seconds
    if asked.quick:
        levels, scale, seconds = levels[:2], max(scale, 100.0), min(seconds, 5.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            told = runner.run(measure(levels, scale=scale, seconds=seconds))
        except RuntimeError as error:
            sys.stderr.write(f"bin/bench replay: {error}\n")
            return 1
    if asked.json is not None:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    if asked.docs:
        publish(told)
    return int(any(row["dropped"] or row["altered"] or row["failed"] for row in told["rows"]))


def publish(told: dict[str, Any]) -> None:
    """Write a run beside the docs, and its section into them."""
    DOCUMENT.write_text(json.dumps(told, indent=1) + "\n")
    PAGE.write_text(pages.replaced(PAGE.read_text(), "replay", section(told)))


async def measure(levels: Sequence[int], *, scale: float, seconds: float, beside: bool = True) -> dict[str, Any]:
    """Measure each level through Treering; with `beside` the last one through the bare pass-through too.

    Raises RuntimeError.
    """
    out = sys.stdout
    corpus = Corpus()
    bytes_of = wire.Wire(corpus)
    loads, made, calls = [os.getloadavg()[0]], [], [0]
    if scale != 1:
        out.write(f"Lengths and pauses are divided by {scale:g}: this is not the published shape.\n")
    out.write(heading())
    with systems.one_core() as pinned:
        for rollouts in levels:
            for name in ("bare", "treering") if beside and rollouts == levels[-1] else ("treering",):
                level = await _level(name, rollouts, corpus, bytes_of, calls, scale=scale, seconds=seconds)
                made.append(level)
                out.write(table_line(level))
                out.flush()
                loads.append(os.getloadavg()[0])
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told: dict[str, Any] = {
        "benchmark": "replay",
        "version": report.VERSION,
        "at": at,
        "host": {"cores": os.cpu_count() or 1, "load": round(sum(loads) / len(loads), 2)},
        "python": interpreter.describe(),
        "pinned": pinned,
        "rows": [msgspec.to_builtins(level) for level in made],
        "verdict": verdict(made),
        "rule": rule_of(made),
    }
    out.write(f"\nload {told['host']['load']}. {told['verdict']}.\n{told['rule']}.\n")
    return told


async def _level(
    name: str, rollouts: int, corpus: Corpus, bytes_of: wire.Wire, calls: list[int], *, scale: float, seconds: float
) -> Level:
    engine = pace.Pace(bytes_of, first_s=traffic.FIRST_TOKEN_S, token_s=traffic.TOKEN_S, passes_ids=name == "bare")
    # The same rollouts for every system.
    drawn = Traffic(rollouts, scale=scale)
    begun = [drawn.begun() for _ in range(rollouts)]
    server, upstream = await pace.serve(bytes_of, engine)
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as folder, contextlib.ExitStack() as stack:
        stack.callback(server.close)
        starts = systems.start_bare if name == "bare" else systems.start_treering
        system = await asyncio.to_thread(starts, upstream, Path(folder))
        stack.callback(system.stop)
        system.reset_peak()
        agents = Agents(system, corpus, engine, calls)
        cost = await agents.run(begun, drawn, seconds, RAMP_S / scale)
        recorded, dropped = None, 0
        if isinstance(system, Treering):
            recorded, dropped = await asyncio.to_thread(held_against, system, agents.asked)
        return level_of(
            name,
            rollouts,
            agents.seen,
            scale=scale,
            seconds=seconds,
            cpu_ms=cost.system_cpu_ms,
            load_cpu_ms=cost.own_cpu_ms,
            peak_mib=system.peak_mib(),
            engine_late_ms=cost.engine_late_ms,
            recorded=recorded,
            dropped=dropped,
            failed=len(agents.failed),
        )
