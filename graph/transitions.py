"""The transitions of main in numbers: how many are exact, and how large the drift of the others is."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from graph.drift import THRESHOLD
from graph.forest import Forest


class DriftNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The transitions of main in numbers: the `drift` object of the graph's JSON form."""

    # Calls of main with a parent, and those of them whose link is exact.
    transitions: int
    exact: int
    # Over exact (0) and measured transitions; a compaction is no drift. None without any.
    tokens_mean: float | None
    tokens_max: int | None
    # Shares of all transitions: drift over the threshold, or compaction; drift up to it. None without any.
    fork_frac: float | None
    realign_frac: float | None
    # Training rows that crossing drifts up to the threshold would give.
    samples_per_rollout: int


def numbers(forest: Forest, main: Collection[int], *, threshold: int = THRESHOLD) -> DriftNumbers:
    """Count the transitions of `main`, the numbers of the main conversation's calls; `threshold` is in tokens."""
    links = [forest.links[n] for n in main if forest.links[n].kind != "root"]
    exact = sum(link.kind == "exact" for link in links)
    measured = [link.drift.tokens for link in links if link.drift is not None]
    known = exact + len(measured)
    over = sum(tokens > threshold for tokens in measured) + sum(link.kind == "compaction" for link in links)
    return DriftNumbers(
        transitions=len(links),
        exact=exact,
        tokens_mean=sum(measured) / known if known else None,
        tokens_max=max(measured, default=0) if known else None,
        fork_frac=over / len(links) if links else None,
        realign_frac=sum(tokens <= threshold for tokens in measured) / len(links) if links else None,
        samples_per_rollout=_rows(forest, main, threshold),
    )


def _rows(forest: Forest, main: Collection[int], threshold: int) -> int:
    """Count the rows of main that cross drifts up to `threshold`.

    One for each end of a path; and one more for each reply that has ids behind a break on every path through it, where
    they are no longer what was scored.
    """
    no_break = 2**62
    # For each call: the furthest break that some path through it allows. Absent while nothing continues it.
    reach: dict[int, int] = {}
    rows = 0
    for n in sorted(main, reverse=True):
        sampled = forest.n_sampled(n)
        total = (forest.n_prompt(n) or 0) + (sampled or 0)
        live = forest.calls[n].status == "complete" or n in forest.proved
        if not sampled or not live or forest.delivered(n) is False or n in forest.discarded:
            continue
        if n not in reach:
            rows += 1
        furthest = reach.get(n, no_break)
        if total > furthest:
            rows += 1
        link = forest.links[n]
        if link.kind == "exact" or (link.drift is not None and link.drift.tokens <= threshold):
            assert link.parent is not None
            here = furthest if link.drift is None else min(furthest, link.drift.at)
            reach[link.parent] = max(reach.get(link.parent, 0), here)
    return rows
