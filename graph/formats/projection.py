"""The shapes in which trainers take a row: one projection, from which each format copies names.

Rules
- The ids of a row are never changed, cut or joined; every shape but SAMPLED shows all of them.
- A logprob stands with the token that it scores. Context has the logprob 0.0 where a shape has an array over it, and
  no trained token ever gets a filled-in one: a row with such a token is refused.
- The first token of a row is never trained: nothing stands before it to score it under, and every trainer that shifts
  by one would drop it in silence.
- A row that shows media is left out, and its trained calls are listed with the reason `media` and the digests: the ids
  of a picture are placeholders, and none of these formats has a place for what they stand for. The rows that are left
  are numbered anew, so that `row` of `n_rows` counts what is there.
- A rollout without a row is refused, with what to do; an empty list would read as a rollout that had nothing to say.
- What is known of a row goes along (`Row.about`): whose it is, which of how many, how many tokens it and its rollout
  train, weights, temperature, how it ended, reward. What is not known is None there, a reward above all: ungraded is
  not 0.0.

Theory of operation. p prompt, s sampled, t a tool's result and the rest of the next prompt; 1 is trained:

    ids        p p p s s t t s s        `Row.sequence`
    FULL       p p p s s t t s s        ids, mask and logprobs of one length
               0 0 0 1 1 0 0 1 1
    TAIL       p p p|s s t t s s        prompt: what stands before the first trained token; response: the rest
                     1 1 0 0 1 1
    SHIFTED    p p p s s t t s          input: all but the last
               p p s s t t s s          target: all but the first, with its own mask and logprobs
               0 0 1 1 0 0 1 1
    SAMPLED          s s     s s        trained stretches alone, one or more a call; nothing for context

In TAIL a reply that another row trains is part of the prompt, where it stands before the first trained token.

Costs: linear in the tokens of a row; ids and masks are views of the row's arrays, logprobs are written once, with 0.0
for NaN (SAMPLED views them too). SHIFTED and TAIL are views of FULL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np

from graph.formats.refused import Refused
from graph.graph import Graph
from graph.records import FORMAT_VERSION, Call, FloatArray, IntArray
from graph.sequences import LeftOut, MaskArray, Sequence, Sequences

MEDIA = "media"
"""The reason in `left_out` of a call that only a row with media trains."""


class Full(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A row whole: ids int32[N], mask uint8[N], logprobs float32[N] with 0.0 for context."""

    ids: IntArray
    mask: MaskArray
    logprobs: FloatArray


