"""Bodies taken apart and put together: equal as JSON, order and spelling kept; the rest is kept whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.store import bodies
from tests.capture.store.samples import parsed

KEYS = st.sampled_from(["model", "messages", "tools", "n", "ключ", 'a"b', "\\", "\n", ""]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=5
)
NUMBERS = st.integers() | st.integers(min_value=10**30) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=6)


def taken_apart(body: bytes) -> bodies.Fields:
    fields = bodies.fields(body)
    assert fields is not None
    return fields


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_a_body_comes_back_equal_with_its_order_and_numbers(value, ascii_only, indent):
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    fields = bodies.fields(body)
    assert fields is not None
    assert list(fields) == list(value)
    assert parsed(bodies.whole(fields)) == parsed(body)


@given(OBJECTS, OBJECTS)
def test_a_difference_gives_the_other_body_back(one, other):
    base, wanted = taken_apart(json.dumps(one).encode()), taken_apart(json.dumps(other).encode())
    found = bodies.difference(base, wanted)
    if found is not None:
        without, changes = found
        assert list(bodies.changed(base, without, changes).items()) == list(wanted.items())


def test_what_capture_adds_and_takes_out_is_a_small_difference():
    base = taken_apart(b'{"model":"m","messages":[1],"priority":3,"n":1}')
    sent = taken_apart(b'{"model":"other","messages":[1],"n":1,"logprobs":true}')
    assert bodies.difference(base, sent) == (["priority"], {"model": b'"other"', "logprobs": b"true"})


def test_another_order_of_keys_is_no_difference():
    assert bodies.difference({"a": b"1", "b": b"2"}, {"b": b"2", "a": b"1"}) is None


def test_numbers_escapes_and_inner_space_stay_as_they_are_spelt():
    fields = bodies.fields(
        b'{ "big": 123456789012345678901234567890, "f": 1.50, "e": 1E400, "s": "\\u00e9", "l": [1, 2 ] }'
    )
    assert fields == {
        "big": b"123456789012345678901234567890",
        "f": b"1.50",
        "e": b"1E400",
        "s": b'"\\u00e9"',
        "l": b"[1, 2 ]",
    }


def test_of_a_key_that_occurs_twice_the_last_value_counts():
    assert bodies.fields(b'{"a":1,"b":2,"a":3}') == {"a": b"3", "b": b"2"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[1]",
        b'"text"',
        b"{",
        b'{"a":NaN}',
        b'{"a":"\\ud800"}',
        b'{"\xff":1}',
        b'{"a":1} trailing',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_cannot_be_taken_apart_is_none(body):
    assert bodies.fields(body) is None


def test_elements_of_an_array_and_of_nothing_else():
    assert bodies.elements(b'[{"a": 1}, "b" ,3.0]') == [b'{"a": 1}', b'"b"', b"3.0"]
    assert bodies.elements(b"[]") == []
    assert bodies.elements(b'{"a":1}') is None
    assert bodies.elements(b"null") is None
    assert bodies.array(bodies.elements(b'[1, "b"]') or []) == b'[1,"b"]'
