"""What differs between two requests, by field."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.changes import MOST_CHANGES, MOST_CHARS, Change, changes, going_on


def user(text):
    return {"role": "user", "content": text}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def calls(arguments, **more):
    return said(None, tool_calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}])


def chat(*messages, **fields):
    return {"model": "m", "messages": list(messages), **fields}


def told(found):
    return [(each.field, each.was, each.now) for each in found]


@pytest.mark.parametrize(
    ("was", "now", "found"),
    [
        (chat(user("a")), chat(user("a")), []),
        (chat(user("a"), temperature=1.0), chat(user("a"), temperature=0), [("temperature", 1.0, 0)]),
        (chat(user("a")), chat(user("b")), [("messages[0].content", "a", "b")]),
        (chat(user("a")), chat(user("a"), tools=[]), []),
        (chat(user("a")), chat(user("a"), stream=False), [("stream", None, False)]),
        (chat(user("a")), chat(user("a"), user("b")), [("messages[1]", None, '{"role": "user", "content": "b"}')]),
        # Text is text.
        (chat(user("ab")), chat(user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])), []),
        (chat(user([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}])), chat(user("a")), []),
        (chat(said("x", reasoning="r")), chat(said("x", reasoning_content="r")), []),
        (chat(said("x", tool_calls=None, refusal=None)), chat(said("x")), []),
        # One that was left out, or put in, is one change.
        (
            chat(user("a"), said("b"), user("c"), said("d")), chat(user("a"), user("c"), said("d")),
            [("messages[1]", '{"role": "assistant", "content": "b"}', None)],
        ),
        (
            chat(user("a"), user("c")), chat({"role": "system", "content": "s"}, user("a"), user("c")),
            [("messages[0]", None, '{"role": "system", "content": "s"}')],
        ),
        # Messages come first, whatever the order of keys.
        (
            {"temperature": 1, **chat(user("a"))}, {"temperature": 2, **chat(user("b"))},
            [("messages[0].content", "a", "b"), ("temperature", 1, 2)],
        ),
        (
            chat(tools=[{"function": {"name": "f", "description": "old"}}]),
            chat(tools=[{"function": {"name": "f", "description": "new"}}]),
            [("tools[0].function.description", "old", "new")],
        ),
        # Other dialects.
        (
            {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}]},
            {"input": [{"role": "user", "content": "b"}]},
            [("input[0].content", "a", "b")],
        ),
        (
            {"contents": [{"role": "user", "parts": [{"text": "a"}]}]},
            {"contents": [{"role": "user", "parts": [{"text": "b"}]}]},
            [("contents[0].parts", "a", "b")],
        ),
        ({"input": "a"}, {"input": [user("a")]}, [("input", "a", '[{"role": "user", "content": "a"}]')]),
        ({"a": 1.0}, {"a": 1}, []),
    ],
)  # fmt: skip
def test_two_requests(was, now, found):
    assert told(changes(was, now)) == found


def test_what_goes_on_is_no_change():
    first = chat(user("a"))
    assert going_on(first, [said("b")], chat(user("a"), said("b"), user("c"))) == ()
    assert told(going_on(first, [said("b", reasoning="think")], chat(user("a"), said("b"), user("c")))) == [
        ("messages[1].reasoning", "think", None)
    ]
    assert told(going_on(first, [calls('{"a":1}')], chat(user("a"), calls('{"a": 1}')))) == [
        ("messages[1].tool_calls[0].function.arguments", '{"a":1}', '{"a": 1}')
    ]


def test_what_an_engine_adds_and_no_agent_sends_back_is_no_change():
    reply = {
        "role": "assistant", "content": "b", "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "tool_calls": [], "reasoning": None,
    }  # fmt: skip
    assert going_on(chat(user("a")), [reply], chat(user("a"), said("b"))) == ()
    item = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": []}]}  # fmt: skip
    request = {"input": [user("a")]}
    later = {"input": [user("a"), {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}]}
    assert going_on(request, [item], later) == ()


def test_of_the_fields_beside_the_messages_those_count_that_shape_a_prompt():
    was = chat(user("a"), temperature=1.0, stream=True, tools=[{"name": "f"}], system="old")
    now = chat(user("a"), temperature=0.5, stream=False, tools=[{"name": "g"}], system="new")
    assert told(going_on(was, [], now)) == [("tools[0].name", "f", "g"), ("system", "old", "new")]


def test_a_history_that_was_cut_short():
    was = chat(user("a"), said("b"), user("c"), said("d"))
    found = going_on(was, [said("e")], chat(user("a"), said("e"), user("f")))
    assert [each.field for each in found] == ["messages[1]", "messages[2]", "messages[3]"]
    assert all(each.now is None for each in found)


def test_few_are_told():
    was, now = chat(*(user(f"a{at}") for at in range(99))), chat(*(user(f"b{at}") for at in range(99)))
    assert len(changes(was, now)) == MOST_CHANGES
    assert len(changes(was, now, most=2)) == 2


def test_of_a_long_value_what_lies_around_the_difference():
    one, other = "x" * 10_000 + "OLD" + "y" * 10_000, "x" * 10_000 + "NEW" + "y" * 10_000
    (found,) = changes(chat(user(one)), chat(user(other)))
    assert found.was.startswith("…xxx")
    assert found.was.endswith("yyy…")
    assert (found.was.index("OLD"), found.now.index("NEW")) == (81, 81)
    assert len(found.was) == len(found.now) == MOST_CHARS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
REQUEST = st.dictionaries(st.sampled_from(["messages", "tools", "temperature", "input"]), JSON, max_size=4)


@given(REQUEST, REQUEST)
def test_equal_ones_differ_in_nothing_and_a_change_has_two_sides(was, now):
    assert changes(was, json.loads(json.dumps(was))) == ()
    for each in (*changes(was, now), *going_on(was, [], now)):
        assert isinstance(each, Change)
        assert each.was != each.now or type(each.was) is not type(each.now)
        for side in (each.was, each.now):
            assert not isinstance(side, str) or len(side) <= MOST_CHARS
            assert json.dumps(side) is not None


@given(st.lists(JSON, max_size=5), st.lists(JSON, max_size=5))
def test_what_comes_behind_never_is_a_change(before, behind):
    assert going_on({"messages": before}, [], {"messages": [*before, *behind]}) == ()
