"""Agent-loop outputs."""

import pytest

from graph.formats import verl
from graph.formats.refused import Refused
from graph.sequences import Options, cut
from tests.graph.formats.captures import branched, turns
from tests.graph.formats.readback import wire
from tests.graph.tape import Tape, assistant, system, user


def exported(tape, **options):
    graph = tape.graph()
    return wire(verl.to_json(graph, cut(graph, Options(**options))))


def test_the_response_begins_with_the_first_trained_token():
    (row,) = exported(turns())["rows"]
    known = row["extra_fields"].pop("treering")
    assert row == {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5, 6, 7],
        "response_mask": [1, 1, 0, 0, 1],
        "response_logprobs": [-0.25, -0.5, 0.0, 0.0, -1.0],
        "reward_score": 0.5,
        "num_turns": 4,
        "metrics": {},
        "extra_fields": {"min_global_steps": 7, "max_global_steps": 8},
    }
    assert (known["rollout"], known["row"], known["n_rows"]) == ("g-3", 0, 1)


def test_a_branch_has_what_another_row_trains_in_its_prompt():
    first, second = exported(branched())["rows"]
    assert (first["prompt_ids"], second["prompt_ids"], second["response_ids"]) == ([1, 2], [1, 2, 3, 4, 9], [10])


@pytest.mark.parametrize("weights", [("7", None), ("7", "v8")])
def test_steps_are_absent_where_one_is_unknown_or_no_number(weights):
    assert list(exported(turns(weights=weights))["rows"][0]["extra_fields"]) == ["treering"]


def test_an_ungraded_rollout_has_no_score():
    assert exported(turns(reward=None))["rows"][0]["reward_score"] is None
    assert exported(turns(reward=0.0))["rows"][0]["reward_score"] == 0.0


def test_a_system_s_message_is_no_turn():
    tape = Tape(reward=1.0)
    tape.say([system("You work."), user("Go")], assistant("Gone."))
    assert exported(tape)["rows"][0]["num_turns"] == 2


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"response_mask": [1]}, "5 response_ids, 1 response_mask, 5 response_logprobs"),
        ({"response_logprobs": [-0.25]}, "1 response_logprobs"),
        ({"response_logprobs": [0.0, -0.25, -0.5, 0.0, 0.0]}, "not trained has a logprob"),
        ({"response_mask": [0, 0, 0, 0, 0]}, "nothing is trained"),
        ({"prompt_ids": []}, "prompt_ids is empty"),
    ],
)
def test_a_broken_output_is_refused(broken, says):
    (row,) = exported(turns())["rows"]
    verl.check(row)
    with pytest.raises(Refused, match=says):
        verl.check(row | broken)
