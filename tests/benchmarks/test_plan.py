from itertools import pairwise
from typing import Any

import pytest

from benchmarks import matrix
from benchmarks.corpus import N_TOKENS, REPLY_TOKENS, TURN_TOKENS
from benchmarks.plan import Ask, Shape, lanes, turns_of


def shape(**changes: Any) -> Shape:
    fields: dict[str, Any] = {
        "prompt_tokens": 16_000,
        "streamed": False,
        "case": "growing",
        "connections": 2,
        "calls": 9,
    }
    return Shape(**fields | changes)


def test_a_growing_conversation_extends_its_last_prompt_by_a_turn() -> None:
    (one, _), used = lanes(shape(), 0)
    assert used == 2
    assert [ask.n_prompt for ask in one.measured] == [14_000 + 500 * turn for turn in range(9)]
    assert one.warm == [Ask(0, one.measured[0].start, 13_500)]
    assert {ask.start for ask in one.measured} == {one.warm[0].start}


def test_its_prompts_lie_evenly_around_the_size() -> None:
    for size in (2_000, 16_000, 100_000):
        for calls in (1, 2, 8, 50):
            plans, _ = lanes(shape(prompt_tokens=size, calls=calls), 0)
            lengths = [ask.n_prompt for ask in plans[0].measured]
            assert sum(lengths) / len(lengths) == size
            assert len(lengths) >= calls
            assert min(ask.n_prompt for ask in plans[0].warm) >= TURN_TOKENS


@pytest.mark.parametrize(("size", "calls", "turns"), [(2_000, 50, 5), (16_000, 50, 21), (100_000, 2, 1), (500, 9, 1)])
def test_a_conversation_is_as_long_as_there_is_room(size: int, calls: int, turns: int) -> None:
    assert turns_of(size, calls) == turns


def test_unrelated_prompts_share_nothing() -> None:
    plans, used = lanes(shape(case="unrelated"), 0)
    asks = [ask for lane in plans for ask in (*lane.warm, *lane.measured)]
    assert used == len(asks) == 20
    assert len({ask.start for ask in asks}) == 20
    assert {ask.n_prompt for ask in asks} == {16_000}
    assert [ask.conversation for ask in asks] == [0] * 10 + [1] * 10
    # No two messages begin at one place, since no two starts differ by whole turns.
    assert all((b.start - a.start) % TURN_TOKENS for a, b in pairwise(asks))


def test_every_prompt_of_every_shape_lies_in_the_corpus() -> None:
    for one in (*matrix.engine(), *matrix.engine(quick=True), *matrix.static(named=True), *matrix.peers()):
        for counter in (0, 286, 10_000):
            plans, _ = lanes(one, counter)
            for ask in (ask for lane in plans for ask in (*lane.warm, *lane.measured)):
                assert ask.start >= 0
                assert ask.start + ask.n_prompt + REPLY_TOKENS <= N_TOKENS
