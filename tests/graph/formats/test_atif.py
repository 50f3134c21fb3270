"""ATIF trajectories: whole, and no reference that leads nowhere."""

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from graph.formats.atif import check, to_json
from graph.formats.refused import Refused
from graph.graph import read
from graph.sequences import ROLES, Options, cut
from tests.graph.corpus import FOLDER, graph_of, load
from tests.graph.formats.captures import parted, turns
from tests.graph.formats.readback import dealt, of_mark, told, whole, wire
from tests.graph.tape import Tape, assistant, result, user

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def trajectory(graph, **options):
    return wire(to_json(graph, cut(graph, Options(**options))))


def every(made) -> list:
    """A trajectory and all that are embedded in it."""
    return [made, *(inner for each in made.get("subagent_trajectories", ()) for inner in every(each))]


def scored(made) -> list:
    """The steps with token ids, of all trajectories."""
    return [step for each in every(made) for step in each["steps"] if "completion_token_ids" in step.get("metrics", {})]


def brief(made) -> list[tuple[str, str]]:
    return [(step["source"], step["message"]) for step in made["steps"]]


def with_subagents(*, returned: bool = True) -> Tape:
    """Main asks for two subagents at once, and one of them for a third."""
    asks = assistant(
        "", ("task", {"prompt": "Look into the cellar, please."}), ("task", {"prompt": "Look into the attic, please."})
    )
    cellar, attic = (
        assistant("There is nothing but wine in the cellar."),
        assistant("There are bats in the attic, many."),
    )
    deeper = assistant("", ("task", {"prompt": "Count all the bats in there."}), ids="deeper")
    bats = assistant("There are seventeen bats in there.")
    tape = Tape(model="tiny", labels={"agent": "opencode", "agent_version": "1.18"})
    tape.say([user("Go")], asks, tools=("task",))
    tape.say([user("Look into the cellar, please.")], cellar, tools=("ls",))
    tape.say([user("Look into the attic, please.")], deeper, tools=("ls", "task"))
    tape.say([user("Count all the bats in there.")], bats, tools=("ls",))
    tape.say(
        [user("Look into the attic, please."), deeper, result("There are seventeen bats in there.", deeper)],
        attic,
        tools=("ls", "task"),
    )
    if returned:
        back = [
            result("There is nothing but wine in the cellar.", asks),
            result("There are bats in the attic, many.", asks, 1),
        ]
        tape.say([user("Go"), asks, *back], assistant("Wine and bats."), tools=("task",))
    return tape


def test_a_message_is_a_step_and_a_reply_one_with_its_metrics():
    made = trajectory(turns(model="tiny").graph())
    assert made["schema_version"] == "ATIF-v1.8"
    assert (made["session_id"], made["trajectory_id"]) == ("g-3", "g-3")
    assert made["agent"] == {"name": "unknown", "version": "unknown", "model_name": "tiny"}
    assert brief(made) == [("user", "Go"), ("agent", "One."), ("user", "On"), ("agent", "Two.")]
    assert [step["step_id"] for step in made["steps"]] == [1, 2, 3, 4]
    metrics = made["steps"][3]["metrics"]
    assert metrics.pop("extra")["treering"]["weights"] == [{"version": "8", "start": 0, "end": 1}]
    assert metrics == {
        "prompt_tokens": 6,
        "completion_tokens": 1,
        "prompt_token_ids": [1, 2, 3, 4, 5, 6],
        "completion_token_ids": [7],
        "logprobs": [-1.0],
    }
    assert made["steps"][3]["llm_call_count"] == 1
    assert made["final_metrics"] == {"total_prompt_tokens": 8, "total_completion_tokens": 3, "total_steps": 4}
    known = made["extra"]["treering"]
    assert {name: known[name] for name in ("rollout", "group", "reward", "n_rows", "n_trained_tokens")} == {
        "rollout": "g-3", "group": "g", "reward": 0.5, "n_rows": 1, "n_trained_tokens": 3,
    }  # fmt: skip


