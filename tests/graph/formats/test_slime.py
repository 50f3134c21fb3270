"""Samples for slime and miles."""

import msgspec
import pytest

from graph.formats import slime
from graph.formats.refused import Refused
from graph.records import Stop, Weights, WeightSpan
from graph.sequences import Options, cut
from tests.graph.formats.captures import parted, turns
from tests.graph.formats.readback import wire
from tests.graph.tape import user


def exported(tape, **options):
    graph = tape.graph()
    return wire(slime.to_json(graph, cut(graph, Options(**options))))


def test_mask_and_logprobs_cover_the_response():
    (row,) = exported(turns())["rows"]
    known = row["metadata"].pop("treering")
    owner = row["rollout_id"]
    assert row == {
        "group_index": 3816197008513894,
        "index": owner,
        "rollout_id": owner,
        "prompt": [user("Go")],
        "tokens": [1, 2, 3, 4, 5, 6, 7],
        "response": "Two.",
        "response_length": 5,
        "label": None,
        "reward": 0.5,
        "loss_mask": [1, 1, 0, 0, 1],
        "weight_versions": ["7", "8"],
        "rollout_log_probs": [-0.25, -0.5, 0.0, 0.0, -1.0],
        "remove_sample": False,
        "status": "completed",
        "metadata": {},
        "train_metadata": None,
        "session_id": "g-3",
        "routing_key": "g-3",
    }
    assert (known["rollout"], known["group"], known["n_rows"]) == ("g-3", "g", 1)


def test_siblings_share_their_rollout_and_rollouts_of_a_group_its_number():
    rows = [exported(parted(id=name))["rows"] for name in ("g-0", "g-1")]
    assert [len({row["rollout_id"] for row in each}) for each in rows] == [1, 1]
    assert len({row["rollout_id"] for each in rows for row in each}) == 2
    assert len({row["group_index"] for each in rows for row in each}) == 1
    assert all(isinstance(row["rollout_id"], int) for each in rows for row in each)


def test_a_rollout_without_a_group_is_its_own():
    (row,) = exported(turns(group=None))["rows"]
    assert row["group_index"] == row["rollout_id"]


def test_an_ungraded_rollout_s_reward_is_none():
    assert exported(turns(reward=None))["rows"][0]["reward"] is None


@pytest.mark.parametrize(
    ("finish", "stopped", "status"),
    [
        ("stop", None, "completed"),
        ("length", None, "truncated"),
        ("stop", Stop(limit="deadline_s", at_call=2, stops=1), "truncated"),
    ],
)
def test_a_row_that_was_cut_short_is_truncated_and_trains(finish, stopped, status):
    tape = turns(stopped=stopped)
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], finish_reason=finish)
    (row,) = exported(tape)["rows"]
    assert (row["status"], row["remove_sample"]) == (status, False)


def test_a_reply_that_broke_off_is_aborted_where_it_was_asked_for():
    tape = turns()
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], status="aborted", finish_reason=None)
    assert exported(tape)["rows"][0]["status"] == "completed"
    assert exported(tape, aborted="train")["rows"][0]["status"] == "aborted"


def test_versions_are_one_a_reply_and_one_more_where_they_change():
    tape = turns()
    spans = (WeightSpan(version="7", start=0, end=1), WeightSpan(version="8", start=1, end=2))
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], weights=Weights(start="7", end="8", spans=spans))
    assert exported(tape)["rows"][0]["weight_versions"] == ["7", "8", "8"]


def test_some_versions_are_none():
    """The oldest of those that are known may be younger than the one that is not."""
    assert exported(turns(weights=(None, "8")))["rows"][0]["weight_versions"] == []


def test_a_reply_without_text_has_none():
    tape = turns()
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], reply=None)
    assert exported(tape)["rows"][0]["response"] == ""


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"rollout_id": None}, "no rollout_id, or not the same"),
        ({"rollout_id": 5}, "no rollout_id, or not the same"),
        ({"response_length": 9}, "a response of 9 of 7 tokens"),
        ({"response_length": 0}, "a response of 0 of 7 tokens"),
        ({"response_length": 7}, "a response of 7 of 7 tokens"),
        ({"loss_mask": [0, 0, 0, 0, 0, 0, 1]}, "7 loss_mask for a response of 1"),
        ({"rollout_log_probs": []}, "0 rollout_log_probs for a response of 1"),
        ({"rollout_log_probs": [float("nan")]}, "a trained token has no logprob"),
        ({"tokens": [1, 2, 3, 8, 5, 6, -7]}, "whole numbers"),
    ],
)
def test_a_broken_sample_is_refused(broken, says):
    samples = exported(parted())["rows"]
    slime.check(samples)
    samples[1] |= broken
    with pytest.raises(Refused, match=says):
        slime.check(samples)
