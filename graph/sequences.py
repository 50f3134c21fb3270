"""Training sequences: rows cut from the forest, in which every sampled token is trained exactly once.

Rules:
- `drift=split`: a row never crosses a drift, so each is exactly what the engine scored; a new row begins there.
  `drift=realign`: a row crosses drifts up to the threshold. Which calls make a row, and what is trained in it, is
  `graph.chains`' to say; `drift=tree` is `graph.tree`'s.
- What sampled ids may be trained at all is `graph.eligibility`'s to say. A row without a trained token is not exported.
- Rows come conversation by conversation, depth first. (A trainer that chains rows in arrival order turns interleaved
  subagents into one row a turn.)
- Each call of the rollout is trained, or is in `left_out` with its reason; none is both.

`input_ids` int32, `loss_mask` uint8 and `logprobs` float32 have one length; the logprob of a context token is NaN,
which becomes null in JSON: absent, not 0.0.

Costs: linear in the tokens of the rows; the forest is walked once, without recursion.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from graph.chains import Chain, arrival, chains
from graph.drift import THRESHOLD
from graph.eligibility import reason
from graph.forest import Forest
from graph.graph import Graph
from graph.records import Call, Conversation, FloatArray, IntArray, LogprobsMode, Role

MaskArray = npt.NDArray[np.uint8]

ROLES = ("main", "summary", "subagent", "auxiliary")
"""What may be asked for; `summary` is the auxiliary conversations that were one."""
DRIFTS = ("split", "realign", "tree")
USES = ("context", "train")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to cut, and how. Raises ValueError, naming the accepted words, for one that is none."""

    roles: tuple[str, ...] = ("main",)
    drift: str = "split"
    # Of `realign`: the largest drift, in tokens, that a row crosses.
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
    # Those whose sampled ids are trained in this row, all of them or some.
    trained: tuple[int, ...]
    input_ids: IntArray
    loss_mask: MaskArray
    logprobs: FloatArray
    spans: tuple[Span, ...]
    n_trained_tokens: int
    truncated: Literal[False, "length", "limit"] = False
    # Drifts that the row crosses; it has the later call's ids behind each.
    drift_crossed: int = 0
    # What the trained calls were sampled with; None where they differ or the value was not seen.
    sampling: dict[str, Any] = {}
    # Call → its reward, for trained calls that have one.
    call_rewards: dict[int, float] = {}


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A call that no row trains, and why (`graph.eligibility.REASONS`)."""

    call: int
    reason: str


class Masked(msgspec.Struct, frozen=True, kw_only=True):
    """What crossing drifts cost: sampled tokens that lie behind a break, and the rows of their own that train them."""

    tokens: int
    rows: int


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
    # Of `realign` alone.
    realign_masked: Masked | None = None

    @property
    def n_trained_tokens(self) -> int:
        """The sum over all rows."""
        return sum(row.n_trained_tokens for row in self.sequences)


def cut(graph: Graph, options: Options | None = None) -> Sequences:
    """Cut a graph into rows. Raises ValueError for `drift=tree`, which has none: see `graph.tree`."""
    options = options or Options()
    if options.drift == "tree":
        raise ValueError("drift=tree has no rows")
    reasons = left_out(graph, options)
    crosses = options.threshold if options.drift == "realign" else None
    rows: list[Sequence] = []
    masked = [0, 0]
    for conversation in graph.conversations:
        if not wanted(conversation, options.roles):
            continue
        eligible = {n for n in conversation.calls if reasons[n] is None}
        for chain in chains(graph.forest, conversation.calls, eligible, threshold=crosses):
            row = _row(graph, len(rows), conversation, chain)
            rows.append(row)
            if chain.lost:
                masked[0] += row.n_trained_tokens
                masked[1] += 1
    rollout = graph.rollout
    return Sequences(
        rollout=rollout.id,
        group=rollout.group,
        final=rollout.state == "closed",
        reward=rollout.reward,
        logprobs_mode=rollout.logprobs_mode,
        sequences=tuple(rows),
        left_out=tuple(LeftOut(call=n, reason=why) for n, why in reasons.items() if why is not None),
        findings=codes(graph, *([] if rows else ["nothing_trainable"]), *(["realign_masked"] if masked[1] else [])),
        realign_masked=None if crosses is None else Masked(tokens=masked[0], rows=masked[1]),
    )


def wanted(conversation: Conversation, roles: Many[str]) -> bool:
    """Say if a conversation is one of those asked for."""
    return conversation.role in roles or (conversation.kind == "summary" and "summary" in roles)


def left_out(graph: Graph, options: Options) -> dict[int, str | None]:
    """Return for each call why it is not trained, in order of their numbers; None for one that is."""
    inside = {n for found in graph.conversations if wanted(found, options.roles) for n in found.calls}
    aborted, constrained = options.aborted == "train", options.constrained == "train"
    return {
        n: reason(graph.forest, n, aborted=aborted, constrained=constrained) or (None if n in inside else "role")
        for n in sorted(graph.forest.calls)
    }


def codes(graph: Graph, *more: str) -> tuple[str, ...]:
    """Return the codes of a graph's findings of level warn or error, and `more`, sorted."""
    found = {finding.code for finding in graph.findings if finding.level in {"warn", "error"}}
    return tuple(sorted({*found, *more}))


