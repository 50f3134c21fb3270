"""Tensor dicts, a version a token."""

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from graph.formats import areal
from graph.formats.refused import Refused
from graph.graph import read
from graph.records import Weights, WeightSpan
from graph.sequences import ROLES, Options, cut
from tests.graph.formats.captures import branched, turns
from tests.graph.formats.readback import of_mark, told, wire

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


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


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True), st.sampled_from(["split", "realign"]))
def test_each_trained_token_has_its_call_s_version_and_no_other_has_one(story, drift):
    graph = read(story.rollout, story.calls)
    sequences = cut(graph, Options(roles=ROLES, drift=drift))
    assume(sequences.sequences)
    for row in wire(areal.to_json(graph, sequences))["rows"]:
        tensors = {name: value[0] for name, value in row["tensors"].items()}
        for version, on, logprob in zip(*(tensors[key] for key in ("versions", "loss_mask", "logprobs")), strict=True):
            assert version == (int(story.calls[of_mark(logprob)[0]].weights.start) if on else -1)


def test_what_another_row_trains_is_as_good_as_not_generated():
    assert exported(branched())["rows"][1]["tensors"]["versions"] == [[-1, -1, -1, -1, -1, 7]]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (("7", None), "Call 1 was sampled from weights of no known version, and AReaL needs a whole number"),
        (("7", "step-8"), "Call 1 was sampled from weights of version 'step-8', and"),
        (("7", "1764460800000"), "Call 1 was sampled from weights of version '1764460800000', and"),
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
