"""What a tunnel adds to a call: one Treering, asked at its own address and through ssh on loopback.

Theory of operation
As `overhead`: in a pair both ways get the same calls, one after the other; ratios are taken within a pair, and the
median over the pairs is the result. Load, Treering, upstream, ssh and sshd share one machine and a network without
distance: what is seen is what the programs cost, not what a real line adds. Streams are paced by who reads them, an
event at a time, so a stream's time is that of its many small messages; whole replies to large prompts are bytes.

To replace a lost tunnel: the ssh is killed, and the time is taken until `GET /tunnels` shows another that was proved.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import uvloop

from benchmarks import report, systems, wire
from benchmarks.corpus import REPLY_TOKENS, Corpus
from benchmarks.plan import Shape
from benchmarks.report import NOISY_SPREAD, Turn
from benchmarks.rounds import Bench
from benchmarks.systems import System, Treering
from benchmarks.upstream import Flow, serve

PAIRS, QUICK_PAIRS = 7, 3
LOSSES, QUICK_LOSSES = 9, 3

ROLLOUTS = 4_096
"""That share the one tunnel: all of a round."""

STREAMS = 64
"""At once through one tunnel: twice as many rollouts as share one unless said otherwise."""

REPLACE_LIMIT_S = 60.0

DOCUMENT = systems.ROOT / "docs" / "tunnel.json"
PAGE = systems.ROOT / "docs" / "tunnels.md"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one way did with one shape of calls."""

    system: str
    prompt_tokens: int
    streamed: bool
    connections: int
    rps: float
    # Sampled tokens a second, all connections together.
    tokens_per_s: float
    total_ms_p50: float
    total_ms_p99: float
    # Null where nothing was streamed.
    first_token_ms_p50: float | None
    first_token_ms_p99: float | None
    # Median over the pairs of the requests per second by those without a tunnel; null for that itself.
    ratio_to_direct: float | None
    ratio_spread: float | None
    noisy: bool
    calls: int


class Way(System):
    """One way to a Treering."""

    def __init__(self, treering: Treering, name: str, where: Literal["local", "remote"]) -> None:
        super().__init__(name, treering.pid, treering.url)
        self._treering = treering
        self._where = where

    def open(self, conversations: int) -> list[str]:
        """Register rollouts whose agents come this way; return their secrets."""
        reach = {"agent": self._where, "tools": "local"}
        made = self._treering.register({"n": conversations, "reach": reach})
        urls = {each["url"] for each in made}
        if len(urls) != 1 or (self._where == "remote") == (urls == {self._treering.url}):
            raise RuntimeError(f"{conversations} rollouts were to have one way, {self._where}; they have {urls}")
        (self.url,) = urls
        return [each["secret"] for each in made]

    def close_round(self, calls: dict[int, int]) -> None:
        """End a round. Raises RuntimeError if a call is missing."""
        self._treering.close_round(calls)


