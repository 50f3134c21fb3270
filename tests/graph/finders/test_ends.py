"""How the calls ended, and how the rollout did."""

import pytest

from graph.records import Stop, Weights, WeightSpan
from tests.graph.tape import Tape, assistant, codes, data, result, user


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"finish_reason": "length"}, "truncated_reply"),
        ({"status": "aborted", "delivered": False}, "aborted_calls"),
        ({"delivered": False}, "undelivered_calls"),
        ({"delivered": None}, "delivery_unknown"),
        ({"status": "error"}, "engine_errors"),
    ],
)
def test_an_end_is_told(fields, code):
    tape = Tape()
    tape.say([user("Go")], assistant("Gone."), **fields)
    ends = {"truncated_reply", "aborted_calls", "undelivered_calls", "delivery_unknown", "engine_errors", "limit_stop"}
    assert {found: calls for found, calls in codes(tape.graph()).items() if found in ends} == {code: (0,)}


def test_a_broken_reply_that_was_used_is_named():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say([user("Go")], asks, status="aborted", delivered=False)
    tape.say([user("Go"), asks, result("a", asks)], assistant("Gone."))
    assert data(tape.graph(), "aborted_calls") == {"used": [0]}


def test_a_limit_is_told_once():
    tape = Tape(stopped=Stop(limit="max_calls", at_call=1, stops=2))
    tape.say([user("Go")], assistant("Gone."))
    for _ in range(2):
        tape.say([user("Go")], assistant("The limit is reached."), status="stopped", prompt_ids=None, sampled_ids=None)
    graph = tape.graph()
    assert codes(graph)["limit_stop"] == (1, 2)
    assert data(graph, "limit_stop") == {"limit": "max_calls", "at_call": 1, "stops": 2}


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("max_calls", 1, "1 call"), ("max_total_tokens", 1_200_000, "1,200,000 tokens"),
        ("deadline_s", 0.5, "0.5 seconds"), ("max_prompt_tokens", 8_192.0, "8,192 tokens"),
    ],
)  # fmt: skip
def test_a_limit_is_told_with_what_it_allows(limit, value, words):
    tape = Tape(stopped=Stop(limit=limit, at_call=1, stops=1), limits={limit: value, "max_output_tokens": 9})
    tape.say([user("Go")], assistant("Gone."))
    graph = tape.graph()
    assert data(graph, "limit_stop")["value"] == value
    (message,) = [each.message for each in graph.findings if each.code == "limit_stop"]
    assert (
        message
        == f"The rollout was stopped by its limit {limit} at call 1 (it allows {words}); its agent had not finished."
    )


SPANS = (WeightSpan(version="a", start=0, end=1), WeightSpan(version="b", start=1, end=2))


@pytest.mark.parametrize(
    ("weights", "versions"),
    [
        (Weights(), None),
        (Weights(start="a", end="a"), None),
        (Weights(start="a", end="b"), ["a", "b"]),
        # An engine that says the one at the end alone.
        (Weights(end="b"), None),
        (Weights(spans=SPANS[:1]), None),
        (Weights(spans=SPANS), ["a", "b"]),
        (Weights(end="b", spans=SPANS), ["a", "b"]),
    ],
)
def test_a_call_that_straddles_a_change_of_the_weights_is_told(weights, versions):
    tape = Tape()
    tape.say([user("Go")], assistant("Gone."), weights=weights)
    found = codes(tape.graph())
    assert found.get("weights_changed") == (None if versions is None else (0,))
    if versions is not None:
        assert data(tape.graph(), "weights_changed") == {"versions": versions}


def test_an_error_straddles_nothing():
    tape = Tape()
    tape.say([user("Go")], assistant("Gone."), status="error", weights=Weights(start="a", end="b"))
    assert "weights_changed" not in codes(tape.graph())


def test_calls_drawn_from_several_versions_are_told():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say([user("Go")], asks, weights=Weights(start="a", end="a"))
    tape.say([user("Go"), asks, result("a", asks)], assistant("Gone."), weights=Weights(end="b"))
    graph = tape.graph()
    assert codes(graph)["weights_mixed"] == (0, 1)
    assert data(graph, "weights_mixed") == {"versions": ["a", "b"]}
    assert "weights_changed" not in codes(graph)


def test_one_version_told_in_two_ways_is_one():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say([user("Go")], asks, weights=Weights(start="a", end="a"))
    tape.say([user("Go"), asks, result("a", asks)], assistant("Gone."), weights=Weights(end="a"))
    assert "weights_mixed" not in codes(tape.graph())


def given_up(*times, **fields) -> Tape:
    """The same request again and again, each try broken off after a time in milliseconds."""
    tape = Tape()
    for ended_ms in times:
        left = {"status": "aborted", "delivered": False, "ended_ms": ended_ms, **fields}
        tape.say([user("Go")], assistant("I go"), **left)
    return tape


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([60_010.0, 60_100.0, 60_020.0], True),
        # One may have any reason.
        ([60_010.0], False),
        # A person, or a crash, keeps no time.
        ([60_010.0, 12_000.0], False),
        ([600_000.0, 610_000.0], True),
        ([600_000.0, None], False),
    ],
)
def test_tries_that_all_lasted_the_same_time_met_a_limit(times, told):
    assert ("time_limit" in codes(given_up(*times).graph())) is told


def test_a_time_limit_is_told_with_its_time_and_its_cost():
    graph = given_up(60_010.0, 60_100.0).graph()
    assert codes(graph)["time_limit"] == (0, 1)
    tokens = sum(graph.forest.n_sampled(n) for n in (0, 1))
    assert data(graph, "time_limit") == {"after_s": 60.1, "tokens": tokens}


def test_an_engine_that_aborts_is_no_time_limit():
    assert "time_limit" not in codes(given_up(60_010.0, 60_010.0, finish_reason="abort").graph())
