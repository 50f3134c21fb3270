"""What is asked of all messages of a request: the same, however many of them were read before."""

import gc
import json
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects.elements import Elements
from capture.dialects.said import NOTHING, Column, Element, Said, Unread

SECRET = "sk-treering-" + "x" * 43
PLAIN: dict[str, Any] = {"role": "user", "content": "a"}
FETCHING = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
SUSPECT = {"role": "user", "content": SECRET}

messages = st.lists(st.sampled_from([PLAIN, FETCHING, SUSPECT, {"role": "assistant", "content": "b"}]), max_size=3)


def read(said: list[Any]) -> Said:
    found = Elements().maybe_messages(json.dumps(said).encode())
    assert found is not None
    return found


def grown(before: Said, new: Said, asked: list[str] | None = None) -> Said:
    """Messages of which the first ones are not at hand; what fetches them is noted."""
    noted = [] if asked is None else asked

    def raws() -> list[bytes]:
        noted.append("raws")
        return list(before.raws)

    def again(these: Sequence[bytes]) -> list[Element]:
        noted.append("read")
        assert list(these) == list(before.raws)
        return list(before)

    return Said(new, unread=[Unread(len(before), raws, again)], heard=before.heard)


@given(messages, messages)
def test_what_is_asked_of_all_is_what_each_says(first: list[Any], more: list[Any]) -> None:
    one, other = read(first), read(more)
    for said in (read([*first, *more]), grown(one, other)):
        assert list(said) == [*one, *other]
        assert said.raws == [each.raw for each in said]
        assert said.heard.names == [each.name for each in said]
        assert said.messages == tuple(each.message for each in said)
        assert said.heard.values.data == b"".join(each.value for each in said)
        assert said.heard.fetches == any(each.fetched for each in said)
        assert said.heard.suspect == any(each.suspect for each in said)
        assert (len(said), len(said.raws), len(said.messages)) == (len(first + more),) * 3


def test_one_of_all_is_enough() -> None:
    one, two, three = (read([each]) for each in (PLAIN, FETCHING, SUSPECT))
    for before, new in ((one, two), (two, one)):
        assert (grown(before, new).heard.fetches, grown(before, new).heard.suspect) == (True, False)
    for before, new in ((one, three), (three, one)):
        assert (grown(before, new).heard.fetches, grown(before, new).heard.suspect) == (False, True)
    assert (one.heard.fetches, one.heard.suspect) == (False, False)
    assert read([]).heard == NOTHING


def test_what_was_read_before_is_fetched_for_whoever_asks_for_it_and_once() -> None:
    asked: list[str] = []
    said = grown(read([PLAIN, FETCHING]), read([SUSPECT, PLAIN]), asked)
    assert (len(said), len(said.heard.names), said.heard.suspect, bool(said.messages)) == (4, 4, True, True)
    assert (said[2:4], said[-1], said.raws[3], said.messages[2:]) == (
        tuple(read([SUSPECT, PLAIN])),
        read([PLAIN])[0],
        read([PLAIN])[0].raw,
        read([SUSPECT, PLAIN]).messages,
    )
    assert asked == []
    assert said.raws[1] == read([FETCHING])[0].raw
    assert said.raws[0:1] == [read([PLAIN])[0].raw]
    assert asked == ["raws"]
    assert said.messages[0] == read([PLAIN])[0].message
    assert list(said.messages) == [each.message for each in read([PLAIN, FETCHING, SUSPECT, PLAIN])]
    assert asked == ["raws", "raws", "read"]


@given(st.integers(0, 4), st.integers(0, 4), st.slices(8), st.integers(-9, 9))
def test_a_column_is_a_list(before: int, new: int, part: slice, at: int) -> None:
    """Before it was fetched, and after."""
    whole = list(range(before + new))
    column = Column(before, whole[before:], lambda: whole[:before])
    for _ in range(2):
        assert list(column[part]) == whole[part]
        if -len(whole) <= at < len(whole):
            assert column[at] == whole[at]
        else:
            with pytest.raises(IndexError):
                column[at]
        assert (list(column), len(column)) == (whole, len(whole))
    assert column == whole
    assert whole == column
    assert (column == [*whole, 1], column == [-1, *whole[1:]], column == 5) == (False, False, False)


def test_a_request_is_not_left_to_the_collector() -> None:
    said = grown(read([PLAIN]), read([PLAIN]))
    assert len(said.raws) + len(said.messages) + len(list(said)) == 6
    gone = weakref.ref(said.raws)
    gc.disable()
    try:
        del said
        assert gone() is None
    finally:
        gc.enable()
