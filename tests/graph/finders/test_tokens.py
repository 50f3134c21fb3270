"""Are ids and logprobs there, and are they what they say?"""

import numpy as np
import pytest

from graph.sequences import cut
from tests.graph.tape import Tape, assistant, codes, data, user

BARE = {"prompt_ids": None, "sampled_ids": None, "logprobs": None}


def said(**fields) -> Tape:
    tape = Tape(**fields.pop("rollout", {}))
    tape.say([user("Go")], assistant("Gone there."), **fields)
    return tape


def test_a_clean_call_has_nothing_to_say():
    assert codes(said(rollout={"pins": {"temperature": 1.0}}).graph()) == {}


def test_an_empty_export_is_loud():
    graph = said(**BARE).graph()
    assert codes(graph)["no_token_ids"] == (0,)
    assert data(graph, "nothing_trainable") == {"reasons": {"no_token_ids": 1}}
    assert [finding.level for finding in graph.findings] == ["error", "error"]


def test_in_tier_eval_it_is_no_error():
    graph = said(**BARE, rollout={"tier": "eval"}).graph()
    assert [(finding.code, finding.level) for finding in graph.findings] == [
        ("nothing_trainable", "info"),
        ("no_token_ids", "info"),
    ]


def test_nothing_is_said_of_a_rollout_that_still_runs():
    tape = said(status="running", ended=None, **BARE, rollout={"state": "open"})
    assert "nothing_trainable" not in codes(tape.graph())


@pytest.mark.parametrize(
    ("fields", "code", "shown"),
    [
        ({"logprobs": None}, "no_logprobs", {}),
        ({"usage_sampled": 9}, "count_mismatch", None),
    ],
)
def test_what_is_missing(fields, code, shown):
    graph = said(**fields).graph()
    assert codes(graph)[code] == (0,)
    assert shown is None or data(graph, code) == shown


def test_logprobs_that_are_no_probabilities():
    tape = said()
    tape.calls[0].logprobs[:2] = [np.nan, -9999.0]
    assert data(tape.graph(), "invalid_logprobs") == {"tokens": 2}


def test_a_logprob_above_zero():
    tape = said()
    tape.calls[0].logprobs[:2] = [0.25, 1e-6]
    graph = tape.graph()
    assert data(graph, "positive_logprob") == {"largest": 0.25, "tokens": 1}
    assert "invalid_logprobs" not in codes(graph)


@pytest.mark.parametrize("field", ["prompt_ids", "sampled_ids"])
def test_negative_ids_are_none_and_harm_nothing_else(field):
    tape = said()
    tape.say([user("Go"), assistant("Gone there."), user("Back")], assistant("Here."), **{field: ids(5, -1)})
    graph = tape.graph()
    assert codes(graph)["token_out_of_vocabulary"] == (1,)
    assert "no_token_ids" not in codes(graph)
    assert graph.forest.links[1].kind != "exact"
    rows = cut(graph)
    assert [row.calls for row in rows.sequences] == [(0,)]
    assert [(left.call, left.reason) for left in rows.left_out] == [(1, "damaged_ids")]


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)
