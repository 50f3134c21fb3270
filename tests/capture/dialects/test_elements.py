"""Messages and tool lists, each read once: what a reading gives, and that the kept one is the same."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capture import rawjson
from capture.dialects import chat
from capture.dialects import elements as elements_module
from capture.dialects.chat import Chat
from capture.dialects.elements import Elements, suspects
from capture.dialects.said import Heard
from capture.digests import digest
from capture.errors import ClientError
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
    assert [each.name for each in read] == [digest(each) for each in spellings]
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
        return tuple(elements.maybe_messages(b"[" + b",".join(messages) + b"]") or ())

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


def test_what_nobody_uses_goes_without_any_request() -> None:
    at = 0.0
    elements = Elements(now=lambda: at)
    elements.maybe_messages(raw([{"role": "user", "content": "a"}]))
    gone = []
    for _ in range(5):
        at += 20.0
        gone.append(elements.rest())
    # Marked at the second look, gone at the fourth; each other one comes too soon.
    assert gone == [False, False, False, True, False]
    assert [one for one in elements._kept if one] == []


def test_what_is_large_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    large = raw([{"role": "user", "content": "x" * 1000}])
    monkeypatch.setattr(elements_module, "LARGE", 500)
    elements = Elements()
    first, again = elements.maybe_messages(large), elements.maybe_messages(large)
    assert first == again
    assert not elements._kept
    # Its value is its bytes, where it isn't all in its canonical form.
    spelt = raw([{"role": "user", "content": [{"type": "text", "text": "x" * 1000}]}])
    (one,) = elements.maybe_messages(spelt) or ()
    assert one.value == one.name == digest(spelt[1:-1])


SECRET = "sk-treering-" + "x" * 43


@pytest.mark.parametrize(
    ("form", "all_of_it"),
    [
        ({"messages": [{"role": "user", "content": "a"}], "user": SECRET}, False),
        ({"messages": [{"role": "user", "content": "a"}], SECRET: 1}, False),
        ({"messages": [{"role": "user", "content": f"my key is {SECRET}"}]}, True),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": SECRET}}]}]}, True),
        ({"messages": [{"role": "user", "content": float("nan"), "name": SECRET}]}, True),
    ],
)
def test_a_secret_is_searched_where_it_may_stand(form: dict[str, Any], all_of_it: bool) -> None:
    text = raw(form)
    fields = rawjson.split(text)
    searched = suspects(fields, Elements().maybe_messages(fields["messages"]), text)
    assert SECRET.encode() in searched
    assert (searched == text) == all_of_it


def test_what_was_searched_when_it_was_read_is_not_searched_again() -> None:
    fields = rawjson.split(raw({"model": "m", "messages": [{"role": "user", "content": "a"}], "n": 1}))
    assert suspects(fields, Elements().maybe_messages(fields["messages"]), b"...") == b'{"model":"m","n":1}'


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("damage", [b"", b"]", b"\xff", b'"\\ud800"'])
@given(value=values | messages)
def test_a_large_message_is_read_part_by_part_and_says_the_same(value: Any, damage: bytes) -> None:
    text = raw(value) + damage
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(elements_module, "LARGE", 0)
        try:
            found = elements_module._decoded(text)
        except msgspec.MsgspecError as error:
            found = type(error)
    try:
        expected = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        expected = type(error)
    assert found == expected


@given(st.lists(values, max_size=4), values)
def test_a_request_says_what_its_messages_and_tools_say(messages: list[Any], tools: Any) -> None:
    """Twice: read anew, and kept."""
    for _ in range(2):
        request = Chat().read(body(messages=messages, tools=tools))
        assert request.messages == tuple(map(canonical.from_chat, messages))
        assert (request.tools, request.tool_names) == (canonical.tools_digest(tools), canonical.tool_names(tools))
        assert request.undecoded is None


# -- lists that begin as an earlier one


@pytest.fixture
def long_from_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements_module, "LONG", 0)


def said(*texts: str) -> bytes:
    return body(messages=[{"role": "user", "content": text} for text in texts], n=1)


@pytest.mark.usefixtures("long_from_the_first_byte")
def test_only_what_is_new_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    elements = Elements()
    assert elements.maybe_begun(said("a", "b")) is None
    first = elements.maybe_messages(rawjson.split(said("a", "b"))["messages"])
    assert first is not None
    new: list[bytes] = []
    real = elements_module.hear

    def noted(raws: list[bytes], **more: Any) -> Heard:
        new.extend(raws)
        return real(raws, **more)

    monkeypatch.setattr(elements_module, "hear", noted)
    found = elements.maybe_begun(said("a", "b", "c"))
    assert found is not None
    fields, read = found
    assert fields == rawjson.split(said("a", "b", "c"))
    assert list(fields) == list(rawjson.split(said("a", "b", "c")))
    assert (len(read), len(read.heard.names), len(read.raws), len(read.messages)) == (3, 3, 3, 3)
    assert new == [raw({"role": "user", "content": "c"})]
    assert (read[0], read[1]) == (first[0], first[1])
    # What grew is known from now on, and no more what it grew from.
    assert elements.maybe_begun(said("a", "b", "c")) == found
    assert elements.maybe_begun(said("a", "b")) is None


@pytest.mark.usefixtures("long_from_the_first_byte")
def test_a_list_is_known_when_its_messages_are_not_kept_any_more() -> None:
    elements = Elements(kept_bytes=0)
    elements.maybe_messages(rawjson.split(said("a", "b"))["messages"])
    assert not elements._kept
    found = elements.maybe_begun(said("a", "b", "c"))
    assert found is not None
    whole = Elements().maybe_messages(found[0]["messages"])
    assert whole is not None
    assert found[1].heard == whole.heard
    assert (found[1].raws, found[1].messages, found[1]) == (whole.raws, whole.messages, whole)


@pytest.mark.usefixtures("long_from_the_first_byte")
def test_a_request_is_held_up_to_those_of_its_own_rollout() -> None:
    elements = Elements()
    elements.maybe_messages(rawjson.split(said("a"))["messages"], rollout="one")
    assert elements.maybe_begun(said("a", "b"), rollout="other") is None
    assert elements.maybe_begun(said("a", "b"), rollout="one") is not None


@pytest.mark.usefixtures("long_from_the_first_byte")
def test_a_long_list_is_kept_by_its_first_messages_and_all_of_it_when_they_come_again() -> None:
    elements = Elements()
    texts = [*"abcdef", "my key is " + SECRET, "h"]
    listed = rawjson.split(said(*texts))["messages"]
    raws = rawjson.elements(listed)
    for kept in (raws[: elements_module.LEAD], raws):
        read = elements.maybe_messages(listed)
        assert read is not None
        assert list(elements._kept) == kept
        assert list(read) == list(map(elements_module.read, raws))
        assert [one.suspect for one in read] == [SECRET in text for text in texts]
    again = elements.maybe_messages(listed)
    assert again is not None
    assert all(elements._kept[one.raw] is one for one in again)


@pytest.mark.usefixtures("long_from_the_first_byte")
def test_lists_go_when_they_are_not_used_for_a_while() -> None:
    at = 0.0
    elements = Elements(now=lambda: at)
    for name in "ab":
        elements.maybe_messages(rawjson.split(said(name))["messages"], rollout=name)
    for _ in range(3):
        at += 31.0
        assert elements.maybe_begun(said("a"), rollout="a") is not None
        elements.rest()
    assert elements.maybe_begun(said("b"), rollout="b") is None


@pytest.mark.usefixtures("long_from_the_first_byte")
def test_the_text_of_a_list_is_kept_when_it_is_no_longer_new() -> None:
    elements = Elements()
    listed = rawjson.split(said("a"))["messages"]
    for texts in (0, 1):
        elements.maybe_messages(listed)
        assert len(elements._lists._texts) == texts
    assert elements.maybe_begun(said("a", "b")) is not None
    assert len(elements._lists._texts) == 1


def test_short_ones_are_not() -> None:
    elements = Elements()
    elements.maybe_messages(rawjson.split(said("a"))["messages"])
    assert not len(elements._lists)


def read_by(elements: Elements, monkeypatch: pytest.MonkeyPatch, data: bytes) -> Any:
    monkeypatch.setattr(chat, "_elements", elements)
    try:
        request = Chat().read(data)
    except ClientError as error:
        return repr(error)
    return list(request.fields), request


PIECES = [
    b"", b" ", b",", b"]", b"[", b"}", b'"', b"\\", b"\xff", b"NaN", b"null", b"\\ud800", b'"messages":[',
    b'"messages":[],', elements_module._LEFT_OUT, b',"messages":[]', b'"x\\"messages":[', b'{"messages":[{}]}',
]  # fmt: skip
turns = st.lists(messages | values, max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """Bodies whose messages mostly begin as those of the one before; some of them damaged."""
    made = []
    heard: list[Any] = []
    for _ in range(draw(st.integers(2, 5))):
        heard = (heard if draw(st.integers(0, 3)) else heard[: draw(st.integers(0, 3))]) + draw(turns)
        form = {"model": "m", "messages": heard, "tools": draw(st.sampled_from([None, [], [5]])), "x": draw(values)}
        names = draw(st.permutations(list(form))) if draw(st.booleans()) else list(form)
        separators = draw(st.sampled_from([(",", ":"), (", ", ":"), (",", ": ")]))
        data = json.dumps({name: form[name] for name in names}, separators=separators).encode()
        if draw(st.integers(0, 2)) == 0:
            at = draw(st.integers(0, len(data)))
            data = data[:at] + draw(st.sampled_from(PIECES)) + data[at + draw(st.integers(0, 2)) :]
        made.append(data)
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests(), st.lists(st.booleans(), min_size=15, max_size=15), st.booleans())
@pytest.mark.usefixtures("long_from_the_first_byte")
def test_what_was_heard_before_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, made: list[bytes], kept: list[bool], forgetful: bool
) -> None:
    """Nor does it whether texts of lists are kept, nor whether messages are."""
    elements = Elements(kept_bytes=0) if forgetful else Elements()
    lists, room = elements._lists, elements._lists._room
    for data, keeps in zip([one for one in made for _ in range(3)], kept, strict=False):
        assert read_by(elements, monkeypatch, data) == read_by(Elements(), monkeypatch, data)
        for of in lists._of.values() if not keeps else ():
            for listed in of.lists:
                lists._texts.let_go(listed.text)
    lists.sweep(float("inf"))
    assert (lists._room, len(lists._texts)) == (room, 0)
