"""What a graph of token ids costs: bytes for each distinct token, and the time of an append.

Measured in one run, on the same calls (`benchmarks.workloads`):
- `treering`: the trie of `graph.tokens`, and the look for the exact parent;
- `treering, with logprobs`: the same, with a float32 for each sampled token, which is all that a rollout's arrays take;
- `array per call`: one array of ids for each call, compared with every earlier call to find the parent: what a store
  of prompts comes to;
- `openenv`: the graph of OpenEnv's capture server, at the version below, in an environment of its own.

Bytes are those that Python allocates (tracemalloc), no text; OpenEnv's are the growth of its process. Inputs are int32
arrays already (OpenEnv's, lists): what parsing costs is not measured here.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks import peers
from benchmarks.peers import OPENENV
from benchmarks.workloads import BESIDE, SHAPES, SIZES, Ids, Workload
from graph.records import FloatArray
from graph.tokens import Trie, lcp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
PUBLISHED = ROOT / "docs" / "graph.json"
LIMIT_S = 300.0
"""For one workload of OpenEnv's; 400 calls take some seconds."""

TREERING, LOGPROBS, PLAIN = "treering", "treering, with logprobs", "array per call"
LESS_MEMORY, FASTER = 400.0, 20.0
"""Goals beside OpenEnv at 400 calls."""

Row = dict[str, Any]


class Store(Protocol):
    """Where calls go."""

    def append(self, key: int, prompt: Ids, sampled: Ids) -> None:
        """Take in one call and find its parent."""


class Runs:
    """The trie of `graph.tokens`."""

    def __init__(self) -> None:
        self.trie = Trie()

    def append(self, key: int, prompt: Ids, sampled: Ids) -> None:
        """Take in one call and find its parent."""
        self.trie.insert(key, prompt, sampled)
        next(self.trie.ends(key, len(prompt)), None)


class RunsWithLogprobs(Runs):
    """The same, with the logprobs that a call has."""

    def __init__(self) -> None:
        super().__init__()
        self.logprobs: list[FloatArray] = []

    def append(self, key: int, prompt: Ids, sampled: Ids) -> None:
        """Take in one call and find its parent."""
        super().append(key, prompt, sampled)
        self.logprobs.append(np.full(len(sampled), -0.5, np.float32))


class Plain:
    """Every call whole."""

    def __init__(self) -> None:
        self.paths: list[Ids] = []

    def append(self, key: int, prompt: Ids, sampled: Ids) -> None:
        """Take in one call and find its parent."""
        assert key == len(self.paths)
        best = 0
        for path in self.paths:
            if best < len(path) <= len(prompt) and lcp(path, prompt) == len(path):
                best = len(path)
        self.paths.append(np.concatenate([prompt, sampled]))


STORES: Mapping[str, Callable[[], Store]] = {TREERING: Runs, LOGPROBS: RunsWithLogprobs, PLAIN: Plain}


def measure(workload: Workload, store: Callable[[], Store]) -> Row:
    """Fill a store twice: once for the time of each append, once for the bytes."""
    timed, times = store(), []
    trie = Trie()
    for key, (prompt, sampled) in enumerate(workload.steps()):
        started = time.perf_counter_ns()
        timed.append(key, prompt, sampled)
        times.append((time.perf_counter_ns() - started) / 1000)
        trie.insert(key, prompt, sampled)
    del timed
    distinct = trie.distinct
    del trie
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    weighed = store()
    for key, (prompt, sampled) in enumerate(workload.steps()):
        weighed.append(key, prompt, sampled)
    del prompt, sampled
    gc.collect()
    weight = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return {
        "calls": len(times),
        "distinct_tokens": distinct,
        "bytes_per_distinct_token": round(weight / distinct, 2),
        "append_us_p50": round(float(np.median(times)), 1),
        "append_us_last": round(float(np.median(times[-9:])), 1),
    }


