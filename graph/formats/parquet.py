"""Rows for data frames and data sets: `format=parquet`. The columns, and a rollout's rows; no file is written here.

One row is one training sequence of full length (`graph.formats.projection`, FULL), with what is known of it in columns
of its own, so that a reader can filter and weigh without another table. Logprobs of context are null, not 0.0: a reader
that sums them finds out. What has no fixed shape (sampling values, rewards by call, labels, reasons) is JSON text.

A rollout that can't be exported is a row as well, with `refused` set and the arrays null; see `capture.parquet`, which
writes the file.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import numpy as np

from graph.formats import projection
from graph.formats.projection import Row, Rows
from graph.graph import Graph
from graph.sequences import Sequences

Type = Literal[
    "string",
    "int32",
    "int64",
    "float64",
    "bool",
    "list<int32>",
    "list<uint8>",
    "list<float32>",
    "list<string>",
    "spans",
]
"""What a column holds; `spans` is a list of {call: int32, kind: string, start: int32, end: int32, weights: string}."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column."""

    name: str
    type: Type
    # Null is a value of it beyond the rows of refused rollouts: unknown, or none.
    nullable: bool = False
    help: str


COLUMNS: tuple[Column, ...] = (
    Column(name="rollout", type="string", help="the rollout's id"),
    Column(name="group", type="string", nullable=True, help="its group"),
    Column(name="labels", type="string", help="its labels, as JSON"),
    Column(name="final", type="bool", help="false while the rollout was open: more may come"),
    Column(name="reward", type="float64", nullable=True, help="null is ungraded, not 0.0"),
    Column(name="row", type="int32", help="which row of the rollout this is, from 0"),
    Column(name="n_rows", type="int32", help="of how many"),
    Column(name="n_trained_tokens", type="int64", help="tokens with mask 1 in this row"),
    Column(name="n_rollout_trained_tokens", type="int64", help="in all rows of the rollout: weigh rollouts, not rows"),
    Column(name="conversation", type="int32", help="the conversation's number in the graph"),
    Column(name="role", type="string", help="main, subagent or auxiliary"),
    Column(name="calls", type="list<int32>", help="the row's calls, first to last"),
    Column(name="trained", type="list<int32>", help="those of them whose sampled ids it trains"),
    Column(name="input_ids", type="list<int32>", help="all ids"),
    Column(name="loss_mask", type="list<uint8>", help="1 for a trained token"),
    Column(name="logprobs", type="list<float32>", help="of trained tokens; null elsewhere"),
    Column(name="prompt_length", type="int32", help="ids before the first trained token"),
    Column(name="spans", type="spans", help="where each part is from; `end` exclusive"),
    Column(name="truncated", type="string", nullable=True, help="length or limit; null for neither"),
    Column(name="finish_reason", type="string", nullable=True, help="of the last trained reply"),
    Column(name="aborted", type="list<int32>", help="trained calls that broke off"),
    Column(name="drift_crossed", type="int32", help="drifts that the row crosses"),
    Column(name="weight_versions", type="list<string>", help="of the trained tokens, oldest first; null is unknown"),
    Column(name="temperature", type="float64", nullable=True, help="null where it differs or was not seen"),
    Column(name="sampling", type="string", help="what the trained calls were sampled with, as JSON"),
    Column(name="call_rewards", type="string", help="call to reward, as JSON"),
    Column(name="logprobs_mode", type="string", help="raw, processed or unknown"),
    Column(name="left_out", type="string", help="calls of the rollout that no row trains, and why, as JSON"),
    Column(name="findings", type="list<string>", help="codes of level warn or error"),
    Column(name="refused", type="string", nullable=True, help="why the rollout has no rows, as JSON; null for a row"),
)
"""Every column, in order."""


def to_json(graph: Graph, sequences: Sequences) -> list[dict[str, Any]]:
    """Return a rollout's rows: for each a value by column, its arrays numpy's (NaN for no logprob).

    Raises `Refused`: see `graph.formats.projection`.
    """
    found = projection.rows(graph, sequences)
    labels = _text(graph.rollout.labels)
    left_out = _text(found.absent())
    return [{**_row(row, found), "labels": labels, "left_out": left_out} for row in found]


def refusal(rollout: str, refused: dict[str, str]) -> dict[str, Any]:
    """Return the row of a rollout that can't be exported."""
    return {**dict.fromkeys(column.name for column in COLUMNS), "rollout": rollout, "refused": _text(refused)}


def _row(row: Row, found: Rows) -> dict[str, Any]:
    about, sequence = row.about(), row.sequence
    return {
        **{column.name: about.get(column.name) for column in COLUMNS},
        "input_ids": sequence.input_ids,
        "loss_mask": sequence.loss_mask,
        "logprobs": np.where(sequence.loss_mask.astype(bool), sequence.logprobs, np.float32("nan")),
        "prompt_length": row.first,
        "spans": [
            {"call": span.call, "kind": span.kind, "start": span.start, "end": span.end, "weights": span.weights}
            for span in sequence.spans
        ],
        "truncated": sequence.truncated or None,
        "sampling": _text(sequence.sampling),
        "call_rewards": _text(about["call_rewards"]),
        "findings": list(found.of.findings),
    }


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
