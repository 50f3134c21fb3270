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

# The last is what is compiled, where it is.
WAYS: list[Way] = [id_text._maybe_words, id_text._maybe_numbers, maybe_parse]
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
def test_all_ways_say_the_same_and_what_they_read_is_what_json_says(written: str) -> None:
    found, *others = (said(way(written.encode())) for way in WAYS)
    assert others == [found, found]
    if found is not None:
        assert found == json.loads(f"[{written}]")


@given(st.lists(st.integers(0, MAX_ID) | st.integers(0, 200_000) | st.integers(0, 20), min_size=1))
def test_every_list_of_ids_is_read_by_all_ways(ids: list[int]) -> None:
    written = json.dumps(ids, separators=(",", ":"))[1:-1].encode()
    assert [said(way(written)) for way in WAYS] == [ids, ids, ids]


LIST = re.compile("(0|[1-9][0-9]*)(,(0|[1-9][0-9]*))*")


@pytest.mark.parametrize("way", [is_list, id_text._is_list])
@given(written=st.text("0012,,,x -", max_size=12) | st.text("09,", max_size=40))
def test_a_list_is_told_without_reading_it(way: Callable[[bytes], bool], written: str) -> None:
    assert way(written.encode()) == (LIST.fullmatch(written) is not None)


@given(st.text("0123456789,", max_size=20))
def test_what_is_no_list_is_not_read_and_what_is_is_json(written: str) -> None:
    found = is_list(written.encode())
    assert found or maybe_parse(written.encode()) is None
    if found:
        json.loads(f"[{written}]")


@pytest.mark.parametrize("digits", range(1, 9))
def test_a_number_takes_nothing_from_the_one_before(digits: int) -> None:
    ids = [99_999_999, 10 ** (digits - 1), 88_888_888, 10**digits - 1, 7]
    assert [said(way(",".join(map(str, ids)).encode())) for way in WAYS] == [ids, ids, ids]


@pytest.mark.parametrize("other", range(256))
def test_no_other_byte_ends_or_begins_a_number(other: int) -> None:
    byte = bytes([other])
    read = None if byte not in b"0123456789," else True
    for text in (b"12" + byte + b"34,5678901,23", b"99999999" + byte + b"9", byte + b"1234567,1234567"):
        found = [said(way(text)) for way in WAYS]
        assert found[0] == found[1] == found[2]
        assert read or found[0] is None
        assert is_list(text) == id_text._is_list(text)


def test_a_long_text_is_read_as_a_short_one_is() -> None:
    ids = np.random.default_rng(0).integers(0, 151_936, 5000).tolist()
    written = ",".join(map(str, ids)).encode()
    assert len(written) > MANY
    assert said(maybe_parse(written)) == ids
    assert maybe_parse(written + b",x") is None
    assert said(maybe_parse(b"3,4")) == [3, 4]