def test_what_is_sent_again_is_no_step():
    assert brief(trajectory(parted().graph())) == [("user", "Go"), ("agent", "One."), ("user", "On"), ("agent", "Two.")]


def test_subagents_are_embedded_where_their_tool_calls_are_answered():
    made = trajectory(with_subagents().graph(), roles=("main", "subagent"))
    assert made["agent"]["name"] == "opencode"
    assert [each["agent"]["name"] for each in made["subagent_trajectories"]] == ["opencode/subagent"] * 2
    asked = made["steps"][1]
    results = asked["observation"]["results"]
    assert [result["source_call_id"] for result in results] == [use["tool_call_id"] for use in asked["tool_calls"]]
    names = [[reference["trajectory_id"] for reference in result["subagent_trajectory_ref"]] for result in results]
    cellar, attic = made["subagent_trajectories"]
    assert names == [[cellar["trajectory_id"]], [attic["trajectory_id"]]]
    assert (brief(cellar)[0], brief(attic)[0]) == (
        ("user", "Look into the cellar, please."),
        ("user", "Look into the attic, please."),
    )
    # To any depth.
    (bats,) = attic["subagent_trajectories"]
    assert brief(bats)[-1] == ("agent", "There are seventeen bats in there.")
    assert len(scored(made)) == 6


def test_a_subagent_that_nothing_was_heard_of_is_named_at_its_tool_call():
    made = trajectory(with_subagents(returned=False).graph())
    results = made["steps"][1]["observation"]["results"]
    assert [set(result) for result in results] == [{"source_call_id", "subagent_trajectory_ref"}] * 2


def test_ids_stand_where_they_are_trained_and_elsewhere_the_reason():
    made = trajectory(with_subagents().graph())
    assert len(scored(made)) == 2
    (cellar, _) = made["subagent_trajectories"]
    step = cellar["steps"][1]
    assert set(step["metrics"]) == {"prompt_tokens", "completion_tokens"}
    assert step["extra"]["treering"]["left_out"]["reason"] == "role"


@settings(max_examples=50, deadline=None, suppress_health_check=SLOW)
@given(told())
def test_every_trainable_token_is_on_one_step_behind_its_own_prompt(story):
    graph = read(story.rollout, story.calls)
    note(repr(story))
    note(repr(graph))
    calls = {call.n: call for call in story.calls}
    made = trajectory(graph)
    check(made)
    seen = []
    for step in scored(made):
        metrics, n = step["metrics"], step["extra"]["treering"]["call"]
        assert metrics["prompt_token_ids"] + metrics["completion_token_ids"] == whole(calls[n])
        seen += [of_mark(logprob) for logprob in metrics["logprobs"]]
    assert sorted(seen) == sorted(dealt(story))


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True), st.randoms(use_true_random=False))
def test_the_order_in_which_records_come_changes_nothing(story, random):
    shuffled = list(story.calls)
    random.shuffle(shuffled)
    forms = []
    for calls in (story.calls, shuffled):
        try:
            forms.append(trajectory(read(story.rollout, calls), roles=ROLES))
        except Refused as refused:
            forms.append(str(refused))
    assert forms[0] == forms[1]


@pytest.mark.parametrize("roles", [("main",), ROLES], ids=["main", "all"])
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_all_of_a_real_agent_s_rollout_is_there(path, roles):
    graph = graph_of(load(path))
    made = trajectory(graph, roles=roles)
    rows = cut(graph, Options(roles=roles))
    trained = sorted(n for row in rows.sequences for n in row.trained)
    assert sorted(step["extra"]["treering"]["call"] for step in scored(made)) == trained
    known = {
        found.n
        for found in graph.conversations
        # One whose every reply broke off has nothing to tell.
        if found.role == "subagent" and any(graph.forest.calls[n].status == "complete" for n in found.calls)
    }
    embedded = {each["extra"]["treering"].get("conversation") for each in every(made)[1:]}
    assert known <= embedded
    # Each tool's result stands at the tool call that it answers.
    asides = [
        step for each in every(made) for step in each["steps"] if step["source"] == "system" and "observation" in step
    ]
    assert all("subagent_trajectory_ref" in step["observation"]["results"][0] for step in asides)


