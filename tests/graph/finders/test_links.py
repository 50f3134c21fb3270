"""How the calls hang together."""

from graph.drift import THRESHOLD
from tests.graph.tape import Tape, assistant, codes, data, result, system, user

TASK = [system("You work."), user("Make the tests pass.")]


def drifting(lost: int) -> Tape:
    """A tool call and an answer, between which so many sampled tokens are lost."""
    tape = Tape()
    asks = assistant("Thinking.", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",), sampled=[*range(50_000, 50_000 + lost)])
    tape.say([*TASK, asks, result("a", asks)], assistant("Done."), tools=("bash",))
    return tape


def test_drift_is_said_in_numbers():
    graph = drifting(10).graph()
    found = data(graph, "drift")
    assert codes(graph)["drift"] == (1,)
    assert (found["tokens_mean"], found["tokens_max"]) == (10.0, 10)
    assert sum(found["causes"].values()) == 1
    assert "drift_over_threshold" not in codes(graph)


def test_drift_at_the_threshold_is_drift_and_above_it_a_warning():
    assert "drift_over_threshold" not in codes(drifting(THRESHOLD).graph())
    assert codes(drifting(THRESHOLD + 1).graph())["drift_over_threshold"] == (1,)


def test_an_agent_without_a_history_has_a_root_each_turn():
    tape = Tape()
    for step in range(3):
        tape.say([*TASK, user(f"Seen so far: {step}"), TASK[1]], assistant("", ("bash", {"n": step}), ids=str(step)))
    graph = tape.graph()
    assert codes(graph)["per_turn_roots"] == (0, 1, 2)
    assert codes(graph)["multiple_roots"] == (0, 1, 2)


def test_a_retry_is_no_fork_of_its_own_making():
    tape = Tape()
    tape.say(TASK, assistant("I wi"), status="aborted", delivered=False)
    tape.say(TASK, assistant("I will."))
    graph = tape.graph()
    assert codes(graph)["retries"] == (0, 1)
    assert codes(graph)["discarded_calls"] == (0,)
    assert "forks" not in codes(graph)


def test_draws_of_one_prompt_are_a_fork():
    tape = Tape()
    tape.say(TASK, assistant("One."))
    tape.say(TASK, assistant("Two."))
    tape.say([*TASK, assistant("Two."), user("Go on.")], assistant("Three."))
    graph = tape.graph()
    assert codes(graph)["forks"] == (0, 1)
    assert data(graph, "forks") == {"forks": 1, "resample": 1, "branch": 0}
    assert data(graph, "discarded_calls") == {"tokens": len(tape.calls[0].sampled_ids)}


def test_a_compaction_names_what_was_carried():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "cat notes"}))
    notes = result("Parsing fails on empty input.", asks)
    tape.say(TASK, asks, tools=("bash",))
    summary = "Empty input makes the parser fail; fix it there."
    ran = asks["tool_calls"][0]["function"]["arguments"]
    tape.say([user(f"Summarise: bash({ran}) {notes['content']}")], assistant(summary))
    tape.say([TASK[0], user(f"Summary of before: {summary}"), user("Go on.")], assistant("Done."), tools=("bash",))
    graph = tape.graph()
    assert codes(graph)["compaction"] == (2,)
    assert data(graph, "compaction") == {"carries": [1]}
