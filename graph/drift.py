"""Where two renderings of one conversation part, how much is lost, and why."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

import msgspec

from graph.records import IntArray

if TYPE_CHECKING:
    from graph.forest import Forest

THRESHOLD = 1024
"""Drift up to so many tokens is a property of a template; above it, a fork. See DriftNumbers."""


class DriftNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The transitions of main in numbers: the `drift` object of the graph's JSON form."""

    transitions: int
    exact: int
    tokens_mean: float | None
    tokens_max: int | None
    fork_frac: float | None
    realign_frac: float | None
    samples_per_rollout: int


def measure(
    parent_ids: IntArray, n_parent_prompt: int, child_prompt: IntArray
) -> tuple[int, int, Literal["prompt", "sampled"]]:
    """Return (tokens lost, length of the common prefix, which half of the parent the break lies in)."""
    raise NotImplementedError


def numbers(forest: Forest, main: Collection[int], *, threshold: int = THRESHOLD) -> DriftNumbers:
    """Count the transitions of `main`, the calls of the main conversation."""
    raise NotImplementedError
