"""Ids read from a list's text: what JSON says, by either way, or nothing."""

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.engines import id_text
from capture.engines.id_text import MANY, is_list, maybe_parse
from graph.records import IntArray

Way = Callable[[bytes], IntArray | None]

WAYS: list[Way] = [id_text._maybe_words, id_text._maybe_numbers]
MAX_ID = 2**31 - 1


def said(found: IntArray | None) -> list[int] | None:
    if found is None:
        return None
    assert found.dtype == np.int32
    ids: list[int] = found.tolist()
    return ids


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "good", ["0", "5", "0,0", "12,3,100,99999", "2147483647", "10,1000000000", "99999999,1", "12345678", "123456789,8"]
)
def test_numbers_with_a_comma_between_are_read(way: Way, good: str) -> None:
    assert said(way(good.encode())) == [int(one) for one in good.split(",")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        "1 ,2",
        "1, 2",
        "1,,2",
        ",1",
        "1,",
        ",",
        "01",
        "1,00",
        "1,01234567",
        "-1",
        "+1",
        "1.0",
        "1e3",
        "2147483648",
        "9" * 30,
        "[1]",
        '"1"',
        "1;2",
        "1:2",
        "x",
        "1\x00",
        "\xff1",
    ],
)
def test_anything_else_is_for_the_ordinary_reader(way: Way, bad: str) -> None:
    assert way(bad.encode("latin-1")) is None


@given(st.text("0123456789,,,- .", max_size=40))
def test_both_ways_say_the_same_and_what_they_read_is_what_json_says(written: str) -> None:
    by_words, by_numbers = (said(way(written.encode())) for way in WAYS)
    assert by_words == by_numbers
    if by_words is not None:
        assert by_words == json.loads(f"[{written}]")


@given(st.lists(st.integers(0, MAX_ID) | st.integers(0, 200_000) | st.integers(0, 20), min_size=1))
def test_every_list_of_ids_is_read_by_both_ways(ids: list[int]) -> None:
    written = json.dumps(ids, separators=(",", ":"))[1:-1].encode()
    assert [said(way(written)) for way in WAYS] == [ids, ids]


LIST = re.compile("(0|[1-9][0-9]*)(,(0|[1-9][0-9]*))*")


@given(st.text("0012,,,x -", max_size=12))
def test_a_list_is_told_without_reading_it(written: str) -> None:
    assert is_list(written.encode()) == (LIST.fullmatch(written) is not None)


@given(st.text("0123456789,", max_size=20))
def test_what_is_no_list_is_not_read_and_what_is_is_json(written: str) -> None:
    found = is_list(written.encode())
    assert found or maybe_parse(written.encode()) is None
    if found:
        json.loads(f"[{written}]")


@pytest.mark.parametrize("digits", range(1, 9))
def test_a_number_takes_nothing_from_the_one_before(digits: int) -> None:
    ids = [99_999_999, 10 ** (digits - 1), 88_888_888, 10**digits - 1, 7]
    assert said(id_text._maybe_words(",".join(map(str, ids)).encode())) == ids


def test_a_long_text_is_read_as_a_short_one_is() -> None:
    ids = np.random.default_rng(0).integers(0, 151_936, 5000).tolist()
    written = ",".join(map(str, ids)).encode()
    assert len(written) > MANY
    assert said(maybe_parse(written)) == ids
    assert maybe_parse(written + b",x") is None
    assert said(maybe_parse(b"3,4")) == [3, 4]
