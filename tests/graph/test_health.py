"""How a rollout is, in a few numbers."""

import pytest

from graph.health import LEVELS, found, health_json, is_troubled
from graph.records import Finding, Notice
from graph.view import rollout_json
from tests.graph.tape import Tape, assistant, result, system, user


def health(tape: Tape):
    return health_json(tape.graph())


def row(tape: Tape):
    graph = tape.graph()
    return {**rollout_json(graph.rollout, graph), "health": health_json(graph)}


def two_turns(**rollout) -> Tape:
    tape = Tape(**rollout)
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say([user("Go")], asks, tools=("bash",))
    tape.say([user("Go"), asks, result("a", asks)], assistant("Done."), tools=("bash",))
    return tape


def test_of_a_rollout_that_is_well():
    said = health(two_turns())
    assert list(said) == ["findings", "drift", "errors", "warnings", "running"]
    assert said["drift"] == {"transitions": 1, "drifted": 0}
    assert (said["errors"], said["running"]) == (0, 0)


def test_a_drift_in_main_is_counted_and_is_trouble():
    tape = Tape()
    tape.say([system("It is one."), user("Go")], assistant("Yes."))
    tape.say([system("It is two."), user("Go"), assistant("Yes."), user("More")], assistant("Well."))
    said = health(tape)
    assert said["drift"] == {"transitions": 1, "drifted": 1}
    assert said["findings"]["drift"] == 1
    assert is_troubled(row(tape))


def test_a_running_call():
    tape = Tape(state="open")
    tape.say([user("Go")], None, status="running", finish_reason=None)
    assert health(tape)["running"] == 1


def test_without_a_call_it_is_trouble_once_it_is_closed():
    said = health(Tape())
    assert (said["findings"]["no_calls"], said["errors"]) == (1, 1)
    assert is_troubled(row(Tape()))
    assert not is_troubled(row(Tape(state="open")))


def test_findings_of_one_code_are_one_entry():
    tape = two_turns()
    tape.notices += [Notice(code="request_refused", calls=(0,)), Notice(code="request_refused", calls=(0, 1))]
    counted = found(tape.graph().findings)
    assert sum(n for _, n in counted.values()) >= len(counted)
    level, n = found((
        Finding(code="x", level="info"), Finding(code="y", level="info"), Finding(code="x", level="error", calls=(1, 2))
    ))["x"]  # fmt: skip
    assert (LEVELS[level], n) == ("error", 3)


@pytest.mark.parametrize(
    ("changes", "troubled"),
    [
        ({}, False),
        ({"incomplete": True}, True),
        ({"n_calls": 0}, True),
        ({"n_calls": 0, "state": "open"}, False),
    ],
)
def test_trouble(changes, troubled):
    health = {"errors": 0, "warnings": 0, "drift": {"drifted": 0}}
    well = {"state": "closed", "n_calls": 1, "incomplete": False, "health": health}
    assert is_troubled(well | changes) is troubled
    for part in ({"errors": 1}, {"warnings": 1}, {"drift": {"drifted": 1}}):
        assert is_troubled(well | {"health": health | part})
