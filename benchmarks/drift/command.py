"""`bin/bench drift`: every scenario under every template, plain, pinned and rendered again; real agents; a real engine.

bin/bench drift --quick             four templates, the recorded agents under one, the engine under one: minutes
bin/bench drift --docs              all of it, and docs/drift.md, drift.json and drift.svg
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.drift import agents, cost, engine, page, plot
from benchmarks.drift.page import ALONE
from benchmarks.drift.rows import Case, Row, nothing, of_had, of_rerendered, rerendered
from benchmarks.drift.standin import Had, Recorder, RefusedError, StandIn
from benchmarks.drift.templates import ROOT, TEMPLATES, Renderings, Template, missing, rendering
from capture.trial.scenarios import SCENARIOS, Script

QUICK = ("qwen3", "llama3.1", "glm4-moe", "gemma3")
MODES = ("engine", "pinned", "rerender")

PAGE, DATA, PLOT = (ROOT / "docs" / name for name in ("drift.md", "drift.json", "drift.svg"))


def scenarios(renderings: Renderings, template: Template) -> Iterator[Row]:
    """Yield the rows of every scenario under a template."""
    for scenario in SCENARIOS.values():
        case = Case(scenario=scenario.name, template=template.name, agent="chat", served_by=ALONE)
        yield from _rows(renderings, template, case, lambda one=scenario: one.script())


def recorded(renderings: Renderings, template: Template) -> Iterator[Row]:
    """Yield the rows of every recorded agent under a template."""
    for record in agents.records():
        case = Case(scenario=record.scenario, template=template.name, agent=record.agent, served_by=ALONE)
        yield from _rows(renderings, template, case, lambda one=record: agents.script(one))


def _rows(renderings: Renderings, template: Template, case: Case, script: Any) -> Iterator[Row]:
    try:
        plain, pinned = (_had(renderings, template, script(), pinned=pinned) for pinned in (False, True))
    except RefusedError:
        yield from (nothing(case, mode, "the template refuses the messages") for mode in MODES)
        return
    yield of_had(case, "engine", plain)
    yield of_had(case, "pinned", pinned)
    yield of_rerendered(
        case,
        [
            rerendered(renderings, template, asked, asked.says, _ids(call.prompt_ids), _ids(call.sampled_ids))
            for asked, call in zip(plain.asks, plain.calls, strict=True)
        ],
    )


def _ids(array: Any) -> list[int]:
    found: list[int] = array.tolist()
    return found


def _had(renderings: Renderings, template: Template, script: Script, *, pinned: bool) -> Had:
    return asyncio.run(Recorder(StandIn(renderings, template), pinned=pinned).play(script))


def drifting(rows: list[Row]) -> list[str]:
    """Return what contradicts the promise: a kept history that was pinned everywhere and drifts all the same."""
    return [
        f"{row.scenario}, {row.template}: {row.exact} of {row.transitions} exact"
        for row in rows
        if row.mode == "pinned"
        and row.agent == "chat"
        and SCENARIOS[row.scenario].kept
        and not row.fallback
        and row.exact < row.transitions
    ]


def run(argv: list[str]) -> int:
    """Measure, print the tables, and write FILE; 1 where a pinned conversation drifts, 2 without templates."""
    if "--cost" in argv:
        return cost.run(argv)
    parser = argparse.ArgumentParser(prog="bin/bench drift", description="drift by scenario, template, agent and mode")
    parser.add_argument("--quick", action="store_true", help="four templates, and one at the engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--docs", action="store_true", help="write docs/drift.md, drift.json and drift.svg")
    parser.add_argument("--no-engine", action="store_true", help="leave out the real engine")
    parser.add_argument("--cost", action="store_true", help="measure what pinned prefixes cost instead")
    asked = parser.parse_args(argv)
    if (why := missing()) is not None:
        sys.stderr.write(f"bench: {why}\n")
        return 2
    rows: list[Row] = []
    examples: dict[str, Any] = {}
    with rendering() as renderings:
        for name in QUICK if asked.quick else TEMPLATES:
            sys.stderr.write(f"template: {name}\n")
            rows += scenarios(renderings, TEMPLATES[name])
        for name in QUICK[:1] if asked.quick else QUICK:
            sys.stderr.write(f"agents: {name}\n")
            rows += recorded(renderings, TEMPLATES[name])
        if not asked.no_engine:
            served, examples, why = engine.run(renderings, quick=asked.quick)
            rows = [*served, *rows]
            if why is not None:
                sys.stderr.write(f"bench: without an engine: {why}\n")
    told = {
        "benchmark": "drift",
        "version": 1,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "host": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
        "rows": msgspec.to_builtins(rows),
        "examples": examples,
    }
    sys.stdout.write(f"{page.served(rows)}\n{page.matrix(rows)}\n{page.agents(rows)}")
    if asked.json:
        asked.json.write_text(dumped(told))
    if asked.docs:
        publish(told)
    missed = drifting(rows)
    sys.stderr.write("".join(f"bench: pinned, and drifts: {line}\n" for line in missed))
    return int(bool(missed))


def dumped(told: dict[str, Any]) -> str:
    """Return a run as JSON, a line a row."""
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in told["rows"])
    rest = {name: value for name, value in told.items() if name != "rows"}
    return f'{json.dumps(rest, ensure_ascii=False)[:-1]}, "rows": [\n{rows}\n]}}\n'


def publish(told: dict[str, Any]) -> None:
    """Write a run into docs/."""
    rows = [msgspec.convert(row, Row) for row in told["rows"]]
    DATA.write_text(dumped(told))
    alone = [row for row in rows if row.served_by == ALONE and row.agent == "chat"]
    PLOT.write_text(plot.svg(alone, title=f"{len({row.template for row in alone})} chat templates, {told['at'][:10]}"))
    PAGE.write_text(page.with_parts(PAGE.read_text(), told))