class Tail(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A row parted before its first trained token: prompt int32[P]; response int32[R] with mask and logprobs [R]."""

    prompt_ids: IntArray
    response_ids: IntArray
    mask: MaskArray
    logprobs: FloatArray


class Shifted(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A row for next-token prediction: input and target int32[N-1]; mask and logprobs [N-1] are the target's."""

    input_ids: IntArray
    target_ids: IntArray
    mask: MaskArray
    logprobs: FloatArray


class Sampled(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A trained stretch of one call, and of one version of the weights: ids int32[n], logprobs float32[n].

    `start` and `end` are its place in the row, `offset` its first token's among the call's sampled ids.
    """

    call: int
    start: int
    end: int
    offset: int
    ids: IntArray
    logprobs: FloatArray
    weights: str | None


class Row(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One row that goes out, and what is known of it."""

    of: Sequences
    sequence: Sequence
    # The records of the calls trained in it.
    calls: tuple[Call, ...]
    # Which it is of the rows that go out, and how many tokens these train.
    row: int
    n_rows: int
    n_rollout_tokens: int
    # Place of the first trained token, 1 or more.
    first: int
    # How it ends: its last reply came to an end, was cut by length or by a limit, or broke off and was not used.
    ended: Literal["stop", "length", "limit", "abort"]

    @property
    def weight_versions(self) -> tuple[str | None, ...]:
        """The policy's versions that its trained tokens were drawn from, each once, oldest first; None: unknown."""
        return tuple(dict.fromkeys(stretch.weights for stretch in sampled(self)))

    @property
    def temperatures(self) -> tuple[float | None, ...]:
        """The temperature that each of `calls` was sampled at; None where it was not seen."""
        return tuple(temperature(call) for call in self.calls)

    @property
    def finish_reason(self) -> str | None:
        """How the last trained reply ended."""
        return self.calls[-1].finish_reason

    @property
    def aborted(self) -> tuple[int, ...]:
        """Trained calls that broke off: proved used by a later one, or asked for."""
        return tuple(call.n for call in self.calls if call.status == "aborted")

    def about(self) -> dict[str, Any]:
        """Return what is known of the row as plain values: for a format's metadata, where it has no better place."""
        row, of = self.sequence, self.of
        at = set(self.temperatures)
        return {
            "rollout": of.rollout,
            "group": of.group,
            "final": of.final,
            "reward": of.reward,
            "row": self.row,
            "n_rows": self.n_rows,
            "n_trained_tokens": row.n_trained_tokens,
            "n_rollout_trained_tokens": self.n_rollout_tokens,
            "conversation": row.conversation,
            "role": row.role,
            "calls": list(row.calls),
            "trained": list(row.trained),
            "weight_versions": list(self.weight_versions),
            "temperature": at.pop() if len(at) == 1 else None,
            "sampling": row.sampling,
            "logprobs_mode": of.logprobs_mode,
            "finish_reason": self.finish_reason,
            "ended": self.ended,
            "truncated": row.truncated,
            "aborted": list(self.aborted),
            "drift_crossed": row.drift_crossed,
            "call_rewards": {str(n): reward for n, reward in row.call_rewards.items()},
        }


class Rows(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The rows of a rollout that go out, one or more, and the calls that no row trains."""

    of: Sequences
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    # Call → digests of what its row shows beside text, for the calls that are left out for that.
    media: dict[int, tuple[str, ...]] = {}

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def head(self, name: str) -> dict[str, Any]:
        """Return the keys that stand before the rows in a format whose library has no place for a rollout."""
        of = self.of
        return {
            "version": FORMAT_VERSION,
            "format": name,
            "rollout": of.rollout,
            "group": of.group,
            "final": of.final,
            "reward": of.reward,
            "n_rows": len(self.rows),
            "n_trained_tokens": self.rows[0].n_rollout_tokens,
            "logprobs_mode": of.logprobs_mode,
            "left_out": self.absent(),
            "findings": list(of.findings),
        }

    def absent(self) -> list[dict[str, Any]]:
        """Return `left_out` as plain values."""
        return [
            {"call": left.call, "reason": left.reason}
            | ({"media": list(self.media[left.call])} if left.reason == MEDIA else {})
            for left in self.left_out
        ]


def rows(graph: Graph, sequences: Sequences) -> Rows:
    """Return the rows of a rollout that a trainer of text can take.

    Raises `Refused` when there are none, and for a row that no trainer could take: of unequal lengths, whose first
    token is trained, or with a trained token without a logprob.
    """
    kept: list[Sequence] = []
    shown: dict[int, tuple[str, ...]] = {}
    for row in sequences.sequences:
        if digests := media(graph, row):
            shown |= dict.fromkeys(row.trained, digests)
        else:
            kept.append(row)
    if not kept:
        raise _nothing(sequences, tuple(shown))
    total = sum(row.n_trained_tokens for row in kept)
    return Rows(
        of=sequences,
        rows=tuple(
            Row(
                of=sequences,
                sequence=row,
                calls=tuple(graph.forest.calls[n] for n in row.trained),
                row=place,
                n_rows=len(kept),
                n_rollout_tokens=total,
                first=_checked(row),
                ended=_ended(graph, row),
            )
            for place, row in enumerate(kept)
        ),
        left_out=(*sequences.left_out, *(LeftOut(call=n, reason=MEDIA) for n in shown)),
        media=shown,
    )


def full(row: Row) -> Full:
    """Return a row whole."""
    sequence = row.sequence
    known = sequence.loss_mask.astype(bool)
    logprobs = np.where(known, sequence.logprobs, np.float32(0.0))
    return Full(ids=sequence.input_ids, mask=sequence.loss_mask, logprobs=logprobs)


def tail(row: Row) -> Tail:
    """Return a row parted before its first trained token."""
    whole, first = full(row), row.first
    return Tail(
        prompt_ids=whole.ids[:first],
        response_ids=whole.ids[first:],
        mask=whole.mask[first:],
        logprobs=whole.logprobs[first:],
    )


def shifted(row: Row) -> Shifted:
    """Return a row with its targets."""
    whole = full(row)
    return Shifted(input_ids=whole.ids[:-1], target_ids=whole.ids[1:], mask=whole.mask[1:], logprobs=whole.logprobs[1:])


def sampled(row: Row) -> Iterator[Sampled]:
    """Yield the trained stretches of a row in their order: of a call one, or several where its weights change."""
    sequence = row.sequence
    begun: dict[int, int] = {}
    for span in sequence.spans:
        if span.kind != "sampled":
            continue
        origin = begun.setdefault(span.call, span.start)
        mask = sequence.loss_mask[span.start : span.end]
        # A reply that crosses a break is trained before it alone, and one that lost ids behind it alone: one stretch.
        if (n := int(np.count_nonzero(mask))) == 0:
            continue
        start = span.start + int(mask.argmax())
        yield Sampled(
            call=span.call,
            start=start,
            end=start + n,
            offset=start - origin,
            ids=sequence.input_ids[start : start + n],
            logprobs=sequence.logprobs[start : start + n],
            weights=span.weights,
        )


def media(graph: Graph, row: Sequence) -> tuple[str, ...]:
    """Return digests of what stands in a row beside text: of its last call's messages, which are all of the row's."""
    last = graph.forest.calls[row.calls[-1]]
    said = last.messages if last.reply is None else (*last.messages, last.reply)
    return tuple(digest for message in said for digest in message.media)


def temperature(call: Call) -> float | None:
    """Return the temperature that a call was sampled at; None where it was not seen."""
    sent = call.sampling_sent.get("temperature")
    return float(sent) if isinstance(sent, int | float) and not isinstance(sent, bool) else None


def number(version: str | None) -> int | None:
    """Return a version of the weights as the whole number that it spells; None where it spells none."""
    return int(version) if version is not None and version.isascii() and version.isdigit() else None


def stable(name: str) -> int:
    """Return a number for a name, for libraries whose ids are numbers: equal for equal names, 0 to 2^53-1.

    So many that no two of a run's names share one (two of a million do with a chance of 1 in 18,000), and no more, so
    that every reader of JSON keeps it.
    """
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 11


def _checked(row: Sequence) -> int:
    """Return the place of the first trained token. Raises `Refused` for a row that is broken."""
    ids, mask, logprobs = row.input_ids, row.loss_mask, row.logprobs
    if not len(ids) == len(mask) == len(logprobs):
        raise Refused(
            f"Row {row.row} has {len(ids)} ids, {len(mask)} mask values and {len(logprobs)} logprobs.",
            hint="This is a fault in the rows themselves; format=native shows them.",
        )
    if mask[:1].any():
        raise Refused(
            f"The first token of row {row.row} is trained: call {row.calls[0]} has an empty prompt.",
            hint="Give the call a prompt of one token or more; nothing can score a token under no prefix.",
        )
    trained = mask.astype(bool)
    scored = np.isfinite(logprobs[trained])
    if not len(scored) or not scored.all():
        lacking = int(len(scored) - np.count_nonzero(scored))
        raise Refused(
            f"Row {row.row} has {len(scored)} trained tokens, {lacking} of them without a logprob.",
            hint="This is a fault in the rows themselves; format=native shows them.",
        )
    return int(trained.argmax())


def _ended(graph: Graph, row: Sequence) -> Literal["stop", "length", "limit", "abort"]:
    last = row.trained[-1]
    if graph.forest.calls[last].status == "aborted" and last not in graph.forest.proved:
        return "abort"
    return row.truncated or "stop"


def _nothing(sequences: Sequences, pictured: tuple[int, ...]) -> Refused:
    rollout = sequences.rollout
    if pictured:
        calls = ", ".join(map(str, pictured))
        return Refused(
            f"Rollout {rollout} has no row without media: calls {calls} are all that could be trained.",
            hint="format=native has the ids; the bytes of the media are in the calls' requests.",
        )
    reasons = sorted({left.reason for left in sequences.left_out})
    if not reasons:
        return Refused(
            f"Rollout {rollout} has no calls.",
            hint="See its findings: they say if the engine was reachable and if an agent came with another secret.",
        )
    hint = "See docs/findings.md for what each means."
    if "role" in reasons:
        hint = "roles= takes in subagent, summary and auxiliary conversations. " + hint
    return Refused(f"Rollout {rollout} has nothing to train: {', '.join(reasons)}.", hint=hint)
