"""One row in four shapes, on ids that can be followed by eye."""

import msgspec
import numpy as np
import pytest

from graph.formats.projection import (
    Rows,
    full,
    media,
    number,
    rows,
    sampled,
    shifted,
    stable,
    tail,
    temperature,
)
from graph.formats.refused import Refused
from graph.records import Stop, Weights, WeightSpan
from graph.sequences import Options, cut
from tests.graph.formats.captures import branched, parted, turns


def going(tape, **options) -> Rows:
    graph = tape.graph()
    return rows(graph, cut(graph, Options(**options)))


def lists(shape) -> dict:
    return {name: getattr(shape, name).tolist() for name in shape.__struct_fields__}


def test_one_row_in_four_shapes():
    (row,) = going(turns())
    assert lists(full(row)) == {
        "ids": [1, 2, 3, 4, 5, 6, 7],
        "mask": [0, 0, 1, 1, 0, 0, 1],
        "logprobs": [0.0, 0.0, -0.25, -0.5, 0.0, 0.0, -1.0],
    }
    assert lists(tail(row)) == {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5, 6, 7],
        "mask": [1, 1, 0, 0, 1],
        "logprobs": [-0.25, -0.5, 0.0, 0.0, -1.0],
    }
    assert lists(shifted(row)) == {
        "input_ids": [1, 2, 3, 4, 5, 6],
        "target_ids": [2, 3, 4, 5, 6, 7],
        "mask": [0, 1, 1, 0, 0, 1],
        "logprobs": [0.0, -0.25, -0.5, 0.0, 0.0, -1.0],
    }
    stretches = [
        (each.call, each.start, each.end, each.offset, each.ids.tolist(), each.logprobs.tolist(), each.weights)
        for each in sampled(row)
    ]
    assert stretches == [
        (0, 2, 4, 0, [3, 4], [-0.25, -0.5], "7"),
        (1, 6, 7, 0, [7], [-1.0], "8"),
    ]


def test_a_reply_that_another_row_trains_is_part_of_the_prompt():
    first, second = going(branched())
    assert lists(tail(first))["prompt_ids"] == [1, 2]
    assert lists(tail(second)) == {
        "prompt_ids": [1, 2, 3, 4, 9],
        "response_ids": [10],
        "mask": [1],
        "logprobs": [-2.0],
    }
    assert [each.call for each in sampled(second)] == [2]


def test_a_row_that_crosses_a_drift_has_of_a_reply_what_stands_before_the_break():
    own, row = going(parted(), drift="realign")
    assert lists(full(row)) == {
        "ids": [1, 2, 3, 8, 5, 6, 7],
        "mask": [0, 0, 1, 0, 0, 0, 1],
        "logprobs": [0.0, 0.0, -0.25, 0.0, 0.0, 0.0, -1.0],
    }
    # What it lost, one token on in the same reply.
    (stretch,) = sampled(own)
    assert (stretch.call, stretch.start, stretch.offset, stretch.ids.tolist()) == (0, 3, 1, [4])


def test_stretches_are_cut_where_the_weights_change():
    tape = turns()
    spans = (WeightSpan(version="7", start=0, end=1), WeightSpan(version="8", start=1, end=2))
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], weights=Weights(start="7", end="8", spans=spans))
    (row,) = going(tape)
    stretches = [(each.start, each.end, each.offset, each.weights) for each in sampled(row)]
    assert stretches == [(2, 3, 0, "7"), (3, 4, 1, "8"), (6, 7, 0, "8")]
    assert row.weight_versions == ("7", "8")


def test_ids_and_masks_are_views_and_context_has_the_logprob_zero():
    (row,) = going(turns())
    assert np.shares_memory(full(row).ids, row.sequence.input_ids)
    assert np.shares_memory(tail(row).response_ids, row.sequence.input_ids)
    assert np.shares_memory(shifted(row).target_ids, row.sequence.input_ids)
    assert np.isnan(row.sequence.logprobs[0])
    for shape in (full(row), tail(row), shifted(row)):
        assert shape.logprobs.dtype == np.float32


def test_what_is_known_of_a_row_goes_along():
    tape = turns(per_call_rewards={"chatcmpl-0": 1.0}, stopped=Stop(limit="max_calls", at_call=2, stops=1))
    (row,) = going(tape)
    assert row.about() == {
        "rollout": "g-3",
        "group": "g",
        "final": True,
        "reward": 0.5,
        "row": 0,
        "n_rows": 1,
        "n_trained_tokens": 3,
        "n_rollout_trained_tokens": 3,
        "conversation": 0,
        "role": "main",
        "calls": [0, 1],
        "trained": [0, 1],
        "weight_versions": ["7", "8"],
        "temperature": 1.0,
        "sampling": {"temperature": 1.0},
        "logprobs_mode": "processed",
        "finish_reason": "stop",
        "ended": "limit",
        "truncated": "limit",
        "aborted": [],
        "drift_crossed": 0,
        "call_rewards": {"0": 1.0},
    }