def _row(graph: Graph, row: int, conversation: Conversation, chain: Chain) -> Sequence:
    forest = graph.forest
    trained = tuple(part.call for part in chain.trained)
    calls = [forest.calls[n] for n in trained]
    ids = forest.ids(chain.calls[-1])
    assert ids is not None, "a trained call has ids"
    mask = np.zeros(len(ids), dtype=np.uint8)
    logprobs = np.full(len(ids), np.nan, dtype=np.float32)
    for part, call in zip(chain.trained, calls, strict=True):
        first = forest.n_prompt(part.call)
        assert first is not None, "a trained call has a prompt"
        assert call.logprobs is not None, "a trained call has logprobs"
        mask[part.start : part.end] = 1
        logprobs[part.start : part.end] = call.logprobs[part.start - first : part.end - first]
    return Sequence(
        row=row,
        conversation=conversation.n,
        role=conversation.role,
        calls=chain.calls,
        trained=trained,
        input_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        spans=_spans(forest, chain.calls),
        n_trained_tokens=int(mask.sum()),
        truncated=truncated(graph, conversation, calls),
        drift_crossed=chain.crossed,
        sampling=sampling_of(calls),
        call_rewards={call.n: reward for call in calls if (reward := reward_of(graph, call)) is not None},
    )


def _spans(forest: Forest, chain: Many[int]) -> tuple[Span, ...]:
    """Return where each part of a row came from. Behind a break, the later call's prompt stands for what was there."""
    spans: list[Span] = []
    end = 0
    for n in chain:
        drift = forest.links[n].drift
        if drift is not None and spans:
            end = drift.at
            while spans[-1].start >= end:
                spans.pop()
            spans[-1] = replace(spans[-1], end=min(spans[-1].end, end))
        middle, sampled = forest.n_prompt(n), forest.n_sampled(n)
        assert middle is not None, "a call in a chain has a prompt"
        assert sampled is not None, "a call in a chain has sampled ids"
        if middle > end:
            spans.append(Span(call=n, kind="prompt", start=end, end=middle))
        spans += [
            Span(call=n, kind="sampled", start=middle + first, end=middle + last, weights=version)
            for first, last, version in versions(forest.calls[n], sampled)
        ]
        end = middle + sampled
    return tuple(spans)


def versions(call: Call, sampled: int) -> Iterator[tuple[int, int, str | None]]:
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


def truncated(graph: Graph, conversation: Conversation, calls: list[Call]) -> Literal[False, "length", "limit"]:
    if any(call.finish_reason == "length" for call in calls):
        return "length"
    if graph.rollout.stopped is not None and conversation.role == "main":
        last = max(graph.calls_of("main"), key=arrival(graph.forest))
        return "limit" if calls[-1].n == last else False
    return False


def sampling_of(calls: list[Call]) -> dict[str, Any]:
    names = sorted({name for call in calls for name in call.sampling_sent})
    first = calls[0].sampling_sent
    return {
        name: first.get(name) if all(call.sampling_sent.get(name) == first.get(name) for call in calls) else None
        for name in names
    }


def reward_of(graph: Graph, call: Call) -> float | None:
    rewards = graph.rollout.per_call_rewards
    return rewards.get(f"{call.id}#{call.choice}", rewards.get(call.id)) if call.id is not None else None
