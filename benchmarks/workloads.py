"""The calls that graphs are measured on. numpy alone, so that every environment makes the same ones.

Ids are random below 151,936 (Qwen's vocabulary), the worst case for a comparison, since nothing differs early inside a
chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

VOCABULARY = 151_936
# Tokens that a call adds to a conversation, half of them asked and half of them sampled.
MORE = 500

Ids = npt.NDArray[np.int32]
Step = tuple[Ids, Ids]


def chain(n_calls: int, n_more: int = MORE, drift: int = 0) -> Iterator[Step]:
    """Yield (prompt, sampled) of a conversation that grows by `n_more` ids a call, losing `drift` of them each time."""
    rng = np.random.default_rng(0)
    path: Ids = np.empty(0, np.int32)
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


def subagents(n_agents: int, n_calls: int, n_shared: int) -> Iterator[Step]:
    """Yield the calls of agents that begin with one system prompt and take turns."""
    rng = np.random.default_rng(0)
    system = rng.integers(0, VOCABULARY, n_shared, dtype=np.int32)
    paths: list[Ids] = [system] * n_agents
    for _ in range(n_calls):
        for agent, path in enumerate(paths):
            prompt = np.concatenate([path, rng.integers(0, VOCABULARY, MORE // 2, dtype=np.int32)])
            sampled = rng.integers(0, VOCABULARY, MORE // 2, dtype=np.int32)
            yield prompt, sampled
            paths[agent] = np.concatenate([prompt, sampled])


class Workload(NamedTuple):
    """Its name, its calls, made one at a time, and what may be asked of a graph of them."""

    name: str
    steps: Callable[[], Iterator[Step]]
    # Goals: bytes for each distinct token, and microseconds of the last appends; None where none is set.
    most_bytes: float
    most_us: float | None = None
    # Left out of a quick run.
    large: bool = False
    # Measured as one array a call too, which needs calls times prompt length.
    plain: bool = False


SHAPES = (
    Workload("chain of 200 calls to 100,000", lambda: chain(200), 4.5, 50.0, plain=True),
    Workload("drift of 6 a call to 100,000", lambda: chain(200, drift=6), 7.0, 200.0, plain=True),
    Workload("1,000 branches of 200 off 20,000", lambda: branches(1000, 200, 20_000), 7.0),
    Workload("30 subagents of 40 calls off 8,000", lambda: subagents(30, 40, 8_000), 7.0),
    Workload("chain of 2,000 calls to 1,000,000", lambda: chain(2000), 4.5, None, large=True),
    Workload("drift of 6 a call to 1,000,000", lambda: chain(2000, drift=6), 7.0, None, large=True),
)

SIZES = tuple(
    Workload(f"chain of {n:,} calls to {n * MORE:,}", lambda n=n: chain(n), 4.5)  # type: ignore[misc]  # mypy has no default in a lambda
    for n in (250, 500, 1000, 2000)
)
"""The same at four sizes, each twice the one before."""

BESIDE = (
    Workload("chain of 200 calls to 100,000", lambda: chain(200), 12.0),
    Workload("chain of 400 calls to 200,000", lambda: chain(400), 12.0),
)
"""With logprobs, beside another implementation."""

NAMED = {each.name: each for each in (*SHAPES, *SIZES, *BESIDE)}
