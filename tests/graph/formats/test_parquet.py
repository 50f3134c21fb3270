"""Columns and rows for Parquet, without Parquet."""

import json

import numpy as np
import pytest

from graph.formats.parquet import COLUMNS, refusal, to_json
from graph.formats.refused import Refused
from graph.sequences import Options, cut
from tests.graph.tape import Tape, assistant, user


def tape(**rollout):
    made = Tape(**{"group": "g7", "reward": None, "labels": {"split": "train"}} | rollout)
    made.say([user("Go")], assistant("Gone."), sampling_sent={"temperature": 0.7})
    made.say([user("Go"), assistant("Gone."), user("Back")], assistant("Half"), status="aborted", delivered=False)
    return made


def test_a_row_has_a_value_for_each_column():
    made = tape()
    graph = made.graph()
    (row,) = to_json(graph, cut(graph))
    assert list(row) == [column.name for column in COLUMNS]
    prompt, sampled = made.calls[0].prompt_ids.tolist(), made.calls[0].sampled_ids.tolist()
    assert row["input_ids"].tolist() == prompt + sampled
    assert row["loss_mask"].tolist() == [0] * len(prompt) + [1] * len(sampled)
    assert np.isnan(row["logprobs"][: len(prompt)]).all()
    assert row["logprobs"][len(prompt) :].tolist() == made.calls[0].logprobs.tolist()
    said = {
        "rollout": "r", "group": "g7", "reward": None, "row": 0, "n_rows": 1, "prompt_length": len(prompt),
        "truncated": None,
    }  # fmt: skip
    assert {name: row[name] for name in said} == said
    assert (row["n_trained_tokens"], row["n_rollout_trained_tokens"]) == (len(sampled), len(sampled))
    assert json.loads(row["left_out"]) == [{"call": 1, "reason": "aborted"}]
    assert (json.loads(row["labels"]), row["temperature"]) == ({"split": "train"}, 0.7)
    assert row["spans"][1] == {
        "call": 0, "kind": "sampled", "start": len(prompt), "end": len(prompt) + len(sampled), "weights": None,
    }  # fmt: skip
    assert row["refused"] is None


def test_what_may_be_null_is_said():
    graph = tape().graph()
    (row,) = to_json(graph, cut(graph))
    assert {column.name for column in COLUMNS if row[column.name] is None} <= {
        column.name for column in COLUMNS if column.nullable
    }


def test_a_refused_rollout_is_a_row_of_nulls():
    row = refusal("r9", {"code": "rollout_open", "message": "…", "hint": "…"})
    assert list(row) == [column.name for column in COLUMNS]
    assert {name for name, value in row.items() if value is not None} == {"rollout", "refused"}
    assert json.loads(row["refused"])["code"] == "rollout_open"


def test_nothing_trained_is_refused():
    graph = tape().graph()
    with pytest.raises(Refused):
        to_json(graph, cut(graph, Options(roles=("subagent",))))
