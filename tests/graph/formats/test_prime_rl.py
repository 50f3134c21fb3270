"""Training samples, a temperature a token."""

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from graph.formats import prime_rl
from graph.formats.refused import Refused
from graph.graph import read
from graph.sequences import ROLES, Options, cut
from tests.graph.formats.captures import branched, turns
from tests.graph.formats.readback import of_mark, told, wire

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def exported(tape, **options):
    graph = tape.graph()
    return wire(prime_rl.to_json(graph, cut(graph, Options(**options))))


def at(tape, *temperatures):
    """The tape, had its calls been sampled at these temperatures."""
    tape.calls = [
        msgspec.structs.replace(call, sampling_sent={} if each is None else {"temperature": each})
        for call, each in zip(tape.calls, temperatures, strict=True)
    ]
    return tape


def test_a_row_has_the_fields_of_a_sample():
    form = exported(at(turns(labels={"env_name": "swe"}), 0.7, 1))
    (row,) = form["rows"]
    assert form["format"] == "prime-rl"
    assert row["sample"] == {
        "token_ids": [1, 2, 3, 4, 5, 6, 7],
        "mask": [False, False, True, True, False, False, True],
        "logprobs": [0.0, 0.0, -0.25, -0.5, 0.0, 0.0, -1.0],
        "temperatures": [0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 1.0],
        "env_name": "swe",
    }
    assert (row["about"]["rollout"], row["about"]["temperature"]) == ("g-3", None)


def test_without_a_label_the_environment_has_no_name():
    assert exported(turns())["rows"][0]["sample"]["env_name"] == ""


def test_the_name_that_is_kept_for_totals_is_refused():
    with pytest.raises(Refused, match="prime-rl keeps the name 'all'"):
        exported(turns(labels={"env_name": "all"}))


def test_a_temperature_that_was_not_seen_is_refused_and_not_made_up():
    with pytest.raises(Refused, match="The temperature of call 1 was not seen") as refused:
        exported(at(turns(), 1.0, None))
    assert '{"sampling": {"temperature": 1.0}}' in refused.value.hint


def test_temperature_zero_is_refused():
    with pytest.raises(Refused, match="Call 0 was sampled at temperature 0, which leaves no distribution"):
        exported(at(turns(), 0, 1.0))


def test_of_context_no_temperature_is_needed():
    tape = turns()
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], sampling_sent={}, constrained=("tool_choice",))
    assert exported(tape)["rows"][0]["sample"]["temperatures"] == [1.0] * 7


def test_a_branch_has_its_own_reply_s_temperature():
    rows = exported(at(branched(), 0.5, 0.5, 2.0))["rows"]
    assert [row["sample"]["temperatures"] for row in rows] == [[0.5] * 6, [2.0] * 6]


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True), st.sampled_from(["split", "realign"]))
def test_each_trained_token_has_its_call_s_temperature(story, drift):
    graph = read(story.rollout, story.calls)
    sequences = cut(graph, Options(roles=ROLES, drift=drift))
    assume(sequences.sequences)
    for row in wire(prime_rl.to_json(graph, sequences))["rows"]:
        sample = row["sample"]
        for at, on, logprob in zip(*(sample[key] for key in ("temperatures", "mask", "logprobs")), strict=True):
            assert at > 0.0
            assert not on or at == story.calls[of_mark(logprob)[0]].sampling_sent["temperature"]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"temperatures": [1.0]}, "7 token_ids, 7 mask, 7 logprobs, 1 temperatures"),
        ({"temperatures": [0.0] * 7}, "temperatures are above 0"),
        ({"temperatures": [1.0] * 6 + [None]}, "temperatures are above 0"),
        ({"mask": [0, 0, 1, 1, 0, 0, 1]}, "of booleans"),
        ({"logprobs": [0.0, -0.25, -0.5, 0.0, 0.0, -1.0, 0.0]}, "not trained has a logprob"),
        ({"env_name": "all"}, "keeps the name"),
    ],
)
def test_a_broken_sample_is_refused(broken, says):
    (row,) = exported(turns())["rows"]
    prime_rl.check(row["sample"])
    with pytest.raises(Refused, match=says):
        prime_rl.check(row["sample"] | broken)
