"""Treering's own form of training sequences.

Ids (int32), masks (uint8) and logprobs (float32, NaN for context, which JSON writes as null) stay numpy arrays in it:
whoever encodes the form makes lists or bytes of them.
"""

from __future__ import annotations

from typing import Any

from graph.records import FORMAT_VERSION
from graph.sequences import Sequence, Sequences


def to_json(sequences: Sequences) -> dict[str, Any]:
    """Return the form of a rollout's sequences, `format=native`: plain values, but for the rows' arrays."""
    masked = sequences.realign_masked
    return {
        "version": FORMAT_VERSION,
        "rollout": sequences.rollout,
        "group": sequences.group,
        "final": sequences.final,
        "reward": sequences.reward,
        "n_rows": len(sequences.sequences),
        "n_trained_tokens": sequences.n_trained_tokens,
        "logprobs_mode": sequences.logprobs_mode,
        "sequences": [_row(row) for row in sequences.sequences],
        "left_out": [{"call": left.call, "reason": left.reason} for left in sequences.left_out],
        "findings": list(sequences.findings),
        **({} if masked is None else {"realign_masked": {"tokens": masked.tokens, "rows": masked.rows}}),
    }


def _row(row: Sequence) -> dict[str, Any]:
    return {
        "row": row.row,
        "conversation": row.conversation,
        "role": row.role,
        "calls": list(row.calls),
        "input_ids": row.input_ids,
        "loss_mask": row.loss_mask,
        "logprobs": row.logprobs,
        "spans": [
            {"call": span.call, "kind": span.kind, "start": span.start, "end": span.end, "weights": span.weights}
            for span in row.spans
        ],
        "n_trained_tokens": row.n_trained_tokens,
        "truncated": row.truncated,
        "drift_crossed": row.drift_crossed,
        "sampling": row.sampling,
        "call_rewards": {str(n): reward for n, reward in row.call_rewards.items()},
    }
