"""Messages and tool lists, each read once: what a reading gives, and that the kept one is the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects import elements as elements_module
from capture.dialects.chat import Chat
from capture.dialects.elements import Elements, fetched
from capture.store import contents
from graph import messages as canonical
from tests.playbook import body


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_a_message_is_known_by_its_bytes_and_by_its_value() -> None:
    spellings = [b'{"role":"user","content":"a"}', b'{"content":"a","role":"user"}', b'{"role":"user","content":"b"}']
    read = Elements().maybe_messages(b"[" + b" ,".join(spellings) + b"]")
    assert read is not None
    one, two, other = read
    assert [each.raw for each in read] == spellings
    assert [each.name for each in read] == [contents.digest(each) for each in spellings]
    assert one.value == two.value != other.value
    assert one.message == canonical.from_chat({"role": "user", "content": "a"})


words = st.sampled_from(["", "a", "b", "user", "developer", "system", "tool"])
messages = st.fixed_dictionaries(
    {"role": words, "content": words | st.none() | st.sampled_from([["a"], [{"type": "text", "text": "a"}]])},
    optional={"tool_call_id": words | st.none(), "name": words, "reasoning": words, "tool_calls": st.just([])},
)


@given(st.lists(messages, min_size=2, max_size=2), st.booleans())
def test_digests_of_values_are_equal_where_the_values_are(pair: list[Any], turned: bool) -> None:
    one, other = pair if not turned else (pair[0], dict(reversed(pair[0].items())))
    read = Elements().maybe_messages(raw([one, other]))
    assert read is not None
    assert (read[0].value == read[1].value) == (one == other)
    assert [each.message for each in read] == [canonical.from_chat(one), canonical.from_chat(other)]


def test_a_message_that_stands_twice_is_read_once() -> None:
    one = {"role": "user", "content": "a"}
    read = Elements().maybe_messages(raw([one, {"role": "user", "content": "b"}, one]))
    assert read is not None
    assert read[0] is read[2] is not read[1]


def test_what_is_kept_is_the_same_object() -> None:
    elements = Elements()
    first = elements.maybe_messages(raw([{"role": "user", "content": "a"}]))
    again = elements.maybe_messages(raw([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]))
    assert first is not None
    assert again is not None
    assert again[0] is first[0]
    tools = raw([{"type": "function", "function": {"name": "read"}}])
    assert elements.maybe_tools(tools) is elements.maybe_tools(bytes(bytearray(tools)))


@pytest.mark.parametrize(
    "text", [b"5", b"{}", b"[NaN]", b'["\\ud800"]', b'["\xff"]', b"[", b"[" * 9999 + b"]" * 9999, b"[1e999]x"]
)
def test_what_strict_json_can_not_read_is_not_read_here(text: bytes) -> None:
    assert Elements().maybe_messages(text) is None


def test_a_tool_list() -> None:
    elements = Elements()
    tools = [{"type": "function", "function": {"name": "read"}}]
    read = elements.maybe_tools(raw(tools))
    assert read is not None
    assert (read.digest, read.names) == (canonical.tools_digest(tools), ("read",))
    none = elements.maybe_tools(b"null")
    assert none is not None
    assert (none.digest, none.names) == (None, ())
    assert elements.maybe_tools(b"[NaN]") is None


def test_the_room_is_bounded_and_the_least_recently_used_goes_first() -> None:
    a, b, c = (raw({"role": "user", "content": name * 40}) for name in "abc")
    elements = Elements(kept_bytes=elements_module._cost(a) + elements_module._cost(b))
    kept_a, _ = elements.maybe_messages(b"[" + a + b"," + b + b"]") or ()
    assert (elements.maybe_messages(b"[" + a + b"]") or ())[0] is kept_a
    elements.maybe_messages(b"[" + c + b"]")
    assert list(elements._kept) == [a, c]
    # One that is larger than all the room is read all the same.
    large = raw([{"role": "user", "content": "x" * 1000}])
    assert elements.maybe_messages(large) is not None
    assert elements.maybe_tools(large) is not None
    assert not elements._kept
    assert not elements._tools
    assert elements._room == elements_module._cost(a) + elements_module._cost(b)


def test_what_is_not_used_for_a_while_goes() -> None:
    a, b, c = (raw({"role": "user", "content": name * 40}) for name in "abc")
    at = 0.0
    elements = Elements(now=lambda: at)
    room = elements._room

    def read(*messages: bytes) -> tuple:
        return elements.maybe_messages(b"[" + b",".join(messages) + b"]") or ()

    kept_a, kept_b = read(a, b)
    at += 31.0
    assert read(a)[0] is kept_a
    at += 31.0
    # Since the last look only the first was used.
    assert read(a)[0] is kept_a
    assert elements._room == room - elements_module._cost(a)
    assert read(b)[0] is not kept_b
    at += 31.0
    read(c)
    at += 31.0
    read(c)
    assert [one for one in elements._kept if one] == [c]
    # No room at all: even what was just read goes, and the mark with it.
    small = Elements(kept_bytes=0, now=lambda: at)
    at += 31.0
    assert small.maybe_messages(b"[" + a + b"]")
    assert not small._kept


def test_what_is_large_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    large = raw([{"role": "user", "content": "x" * 1000}])
    monkeypatch.setattr(elements_module, "LARGE", 500)
    elements = Elements()
    first, again = elements.maybe_messages(large), elements.maybe_messages(large)
    assert first == again
    assert not elements._kept


def test_where_a_medium_is_fetched() -> None:
    assert fetched({"content": [{"type": "text"}, {"image_url": {"url": " http://x"}}]}) == "content[1].image_url"
    assert fetched({"content": [{"audio_url": "file:///x"}]}) == "content[0].audio_url"
    assert fetched({"content": [{"image_url": {"url": " DATA:image/png;base64,AA"}}, 5]}) is None
    assert [fetched(other) for other in (5, None, {"content": "image_url"}, {})] == [None] * 4


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(values, max_size=4), values)
def test_a_request_says_what_its_messages_and_tools_say(messages: list[Any], tools: Any) -> None:
    """Twice: read anew, and kept."""
    for _ in range(2):
        request = Chat().read(body(messages=messages, tools=tools))
        assert request.messages == tuple(map(canonical.from_chat, messages))
        assert (request.tools, request.tool_names) == (canonical.tools_digest(tools), canonical.tool_names(tools))
        assert request.undecoded is None