def measure_openenv(python: Path, workload: Workload) -> Row:
    """Measure OpenEnv's graph in a process of its own. Raises RuntimeError where that fails."""
    argv = [str(python), "-m", "benchmarks.openenv_graph", workload.name]
    env = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"OpenEnv's graph: {error}") from error
    if done.returncode:
        raise RuntimeError(f"OpenEnv's graph ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    row: Row = json.loads(done.stdout)
    return row


def shortfalls(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each goal of memory that was not kept, and for those beside OpenEnv."""
    told = []
    goals = {each.name: each for each in (*SHAPES, *SIZES)}
    for row in rows:
        goal = goals.get(row["workload"])
        if row["implementation"] == TREERING and goal is not None and row["bytes_per_distinct_token"] > goal.most_bytes:
            told.append(f"{goal.name}: {row['bytes_per_distinct_token']} bytes a token, over {goal.most_bytes}")
    for less, faster, row in ratios(rows):
        if row["calls"] >= 400 and (less < LESS_MEMORY or faster < FASTER):
            told.append(f"{row['workload']}: {less:.0f} times less memory and {faster:.0f} times faster than OpenEnv")
    return told


def slow(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each append that took longer than its goal. That fails no run, since machines differ."""
    goals = {each.name: each.most_us for each in SHAPES}
    return [
        f"{row['workload']}: {row['append_us_last']} us an append, over {goal}"
        for row in rows
        if row["implementation"] == TREERING
        and (goal := goals.get(row["workload"])) is not None
        and row["append_us_last"] > goal
    ]


def ratios(rows: Sequence[Row]) -> list[tuple[float, float, Row]]:
    """Return OpenEnv's bytes and append time by Treering's, with OpenEnv's row, of each workload that has both."""
    own = {row["workload"]: row for row in rows if row["implementation"] == LOGPROBS}
    return [
        (
            row["bytes_per_distinct_token"] / own[row["workload"]]["bytes_per_distinct_token"],
            row["append_us_p50"] / own[row["workload"]]["append_us_p50"],
            row,
        )
        for row in rows
        if row["implementation"].startswith("openenv") and row["workload"] in own
    ]


COLUMNS = ("implementation", "workload", "calls", "distinct tokens", "bytes a token", "append p50 us", "last us")


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---:|---:|---:|---:|---:|"]
    lines += [
        f"| {row['implementation']} | {row['workload']} | {row['calls']:,} | {row['distinct_tokens']:,}"
        f" | {row['bytes_per_distinct_token']:,.2f} | {row['append_us_p50']:,.1f} | {row['append_us_last']:,.1f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


BEGIN, END = "<!-- graph: made by `bin/bench graph --docs` -->\n", "<!-- end of graph -->\n"


def section(told: Mapping[str, Any]) -> str:
    """Return the docs' section on a run, from its document."""
    rows: list[Row] = told["rows"]
    sizes = {each.name for each in SIZES}
    compared = [row for row in rows if row["implementation"] not in (TREERING, PLAIN)]
    grown = [row for row in rows if row["implementation"] == TREERING and row["workload"] in sizes]
    grown.sort(key=lambda row: int(row["distinct_tokens"]))
    names = {each.name for each in SHAPES}
    shapes = [row for row in rows if row["implementation"] in (TREERING, PLAIN) and row["workload"] in names]
    host = told["host"]
    lines = [BEGIN, "## The graph\n\n"]
    lines += [f"`bin/bench graph`, {told['at'][:10]}, {host['cores']} cores, load {host['load']}.\n\n", table(shapes)]
    lines += ["\nLinear: the same conversation at four sizes. An append reads its prompt once.\n\n", table(grown)]
    if compared:
        lines += ["\nBeside OpenEnv's capture graph, both with logprobs, on the same calls:\n\n", table(compared), "\n"]
        lines += [
            f"At {row['calls']} calls Treering takes {less:,.0f} times less memory; an append, {faster:,.0f} times less"
            " time.\n"
            for less, faster, row in ratios(rows)
        ]
    if judged := told.get("stories"):
        share = judged["right"] / judged["stories"]
        lines.append(
            f"\n`bin/bench graph --stories {judged['stories']}`: of {judged['stories']:,} drawn rollouts with"
            f" {judged['calls']:,} calls, {judged['right']:,} are right in every role, kind, link, parent and retry"
            f" ({share:.2%}). Conversations by what they were for, and what they were taken for:\n\n"
        )
        lines.append(confusion(judged["roles"]))
    return "".join([*lines, END])


def confusion(counts: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in Markdown: a line for what is true, a column for what was said."""
    said = sorted({each["said"] for each in counts})
    known = {(each["true"], each["said"]): each["n"] for each in counts}
    lines = ["| true | " + " | ".join(said) + " |", "|---|" + "---:|" * len(said)]
    for true in sorted({each["true"] for each in counts}):
        cells = (f"{known[true, word]:,}" if (true, word) in known else "" for word in said)
        lines.append(f"| {true} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def with_section(page: str, told: Mapping[str, Any]) -> str:
    """Return the docs' page with the section on the graph replaced, or put at its end."""
    if BEGIN not in page:
        # What follows there is replaced, to its end, by another measurement.
        before, last, rest = page.partition("## The last run\n")
        return f"{before.rstrip()}\n\n{section(told)}\n{last}{rest}"
    before, _, rest = page.partition(BEGIN)
    return before + section(told) + rest.partition(END)[2]


def publish(told: Mapping[str, Any]) -> None:
    """Write a run, or a part of one, into docs/graph.json and docs/performance.md; other parts stay."""
    before = json.loads(PUBLISHED.read_text()) if PUBLISHED.exists() else {}
    whole = {**before, **told}
    PUBLISHED.write_text(json.dumps(whole, indent=1) + "\n")
    PAGE.write_text(with_section(PAGE.read_text(), whole))


def run(argv: list[str]) -> int:
    """Measure, print a table, and write FILE; 1 when memory is over a goal."""
    if any(word.partition("=")[0] == "--stories" for word in argv):
        from benchmarks import stories

        return stories.run(argv)
    parser = argparse.ArgumentParser(prog="bin/bench graph", description="bytes per distinct token, time per append")
    parser.add_argument("--quick", action="store_true", help="leave out OpenEnv and the rollouts of a million tokens")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument(
        "--docs", action="store_true", help="write docs/graph.json and the table in docs/performance.md"
    )
    parser.add_argument(
        "--stories", type=int, metavar="N", help="judge N drawn rollouts instead, and count what is right"
    )
    asked = parser.parse_args(argv)
    rows: list[Row] = []

    def add(name: str, workload: Workload, measured: Row) -> None:
        rows.append({"implementation": name, "workload": workload.name, **measured})
        sys.stderr.write(f"{name}: {workload.name}\n")

    for workload in SHAPES:
        if asked.quick and workload.large:
            continue
        add(TREERING, workload, measure(workload, Runs))
        if workload.plain and not asked.quick:
            add(PLAIN, workload, measure(workload, Plain))
    for workload in () if asked.quick else SIZES:
        if workload.name not in {row["workload"] for row in rows}:
            add(TREERING, workload, measure(workload, Runs))
    if not asked.quick:
        try:
            python = peers.environment("openenv", f"openenv=={OPENENV}", "450 MB") / "bin" / "python"
            for workload in BESIDE:
                add(LOGPROBS, workload, measure(workload, RunsWithLogprobs))
                add(f"openenv {OPENENV}", workload, measure_openenv(python, workload))
        except RuntimeError as error:
            sys.stderr.write(f"bench: without OpenEnv: {error}\n")
    sys.stdout.write(table(rows))
    told = {
        "benchmark": "graph",
        "version": 1,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "host": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
        "rows": rows,
    }
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    if asked.docs:
        publish(told)
    missed = shortfalls(rows)
    sys.stderr.write("".join(f"bench: {line}\n" for line in [*missed, *slow(rows)]))
    return int(bool(missed))
