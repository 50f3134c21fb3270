"""The training trace, turn by turn."""

import copy

import msgspec
import numpy as np
import pytest

from graph.formats import openenv
from graph.formats.refused import Refused
from graph.sequences import Options, cut
from tests.graph.formats.captures import branched, parted, turns
from tests.graph.formats.readback import wire
from tests.graph.tape import assistant, user


def exported(tape, **options):
    graph = tape.graph()
    return wire(openenv.to_json(graph, cut(graph, Options(**options))))


def test_a_trace_has_the_model_s_keys_alone():
    trace = exported(turns())
    assert list(trace) == ["schema_version", "turns"]
    assert trace["schema_version"] == 1
    first, second = trace["turns"]
    known = second["metadata"].pop("treering")
    assert second == {
        "node_id": "chatcmpl-1",
        "prompt_token_ids": [1, 2, 3, 4, 5, 6],
        "completion_token_ids": [7],
        "per_token_logps": [-1.0],
        # Over prompt and completion; the prompt is context even where it was sampled.
        "loss_mask": [0, 0, 0, 0, 0, 0, 1],
        "request": {"messages": [user("Go"), assistant("One."), user("On")], "tools": None},
        "response": {"choices": [{"index": 0, "message": assistant("Two."), "finish_reason": "stop"}]},
        "metadata": {"sampling_params": {"temperature": 1.0}},
    }
    assert (known["rollout"], known["group"], known["reward"], known["call"]) == ("g-3", "g", 0.5, 1)
    assert "left_out" not in known
    assert first["loss_mask"] == [0, 0, 1, 1]
    assert first["metadata"]["treering"]["left_out"] == []


def test_a_reply_that_two_branches_share_is_one_turn():
    trace = exported(branched())
    assert [turn["node_id"] for turn in trace["turns"]] == ["chatcmpl-0", "chatcmpl-1", "chatcmpl-2"]
    assert [turn["metadata"]["treering"]["row"] for turn in trace["turns"]] == [0, 0, 1]


def test_a_context_reply_is_no_turn_and_stands_in_the_next_prompt():
    tape = turns()
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], constrained=("tool_choice",))
    (turn,) = exported(tape)["turns"]
    assert (turn["node_id"], turn["prompt_token_ids"]) == ("chatcmpl-1", [1, 2, 3, 4, 5, 6])
    assert turn["metadata"]["treering"]["left_out"] == [{"call": 0, "reason": "constrained"}]


def test_turns_have_names_of_their_own():
    tape = branched()
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], id=None)
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], id="x", choice=1)
    tape.calls[2] = msgspec.structs.replace(tape.calls[2], id="x", choice=1)
    assert [turn["node_id"] for turn in exported(tape)["turns"]] == ["call-0", "x#1", "x#1@2"]


def test_rows_that_cross_drifts_are_refused():
    with pytest.raises(Refused, match="no rows that cross drifts") as refused:
        exported(parted(), drift="realign")
    assert refused.value.hint == "Ask for drift=split."
    with pytest.raises(Refused, match="no rows that cross drifts"):
        exported(turns(), drift="realign")


def test_a_positive_logprob_is_refused_as_openenv_would():
    tape = turns()
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], logprobs=np.array([1e-6], np.float32))
    with pytest.raises(Refused, match="Turn chatcmpl-1 has a logprob above 0"):
        exported(tape)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"node_id": ""}, "one node_id, or one has none"),
        ({"node_id": "chatcmpl-0"}, "one node_id"),
        ({"prompt_token_ids": []}, "has an empty prompt"),
        ({"prompt_token_ids": [1, 2, 3, 4, 5, -6]}, "whole numbers"),
        ({"completion_token_ids": [7, 8]}, "2 completion_token_ids, 1 per_token_logps"),
        ({"per_token_logps": [None]}, "has no logprob"),
        ({"loss_mask": [0, 1]}, "does not cover prompt and completion"),
        ({"loss_mask": [0, 0, 1, 1, 0, 0, 1]}, "a prompt's token is trained"),
    ],
)
def test_a_broken_trace_is_refused(broken, says):
    trace = exported(turns())
    openenv.check(trace)
    trace = copy.deepcopy(trace)
    trace["turns"][1] |= broken
    with pytest.raises(Refused, match=says):
        openenv.check(trace)
