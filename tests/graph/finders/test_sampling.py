"""Are the logprobs those of the policy?"""

import pytest

from tests.graph.tape import Tape, assistant, codes, data, result, user


def sampled(*sent: dict, **rollout) -> Tape:
    """A chain of calls, one for each set of values sent."""
    tape = Tape(**{"pins": {"temperature": 1.0}} | rollout)
    messages = [user("Go")]
    for step, values in enumerate(sent):
        asks = assistant("", ("bash", {"n": step}), ids=str(step))
        tape.say(messages, asks, sampling_sent=values)
        messages = [*messages, asks, result("fine", asks)]
    return tape


def test_pinned_and_uncut_has_nothing_to_say():
    assert codes(sampled({"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}).graph()) == {}


def test_no_pin():
    graph = sampled({}, {}, pins={}).graph()
    assert data(graph, "sampling_unpinned") == {"unseen": 2, "asked": []}


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}])
def test_cuts(cut):
    graph = sampled({"temperature": 1.0, **cut}).graph()
    assert data(graph, "sampling_truncates") == {"values": {name: [value] for name, value in cut.items()}}


@pytest.mark.parametrize("off", [{"top_k": 0}, {"top_k": -1}, {"top_p": 1}, {"min_p": None}, {"top_p": True}])
def test_no_cuts(off):
    assert "sampling_truncates" not in codes(sampled({"temperature": 1.0, **off}).graph())


def test_values_that_change():
    graph = sampled({"temperature": 1.0, "seed": 1}, {"temperature": 0.5, "seed": 2}).graph()
    assert data(graph, "sampling_changed") == {"values": {"temperature": [0.5, 1.0]}}


def test_a_constraint():
    tape = Tape(pins={"temperature": 1.0})
    tape.say([user("Go")], assistant("Gone."), constrained=("response_format", "min_tokens"))
    graph = tape.graph()
    assert data(graph, "constrained_sampling") == {"fields": ["min_tokens", "response_format"]}


def test_an_unknown_mode():
    assert codes(sampled({"temperature": 1.0}, logprobs_mode="unknown").graph()) == {"logprob_mode_unknown": (0,)}


@pytest.mark.parametrize(
    "moved", [{"temperature": 0.7}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.1}, {"top_p": 0.5}]
)
def test_raw_logprobs_of_another_distribution(moved):
    graph = sampled({"temperature": 1.0, **moved}, logprobs_mode="raw").graph()
    assert data(graph, "logprobs_not_of_sampler") == {"because": {name: [value] for name, value in moved.items()}}
    processed = sampled({"temperature": 1.0, **moved}, logprobs_mode="processed").graph()
    assert "logprobs_not_of_sampler" not in codes(processed)
