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
