"""How Treering grows with processes: `bin/bench overhead --workers`.

Theory of operation
The same load (64 agents, growing conversations around 16,000 tokens, whole replies) goes to an appliance with one
worker, with two, and so on up to the machine's cores; to one process on PostgreSQL, and to two replicas on it, each
agent of a rollout always at the same one. They are started one after the other, and every round of one is followed by
one of each other (`rounds.py`): ratios to one worker are taken within a pair. Workers are not bound to a core here.

The load and the engine are one process and need a core themselves; with two cores in all, two workers cannot show
twice the speed of one, and what counts is the CPU time a call: that it does not grow with more processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import interpreter, load, pages, plan, report, systems, wire
from benchmarks.corpus import Corpus, request_body
from benchmarks.plan import Shape
from benchmarks.report import Turn
from benchmarks.systems import Treering
from benchmarks.upstream import Flow, serve

SHAPE = Shape(prompt_tokens=16_000, streamed=False, case="growing", connections=64, calls=5)
PAIRS, QUICK_PAIRS = 5, 2
SETTLE_S = 0.1

DOCUMENT = systems.ROOT / "docs" / "overhead-workers.json"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What so many processes did."""

    store: str
    # Processes on one machine and port, and such appliances behind a load balancer.
    workers: int
    replicas: int
    rps: float
    cpu_ms_per_call: float
    # Of PostgreSQL's processes, null for SQLite.
    postgres_cpu_ms_per_call: float | None
    # Medians over the pairs, by one worker on SQLite.
    ratio: float | None
    ratio_spread: float | None
    cpu_ratio: float | None
    noisy: bool
    peak_mib: float
    calls: int


class Place:
    """One way to set Treering up."""

    def __init__(self, store: str, found: Sequence[Treering], *, workers: int, database: int | None = None) -> None:
        """`database` is the process of PostgreSQL's server."""
        self.store = store
        self.found = found
        self.workers = workers
        self.database = database
        self.turns: list[Turn] = []
        self.database_cpu_ms = 0.0

    def __repr__(self) -> str:
        return f"<Place {self.store}, {len(self.found)} x {self.workers}>"

    def cpu_ms(self) -> float:
        """Return the CPU time of all of Treering's processes so far."""
        return sum(each.cpu_ms() for each in self.found)

    def database_ms(self) -> float:
        """Return the CPU time of PostgreSQL's processes so far."""
        return 0.0 if self.database is None else systems.tree_cpu_ms(self.database)


async def measure(*, quick: bool = False, workers: Sequence[int] | None = None) -> dict[str, Any]:
    """Measure, printing as it goes; return the run as JSON's values. Raises RuntimeError."""
    wanted = workers or [n for n in (1, 2, 4, 8, 16) if n <= max(2, os.cpu_count() or 1)]
    corpus, flow = Corpus(), Flow()
    server, upstream = await serve(wire.Wire(corpus), flow)
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as folder, contextlib.ExitStack() as stack:
        stack.callback(server.close)
        places = await asyncio.to_thread(_start, upstream, Path(folder), stack, wanted)
        used = 0
        for pair in range(QUICK_PAIRS if quick else PAIRS):
            plans, more = plan.lanes(SHAPE, used)
            used += more
            asks = [ask for lane in plans for ask in (*lane.warm, *lane.measured)]
            bodies = {ask: request_body(corpus, ask.start, ask.n_prompt, streamed=False) for ask in asks}
            first = pair % len(places)
            for place in (*places[first:], *places[:first]):
                await _turn(place, plans, bodies, flow)
            loads.append(os.getloadavg()[0])
    made = rows(places)
    sys.stdout.write(heading() + "".join(map(table_line, made)))
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "benchmark": "overhead-workers",
        "version": report.VERSION,
        "at": at,
        "host": {"cores": os.cpu_count() or 1, "load": round(sum(loads) / len(loads), 2)},
        "python": interpreter.describe(),
        "rows": [msgspec.to_builtins(row) for row in made],
        "verdict": verdict(made),
    }


def _start(upstream: str, folder: Path, stack: contextlib.ExitStack, workers: Sequence[int]) -> list[Place]:
    def one(name: str, *words: str) -> Treering:
        home = folder / name
        home.mkdir()
        found = systems.start_treering(upstream, home, *words)
        stack.callback(found.stop)
        return found

    places = [Place("sqlite", [one(f"sqlite-{n}", "--workers", str(n))], workers=n) for n in workers]
    try:
        # Its driver is an extra, without which all else is measured.
        from tests import postgres
    except ModuleNotFoundError as error:
        sys.stderr.write(f"no PostgreSQL: {error.name} is not installed; bin/setup.py test\n")
        return places
    if (reason := postgres.missing()) is not None:
        sys.stderr.write(f"no PostgreSQL: {reason}\n")
        return places
    database = stack.enter_context(postgres.Server.running(fsync=True))
    url = asyncio.run(database.database())
    # The postmaster writes its own number there; the sessions are its children.
    pid = int((database.folder / "data" / "postmaster.pid").read_text().split()[0])
    places.append(Place("postgresql", [one("postgresql", "--store", url)], workers=1, database=pid))
    shared = asyncio.run(database.database())
    both = [one(f"replica-{n}", "--store", shared) for n in (1, 2)]
    places.append(Place("postgresql", both, workers=1, database=pid))
    return places


