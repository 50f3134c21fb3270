"""Training sequences: rows cut from the forest, in which every sampled token is trained exactly once.

Rules (`drift=split`):
- A row is a chain of exact links, from a call that begins one to a leaf: exactly what the engine scored. It never
  crosses a drift or a compaction; a new row begins there.
- A call that lies on several chains is trained in one of them: the path that went on, of several the one whose leaf
  came first. On the others it is context. What sampled ids may be trained at all is `graph.eligibility`'s to say.
- A row ends with the last reply that is trained in it: context behind that teaches nothing. A row without a trained
  token is not exported.
- Rows come conversation by conversation, depth first. (A trainer that chains rows in arrival order turns interleaved
  subagents into one row a turn.)
- Each call of the rollout is trained in one row, or is in `left_out` with its reason; none is in both.

`input_ids` int32, `loss_mask` uint8 and `logprobs` float32 have one length; the logprob of a context token is NaN,
which becomes null in JSON: absent, not 0.0.

Costs: linear in the tokens of the rows; the forest is walked once, without recursion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from graph.drift import THRESHOLD
from graph.eligibility import reason
from graph.forest import Forest
from graph.graph import Graph
from graph.records import Call, Conversation, FloatArray, IntArray, LogprobsMode, Role

MaskArray = npt.NDArray[np.uint8]

ROLES = ("main", "summary", "subagent", "auxiliary")
"""What may be asked for; `summary` is the auxiliary conversations that were one."""
DRIFTS = ("split",)
USES = ("context", "train")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to cut, and how. Raises ValueError, naming the accepted words, for one that is none."""

    roles: tuple[str, ...] = ("main",)
    drift: str = "split"
    # In tokens; for what crosses a drift.
    threshold: int = THRESHOLD
    # What becomes of replies drawn under a constraint, and of those that broke off.
    constrained: str = "context"
    aborted: str = "context"

    def __post_init__(self) -> None:
        """Look at each value."""
        for role in self.roles:
            _accept("roles", role, ROLES)
        if not self.roles:
            raise ValueError(f"roles names at least one of {', '.join(ROLES)}")
        _accept("drift", self.drift, DRIFTS)
        if self.threshold < 0:
            raise ValueError(f"threshold is a number of tokens, 0 or more; not {self.threshold}")
        _accept("constrained", self.constrained, USES)
        _accept("aborted", self.aborted, USES)


