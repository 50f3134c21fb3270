"""`bin/bench performance`: everything that docs/performance.md tells of what a call costs, in one run.

Its parts are measurements of their own, one behind the other; each writes its JSON and its section as soon as it has
ended, so that a run which is cut leaves what it had. At the end the goals are held against what lies in docs/, and what
ten thousand rollouts need is worked out from it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks import flat, goals, memory, overhead, pages, replay, sizing, workers

PAGE = overhead.PAGE


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: how it is made, whole and in short, where its rows go, and its section."""

    measure: Callable[[], Awaitable[dict[str, Any]]]
    quick: Callable[[], Awaitable[dict[str, Any]]]
    document: Path
    section: Callable[[dict[str, Any]], str]
    # On two cores that do nothing else.
    minutes: float


PARTS = {
    "overhead": Part(
        measure=lambda: overhead.measure(overhead.PARTS, quick=False),
        quick=lambda: overhead.measure(overhead.PARTS[:1], quick=True, only="2000 plain growing 8"),
        document=overhead.DOCUMENT,
        section=pages.overhead,
        minutes=14,
    ),
    "calls": Part(
        measure=flat.measure,
        quick=lambda: flat.measure(calls=30),
        document=flat.DOCUMENT,
        section=pages.calls,
        minutes=2.5,
    ),
    "replay": Part(
        measure=lambda: replay.measure(replay.LEVELS, scale=1.0, seconds=replay.SECONDS),
        quick=lambda: replay.measure((8,), scale=100.0, seconds=2.0),
        document=replay.DOCUMENT,
        section=replay.section,
        minutes=5,
    ),
    "memory": Part(
        measure=memory.measure,
        quick=lambda: memory.measure(rollouts=20, sleep_after_s=1.0),
        document=memory.DOCUMENT,
        section=memory.section,
        minutes=6.5,
    ),
    "workers": Part(
        measure=workers.measure,
        quick=lambda: workers.measure(quick=True),
        document=workers.DOCUMENT,
        section=workers.section,
        minutes=1.5,
    ),
}


def run(argv: list[str]) -> int:
    """Measure all that is asked for; 1 if a part failed."""
    total = sum(part.minutes for part in PARTS.values())
    parser = argparse.ArgumentParser(prog="bin/bench performance", description=f"all of it, some {total:.0f} minutes")
    parser.add_argument("--quick", action="store_true", help="each part in short, to see that it runs; writes no docs")
    parser.add_argument("--only", default="", metavar="PART,…", help=f"of {', '.join(PARTS)}; goals alone: no part")
    parser.add_argument("--docs", action="store_true", help="write docs/*.json and the sections in docs/performance.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there")
    asked = parser.parse_args(argv)
    wanted = [name for name in PARTS if not asked.only or name in asked.only.split(",")]
    if unknown := set(filter(None, asked.only.split(","))) - {*PARTS, "goals"}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    measured, failed = {}, []
    for name in wanted:
        part = PARTS[name]
        sys.stdout.write(f"\n## {name}, some {part.minutes:g} minutes, load {os.getloadavg()[0]:.1f}\n\n")
        sys.stdout.flush()
        began = time.monotonic()
        try:
            measured[name] = _measured(part.quick if asked.quick else part.measure)
        except (RuntimeError, ExceptionGroup) as error:
            # The others say what they have to say all the same.
            failed.append(name)
            sys.stderr.write(f"bin/bench performance: {name}: {error!r}\n")
            continue
        sys.stdout.write(f"\n{name}: {(time.monotonic() - began) / 60:.1f} minutes\n")
        if asked.docs and not asked.quick:
            part.document.write_text(json.dumps(measured[name], indent=1) + "\n")
            PAGE.write_text(pages.replaced(PAGE.read_text(), name, part.section(measured[name])))
    docs = documents() | measured
    sys.stdout.write(f"\n{goals.section(goals.goals(docs))}")
    if asked.docs and not asked.quick:
        PAGE.write_text(with_conclusions(PAGE.read_text(), documents()))
    if asked.json is not None:
        asked.json.write_text(json.dumps(measured, indent=1) + "\n")
    return int(bool(failed))


def documents() -> dict[str, dict[str, Any]]:
    """Return the runs that lie in docs/, by part."""
    return {name: json.loads(part.document.read_text()) for name, part in PARTS.items() if part.document.exists()}


def with_conclusions(page: str, docs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the docs' page with the goals and the sizing worked out anew. Raises ValueError if docs lack a run."""
    page = pages.replaced(page, "goals", goals.section(goals.goals(docs)))
    return pages.replaced(page, "sizing", sizing.section(docs))


def _measured(measure: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    async def it() -> dict[str, Any]:
        return await measure()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(it())
