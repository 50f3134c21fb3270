"""Raw fields: nothing changes that nobody changed, and what real writers emit is read."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import rawjson

# Text with characters that need escapes, and half surrogate pairs, as JavaScript writes them.
texts = st.text(st.characters(codec=None, categories=None), max_size=6)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


def dumped(value: Any, *, spaced: bool = False) -> bytes:
    return json.dumps(value, indent=1 if spaced else None).encode()


def same(a: Any, b: Any) -> bool:
    return dumped(a) == dumped(b)


@given(st.dictionaries(texts, values, max_size=5), st.booleans())
def test_a_split_object_has_its_values_as_they_stood(form: dict[str, Any], spaced: bool) -> None:
    body = dumped(form, spaced=spaced)
    for fields in (rawjson.split(body), rawjson._scan_fields(body)):
        assert list(fields) == list(form)
        for name, raw in fields.items():
            assert raw in body
            assert same(json.loads(raw), form[name])
        assert same(json.loads(rawjson.join(fields)), form)


@given(st.lists(values, max_size=5), st.booleans())
def test_a_split_list_has_its_elements_as_they_stood(form: list[Any], spaced: bool) -> None:
    body = dumped(form, spaced=spaced)
    for found in (rawjson.elements(body), rawjson._scan_elements(body)):
        assert [dumped(json.loads(raw)) for raw in found] == [dumped(item) for item in form]
        assert same(json.loads(rawjson.join_elements(found)), form)


@given(st.text('{}[]",:0123456789.eE+-\\ntruefalsNI \x00é', max_size=20))
def test_what_python_reads_is_read_and_what_it_refuses_is_refused(text: str) -> None:
    body = text.encode()
    try:
        expected = json.loads(body)
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert list(rawjson.split(body)) == list(expected)
        assert list(rawjson._scan_fields(body)) == list(expected)
    else:
        with pytest.raises(ValueError, match=r"byte \d+|UTF-8"):
            rawjson.split(body)


def test_numbers_escapes_and_order_stay() -> None:
    body = rb'{"z":0.10,"big":12345678901234567890,"e":1E-9,"text":"na\u00efve \ud83d\ude00","o":{"b":1,"a":2}}'
    fields = rawjson.split(body)
    assert rawjson.join(fields) == body
    assert fields["text"] == rb'"na\u00efve \ud83d\ude00"'


@pytest.mark.parametrize(
    "raw",
    [
        b"NaN",
        b"-Infinity",
        b"[1,NaN,{}]",
        b"1e999",
        b"1" * 5000,
        rb'"\ud800"',
        rb'{"\udc00":1}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"[]" + b"}" * 100_000,
    ],
    ids=["NaN", "Infinity", "NaN inside", "1e999", "huge", "half a pair", "half a pair as key", "deep", "deep objects"],
)
def test_what_strict_readers_refuse_passes(raw: bytes) -> None:
    body = b'{"first":1,"odd":' + raw + b',"last":"x"}'
    fields = rawjson.split(body)
    assert fields == {"first": b"1", "odd": raw, "last": b'"x"'}
    assert rawjson.join(fields) == body
    assert rawjson.elements(b"[" + raw + b" , 2]") == [raw, b"2"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "a value at byte 0"),
        (b"nul", "a value at byte 0"),
        (b"[1]", "a JSON object at byte 0"),
        (b' "x"', "a JSON object at byte 1"),
        (b'{"a":1}x', "after the JSON value at byte 7"),
        (b'{"a":1,}', "a key at byte 7"),
        (b'{"a" 1}', "':' at byte 5"),
        (b'{"a":1 "b":2}', "',' or '}' at byte 7"),
        (b'{"a":[1,]}', "a value at byte 8"),
        (b'{"a":[1 2]}', "',' or ']' at byte 8"),
        (b'{"a":{"b"}}', "a key and ':' at byte 6"),
        (b'{"a":01}', "',' or '}' at byte 6"),
        (b'{"a":"\n"}', "a value at byte 5"),
        (b'{"a":"\\x"}', "a value at byte 5"),
        (b'{"a":', "a value at byte 5"),
        (b'{"a":[', "a value at byte 6"),
        (b'{"\xff":1}', "UTF-8"),
    ],
)
def test_what_is_no_object_is_refused_with_its_place(body: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        rawjson.split(body)


def test_elements_refuse_what_is_no_list() -> None:
    for body in (b"{}", b"[1", b"[1,]", b"[1]]", b"", b"[1 2]", b"[NaN 2]", b"[NaN,"):
        with pytest.raises(ValueError, match="byte"):
            rawjson.elements(body)


def test_of_equal_keys_the_last_value_wins_in_the_first_place() -> None:
    for body in (b'{"a":1,"b":2,"a":3}', b'{"a":1,"b":NaN,"a":3}'):
        assert next(iter(rawjson.split(body).items())) == ("a", b"3")
        assert list(rawjson.split(body)) == ["a", "b"]


def test_objects_of_a_list() -> None:
    assert rawjson.objects(b'[{"a":1},{}]') == [{"a": b"1"}, {}]
    assert rawjson.objects(b'[{"a":NaN}]') == [{"a": b"NaN"}]
    with pytest.raises(ValueError, match="object at byte 0"):
        rawjson.objects(b"[{},1]")


def test_a_long_list_of_numbers_is_one_step_of_the_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    class Counting:
        def __init__(self, pattern: Any) -> None:
            self.pattern = pattern

        def match(self, body: bytes, at: int) -> Any:
            nonlocal steps
            steps += 1
            return self.pattern.match(body, at)

    monkeypatch.setattr(rawjson, "_run", Counting(rawjson._run))
    body = b'{"ids":[' + b"7, " * 100_000 + b'NaN],"text":"' + b"\\n" * 100_000 + b'"}'
    assert list(rawjson._scan_fields(body)) == ["ids", "text"]
    assert steps == 1


def test_values_are_decoded_tolerantly() -> None:
    assert rawjson.loads(b'{"a":[1,"x"]}') == {"a": [1, "x"]}
    assert math.isnan(rawjson.loads(b"NaN"))
    assert rawjson.loads(b"1e999") == math.inf
    assert rawjson.loads(rb'"\ud800"') == "\ud800"
    for raw in (b"[" * 100_000 + b"]" * 100_000, b"1" * 5000, b"nope"):
        with pytest.raises(ValueError, match=r"deep|digits|Expecting"):
            rawjson.loads(raw)


def test_half_pairs_are_mended() -> None:
    assert rawjson.mended("\ud83d\ude00") == "😀"
    assert rawjson.mended({"\ud800": ["a\udc00", 1, None]}) == {"\ufffd": ["a\ufffd", 1, None]}
    assert rawjson.mended(rawjson.mended("\ude00\ud83d")) == "\ufffd\ufffd"


@given(texts)
def test_mended_text_is_utf_8_and_sound_text_stays(text: str) -> None:
    mended = rawjson.mended(text)
    mended.encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        assert mended != text
    else:
        assert mended == text