def test_what_is_not_known_is_none():
    tape = turns(weights=("7", None), reward=None, group=None)
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], sampling_sent={})
    (row,) = going(tape)
    about = row.about()
    assert (about["reward"], about["group"], about["temperature"]) == (None, None, None)
    assert about["weight_versions"] == ["7", None]


def test_rows_of_a_rollout_count_themselves_and_its_tokens():
    about = [row.about() for row in going(branched())]
    assert [(each["row"], each["n_rows"]) for each in about] == [(0, 2), (1, 2)]
    assert [each["n_trained_tokens"] for each in about] == [3, 1]
    assert [each["n_rollout_trained_tokens"] for each in about] == [4, 4]


def test_the_head_says_whose_rows_they_are():
    tape = turns()
    tape.say([{"role": "user", "content": "Go"}], None, status="error", delivered=None, sampled_ids=None, logprobs=None)
    assert going(tape).head("tinker") == {
        "version": 1,
        "format": "tinker",
        "rollout": "g-3",
        "group": "g",
        "final": True,
        "reward": 0.5,
        "n_rows": 1,
        "n_trained_tokens": 3,
        "logprobs_mode": "processed",
        "left_out": [{"call": 2, "reason": "error"}],
        "findings": ["engine_errors"],
    }


def test_a_proved_reply_that_broke_off_does_not_end_its_row_as_aborted():
    """The next prompt has exactly what was sampled: the agent went on from it."""
    tape = turns()
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], status="aborted", delivered=None, usage_sampled=None)
    (row,) = going(tape)
    assert (row.aborted, row.ended) == ((0,), "stop")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"logprobs": np.zeros(6, np.float32)}, "Row 0 has 7 ids, 7 mask values and 6 logprobs"),
        ({"loss_mask": np.zeros(8, np.uint8)}, "Row 0 has 7 ids, 8 mask values and 7 logprobs"),
        ({"loss_mask": np.ones(7, np.uint8)}, "The first token of row 0 is trained"),
        ({"logprobs": np.full(7, np.nan, np.float32)}, "Row 0 has 3 trained tokens, 3 of them without a logprob"),
        ({"loss_mask": np.zeros(7, np.uint8)}, "Row 0 has 0 trained tokens"),
    ],
)
def test_a_broken_row_is_refused(broken, says):
    graph = turns().graph()
    sequences = cut(graph)
    (row,) = sequences.sequences
    sequences = msgspec.structs.replace(sequences, sequences=(msgspec.structs.replace(row, **broken),))
    with pytest.raises(Refused, match=says):
        rows(graph, sequences)


def test_a_rollout_whose_roles_were_not_asked_for_says_how_to():
    with pytest.raises(Refused, match="nothing to train: role") as refused:
        going(turns(), roles=("subagent",))
    assert refused.value.hint.startswith("roles= takes in ")


def test_media_are_those_of_the_last_call_s_messages():
    tape = turns()
    graph = tape.graph()
    (row,) = cut(graph).sequences
    assert media(graph, row) == ()
    shown = msgspec.structs.replace(tape.calls[1].messages[-1], media=("a1", "b2"))
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], messages=(*tape.calls[1].messages[:-1], shown))
    graph = tape.graph()
    assert media(graph, cut(graph).sequences[-1]) == ("a1", "b2")


@pytest.mark.parametrize(
    ("sent", "read"),
    [({"temperature": 1}, 1.0), ({"temperature": None}, None), ({}, None), ({"temperature": True}, None)],
)
def test_a_temperature_is_a_number_or_unknown(sent, read):
    assert temperature(msgspec.structs.replace(turns().calls[0], sampling_sent=sent)) == read


def test_a_version_is_a_number_if_it_spells_one():
    assert [number(each) for each in ("7", "007", "v7", "-1", "", "٣", None)] == [7, 7, None, None, None, None, None]


def test_a_name_s_number_is_stable_and_fits_a_double():
    assert stable("g") == 3816197008513894
    assert stable("g") != stable("h")
    assert all(0 <= stable(f"r-{n}") < 2**53 for n in range(100))
    assert stable("half a pair: \ud800") != stable("half a pair: \ud801")
