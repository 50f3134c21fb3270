"""Plain messages have one spelling, and it is known without being read."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects import plain
from capture.dialects.plain import maybe_spelled, unspelled

TOLD = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": ""},
    {"role": "tool", "content": 'a "b" \\ / \b\f\n\r\t', "tool_call_id": "call_1"},
    {"role": "user", "content": "größer 好 🎉"},
    {"role": "", "content": "x" * 100},
]

BY_HAND = [
    b'{"content":"a","role":"user"}',
    b'{"role": "user", "content": "a"}',
    b'{"role":"user","content":"a","name":"b"}',
    b'{"role":"user","content":"a","content":"b"}',
    b'{"role":"user","content":null}',
    b'{"role":"user","content":["a"]}',
    b'{"role":"user","content":"a","tool_call_id":null}',
    b'{"role":"user","content":"\\u0061"}',
    b'{"role":"user","content":"\\/"}',
    b'{"role":"user","content":"\\x"}',
    b'{"role":"user","content":"a\\',
    b'{"role":"user","content":"a\\"}',
    b'{"role":"user","content":"a\n"}',
    b'{"role":"user","content":"a\x7f"}',
    b'{"role":"user","content":"\\ud800"}',
    b'{"role":"user","content":"\xed\xa0\x80"}',
    b'{"role":"user","content":"\xff"}',
    b'{"role":"user","content":"aaaaaaaaaaaaaaaaaaaaaaaa\xff"}',
    b'{"role":"user","content":"\xc3"}',
    b'{"role":"User","content":"a"}',
    b'{"role":"user","content":"a"',
    b'{"role":"user","content":"a"}}',
    b'{"role":"user","content":"a"} ',
    b'{"role":"user","content":"a",}',
    b'{"role":"tool","content":"a","tool_call_id":"\xff"}',
    b'{"role":"tool","content":"a","tool_call_id":}',
    b'{"role":"tool","content":"a","tool_call_id":"b","name":"c"}',
    b'{"role":"tool","tool_call_id":"b","content":"a"}',
    b"{}",
    b"5",
    b"",
]


@pytest.fixture(params=["compiled", "in Python"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in Python":
        monkeypatch.setattr(plain, "compiled", None)
    elif plain.compiled is None:
        pytest.skip("the package was built without it")


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("value", TOLD)
def test_what_writers_without_spaces_write(value: dict[str, Any]) -> None:
    for raw in (msgspec.json.encode(value), json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()):
        assert unspelled([raw]) == []
        assert maybe_spelled(json.loads(raw)) == raw


@pytest.mark.usefixtures("_way")
def test_what_is_not_told_so_is_to_be_read() -> None:
    assert unspelled(BY_HAND) == list(range(len(BY_HAND)))
    assert unspelled([]) == []
    told = msgspec.json.encode(TOLD[0])
    assert unspelled([BY_HAND[0], told, told, BY_HAND[1]]) == [0, 3]


def test_values_that_are_none() -> None:
    values = [5, [], {}, {"role": "user"}, {"role": 5, "content": "a"}, {"role": "user", "content": None}]
    values += [{"role": "user", "content": "a", "name": "b"}, {"role": "user", "content": "a", "tool_call_id": None}]
    assert [maybe_spelled(value) for value in values] == [None] * len(values)
    with pytest.raises(UnicodeEncodeError):
        maybe_spelled({"role": "user", "content": "\ud800"})


# Long enough for eight bytes at a time, and at each place what ends them.
texts = st.text(st.sampled_from('a"\\\n\x00\x1f\x7f\x80é好🎉'), max_size=20) | st.text(max_size=20)
PIECES = [b"\\", b'"', b"\xff", b"\x1f", b"\x7f", b"\\u0041", b"\\/", b"}", b"", b" ", b",", b'","tool_call_id":"']


@given(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "tool", "", "a_b", "é"]), "content": texts}, optional={"tool_call_id": texts}
    ),
    st.none() | st.tuples(st.integers(0, 60), st.sampled_from(PIECES), st.integers(0, 2)),
    st.booleans(),
    st.integers(0, 9),
)
def test_both_ways_say_the_same_and_it_is_so(
    value: dict[str, str], damage: tuple[int, bytes, int] | None, ascii_: bool, ahead: int
) -> None:
    """Whatever is around it, and wherever in a word it ends."""
    value["content"] = "x" * ahead + value["content"]
    raw = json.dumps(value, ensure_ascii=ascii_, separators=(",", ":")).encode()
    if damage is not None:
        at, piece, cut = damage
        raw = raw[:at] + piece + raw[at + cut :]
    is_spelled = not unspelled([raw])
    assert is_spelled == plain._is_spelled(raw)
    if is_spelled:
        assert maybe_spelled(msgspec.json.decode(raw)) == raw
