"""A generator output, step by step."""

import copy

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph.formats import skyrl
from graph.formats.refused import Refused
from graph.graph import read
from graph.records import Stop
from graph.sequences import ROLES, Options, cut
from tests.graph.formats.captures import branched, parted, say, turns
from tests.graph.formats.readback import told, wire
from tests.graph.tape import assistant, user

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def exported(tape, **options):
    graph = tape.graph()
    return wire(skyrl.to_json(graph, cut(graph, Options(**options))))


def test_two_rows_are_two_steps_of_one_trajectory():
    form = exported(parted())
    assert form["output"] == {
        "prompt_token_ids": [[1, 2], [1, 2, 3, 8, 5, 6]],
        "response_ids": [[3, 4], [7]],
        "rewards": [0.5, 0.5],
        "loss_masks": [[1, 1], [1]],
        "stop_reasons": ["stop", "stop"],
        "rollout_metrics": None,
        "rollout_logprobs": [[-0.25, -0.5], [-1.0]],
        "trajectory_ids": [{"instance_id": "g", "repetition_id": 3}] * 2,
        "trajectory_generation_times": None,
        "trajectory_time_splits": None,
        "rollout_expert_indices": None,
        "is_last_step": [False, True],
        "env_metrics": None,
    }
    assert [(each["row"], each["n_rows"]) for each in form["about"]] == [(0, 2), (1, 2)]


def test_the_main_row_whose_reply_came_last_is_the_last_step():
    """Its reward is the rollout's, and its end tells how the rollout ended."""
    tape = branched()
    # Both go on, the left one after the right one: its row, cut first, ends last.
    for way, reply, prompt, sampled in (
        ("Right", "Four.", [1, 2, 3, 4, 9, 10, 11], [12]),
        ("Left", "Five.", [1, 2, 3, 4, 5, 6, 11], [13]),
    ):
        told = [user("Go"), assistant("One."), user(way), assistant("Two."), user("On")]
        say(tape, told, assistant(reply), prompt, sampled, [-4.0], "7")
    # A subagent's row comes after the main ones, by its conversation.
    say(tape, [user("Sub")], assistant("Six."), [20], [21], [-8.0], "7")
    form = exported(tape, roles=ROLES)
    assert form["output"]["response_ids"][-1] == [6, 11, 13]
    assert [each["row"] for each in form["about"]] == [0, 1, 2]
    assert form["about"][-1]["role"] == "main"
    assert form["output"]["is_last_step"] == [False, False, True]


def test_without_main_the_row_whose_reply_came_last_is_last():
    form = exported(branched(roles={0: "subagent"}), roles=("subagent",))
    assert form["output"]["response_ids"][-1] == [10]


def test_a_tool_call_is_a_stop_and_a_cut_is_a_length():
    tape = turns()
    assert exported(tape)["output"]["stop_reasons"] == ["stop"]
    for finish, stopped, reason in (
        ("tool_calls", None, "stop"),
        ("length", None, "length"),
        ("stop", Stop(limit="max_calls", at_call=2, stops=1), "length"),
    ):
        cut_short = turns(stopped=stopped)
        cut_short.calls[1] = msgspec.structs.replace(cut_short.calls[1], finish_reason=finish)
        assert exported(cut_short)["output"]["stop_reasons"] == [reason]
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], status="aborted", finish_reason=None)
    assert exported(tape, aborted="train")["output"]["stop_reasons"] == ["abort"]


@pytest.mark.parametrize(
    ("rollout", "group", "told"),
    [
        ("g-0", "g", ("g", 0)),
        ("g-12", "g", ("g", 12)),
        ("r", None, ("r", 0)),
    ],
)
def test_a_trajectory_is_named_by_group_and_number(rollout, group, told):
    (name,) = exported(turns(id=rollout, group=group))["output"]["trajectory_ids"]
    assert (name["instance_id"], name["repetition_id"]) == told