def shapes(*, quick: bool) -> list[Shape]:
    """Return what is measured: streams, one to many at once, and large prompts with whole replies."""
    few = 2 if quick else 1
    made = [
        Shape(prompt_tokens=2_000, streamed=True, case="growing", connections=n, calls=calls // few)
        for n, calls in ((1, 40), (8, 8), (STREAMS, 4))
    ]
    made += [
        Shape(prompt_tokens=100_000, streamed=False, case="growing", connections=n, calls=calls // few)
        for n, calls in ((1, 16), (8, 4))
    ]
    return made


def rows(shape: Shape, direct: Sequence[Turn], far: Sequence[Turn], names: tuple[str, str]) -> list[Row]:
    """Return the two rows of one shape."""
    ratios = [its.round.rps / mine.round.rps for mine, its in zip(direct, far, strict=True)]
    spread = report.spread_of(ratios)
    made = []
    for name, turns in zip(names, (direct, far), strict=True):
        samples = [sample for turn in turns for sample in turn.round.samples]
        totals = [sample.total_ms for sample in samples]
        firsts = [sample.first_token_ms for sample in samples if sample.first_token_ms is not None]
        rps = statistics.median(turn.round.rps for turn in turns)
        is_far = turns is far
        made.append(
            Row(
                system=name,
                prompt_tokens=shape.prompt_tokens,
                streamed=shape.streamed,
                connections=shape.connections,
                rps=round(rps, 2),
                tokens_per_s=round(rps * REPLY_TOKENS, 1),
                total_ms_p50=round(report.percentile(totals, 0.5), 2),
                total_ms_p99=round(report.percentile(totals, 0.99), 2),
                first_token_ms_p50=round(report.percentile(firsts, 0.5), 2) if firsts else None,
                first_token_ms_p99=round(report.percentile(firsts, 0.99), 2) if firsts else None,
                ratio_to_direct=round(statistics.median(ratios), 3) if is_far else None,
                ratio_spread=round(spread, 3) if is_far and spread is not None else None,
                noisy=is_far and spread is not None and spread > NOISY_SPREAD,
                calls=len(samples),
            )
        )
    return made


def replaced(treering: Treering, kill: Callable[[], None]) -> float:
    """Return the seconds from the death of a tunnel's program to another that was proved. Raises RuntimeError."""
    (before,) = treering.ask("GET", "/tunnels")["tunnels"]
    began = time.monotonic()
    kill()
    while time.monotonic() - began < REPLACE_LIMIT_S:
        (now,) = treering.ask("GET", "/tunnels")["tunnels"]
        if now["healthy"] and now["opened"] > before["opened"]:
            return time.monotonic() - began
        time.sleep(0.01)
    raise RuntimeError(f"no tunnel took the place of the lost one within {REPLACE_LIMIT_S:g} s")


def run(*, quick: bool, file: Path | None, docs: bool) -> int:
    """Measure, print a table, write FILE; 1 if something did not start, or lost a call."""
    command = "bin/bench overhead --tunnel ssh" + (" --quick" if quick else "")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            told = runner.run(_run(quick=quick, command=command))
        except RuntimeError as error:
            sys.stderr.write(f"bin/bench overhead: {error}\n")
            return 1
    for each in (file, DOCUMENT if docs else None):
        if each is not None:
            each.write_text(json.dumps(told, indent=1) + "\n")
    if docs:
        PAGE.write_text(with_section(PAGE.read_text(), told))
    return 0


async def _run(*, quick: bool, command: str) -> dict[str, Any]:
    # Of the tests: a throw-away sshd, with keys and a configuration of its own.
    from tests import sshd
    from tests.processes import descendants

    if sshd.MISSING is not None:
        raise RuntimeError(sshd.MISSING)
    corpus, flow = Corpus(), Flow()
    server, upstream = await serve(wire.Wire(corpus), flow)
    made: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as text:
        folder = Path(text)
        async with sshd.sshd(folder / "ssh") as far:
            words = ("--tunnel", far.spec, "--tunnel-multiplex", str(ROLLOUTS))
            path = far.program()
            treering = await asyncio.to_thread(systems.start_treering, upstream, folder, *words, path=path)
            try:
                ways = (Way(treering, "treering", "local"), Way(treering, "treering, ssh", "remote"))
                bench = Bench(ways, corpus, flow)
                await bench.check()
                loads = [os.getloadavg()[0]]
                sys.stdout.write(heading())
                for shape in shapes(quick=quick):
                    turns = await bench.turns(shape, QUICK_PAIRS if quick else PAIRS)
                    direct, tunnelled = (turns[way.name] for way in ways)
                    found = rows(shape, direct, tunnelled, (ways[0].name, ways[1].name))
                    made += found
                    sys.stdout.write("".join(map(line, found)))
                    sys.stdout.flush()
                    loads.append(os.getloadavg()[0])

                def kill() -> None:
                    (ssh,) = [
                        pid
                        for pid, args in descendants(treering.pid, f"-p {far.port}").items()
                        if "leash.py" not in args
                    ]
                    os.kill(ssh, signal.SIGKILL)

                # A rollout needs the tunnel, or nothing would take its place.
                await asyncio.to_thread(ways[1].open, 1)
                times = [
                    await asyncio.to_thread(replaced, treering, kill) for _ in range(QUICK_LOSSES if quick else LOSSES)
                ]
            finally:
                await asyncio.to_thread(treering.stop)
        server.close()
    told = {
        "benchmark": "overhead",
        "version": report.VERSION,
        "command": command,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "host": {"cores": os.cpu_count() or 1, "load": round(sum(loads) / len(loads), 2)},
        "rows": [msgspec.to_builtins(row) for row in made],
        "replaced_s": {"p50": round(statistics.median(times), 2), "most": round(max(times), 2), "losses": len(times)},
    }
    sys.stdout.write(f"\n{summary(told)}\n")
    return told


_COLUMNS = (
    "prompt", "reply", "at once", "way", "calls/s", "tokens/s", "of direct", "call p50", "p99", "first token", "p99",
)  # fmt: skip
_SECTION = "## Measured\n"


def heading() -> str:
    """Return the table's two first lines, in Markdown."""
    rule = "|".join("---" if i in (1, 3) else "---:" for i in range(len(_COLUMNS)))
    return f"| {' | '.join(_COLUMNS)} |\n|{rule}|\n"


def line(row: Row) -> str:
    """Return a row as a line of the table; a ratio that says nothing in brackets."""
    ratio = "" if row.ratio_to_direct is None else f"{row.ratio_to_direct:.2f}"
    cells = (
        f"{row.prompt_tokens:,}",
        "streamed" if row.streamed else "whole",
        str(row.connections),
        row.system,
        f"{row.rps:,.1f}",
        f"{row.tokens_per_s:,.0f}",
        f"({ratio})" if row.noisy else ratio,
        f"{row.total_ms_p50:,.1f} ms",
        f"{row.total_ms_p99:,.1f} ms",
        "" if row.first_token_ms_p50 is None else f"{row.first_token_ms_p50:,.1f} ms",
        "" if row.first_token_ms_p99 is None else f"{row.first_token_ms_p99:,.1f} ms",
    )
    return f"| {' | '.join(cells)} |\n"


def summary(told: Mapping[str, Any]) -> str:
    """Return a run in a sentence or two."""
    host, lost = told["host"], told["replaced_s"]
    return (
        f"`{told['command']}`, {told['at'][:10]}, {host['cores']} cores, load {host['load']}. A lost tunnel was "
        f"replaced after {lost['p50']} s in the median of {lost['losses']} losses, {lost['most']} s at most."
    )


def with_section(page: str, told: Mapping[str, Any]) -> str:
    """Return the docs' page with its last section, on the last run, replaced. Raises ValueError if there is none."""
    table = "".join(line(msgspec.convert(row, Row)) for row in told["rows"])
    about = (
        "Load, Treering, engine, ssh and sshd share one machine, so this is what the programs cost and not what a line "
        "adds. Each stream is paced by its reader, an event at a time. Ratios in brackets differ too much from pair to "
        "pair to say anything: the machine had other work.\n\n"
    )
    return f"{page[: page.index(_SECTION)]}{_SECTION}\n{summary(told)}\n\n{about}{heading()}{table}"
