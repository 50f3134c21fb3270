"""Read exports with TRL's own functions: `python tests/real/read_trl.py CASE REPORT`, in the environment .real/trl.

CASE is a list of `{"trl", "openenv"}`. For each, REPORT gets two lists of rows, each `ids`, `mask`, `logprobs`:
`turns`, what `_chain_to_sequences` makes of the training trace with a fork threshold of 0, and its `tally`; and
`packed`, what the collator has the loss compare when the rows of `format=trl` are `RolloutSample`s. `rows_by_arrival`
is how many rows the trace would be with its turns in order of arrival.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from openenv.core.harness import TrainingTrace
from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample, _chain_to_sequences
from trl.experimental.async_grpo.openenv_harness import _turns_from_training_trace
from trl.experimental.async_grpo.packing import TreeRow

ARRAYS = {"input_ids": np.int64, "completion_mask": np.int64, "old_log_probs": np.float32}


def arrived(turn: dict[str, Any]) -> int:
    """Return the number of a turn's call: calls are numbered in the order of their arrival."""
    number: int = turn["metadata"]["treering"]["call"]
    return number


def turns(trace: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return TRL's rows of a training trace, and its tally."""
    read = _turns_from_training_trace(TrainingTrace.model_validate_json(json.dumps(trace)))
    rows, tally = _chain_to_sequences(read, "rollout", 0)
    return [{"ids": row.input_ids, "mask": row.completion_mask, "logprobs": row.old_log_probs} for row in rows], tally


def packed(form: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the loss terms of our rows, told apart by row again."""
    samples = []
    for row in form["rows"]:
        sample = row["sample"]
        arrays = {name: np.asarray(sample[name], kind) for name, kind in ARRAYS.items()}
        samples.append(RolloutSample(**sample | arrays | {"advantage": 1.0, "model_version": 0}))
    tree = TreeRow()
    for sample in samples:
        # What RolloutQueueDataset yields of it.
        tree.add({name: getattr(sample, name) for name in (*ARRAYS, "advantage", "group_id", "metrics")})
    batch = DataCollatorForRollout(pad_token_id=0)([[tree]])
    targets = batch["shift_labels"][0][batch["token_index"][0]].tolist()
    ids = [sample.input_ids.tolist() for sample in samples]
    found: list[dict[str, Any]] = [
        {"ids": each, "mask": [0] * len(each), "logprobs": [0.0] * len(each)} for each in ids
    ]
    # A term says which row it is of; within one, terms come in the order of their tokens.
    places = [iter(np.flatnonzero(sample.completion_mask).tolist()) for sample in samples]
    for segment, target, logprob in zip(
        batch["segment_id"][0].tolist(), targets, batch["old_log_probs"][0].tolist(), strict=True
    ):
        place = next(places[segment])
        assert found[segment]["ids"][place] == target, "the label of a loss term is the trained token"
        found[segment]["mask"][place] = 1
        found[segment]["logprobs"][place] = logprob
    return found


def main() -> None:
    """Read the case, write the report."""
    report = []
    for one in json.loads(Path(sys.argv[1]).read_text()):
        rows, tally = turns(one["openenv"])
        in_order = one["openenv"] | {"turns": sorted(one["openenv"]["turns"], key=arrived)}
        by_arrival, _ = turns(in_order)
        report.append({"turns": rows, "tally": tally, "packed": packed(one["trl"]), "rows_by_arrival": len(by_arrival)})
    Path(sys.argv[2]).write_text(json.dumps(report))
    assert {field.name for field in dataclasses.fields(RolloutSample)} >= set(ARRAYS), "the fields that we fill"


if __name__ == "__main__":
    main()