@pytest.mark.parametrize("rollout", ["g-01", "g-x", "h-1", "g", "g-²"])
def test_an_id_that_does_not_count_its_group_gives_a_number_of_its_own(rollout):
    names = [exported(turns(id=each, group="g"))["output"]["trajectory_ids"][0] for each in (rollout, "g-1")]
    assert names[0]["instance_id"] == names[1]["instance_id"] == "g"
    assert names[0]["repetition_id"] > 1_000_000


def test_an_ungraded_rollout_is_refused():
    with pytest.raises(Refused, match="Rollout g-3 is not graded") as refused:
        exported(turns(reward=None))
    assert "PUT its reward" in refused.value.hint


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True), st.sampled_from(["split", "realign"]))
def test_there_is_one_last_step_and_it_is_of_main(story, drift):
    graph = read(story.rollout, story.calls)
    try:
        form = wire(skyrl.to_json(graph, cut(graph, Options(roles=ROLES, drift=drift))))
    except Refused:
        return
    skyrl.check(form["output"])
    assert form["output"]["is_last_step"] == [False] * (form["n_rows"] - 1) + [True]
    roles = [about["role"] for about in form["about"]]
    assert roles[-1] == "main" or "main" not in roles


def two() -> dict:
    """The outputs of two rollouts, concatenated."""
    outputs = [exported(parted(id=name))["output"] for name in ("g-0", "g-1")]
    return {name: outputs[0][name] + outputs[1][name] for name in skyrl.PER_ROW}


def test_two_trajectories_side_by_side_are_whole():
    skyrl.check(two())


@pytest.mark.parametrize(
    ("name", "step", "value", "says"),
    [
        ("is_last_step", 1, False, "is_last_step is wrong at step 1"),
        ("is_last_step", 0, True, "is_last_step is wrong at step 0"),
        ("is_last_step", 3, False, "is_last_step is wrong at step 3"),
        ("is_last_step", 3, 1, "is_last_step is wrong at step 3"),
        ("loss_masks", 0, [1], "step 0: 2 response_ids, 1 loss_masks, 2 rollout_logprobs"),
        ("rollout_logprobs", 0, [-0.25], "step 0: 2 response_ids, 2 loss_masks, 1 rollout_logprobs"),
        ("rollout_logprobs", 0, [-0.25, None], "step 0: a trained token has no logprob"),
        ("rewards", 0, [0.0, 0.5], "one a row or one a token"),
        ("rewards", 0, None, "its reward is no number"),
        ("prompt_token_ids", 0, [], "prompt_token_ids is empty"),
        ("response_ids", 0, [], "0 response_ids"),
    ],
)
def test_a_broken_step_is_refused(name, step, value, says):
    output = two()
    output[name][step] = value
    with pytest.raises(Refused, match=says):
        skyrl.check(output)


def test_steps_that_lie_apart_are_refused():
    output = two()
    for name in skyrl.PER_ROW:
        output[name] = [output[name][step] for step in (0, 2, 1, 3)]
    output["is_last_step"] = [True] * 4
    with pytest.raises(Refused, match="steps of one trajectory are apart at step 2"):
        skyrl.check(output)


@pytest.mark.parametrize("name", skyrl.PER_ROW)
def test_a_list_that_lacks_a_step_is_refused(name):
    output = copy.deepcopy(two())
    output[name] = output[name][:-1]
    with pytest.raises(Refused, match=r"GeneratorOutput"):
        skyrl.check(output)


def test_no_steps_are_refused():
    with pytest.raises(Refused, match="no outputs"):
        skyrl.check({name: [] for name in skyrl.PER_ROW})


def test_rewards_may_be_one_a_token():
    output = two()
    output["rewards"] = [[0.0] * len(ids) for ids in output["response_ids"]]
    skyrl.check(output)
    output["rewards"][0] = [0.0]
    with pytest.raises(Refused, match="1 rewards"):
        skyrl.check(output)
