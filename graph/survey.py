"""Drift over many rollouts, in numbers, read of their graphs' JSON form.

It reads what the control plane gives, so that it says the same of a rollout wherever that lies. Rows and tokens are
counted by `graph.chains` itself, over what a graph says of its calls: the rows of `split`, of `realign` at a threshold,
and those that there would be if a drift were not.

What may be trained is known here only so far as a graph says it: a call that is complete, was sampled freely and not
discarded. Missing logprobs and counts that disagree are not in a graph's JSON form.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from graph.causes import CAUSES
from graph.chains import Chain, chains
from graph.drift import THRESHOLD
from graph.forest import Forest
from graph.records import Drift, Link


class OfCause(msgspec.Struct, frozen=True, kw_only=True):
    """The drifts of one cause."""

    cause: str
    transitions: int
    tokens: int
    tokens_max: int
    means: str


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that main would be cut into, and their tokens."""

    rows: int = 0
    trained: int = 0
    # All tokens of the rows: what a trainer forwards.
    forwarded: int = 0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Drift of some rollouts: the terms of the graph's `drift`, over all of them."""

    rollouts: int
    # Calls of main.
    turns: int
    transitions: int
    exact: int
    tokens_mean: float | None
    tokens_max: int | None
    fork_frac: float | None
    realign_frac: float | None
    # Rows of `realign` at the threshold, by rollouts that have any.
    samples_per_rollout: float | None
    pinned: int
    # Of these, calls that were pinned to an older call than the one that they go on from, whose words were changed.
    pinned_to_older: int
    split: Rows
    realign: Rows
    causes: tuple[OfCause, ...]
    # Calls that were not pinned although the rollout asked for it, by reason.
    fallbacks: dict[str, int]


# -- what is read of a graph ------------------------------------------------------------------------------------------


class _Call(msgspec.Struct):
    n: int
    status: str
    link: str
    discarded: bool
    constrained: bool
    parent: int | None = None
    conversation: int | None = None
    drift: Drift | None = None
    n_prompt: int | None = None
    n_sampled: int | None = None
    pinned: Any = None


class _Conversation(msgspec.Struct):
    n: int
    role: str


class _Finding(msgspec.Struct):
    code: str
    calls: list[int]
    data: dict[str, Any] = {}


class Outline(msgspec.Struct):
    """Of a graph's JSON form, what drift is measured by."""

    calls: list[_Call]
    conversations: list[_Conversation]
    findings: list[_Finding] = []

    @property
    def main(self) -> list[_Call]:
        """The calls of main, in order of arrival."""
        roles = {one.n: one.role for one in self.conversations}
        return [call for call in self.calls if call.conversation is not None and roles[call.conversation] == "main"]


def outline(form: Mapping[str, Any]) -> Outline:
    """Read a graph's JSON form. Raises msgspec.ValidationError for what is none."""
    return msgspec.convert(form, Outline)


class _Arrived(msgspec.Struct):
    arrived: int


class _Links:
    """As much of a forest as `graph.chains` looks at, with some drifts thought away."""

    def __init__(self, calls: Sequence[_Call], gone: Callable[[Drift], bool]) -> None:
        self.links = {call.n: _link(call, gone) for call in calls}
        self.calls = {call.n: _Arrived(call.n) for call in calls}
        self.discarded = {call.n for call in calls if call.discarded}
        self._counts = {call.n: (call.n_prompt, call.n_sampled) for call in calls}
        self._children: dict[int, list[int]] = defaultdict(list)
        for n, link in self.links.items():
            if link.parent is not None:
                self._children[link.parent].append(n)

    def children(self, n: int) -> list[int]:
        return self._children.get(n, [])

    def n_prompt(self, n: int) -> int | None:
        return self._counts[n][0]

    def n_sampled(self, n: int) -> int | None:
        return self._counts[n][1]