async def _turn(place: Place, plans: Sequence[plan.LanePlan], bodies: Mapping[plan.Ask, bytes], flow: Flow) -> None:
    counts = Counter(ask.conversation for each in plans for ask in (*each.warm, *each.measured))
    # Any replica registers for all.
    keys = await asyncio.to_thread(place.found[0].open, len(counts))

    def ready(asks: Sequence[plan.Ask]) -> list[load.Request]:
        made = []
        for ask in asks:
            bench = wire.Ask(start=ask.start, n_prompt=ask.n_prompt).header()
            head = load.head_of(bodies[ask], key=keys[ask.conversation], bench=bench)
            made.append(load.Request(call=0, head=head, body=bodies[ask]))
        return made

    lanes = [load.Lane(warm=ready(each.warm), measured=ready(each.measured)) for each in plans]
    before, database = 0.0, 0.0

    def warmed() -> None:
        nonlocal before, database
        before, database = place.cpu_ms(), place.database_ms()

    for each in place.found:
        each.reset_peak()
    took = await load.run_round([each.url for each in place.found], lanes, flow, warmed=warmed)
    await asyncio.sleep(SETTLE_S)
    peak = sum(each.peak_mib() for each in place.found)
    place.turns.append(Turn(round=took, cpu_ms=place.cpu_ms() - before, peak_mib=peak))
    place.database_cpu_ms += place.database_ms() - database
    await asyncio.to_thread(place.found[0].close_round, counts)


def rows(places: Sequence[Place]) -> list[Row]:
    """Return the rows of what was measured. Pure. The first place is one worker on SQLite."""
    one = places[0].turns
    made = []
    for place in places:
        own = place.turns
        calls = sum(len(turn.round.samples) for turn in own)
        ratios = [mine.round.rps / its.round.rps for mine, its in zip(own, one, strict=True)]
        cpu = [mine.cpu_ms / its.cpu_ms for mine, its in zip(own, one, strict=True)]
        spread = report.spread_of(ratios)
        first = place is places[0]
        made.append(
            Row(
                store=place.store,
                workers=place.workers,
                replicas=len(place.found),
                rps=round(statistics.median(turn.round.rps for turn in own), 1),
                cpu_ms_per_call=round(sum(turn.cpu_ms for turn in own) / calls, 3),
                postgres_cpu_ms_per_call=None if place.database is None else round(place.database_cpu_ms / calls, 3),
                ratio=None if first else round(statistics.median(ratios), 3),
                ratio_spread=None if first or spread is None else round(spread, 3),
                cpu_ratio=None if first else round(statistics.median(cpu), 3),
                noisy=not first and (spread or 0.0) > report.NOISY_SPREAD,
                peak_mib=round(max(turn.peak_mib for turn in own), 1),
                calls=calls,
            )
        )
    return made


def verdict(made: Sequence[Row]) -> str:
    """Return a sentence on what more processes cost and bring. Pure."""
    told = []
    for row in made[1:]:
        name = f"{row.workers} workers" if row.store == "sqlite" else f"{row.replicas} on PostgreSQL"
        speed = "too noisy" if row.noisy else f"{row.ratio:.2f} x the requests"
        told.append(f"{name}: {speed}, {row.cpu_ratio:.2f} x the CPU time a call")
    return "beside one worker on SQLite, " + "; ".join(told) if told else "one worker alone was measured"


_COLUMNS = (
    "store", "replicas", "workers", "req/s", "by one worker", "CPU ms a call", "by one worker", "PostgreSQL's CPU ms",
    "peak MiB", "calls",
)  # fmt: skip


def heading() -> str:
    """Return the table's two first lines, in Markdown."""
    return report.line(_COLUMNS) + report.rule(_COLUMNS, words=(0,))


def table_line(row: Row) -> str:
    """Return a row as a line of the table; a ratio that says nothing in brackets."""
    ratio = report.shown(row.ratio)
    return report.line(
        (
            row.store,
            str(row.replicas),
            str(row.workers),
            report.shown(row.rps, 1),
            f"({ratio})" if row.noisy else ratio,
            report.shown(row.cpu_ms_per_call),
            report.shown(row.cpu_ratio),
            report.shown(row.postgres_cpu_ms_per_call),
            report.shown(row.peak_mib, 0),
            f"{row.calls:,}",
        )
    )


def section(told: Mapping[str, Any]) -> str:
    """Return the docs' section on a run, from its document."""
    lines = "".join(table_line(msgspec.convert(row, Row)) for row in told["rows"])
    return f"{pages.run_of(told)} {told['verdict'][0].upper()}{told['verdict'][1:]}.\n\n{heading()}{lines}"
