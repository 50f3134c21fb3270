import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.scripted.sampler import Draws, LogprobsMode, Prefix, Scorer, drawer, float32, sample, sample_allowed
from capture.scripted.tokeniser import Tokeniser

TOKENISER = Tokeniser()
TEXT = "<think>\nThe file is short.\n</think>\n\nHere it is: " + "some words of the file and some more. " * 4


@given(st.text(), st.integers(0, 2**64 - 1), st.floats(0, 1))
def test_sampled_ids_decode_to_the_text(text, key, noncanonical):
    text = text.encode("utf-8", "replace").decode()
    assert TOKENISER.decode(sample(TOKENISER, text, key, noncanonical)) == text


def test_sampled_ids_are_often_not_the_canonical_ones():
    canonical = TOKENISER.encode(TEXT)
    drawn = {tuple(sample(TOKENISER, TEXT, key, 0.3)) for key in range(20)}
    assert len(drawn) == 20
    assert tuple(canonical) not in drawn
    assert sample(TOKENISER, TEXT, 7, 0.0) == canonical
    assert sample(TOKENISER, TEXT, 7, 0.3) == sample(TOKENISER, TEXT, 7, 0.3)


def test_an_equal_draw_is_counted():
    draws = Draws()
    assert [draws.next(5), draws.next(5), draws.next(6), draws.next(5)] == [0, 1, 0, 2]


def test_draws_forget_the_oldest(monkeypatch):
    monkeypatch.setattr(Draws, "_KEPT", 2)
    draws = Draws()
    assert [draws.next(n) for n in (1, 1, 2, 3, 1)] == [0, 1, 0, 0, 0]


def test_a_drawer_covers_its_range_and_no_more():
    draw = drawer(1)
    assert {draw(3) for _ in range(100)} == {0, 1, 2}


def scores(
    prompt: Sequence[int], ids: Iterable[int], mode: LogprobsMode = "processed", temperature: float | None = None
) -> list[float]:
    scorer = Scorer(TOKENISER, prompt, mode=mode, temperature=temperature)
    return [scorer.score(token).logprob for token in ids]


def test_a_logprob_hangs_on_what_stands_before_it_and_on_nothing_else():
    ids = TOKENISER.encode(TEXT)
    assert scores(ids[:5], ids[5:]) == scores([], ids)[5:]
    assert scores([], ids[5:]) != scores([], ids)[5:]


@pytest.mark.parametrize("temperature", [None, 0, 0.01, 0.7, 1, 2])
@pytest.mark.parametrize("mode", ["processed", "raw"])
def test_logprobs_are_below_zero_and_float32(mode, temperature):
    for logprob in scores([1], range(300), mode, temperature):
        assert logprob <= 0
        assert math.isfinite(logprob)
        assert float32(logprob) == logprob


def test_only_processed_logprobs_know_the_temperature():
    ids = range(50)
    assert scores([], ids, "raw", 0.5) == scores([], ids, "raw", 2) == scores([], ids, "processed", 1)
    assert scores([], ids, "processed", 0.5) != scores([], ids, "processed", 2)
    assert scores([], ids, "processed", 0) == scores([], ids, "processed", 1)


def test_others_are_other_tokens_best_first_and_leave_room():
    scored = Scorer(TOKENISER, [], mode="raw", temperature=None).score(300, others=19)
    tokens = [token for token, _ in scored.others]
    logprobs = [logprob for _, logprob in scored.others]
    assert len(set(tokens) | {300}) == 20
    assert logprobs == sorted(logprobs, reverse=True)
    assert math.exp(scored.logprob) + sum(map(math.exp, logprobs)) <= 1.0001


def allowed(
    tokens: list[int], mode: LogprobsMode = "processed", temperature: float | None = 1.0, **options: Any
) -> list[tuple[int, float]]:
    given: dict[str, Any] = {"bias": {}, "ends": frozenset({9}), "least": 0, "limit": 8, "key": 3} | options
    return sample_allowed(Prefix([1]), tokens, mode=mode, temperature=temperature, **given)


@pytest.mark.parametrize("temperature", [0, 1.0, None])
def test_one_allowed_token_tells_the_modes_apart(temperature):
    assert allowed([300], temperature=temperature, limit=1) == [(300, 0.0)]
    ((token, logprob),) = allowed([300], mode="raw", temperature=temperature, limit=1)
    assert token == 300
    assert logprob < -1


def test_allowed_tokens_run_to_an_end_token_or_the_limit():
    assert [token for token, _ in allowed([300])] == [300] * 8
    assert [token for token, _ in allowed([9])] == [9]
    assert [token for token, _ in allowed([300, 9], bias={"9": 100}, least=2)] == [300, 300, 9]
    assert [token for token, _ in allowed([9], least=2)] == [9]
    assert len(allowed([300], limit=None)) == 256


def test_a_greedy_choice_among_allowed_tokens_takes_no_draw():
    assert allowed([300, 301, 302], temperature=0, key=1) == allowed([300, 301, 302], temperature=0, key=2)
    draws = {tuple(allowed([300, 301, 302], key=key)) for key in range(10)}
    assert len(draws) == 10
