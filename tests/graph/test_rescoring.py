"""Captured logprobs beside an engine's scores of the same ids."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from graph.rescoring import Now, compare
from graph.sequences import Sequence, Span

NAN = math.nan
NOW = Now(name="vllm=http://e", weights="v1", logprobs_mode="processed")


def row(n=0, *, weights="v1", **sampling):
    """Two calls of one conversation: 1 2 | 3 4 | 5 | 6."""
    return Sequence(
        row=n,
        conversation=0,
        role="main",
        calls=(0, 1),
        trained=(0, 1),
        input_ids=np.array([1, 2, 3, 4, 5, 6], np.int32),
        loss_mask=np.array([0, 0, 1, 1, 0, 1], np.uint8),
        logprobs=np.array([NAN, NAN, -0.5, -1.0, NAN, -2.0], np.float32),
        spans=(
            Span(call=0, kind="prompt", start=0, end=2),
            Span(call=0, kind="sampled", start=2, end=4, weights=weights),
            Span(call=1, kind="prompt", start=4, end=5),
            Span(call=1, kind="sampled", start=5, end=6, weights=weights),
        ),
        n_trained_tokens=3,
        sampling={"temperature": 1.0, "top_p": 1.0, **sampling},
    )


def scores(*given):
    return np.array(given, np.float32)


SAME = scores(NAN, -9.0, -0.5, -1.0, -9.0, -2.0)


def judged(rows, scored, *, engines=None, now=NOW):
    return compare(rows, scored, engines=engines or {0: NOW.name, 1: NOW.name}, now=now)


def test_equal_scores_differ_by_nothing_and_context_does_not_count():
    found = judged([row()], [SAME])
    assert (found.rows, found.tokens, found.mean, found.largest, found.bias, found.missing) == (1, 3, 0.0, 0.0, 0.0, 0)
    assert found.because == ()


def test_the_largest_is_named_by_row_call_position_and_token():
    found = judged([row(0), row(1)], [SAME, scores(NAN, -9.0, -0.25, -1.0, -9.0, -3.0)])
    assert (found.tokens, found.largest) == (6, 1.0)
    assert found.mean == pytest.approx(1.25 / 6)
    assert found.bias == pytest.approx(0.75 / 6)
    worst = found.worst
    assert (worst.row, worst.call, worst.at, worst.token) == (1, 1, 5, 6)
    assert (worst.captured, worst.rescored) == (-2.0, -3.0)


def test_a_token_without_a_score_is_missing_and_not_equal():
    found = judged([row()], [scores(NAN, NAN, NAN, -1.0, NAN, -2.0)])
    assert (found.tokens, found.missing, found.largest) == (2, 1, 0.0)


def test_a_shift_by_one_is_seen():
    captured = row()
    found = judged([captured], [np.roll(SAME, 1)])
    assert found.mean > 1


def test_other_weights_are_named():
    assert judged([row(weights="v0")], [SAME]).because == ("weights: sampled with v0, rescored with v1",)
    (because,) = judged([row()], [SAME], now=replace(NOW, weights=None)).because
    assert because == "weights: sampled with v1, rescored with a version that is not known"
    (because,) = judged([row(weights=None)], [SAME]).because
    assert because.startswith("weights: it is not known")
    assert judged([row(weights=None)], [SAME], now=replace(NOW, weights=None)).because == ()


def test_another_engine_is_named():
    (because,) = judged([row()], [SAME], engines={0: "vllm=http://other", 1: NOW.name}).because
    assert because == "engine: sampled by vllm=http://other, rescored by vllm=http://e"


@pytest.mark.parametrize(
    ("sampling", "word"),
    [
        ({"temperature": 0.8}, "temperature is 0.8"),
        ({"temperature": None}, "temperature is not known"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 20}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
    ],
)
def test_sampling_explains_processed_logprobs_and_not_raw_ones(sampling, word):
    (because,) = judged([row(**sampling)], [SAME]).because
    assert because.startswith("sampling: ")
    assert word in because
    assert judged([row(**sampling)], [SAME], now=replace(NOW, logprobs_mode="raw")).because == ()
    (because,) = judged([row(**sampling)], [SAME], now=replace(NOW, logprobs_mode="unknown")).because
    assert because.startswith("sampling: if logprobs are processed")


@pytest.mark.parametrize(
    "neutral", [{"top_k": 0}, {"top_k": -1}, {"min_p": 0.0}, {"frequency_penalty": 0.0}, {"logit_bias": {}}]
)
def test_values_that_change_nothing_explain_nothing(neutral):
    assert judged([row(**neutral)], [SAME]).because == ()


def test_scores_of_another_length_are_refused():
    with pytest.raises(ValueError, match="6 tokens and 5 scores"):
        judged([row()], [SAME[:5]])
    with pytest.raises(ValueError, match="zip"):
        judged([row(), row(1)], [SAME])


def test_nothing_is_nothing():
    found = judged([], [])
    assert (found.tokens, found.mean, found.largest, found.worst) == (0, None, None, None)
