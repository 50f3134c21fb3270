"""Which calls make a row, and which of their sampled ids are trained in it.

Rules
- A chain begins with a call that nothing is crossed to, and goes on to a leaf: over exact links, and, where a threshold
  is given, over drifts of so many tokens at most. It never crosses a compaction, or a link by messages alone.
- The row of a chain has the ids of its last call: where it crosses a drift, it follows the later call's ids.
- A sampled id of a chain is trained if it lies before every break that comes after it in the row. Behind a break even
  equal ids were scored under another prefix.
- Of the chains that a call lies on, one owns it: that of the path that went on; of several, the one that keeps most of
  its ids, and then the one whose leaf came first. On the others the call is context.
- A reply that loses ids in its owner's row gets a row of its own, cut where nothing was crossed, in which they alone
  are trained. So every sampled id is trained in exactly one row.
- A row ends with the last reply that is trained in it: context behind that teaches nothing, and breaks nothing.

    parent   1 9 3 100 2 3 1 10 3 | 4 120 121 5 150 2
    child    1 9 3 100 2 3 1 10 3   4 120 121 5 151 2 3 1 9 3 101 2 3 1 10 3 | 152 2     break at 13, 2 tokens
    row      = child; of the parent's reply 4 ids are trained in it, of the child's all
    its own  = parent; 150 2 are trained in it

Costs: linear in calls, and in the lengths of the chains; without recursion. No id is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from graph.forest import Forest

_NO_BREAK = 2**62


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled ids of a call that are trained; positions count the ids of its prompt and reply, end exclusive."""

    call: int
    start: int
    end: int


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """One row: its calls, first to last, and what is trained in it."""

    calls: tuple[int, ...]
    trained: tuple[Part, ...]
    # Drifts that it crosses.
    crossed: int = 0
    # It trains what a reply lost in another row.
    lost: bool = False


def chains(
    forest: Forest, calls: Collection[int], eligible: Collection[int], *, threshold: int | None = None
) -> Iterator[Chain]:
    """Yield the chains of `calls`, a conversation or several, depth first; those that train nothing are left out.

    `eligible` are the calls whose sampled ids may be trained: all of them have ids. `threshold` is in tokens; None
    crosses no drift. A reply's own row comes before the row that it lost its ids in.
    """
    inside = set(calls)
    going_on = {n: [m for m in forest.children(n) if m in inside and _crosses(forest, m, threshold)] for n in inside}
    owner = _owners(forest, going_on)
    waiting = sorted((n for n in inside if forest.links[n].parent not in inside), key=arrival(forest), reverse=True)
    while waiting:
        n = waiting.pop()
        waiting += sorted((m for m in forest.children(n) if m in inside), key=arrival(forest), reverse=True)
        if going_on[n]:
            continue
        way = _way(forest, n, inside, threshold)
        owned = [m for m in way if owner[m] == n and m in eligible]
        if owned:
            yield from _rows(forest, way[: way.index(owned[-1]) + 1], set(owned), inside)


def arrival(forest: Forest) -> _Arrival:
    """Return a key that sorts calls by their arrival; choices of one request by number."""
    return _Arrival(forest)


class _Arrival:
    def __init__(self, forest: Forest) -> None:
        self._calls = forest.calls

    def __call__(self, n: int) -> tuple[int, int]:
        return self._calls[n].arrived, n


def _crosses(forest: Forest, n: int, threshold: int | None) -> bool:
    """Say if a row goes on from the parent of call `n` to it."""
    link = forest.links[n]
    if link.kind == "exact":
        return True
    return threshold is not None and link.drift is not None and link.drift.tokens <= threshold


def _break(forest: Forest, n: int) -> int:
    """Return where call `n` parts from its parent, which it is crossed to from."""
    drift = forest.links[n].drift
    return _NO_BREAK if drift is None else drift.at


def _end(forest: Forest, n: int) -> int:
    return (forest.n_prompt(n) or 0) + (forest.n_sampled(n) or 0)


def _owners(forest: Forest, going_on: Mapping[int, list[int]]) -> dict[int, int]:
    """Return for each call the leaf of the chain in which it is trained."""
    came = arrival(forest)
    owner: dict[int, int] = {}
    # How far the ids of a call stay what they were, on the way to its owner's leaf.
    reach: dict[int, int] = {}
    for n in sorted(going_on, key=came, reverse=True):
        on = [m for m in going_on[n] if m not in forest.discarded] or going_on[n]
        end = _end(forest, n)
        ways = [(min(reach[m], _break(forest, m)), owner[m]) for m in on]
        reach[n], owner[n] = min(ways, key=lambda way: (-min(way[0], end), came(way[1])), default=(_NO_BREAK, n))
    return owner


def _way(forest: Forest, n: int, inside: Collection[int], threshold: int | None) -> list[int]:
    """Return the calls on the way to `n` that one row can cross, `n` the last."""
    way = [n]
    while _crosses(forest, way[-1], threshold):
        parent = forest.links[way[-1]].parent
        if parent is None or parent not in inside:
            break
        way.append(parent)
    return way[::-1]


def _rows(forest: Forest, way: list[int], owned: Collection[int], inside: Collection[int]) -> Iterator[Chain]:
    parts: list[Part] = []
    lost: list[Part] = []
    reach = _NO_BREAK
    for n in reversed(way):
        if n in owned:
            start, end = forest.n_prompt(n) or 0, _end(forest, n)
            kept = max(start, min(end, reach))
            parts += [Part(call=n, start=start, end=kept)] if kept > start else []
            lost += [Part(call=n, start=kept, end=end)] if kept < end else []
        reach = min(reach, _break(forest, n))
    for part in reversed(lost):
        own = _way(forest, part.call, inside, None)
        yield Chain(calls=tuple(own), trained=(part,), lost=True)
    crossed = sum(forest.links[n].drift is not None for n in way[1:])
    yield Chain(calls=tuple(way), trained=tuple(reversed(parts)), crossed=crossed)
