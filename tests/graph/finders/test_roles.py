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


def messages(graph, code: str) -> list[str]:
    return [each.message for each in graph.findings if each.code == code]


def test_what_was_ruled_is_no_evidence_of_what_was_done():
    tape = told()
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={0: "main", 2: "auxiliary"})
    graph = tape.graph()
    assert messages(graph, "multiple_roots") == [
        "The main task has 2 roots, 1 of them because somebody ruled so (call 0)."
    ]
    assert data(graph, "multiple_roots") == {"ruled": [0]}
    assert messages(graph, "auxiliary_calls") == [
        "1 call served the agent itself, not the task (call 2 because somebody ruled so), and is not trained."
    ]
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={0: "subagent"})
    assert messages(tape.graph(), "subagents") == [
        "2 conversations were started by a tool call, or somebody ruled so (call 0)."
    ]


def test_a_rollout_that_was_ruled_to_have_no_main_says_so():
    tape = told()
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={1: "auxiliary"})
    (message,) = messages(tape.graph(), "nothing_trainable")
    assert message.endswith("(role); somebody ruled call 1 to be no part of main.")
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={})
    assert messages(tape.graph(), "nothing_trainable") == []


def test_a_tie_that_was_ruled_on_says_so():
    tape = Tape()
    for n, task in enumerate(("Do the one thing.", "Do the other thing.")):
        asks = assistant("", ("bash", {"n": n}), ids=str(n))
        tape.say([user(task)], asks, tools=("bash",))
        tape.say([user(task), asks, result("ok", asks)], assistant("Done."), tools=("bash",))
    (before,) = messages(tape.graph(), "ambiguous_main")
    assert before == "Which conversation is the main one was a tie, broken by size."
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={0: "main"})
    (after,) = messages(tape.graph(), "ambiguous_main")
    assert after == f"{before[:-1]}; what somebody ruled of call 0 overrules that."
