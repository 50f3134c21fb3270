"""Rows for TRL's asynchronous GRPO: `format=trl`.

Written for trl 1.16.0, `trl/experimental/async_grpo/async_rollout_worker.py`: each `sample` has the fields of
`RolloutSample`; its arrays and `rollout_id` are those of a `TrainingSequence`, as `_chain_to_sequences` makes them of
the turns of `format=openenv` with a fork threshold of 0, and `tally` is the tally that it returns. (Where nothing but a
reply that is not trained parts two rows, that function joins them: fewer rows there, the same tokens trained.)

Traps
- One advantage a conversation goes on every row of it and is not divided, and the loss is a mean over tokens. So it has
  to be made of one reward a rollout, not of one a row. `advantage` is null until the group is known; `metrics` has the
  reward, and nothing for a rollout that was not graded.
- `model_version` is the oldest version of the weights in the row: the trainer drops a row that is too stale. It is null
  where a version is unknown or no number.
- `group_id` and `rollout_id`: TRL's group ids are numbers; a stable one is made of the group's name (of the rollout's
  where it has no group).
- The trainer divides logits by its own temperature: compare `about.temperature`.
- A row that crosses drifts (`drift=realign`) is none that `_chain_to_sequences` would give, which loses what lies
  behind a break; then there is no `tally`.
"""

from __future__ import annotations

from typing import Any

from graph.formats import checks
from graph.formats.chat import parted
from graph.formats.projection import Row, Rows, full, number, rows, stable
from graph.graph import Graph
from graph.sequences import Sequences
from graph.tokens import lcp

DRIFTS = ("split", "realign")


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return the rows of a rollout for TRL. Raises `Refused`."""
    going = rows(graph, sequences)
    return going.head("trl") | {"tally": _tally(graph, going), "rows": [_row(graph, row) for row in going]}


def check(sample: dict[str, Any]) -> None:
    """Refuse a sample that TRL would train on although its arrays are broken: it compares no lengths."""
    names = ("input_ids", "completion_mask", "old_log_probs")
    checks.one_length("RolloutSample", {name: sample[name] for name in names})
    checks.token_ids("RolloutSample", sample["input_ids"])
    checks.scored("RolloutSample", sample["completion_mask"], sample["old_log_probs"])


def _row(graph: Graph, row: Row) -> dict[str, Any]:
    whole = full(row)
    prompt, completion = parted(graph, row)
    of = row.of
    sample = {
        "prompt": prompt,
        "completion": completion,
        "input_ids": whole.ids,
        "completion_mask": whole.mask,
        "old_log_probs": whole.logprobs,
        "advantage": None,
        "model_version": _oldest(row),
        "group_id": stable(of.group if of.group is not None else of.rollout),
        "metrics": {} if of.reward is None else {"reward": of.reward},
    }
    check(sample)
    return {"sample": sample, "rollout_id": of.rollout, "about": row.about()}


def _oldest(row: Row) -> int | None:
    numbers = [number(version) for version in row.weight_versions]
    known = [version for version in numbers if version is not None]
    return min(known) if len(known) == len(numbers) else None


def _tally(graph: Graph, going: Rows) -> dict[str, float] | None:
    """Count what becomes of each turn behind the one before it: it goes on from it, or a new row begins."""
    if any(row.sequence.drift_crossed for row in going):
        return None
    clean = sum(len(row.calls) - 1 for row in going)
    drifts: list[int] = []
    for before, row in zip(going.rows, going.rows[1:], strict=False):  # each with the next
        held, first = before.sequence.input_ids, graph.forest.n_prompt(row.calls[0].n)
        drifts.append(len(held) - lcp(held, row.sequence.input_ids[:first]))
    forks = [tokens for tokens in drifts if tokens]
    return {
        "clean": float(clean + len(drifts) - len(forks)),
        "realign": 0.0,
        "fork": float(len(forks)),
        "transitions": float(clean + len(drifts)),
        "drift_tokens": float(sum(forks)),
        "drift_max": float(max(forks, default=0)),
    }
