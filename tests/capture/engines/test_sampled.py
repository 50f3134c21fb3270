"""Ids and logprobs, paired by chunk."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.engines.sampled import MAX_DOUBTS, NULL, Doubts, Sampled


def raw_ids(ids: list[int] | None) -> bytes:
    return json.dumps(ids).encode()


def raw_scores(scores: list[float] | None) -> bytes:
    entries = None if scores is None else {"content": [{"token": "t", "logprob": score} for score in scores]}
    return json.dumps(entries).encode()


def told(sampled: Sampled) -> tuple[list[int] | None, list[float | None] | None]:
    ids, scores = sampled.ids, sampled.logprobs
    return (
        None if ids is None else ids.tolist(),
        None if scores is None else [None if math.isnan(x) else round(float(x), 3) for x in scores],
    )


def test_nothing_given_is_nothing_known() -> None:
    sampled = Sampled(Doubts())
    assert told(sampled) == (None, None)
    assert sampled.add(NULL, NULL) == 0
    assert told(sampled) == (None, None)


def test_an_empty_list_is_given() -> None:
    sampled = Sampled(Doubts())
    sampled.add(b"[]", b'{"content":[]}')
    assert told(sampled) == ([], [])


def test_arrays_have_the_types_of_the_record() -> None:
    sampled = Sampled(Doubts())
    sampled.add(b"[1,2]", raw_scores([-0.5, 0]))
    assert sampled.ids is not None
    assert sampled.logprobs is not None
    assert (sampled.ids.dtype, sampled.logprobs.dtype) == (np.dtype(np.int32), np.dtype(np.float32))
    assert len(sampled) == 2


def test_a_chunk_without_logprobs_leaves_gaps_and_shifts_nothing() -> None:
    sampled = Sampled(Doubts())
    for ids, scores in (([6], None), ([402], [-0.2]), ([7, 8], None), ([2], [-0.4])):
        sampled.add(raw_ids(ids), raw_scores(scores))
    assert told(sampled) == ([6, 402, 7, 8, 2], [None, -0.2, None, None, -0.4])


def test_counts_that_differ_within_a_chunk_pair_nothing() -> None:
    doubts = Doubts()
    sampled = Sampled(doubts)
    sampled.add(b"[1,2]", raw_scores([-0.1]))
    sampled.add(b"[3]", raw_scores([-0.3]))
    assert told(sampled) == ([1, 2, 3], [None, None, -0.3])
    assert doubts == ["2 ids and 1 logprobs came in one chunk"]


def test_logprobs_without_ids_belong_to_nothing() -> None:
    doubts = Doubts()
    sampled = Sampled(doubts)
    sampled.add(NULL, raw_scores([-0.1]))
    assert told(sampled) == (None, None)
    assert doubts == ["logprobs came without token ids"]


@pytest.mark.parametrize("bad", [b"[1,-1]", b"[4294967296]", b'["7"]', b"[1.5]", b"7", b"[NaN]", b"[[1]]"])
def test_ids_of_which_a_part_can_not_be_read_are_no_ids(bad: bytes) -> None:
    doubts = Doubts()
    sampled = Sampled(doubts)
    sampled.add(b"[1]", raw_scores([-0.1]))
    sampled.add(bad, NULL)
    sampled.add(b"[2]", raw_scores([-0.2]))
    assert told(sampled) == (None, None)
    assert len(doubts) == 1
    assert "token_ids" in doubts[0]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"content":[{"logprob":NaN},{"logprob":-1}]}', [None, -1.0]),
        (b'{"content":[{"logprob":null},{"logprob":-1}]}', [None, -1.0]),
        (b'{"content":[{},{"logprob":-1}]}', [None, -1.0]),
        (b'{"content":[{"logprob":-Infinity},{"logprob":-1}]}', [-math.inf, -1.0]),
        (rb'{"content":[{"token":"\ud800","logprob":-2},{"logprob":-1}]}', [-2.0, -1.0]),
        (b'{"content":null}', None),
        (b"{}", None),
        (b'{"content":[{"logprob":"x"},{}]}', None),
        (b"[1]", None),
    ],
)
def test_odd_logprobs(raw: bytes, expected: list[float | None] | None) -> None:
    sampled = Sampled(Doubts())
    assert sampled.add(b"[1,2]", raw) == 2
    assert told(sampled) == ([1, 2], expected)


@given(st.lists(st.integers(0, 2**31 - 1)), st.sampled_from([None, 0, 1]))
def test_a_long_list_of_ids_is_read_as_it_stands(ids: list[int], indent: int | None) -> None:
    doubts = Doubts()
    found = doubts.id_array(json.dumps(ids, indent=indent).encode(), "prompt_token_ids")
    assert found is not None
    assert found.dtype == np.int32
    assert found.tolist() == ids
    assert doubts == []


@pytest.mark.parametrize(
    "bad",
    [b"[1,-1]", b"[4294967296]", b"[99999999999999999999999]", b'["7"]', b"[1.5]", b"7", b"[NaN]", b"[[1]]", b"{}"],
)
def test_a_list_that_holds_anything_else_is_not_known(bad: bytes) -> None:
    doubts = Doubts()
    assert doubts.id_array(bad, "prompt_token_ids") is None
    assert len(doubts) == 1


def test_doubts_are_told_once_and_not_without_end() -> None:
    doubts = Doubts()
    for at in range(100):
        doubts.add("the same")
        doubts.add(f"number {at}")
    assert len(doubts) == MAX_DOUBTS
    assert doubts[:2] == ["the same", "number 0"]


chunks = st.lists(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-50, 0, width=32)), max_size=4).flatmap(
        lambda pairs: st.tuples(st.just(pairs), st.booleans())
    ),
    max_size=8,
)


@given(chunks)
def test_whatever_chunks_they_come_in(given_chunks: list[tuple[list[tuple[int, float]], bool]]) -> None:
    sampled = Sampled(Doubts())
    expected_ids: list[int] = []
    expected: list[float | None] = []
    for pairs, scored in given_chunks:
        sampled.add(raw_ids([id_ for id_, _ in pairs]), raw_scores([score for _, score in pairs] if scored else None))
        expected_ids += [id_ for id_, _ in pairs]
        expected += [score if scored else None for _, score in pairs]
    ids, scores = sampled.ids, sampled.logprobs
    if not given_chunks:
        assert ids is None
        return
    assert ids is not None
    assert ids.tolist() == expected_ids
    if not any(scored for _, scored in given_chunks):
        assert scores is None
        return
    assert scores is not None
    assert [None if math.isnan(x) else float(x) for x in scores] == expected
