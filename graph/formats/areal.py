"""Tensor dicts for AReaL: `format=areal`.

Written for AReaL 1.0.4 at commit 4aef98d8d, `areal/experimental/openai/types.py`: the `tensors` of a row are what
`InteractionWithTokenLogpReward.to_tensor_dict` returns for a leaf of its `concat` style, each of shape [1, L] but
`rewards`, [1].

- `versions`: the policy's version of each trained token, -1 for all others: the decoupled loss tells generated tokens
  by it, and staleness. So a row with an unknown version, or with one that is no whole number, is refused.
- A rollout that was not graded is refused: `to_tensor_dict` would make its reward 0.0. The reward stands on every row,
  and a group's mean counts rows: weigh by `about.n_rows`.
- AReaL's dtypes are int64 or int32, float32 and bool; here ids and versions are int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.formats import checks
from graph.formats.projection import Row, full, number, rows, sampled
from graph.formats.refused import Refused
from graph.graph import Graph
from graph.sequences import Sequences

DRIFTS = ("split", "realign")

NOT_GENERATED = -1

MOST = 2**31 - 1
"""The largest version: AReaL keeps them in 32 bits."""

PER_TOKEN = ("input_ids", "loss_mask", "logprobs", "versions", "attention_mask")


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return a rollout's tensor dicts for AReaL. Raises `Refused`."""
    going = rows(graph, sequences)
    if sequences.reward is None:
        raise Refused(
            f"Rollout {sequences.rollout} is not graded, and AReaL has no place for a reward that is not known.",
            hint="PUT its reward first, or take another format.",
        )
    return going.head("areal") | {"rows": [_row(row, sequences.reward) for row in going]}


def check(tensors: dict[str, Any]) -> None:
    """Refuse what `check_trajectory_format` (areal/infra/workflow_executor.py) refuses or warns of.

    And, beyond it, a mask, logprobs and versions that do not go together.
    """
    if missing := {*PER_TOKEN, "rewards"} - set(tensors):
        raise Refused(f"Tensors: {', '.join(sorted(missing))} missing.", hint=checks.FAULT)
    arrays = {name: np.asarray(tensors[name]) for name in PER_TOKEN}
    if any(array.ndim != 2 or array.shape[0] != 1 for array in arrays.values()):
        raise Refused("Tensors: each has the shape [1, L].", hint=checks.FAULT)
    flat = {name: array[0] for name, array in arrays.items()}
    checks.one_length("Tensors", flat)
    checks.token_ids("Tensors", flat["input_ids"])
    checks.scored("Tensors", flat["loss_mask"], flat["logprobs"])
    if not flat["attention_mask"].all():
        raise Refused("Tensors: a single row has no padding.", hint=checks.FAULT)
    trained = flat["loss_mask"] == 1
    if (flat["versions"][trained] < 0).any() or (flat["versions"][~trained] != NOT_GENERATED).any():
        raise Refused("Tensors: versions are of trained tokens alone, and of all of them.", hint=checks.FAULT)
    rewards = np.asarray(tensors["rewards"], dtype=np.float64)
    if rewards.shape != (1,) or not np.isfinite(rewards).all():
        raise Refused("Tensors: one reward a row, a number.", hint="PUT the rollout's reward first.")


def _row(row: Row, reward: float) -> dict[str, Any]:
    whole = full(row)
    versions = np.full(len(whole.ids), NOT_GENERATED, np.int32)
    for stretch in sampled(row):
        version = number(stretch.weights)
        if version is None or version > MOST:
            known = "no known version" if stretch.weights is None else f"version {stretch.weights!r}"
            raise Refused(
                f"Call {stretch.call} was sampled from weights of {known}, and AReaL needs a whole number of 31 bits"
                " for each token.",
                hint="POST /engine/weights with a whole number before the rollout starts, and at each update between"
                " pause and resume: a call that ran through an update has no one version.",
            )
        versions[stretch.start : stretch.end] = version
    arrays: dict[str, np.ndarray] = {
        "input_ids": whole.ids,
        "loss_mask": whole.mask,
        "logprobs": whole.logprobs,
        "versions": versions,
        "attention_mask": np.ones(len(whole.ids), np.bool_),
    }
    tensors = {name: array[np.newaxis] for name, array in arrays.items()}
    tensors["rewards"] = np.array([reward], np.float32)
    check(tensors)
    return {"tensors": tensors, "about": row.about()}
