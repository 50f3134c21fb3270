"""Was everything recorded?"""

from graph.records import Notice
from tests.graph.tape import Tape, assistant, codes, data, user


def test_a_closed_rollout_without_calls():
    tape = Tape()
    tape.notices.append(Notice(code="unknown_secret_calls", data={"calls": 3}))
    graph = tape.graph()
    assert codes(graph).keys() == {"no_calls", "unknown_secret_calls"}
    assert data(graph, "no_calls") == {"near": ["unknown_secret_calls"]}


def test_an_open_rollout_without_calls_has_time():
    assert codes(Tape(state="open").graph()) == {}


def test_a_grade_for_nothing():
    tape = Tape(reward=1.0)
    tape.say([user("Go")], None, status="error", prompt_ids=None, sampled_ids=None, logprobs=None)
    assert data(tape.graph(), "graded_without_calls") == {"reward": 1.0}


def test_a_grade_for_something():
    tape = Tape(reward=0.0)
    tape.say([user("Go")], assistant("Gone."))
    assert "graded_without_calls" not in codes(tape.graph())


def test_an_incomplete_record_is_said_once():
    tape = Tape(incomplete=True)
    tape.say([user("Go")], assistant("Gone."))
    assert codes(tape.graph())["capture_incomplete"] == ()
    tape.notices.append(Notice(code="capture_incomplete", calls=(1,), data={"reason": "disk full"}))
    assert codes(tape.graph())["capture_incomplete"] == (1,)


def test_a_call_that_continues_what_was_lost():
    tape = Tape(incomplete=True)
    tape.say([user("Go"), assistant("This was never recorded."), user("And then?")], assistant("Gone."))
    assert codes(tape.graph())["parent_lost"] == (0,)


def test_an_agent_s_own_greeting_is_no_lost_parent():
    tape = Tape()
    tape.say([user("Setting up."), assistant("Got it."), user("Go")], assistant("Gone."))
    assert "parent_lost" not in codes(tape.graph())


def test_repairs_are_named():
    tape = Tape()
    tape.say([user("Go")], assistant("Gone."), repairs=("developer_role",))
    graph = tape.graph()
    assert codes(graph)["request_repaired"] == (0,)
    assert data(graph, "request_repaired") == {"repairs": ["developer_role"]}


def test_one_reply_id_for_two_requests_is_said_and_for_two_choices_is_not():
    tape = Tape()
    tape.say([user("Go")], assistant("Gone."), id="r0")
    tape.say([user("Go")], assistant("Went."), id="r0", choice=1)
    assert "reply_id_reused" not in codes(tape.graph())
    tape.say([user("Stay")], assistant("Stayed."), id="r0")
    graph = tape.graph()
    assert codes(graph)["reply_id_reused"] == (0, 1, 2)
    assert data(graph, "reply_id_reused") == {"ids": ["r0"]}
