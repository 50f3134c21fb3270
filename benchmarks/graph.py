"""What the trie costs: bytes for each distinct token, and the time of an append, on the shapes that rollouts have.

Measured beside it, in the same run, is the plain way: one array of ids for each call, compared with every earlier call
to find the parent. It is what a store of prompts comes to, and it shows what linear in distinct tokens buys.

Bytes are those that Python allocates (tracemalloc), for ids alone: no logprobs, no text. Ids are random below 151,936
(Qwen's vocabulary), the worst case for a comparison, since nothing differs early inside a chain. Inputs are int32
arrays already: what parsing costs is not measured here.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from graph.records import IntArray
from graph.tokens import Trie, lcp

VOCABULARY = 151_936
GOAL_BYTES = 7.0
"""Per distinct token, on every shape. A run that exceeds it fails."""

Step = tuple[IntArray, IntArray]


def chain(n_calls: int, n_more: int, drift: int = 0) -> Iterator[Step]:
    """Yield (prompt, sampled) of a conversation that grows by `n_more` ids a call, losing `drift` of them each time."""
    rng = np.random.default_rng(0)
    path = np.empty(0, np.int32)
    for _ in range(n_calls):
        asked, sampled = (rng.integers(0, VOCABULARY, n_more // 2, dtype=np.int32) for _ in range(2))
        prompt = np.concatenate([path[: len(path) - drift], rng.integers(0, VOCABULARY, drift, dtype=np.int32), asked])
        yield prompt, sampled
        path = np.concatenate([prompt, sampled])


def branches(n_calls: int, n_more: int, n_shared: int) -> Iterator[Step]:
    """Yield the calls of many draws from one long prompt."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, VOCABULARY, n_shared, dtype=np.int32)
    for _ in range(n_calls):
        yield prompt, rng.integers(0, VOCABULARY, n_more, dtype=np.int32)


def subagents(n_agents: int, n_calls: int, n_more: int, n_shared: int) -> Iterator[Step]:
    """Yield the calls of agents that begin with one system prompt and take turns."""
    rng = np.random.default_rng(0)
    system = rng.integers(0, VOCABULARY, n_shared, dtype=np.int32)
    paths = [system] * n_agents
    for _ in range(n_calls):
        for agent, path in enumerate(paths):
            prompt = np.concatenate([path, rng.integers(0, VOCABULARY, n_more // 2, dtype=np.int32)])
            sampled = rng.integers(0, VOCABULARY, n_more // 2, dtype=np.int32)
            yield prompt, sampled
            paths[agent] = np.concatenate([prompt, sampled])


class Shape(NamedTuple):
    """A workload: what it is called and its calls, made one at a time."""

    name: str
    steps: Callable[[], Iterator[Step]]
    # The plain way needs calls times prompt length: not where that is more than memory.
    plain: bool = True


SHAPES = (
    Shape("chain to 100k", lambda: chain(200, 500)),
    Shape("drift of 6 a call to 100k", lambda: chain(200, 500, drift=6)),
    Shape("1,000 branches of 200 off 20k", lambda: branches(1000, 200, 20_000)),
    Shape("30 subagents of 40 calls off 8k", lambda: subagents(30, 40, 500, 8_000)),
)
LARGE = (
    Shape("chain to 1M", lambda: chain(2000, 500), plain=False),
    Shape("drift of 6 a call to 1M", lambda: chain(2000, 500, drift=6), plain=False),
)


class Store(Protocol):
    """Where calls go."""

    def append(self, key: int, prompt: IntArray, sampled: IntArray) -> None:
        """Take in one call."""


class Runs:
    """The trie of `graph.tokens`."""

    def __init__(self) -> None:
        self.trie = Trie()

    def append(self, key: int, prompt: IntArray, sampled: IntArray) -> None:
        """Take in one call and find its parent."""
        self.trie.insert(key, prompt, sampled)
        next(self.trie.ends(key, len(prompt)), None)


class Plain:
    """Every call whole."""

    def __init__(self) -> None:
        self.paths: list[IntArray] = []

    def append(self, key: int, prompt: IntArray, sampled: IntArray) -> None:
        """Take in one call and find its parent."""
        assert key == len(self.paths)
        best = 0
        for path in self.paths:
            if best < len(path) <= len(prompt) and lcp(path, prompt) == len(path):
                best = len(path)
        self.paths.append(np.concatenate([prompt, sampled]))


def measure(shape: Shape, store: Callable[[], Store]) -> dict[str, Any]:
    """Fill a store twice: once for the time of each append, once for the bytes."""
    timed, times = store(), []
    trie = Trie()
    for key, (prompt, sampled) in enumerate(shape.steps()):
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
    for key, (prompt, sampled) in enumerate(shape.steps()):
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


def run(argv: list[str]) -> int:
    """Measure, print a table, and write FILE; 1 when the trie needs more bytes than it may."""
    parser = argparse.ArgumentParser(prog="bin/bench graph", description="bytes per distinct token, time per append")
    parser.add_argument(
        "--quick", action="store_true", help="leave out the plain way and the rollouts of a million tokens"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    asked = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    out = sys.stdout.write
    out(
        f"{'implementation':<15}{'workload':<33}{'calls':>6}{'distinct':>10}{'B/token':>9}{'p50 us':>9}{'last us':>9}\n"
    )
    for shape in SHAPES if asked.quick else (*SHAPES, *LARGE):
        ways: list[tuple[str, Callable[[], Store]]] = [("runs", Runs)]
        if shape.plain and not asked.quick:
            ways.append(("array per call", Plain))
        for name, store in ways:
            row = {"implementation": name, "workload": shape.name, **measure(shape, store)}
            rows.append(row)
            calls, distinct, weight, median, last = list(row.values())[2:]
            out(f"{name:<15}{shape.name:<33}{calls:>6}{distinct:>10}{weight:>9}{median:>9}{last:>9}\n")
    if asked.json:
        told = {
            "benchmark": "graph",
            "version": 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "host": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
            "rows": rows,
        }
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    return int(any(row["implementation"] == "runs" and row["bytes_per_distinct_token"] > GOAL_BYTES for row in rows))
