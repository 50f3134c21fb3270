"""The transitions of main in numbers: how many are exact, and how large the drift of the others is."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from graph.chains import chains
from graph.drift import THRESHOLD
from graph.eligibility import reason
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
    # Rows that `drift=realign` gives of main.
    samples_per_rollout: int


def numbers(forest: Forest, main: Collection[int], *, threshold: int = THRESHOLD) -> DriftNumbers:
    """Count the transitions of `main`, the numbers of the main conversation's calls; `threshold` is in tokens."""
    eligible = {n for n in main if reason(forest, n) is None}
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
        samples_per_rollout=sum(1 for _ in chains(forest, main, eligible, threshold=threshold)),
    )
