"""Tensor dicts, a version a token."""

import msgspec
import pytest

from graph.formats import areal
from graph.formats.refused import Refused
from graph.records import Weights, WeightSpan
from graph.sequences import Options, cut
from tests.graph.formats.captures import branched, turns
from tests.graph.formats.readback import wire


def exported(tape, **options):
    graph = tape.graph()
    return wire(areal.to_json(graph, cut(graph, Options(**options))))


def test_a_row_is_a_leaf_s_tensors():
    (row,) = exported(turns())["rows"]
    assert row["tensors"] == {
        "input_ids": [[1, 2, 3, 4, 5, 6, 7]],
        "loss_mask": [[0, 0, 1, 1, 0, 0, 1]],
        "logprobs": [[0.0, 0.0, -0.25, -0.5, 0.0, 0.0, -1.0]],
        "versions": [[-1, -1, 7, 7, -1, -1, 8]],
        "attention_mask": [[True] * 7],
        "rewards": [0.5],
    }
    assert row["about"]["rollout"] == "g-3"


def test_a_version_is_a_token_s_own():
    tape = turns()
    spans = (WeightSpan(version="7", start=0, end=1), WeightSpan(version="8", start=1, end=2))
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], weights=Weights(start="7", end="8", spans=spans))
    assert exported(tape)["rows"][0]["tensors"]["versions"] == [[-1, -1, 7, 8, -1, -1, 8]]


def test_what_another_row_trains_is_as_good_as_not_generated():
    assert exported(branched())["rows"][1]["tensors"]["versions"] == [[-1, -1, -1, -1, -1, 7]]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (("7", None), "Call 1 was sampled from weights of no known version"),
        (("7", "step-8"), "Call 1 was sampled from weights of version 'step-8', no number"),
    ],
)
def test_a_version_that_is_unknown_or_no_number_is_refused(weights, says):
    with pytest.raises(Refused, match=says) as refused:
        exported(turns(weights=weights))
    assert "POST /engine/weights" in refused.value.hint


def test_an_ungraded_rollout_is_refused():
    with pytest.raises(Refused, match="Rollout g-3 is not graded"):
        exported(turns(reward=None))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"input_ids": [1, 2, 3, 4, 5, 6, 7]}, r"each has the shape \[1, L\]"),
        ({"input_ids": [[1, 2]] * 2}, r"each has the shape \[1, L\]"),
        ({"logprobs": [[0.0]]}, "7 input_ids, 7 loss_mask, 1 logprobs"),
        ({"versions": [[-1] * 7]}, "versions are of trained tokens alone, and of all of them"),
        ({"versions": [[7] * 7]}, "versions are of trained tokens alone, and of all of them"),
        ({"attention_mask": [[True] * 6 + [False]]}, "no padding"),
        ({"logprobs": [[0.0, -0.25, -0.5, 0.0, 0.0, -1.0, 0.0]]}, "not trained has a logprob"),
        ({"rewards": [None]}, "one reward a row"),
        ({"rewards": 0.5}, "one reward a row"),
    ],
)
def test_broken_tensors_are_refused(broken, says):
    (row,) = exported(turns())["rows"]
    areal.check(row["tensors"])
    with pytest.raises(Refused, match=says):
        areal.check(row["tensors"] | broken)


def test_a_key_that_lacks_is_named():
    (row,) = exported(turns())["rows"]
    del row["tensors"]["versions"]
    with pytest.raises(Refused, match="versions missing"):
        areal.check(row["tensors"])