def _accept(name: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise ValueError(f"{name} is one of {', '.join(accepted)}; not {value!r}")


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Where a part of a row came from; positions in the row's `input_ids`, end exclusive."""

    call: int
    kind: Literal["prompt", "sampled"]
    start: int
    end: int
    # The policy's version for a sampled span, None where unknown and for prompts.
    weights: str | None = None


class Sequence(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One row."""

    row: int
    conversation: int
    role: Role
    # The chain's calls, first to last; those that are context here included.
    calls: tuple[int, ...]
    # Those whose sampled ids are trained in this row.
    trained: tuple[int, ...]
    input_ids: IntArray
    loss_mask: MaskArray
    logprobs: FloatArray
    spans: tuple[Span, ...]
    n_trained_tokens: int
    truncated: Literal[False, "length", "limit"] = False
    drift_crossed: int = 0
    # What the trained calls were sampled with; None where they differ or the value was not seen.
    sampling: dict[str, Any] = {}
    # Call → its reward, for trained calls that have one.
    call_rewards: dict[int, float] = {}


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A call that no row trains, and why (`graph.eligibility.REASONS`)."""

    call: int
    reason: str


class Sequences(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The rows of one rollout."""

    rollout: str
    group: str | None
    # False while the rollout is open: more calls may come.
    final: bool
    reward: float | None
    logprobs_mode: LogprobsMode
    sequences: tuple[Sequence, ...]
    left_out: tuple[LeftOut, ...]
    # Codes of findings of level warn or error.
    findings: tuple[str, ...]

    @property
    def n_trained_tokens(self) -> int:
        """The sum over all rows."""
        return sum(row.n_trained_tokens for row in self.sequences)


def cut(graph: Graph, options: Options | None = None) -> Sequences:
    """Cut a graph into training sequences."""
    options = options or Options()
    forest, rollout = graph.forest, graph.rollout
    wanted = {n for found in graph.conversations if _wanted(found, options.roles) for n in found.calls}
    reasons = {
        n: reason(forest, n, aborted=options.aborted == "train", constrained=options.constrained == "train")
        or (None if n in wanted else "role")
        for n in sorted(forest.calls)
    }
    rows: list[Sequence] = []
    for conversation in graph.conversations:
        if not wanted.issuperset(conversation.calls):
            continue
        for chain, trained in _chains(forest, conversation, {n for n in conversation.calls if reasons[n] is None}):
            rows.append(_row(graph, len(rows), conversation, chain, trained))
    codes = {finding.code for finding in graph.findings if finding.level in {"warn", "error"}}
    if not rows:
        codes.add("nothing_trainable")
    return Sequences(
        rollout=rollout.id,
        group=rollout.group,
        final=rollout.state == "closed",
        reward=rollout.reward,
        logprobs_mode=rollout.logprobs_mode,
        sequences=tuple(rows),
        left_out=tuple(LeftOut(call=n, reason=why) for n, why in reasons.items() if why is not None),
        findings=tuple(sorted(codes)),
    )


def _wanted(conversation: Conversation, roles: tuple[str, ...]) -> bool:
    return conversation.role in roles or (conversation.kind == "summary" and "summary" in roles)


def _chains(
    forest: Forest, conversation: Conversation, eligible: set[int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (calls of the row, those trained in it) depth first, for each chain that trains something."""
    inside = set(conversation.calls)
    exact = {n: [m for m in forest.children(n) if m in inside and forest.links[m].kind == "exact"] for n in inside}
    owner = _owners(forest, exact)
    # A parent ended before its child arrived, so in order of arrival each call's chain is known when it comes up.
    chain: dict[int, tuple[int, ...]] = {}
    waiting = sorted((n for n in inside if forest.links[n].parent not in inside), key=_arrival(forest), reverse=True)
    while waiting:
        n = waiting.pop()
        link = forest.links[n]
        before = chain[link.parent] if link.kind == "exact" and link.parent in chain else ()
        chain[n] = (*before, n)
        waiting += sorted((m for m in forest.children(n) if m in inside), key=_arrival(forest), reverse=True)
        if exact[n]:
            continue
        trained = tuple(m for m in chain[n] if owner[m] == n and m in eligible)
        if trained:
            yield chain[n][: chain[n].index(trained[-1]) + 1], trained


def _owners(forest: Forest, exact: Mapping[int, list[int]]) -> dict[int, int]:
    """Return for each call the leaf of the chain in which it is trained."""
    arrival = _arrival(forest)
    owner: dict[int, int] = {}
    for n in sorted(exact, key=arrival, reverse=True):
        on = [m for m in exact[n] if m not in forest.discarded] or exact[n]
        owner[n] = min((owner[m] for m in on), key=arrival, default=n)
    return owner


def _arrival(forest: Forest) -> Any:
    return lambda n: (forest.calls[n].arrived, n)


def _row(
    graph: Graph, row: int, conversation: Conversation, chain: tuple[int, ...], trained: tuple[int, ...]
) -> Sequence:
    forest = graph.forest
    calls = [forest.calls[n] for n in trained]
    ids = forest.ids(chain[-1])
    assert ids is not None, "a trained call has ids"
    mask = np.zeros(len(ids), dtype=np.uint8)
    logprobs = np.full(len(ids), np.nan, dtype=np.float32)
    spans: list[Span] = []
    end = 0
    for n in chain:
        start, call = end, forest.calls[n]
        middle, sampled = forest.n_prompt(n), forest.n_sampled(n)
        assert middle is not None, "a call in a chain has a prompt"
        assert sampled is not None, "a call in a chain has sampled ids"
        end = middle + sampled
        if middle > start:
            spans.append(Span(call=n, kind="prompt", start=start, end=middle))
        spans += [
            Span(call=n, kind="sampled", start=middle + first, end=middle + last, weights=version)
            for first, last, version in _versions(call, sampled)
        ]
        if n in trained:
            mask[middle:end] = 1
            logprobs[middle:end] = call.logprobs
    assert end == len(ids), "a chain of exact links is its last call's ids"
    return Sequence(
        row=row,
        conversation=conversation.n,
        role=conversation.role,
        calls=chain,
        trained=trained,
        input_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        spans=tuple(spans),
        n_trained_tokens=int(mask.sum()),
        truncated=_truncated(graph, conversation, calls),
        sampling=_sampling(calls),
        call_rewards={call.n: reward for call in calls if (reward := _reward(graph, call)) is not None},
    )


def _versions(call: Call, sampled: int) -> Iterator[tuple[int, int, str | None]]:
    """Yield (start, end, version) over the sampled ids of a call, cut where its weights change."""
    weights = call.weights
    at = 0
    for span in sorted(weights.spans, key=lambda span: span.start):
        start, end = max(span.start, at), min(span.end, sampled)
        if start > at:
            yield at, start, None
        if end > start:
            yield start, end, span.version
            at = end
    if at < sampled:
        # Without spans, a version that changed on the way is known for no single token.
        yield at, sampled, weights.start if not weights.spans and weights.start == weights.end else None


def _truncated(graph: Graph, conversation: Conversation, calls: list[Call]) -> Literal[False, "length", "limit"]:
    if any(call.finish_reason == "length" for call in calls):
        return "length"
    if graph.rollout.stopped is not None and conversation.role == "main":
        last = max(graph.calls_of("main"), key=_arrival(graph.forest))
        return "limit" if calls[-1].n == last else False
    return False


def _sampling(calls: list[Call]) -> dict[str, Any]:
    names = sorted({name for call in calls for name in call.sampling_sent})
    first = calls[0].sampling_sent
    return {
        name: first.get(name) if all(call.sampling_sent.get(name) == first.get(name) for call in calls) else None
        for name in names
    }


def _reward(graph: Graph, call: Call) -> float | None:
    rewards = graph.rollout.per_call_rewards
    return rewards.get(f"{call.id}#{call.choice}", rewards.get(call.id)) if call.id is not None else None
