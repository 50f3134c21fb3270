"""Counts that disagree, and logprobs that are none; reasons themselves are told in test_sequences."""

import numpy as np

from graph.eligibility import counts, invalid
from graph.forest import grow
from tests.graph.tape import Tape, assistant, user


def forest(**fields):
    tape = Tape()
    tape.say([user("Hello")], assistant("A reply."), **fields)
    return grow(tape.rollout, tape.calls)


def test_counts_that_agree_are_none():
    assert counts(forest(), 0) is None


def test_a_count_that_nobody_gave_disagrees_with_nothing():
    assert counts(forest(usage_prompt=None, usage_sampled=None, logprobs=None), 0) is None


def test_counts_that_disagree_are_all_shown():
    found = counts(forest(usage_sampled=5), 0)
    assert found == {"prompt_ids": 9, "usage_prompt": 9, "sampled_ids": 4, "usage_sampled": 5, "logprobs": 4}


def test_logprobs_that_are_none_are_counted():
    wrong = np.array([-0.1, np.nan, np.inf, -9999.0], dtype=np.float32)
    assert invalid(forest(logprobs=wrong).calls[0]) == 3
