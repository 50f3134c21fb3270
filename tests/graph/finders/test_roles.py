"""What conversations were for, said as findings."""

import msgspec

from graph.finders.roles import WORDS
from graph.roles import VERDICTS
from tests.graph.tape import Tape, assistant, codes, data, result, system, user

TASK = [system("You work."), user("Make the tests pass.")]


def told(**hints) -> Tape:
    """Main, a title and a subagent; `hints` are the subagent's headers."""
    tape = Tape(pins={"temperature": 1.0})
    asks = assistant("", ("task", {"prompt": "Find every caller."}))
    tape.say([user("Name this:"), TASK[1]], assistant("Passing tests"))
    tape.say(TASK, asks, tools=("task",))
    tape.say([user("Find every caller.")], assistant("None."), hints=hints)
    tape.say([*TASK, asks, result("None.", asks)], assistant("Done."), tools=("task",))
    return tape


def test_who_was_there():
    graph = told().graph()
    assert codes(graph) == {"auxiliary_calls": (0,), "subagents": (2,)}
    assert data(graph, "auxiliary_calls") == {"kinds": {"title": 1}}
    assert data(graph, "subagents") == {"conversations": 1, "parents": [1]}


def test_a_header_that_agrees_says_nothing():
    assert "role_hint_disagrees" not in codes(told(**{"x-parent-session-id": "ses_1"}).graph())


def test_a_header_that_contradicts_is_named():
    graph = told(**{"x-treering-role": "title"}).graph()
    assert codes(graph)["role_hint_disagrees"] == (2,)
    assert data(graph, "role_hint_disagrees") == {"hinted": "title", "judged": "subagent", "conversation": 2}


def test_a_header_that_makes_no_sense_is_no_claim():
    assert "role_hint_disagrees" not in codes(told(**{"x-treering-role": "boss"}).graph())


def test_a_person_s_verdict_contradicts_no_header():
    tape = told(**{"x-treering-role": "subagent"})
    tape.rollout = type(tape.rollout)(id="r", state="closed", roles={2: "main"}, logprobs_mode="processed")
    assert "role_hint_disagrees" not in codes(tape.graph())


def test_a_title_that_was_ruled_main_is_told():
    tape = told()
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={0: "main"})
    graph = tape.graph()
    assert codes(graph)["role_overruled"] == (0,)
    found = data(graph, "role_overruled")
    assert (found["conversation"], found["role"], found["judged"]) == (0, "main", "title")
    assert found["tokens"] == graph.forest.n_sampled(0)
    (message,) = [each.message for each in graph.findings if each.code == "role_overruled"]
    assert message == "Conversation 0 (a title, by what it did) is taken for main because somebody ruled so."


def test_a_verdict_that_agrees_with_the_flow_says_nothing():
    tape = told()
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={0: "summary", 1: "main"})
    # A title is no summary, and neither is trained: that is not worth a word.
    assert "role_overruled" not in codes(tape.graph())


def test_every_role_and_kind_has_words():
    assert WORDS.keys() >= {*VERDICTS, "main", "subagent", "auxiliary"}