def _link(call: _Call, gone: Callable[[Drift], bool]) -> Link:
    if call.drift is not None and gone(call.drift):
        return Link(kind="exact", parent=call.parent)
    return Link(kind=cast("Any", call.link), parent=call.parent, drift=call.drift)


def _none(_: Drift) -> bool:
    return False


def rows(
    one: Outline,
    *,
    threshold: int | None = None,
    gone: Callable[[Drift], bool] = _none,
    constrained: bool = False,
) -> Rows:
    """Count the rows of main: of `split`, or of `realign` at a threshold; `gone` names drifts to be thought away.

    `constrained` takes in replies that were sampled under a constraint, as the export's option does.
    """
    calls = one.main
    free = {
        call.n
        for call in calls
        if call.status == "complete"
        and not call.discarded
        and (constrained or not call.constrained)
        and (call.n_sampled or 0) > 0
    }
    links = cast("Forest", _Links(calls, gone))
    found = list(chains(links, [call.n for call in calls], free, threshold=threshold))
    return Rows(
        rows=len(found),
        trained=sum(part.end - part.start for chain in found for part in chain.trained),
        forwarded=sum(_length(links, chain) for chain in found),
    )


def _length(links: Forest, chain: Chain) -> int:
    if chain.lost:
        return chain.trained[-1].end
    last = chain.calls[-1]
    return (links.n_prompt(last) or 0) + (links.n_sampled(last) or 0)


def total(counted: Iterable[Rows]) -> Rows:
    """Add rows up."""
    found = list(counted)
    return Rows(
        rows=sum(one.rows for one in found),
        trained=sum(one.trained for one in found),
        forwarded=sum(one.forwarded for one in found),
    )


# -- numbers ----------------------------------------------------------------------------------------------------------


def measure(outlines: Sequence[Outline], *, threshold: int = THRESHOLD, constrained: bool = False) -> Measured:
    """Measure the transitions of main over some rollouts; `threshold` is in tokens, `constrained` as for `rows`."""
    main = [call for one in outlines for call in one.main]
    going_on = [call for call in main if call.link != "root"]
    drifts = [call.drift for call in going_on if call.drift is not None]
    exact = sum(call.link == "exact" for call in going_on)
    known = exact + len(drifts)
    over = sum(drift.tokens > threshold for drift in drifts) + sum(call.link == "compaction" for call in going_on)
    fallbacks: Counter[str] = Counter()
    for one in outlines:
        for finding in one.findings:
            if finding.code == "pin_fallback":
                fallbacks[str(finding.data.get("reason"))] += len(finding.calls)
    realign = total(rows(one, threshold=threshold, constrained=constrained) for one in outlines)
    return Measured(
        rollouts=len(outlines),
        turns=len(main),
        transitions=len(going_on),
        exact=exact,
        tokens_mean=sum(drift.tokens for drift in drifts) / known if known else None,
        tokens_max=max((drift.tokens for drift in drifts), default=0) if known else None,
        fork_frac=over / len(going_on) if going_on else None,
        realign_frac=sum(drift.tokens <= threshold for drift in drifts) / len(going_on) if going_on else None,
        samples_per_rollout=realign.rows / len(outlines) if outlines else None,
        pinned=sum(call.pinned is not None for call in main),
        pinned_to_older=sum(call.pinned is not None and call.drift is not None for call in main),
        split=total(rows(one, constrained=constrained) for one in outlines),
        realign=realign,
        causes=_causes(drifts),
        fallbacks=dict(sorted(fallbacks.items())),
    )


def _causes(drifts: Sequence[Drift]) -> tuple[OfCause, ...]:
    by_cause: dict[str, list[int]] = defaultdict(list)
    for drift in drifts:
        by_cause[str(drift.cause)].append(drift.tokens)
    found = [
        OfCause(
            cause=cause,
            transitions=len(tokens),
            tokens=sum(tokens),
            tokens_max=max(tokens),
            means=CAUSES.get(cast("Any", cause), cause),
        )
        for cause, tokens in by_cause.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.transitions, -one.tokens, one.cause)))