def test_an_auxiliary_conversation_that_is_trained_stands_where_it_arrived():
    made = trajectory(graph_of(load(FOLDER / "pi-compaction-keeps-a-turn.json")), roles=("main", "summary"))
    places = [place for place, step in enumerate(made["steps"]) if step["source"] == "system" and "observation" in step]
    assert len(places) == 2
    assert 0 < places[0] < len(made["steps"]) - 1
    assert {each["extra"]["treering"]["kind"] for each in made["subagent_trajectories"]} == {"summary"}


def test_a_subagent_whose_caller_is_unknown_is_not_lost_if_it_is_trained():
    tape = with_subagents()
    # A person's word, which names no caller.
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={1: "subagent"})
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], reply=tape.calls[5].reply, finish_reason="stop")
    graph = tape.graph()
    made = trajectory(graph, roles=ROLES)
    assert len(scored(made)) == len({n for row in cut(graph, Options(roles=ROLES)).sequences for n in row.trained})


def test_text_alone_is_a_trajectory_of_messages():
    tape = turns(tier="eval")
    tape.calls = [
        msgspec.structs.replace(call, prompt_ids=None, sampled_ids=None, logprobs=None) for call in tape.calls
    ]
    made = trajectory(tape.graph())
    assert brief(made) == [("user", "Go"), ("agent", "One."), ("user", "On"), ("agent", "Two.")]
    assert scored(made) == []
    assert made["steps"][1]["metrics"] == {"prompt_tokens": 2, "completion_tokens": 2}
    assert made["steps"][1]["extra"]["treering"]["left_out"]["reason"] == "no_token_ids"


def test_an_agent_s_own_words_are_no_model_s():
    tape = Tape()
    tape.say([user("Hello"), assistant("Welcome!"), user("Go")], assistant("Gone."))
    step = trajectory(tape.graph())["steps"][1]
    assert (step["source"], step["llm_call_count"], "metrics" in step) == ("agent", 0, False)


def test_without_a_call_of_main_there_is_no_trajectory():
    tape = Tape()
    tape.say([user("Go")], assistant("Half"), status="aborted", delivered=False)
    with pytest.raises(Refused, match="no reply of main"):
        trajectory(tape.graph())


def test_rows_that_cross_drifts_are_refused():
    with pytest.raises(Refused, match="cross drifts"):
        trajectory(parted().graph(), drift="realign")


def subagent(made):
    return made["subagent_trajectories"][0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda made: made["steps"][-1]["metrics"]["logprobs"].pop(), "logprobs"),
        (lambda made: made["steps"][1].update(step_id=7), "number 2"),
        (lambda made: subagent(made).update(trajectory_id="r"), "doesn't name each"),
        (lambda made: made.update(trajectory_id=subagent(made)["trajectory_id"]), "Two trajectories are called"),
        (lambda made: made.pop("subagent_trajectories"), "doesn't name each"),
        (
            lambda made: made["steps"][1]["observation"]["results"][0].pop("subagent_trajectory_ref"),
            "doesn't name each",
        ),
        (
            lambda made: made["steps"][1]["observation"]["results"][1].update(
                subagent_trajectory_ref=made["steps"][1]["observation"]["results"][0]["subagent_trajectory_ref"]
            ),
            "doesn't name each",
        ),
        (lambda made: made["steps"][1]["observation"]["results"][0].update(source_call_id="x"), "did not make"),
        (
            lambda made: made["steps"][1]["tool_calls"][1].update(
                tool_call_id=made["steps"][1]["tool_calls"][0]["tool_call_id"]
            ),
            "two tool calls of one id",
        ),
    ],
)
def test_what_harbor_takes_in_silence(spoil, said):
    made = trajectory(with_subagents().graph())
    made = json.loads(json.dumps(made))
    check(made)
    spoil(made)
    with pytest.raises(Refused, match=said):
        check(made)
