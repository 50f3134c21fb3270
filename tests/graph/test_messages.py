"""One message in all its spellings, and anything at all."""

from __future__ import annotations

import json
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph import messages
from graph.messages import canonical_json, chain, equal, from_chat, strings, tool_names, tools_digest
from graph.records import Message

CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls -a"}'}}


def calling(arguments, **message):
    call = CALL | {"function": {"name": "bash", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call], **message}


@pytest.mark.parametrize(
    "spellings",
    [
        [
            {"role": "user", "content": "hi"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "user", "content": ["h", {"type": "input_text", "text": "i"}]},
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": {"type": "text", "text": "hi"}},
        ],
        [calling("{}", content=content) for content in ("", None, [], [{"type": "text", "text": ""}])]
        + [calling("{}")],
        [{"role": "system", "content": "s"}, {"role": "developer", "content": "s"}],
        [
            {"role": "tool", "content": "r", "tool_call_id": "a"},
            {"role": "tool", "content": "r", "tool_call_id": "b"},
            {"role": "function", "content": "r", "name": "bash"},
        ],
        [{"role": "assistant", "content": "a", **reasoning} for reasoning in ({}, {"reasoning": "r"})]
        + [{"role": "assistant", "content": "a", "reasoning_content": "r "}],
        [calling('{"b": 1, "a": [1, 2.0]}'), calling('{"a":[1,2],"b":1}'), calling({"a": [1, 2], "b": 1.0})],
        [calling(""), calling("{}"), calling(None), calling(" {} ")],
        [calling('{"s":"\\u00e9"}'), calling('{"s": "é"}')],
        [calling('{"n": 12345678901234567890}'), calling('{"n": 12345678901234567000}')],
        [calling("not json "), calling(" not json")],
        [
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "assistant", "function_call": {"name": "bash", "arguments": '{"command":"ls -a"}'}},
        ],
        [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x", "detail": detail}}]}
            for detail in ("low", "high")
        ],
        [{"role": "assistant", "content": None, "refusal": "No."}, {"role": "assistant", "content": "No."}],
    ],
)
def test_spellings_of_one_message_are_equal(spellings):
    first, *others = map(from_chat, spellings)
    for other in others:
        assert equal(first, other)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": ["a", {"type": "image_url", "image_url": "u"}]}),
        (calling('{"a":1}'), calling('{"a":"1"}')),
        (calling('{"a":true}'), calling('{"a":1}')),
        (calling("{}"), {"role": "assistant", "content": ""}),
        (calling("{}"), calling("{}", tool_calls=[CALL | {"function": {"name": "sh", "arguments": "{}"}}])),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}]},
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "y", "format": "wav"}}]},
        ),
        (
            {"role": "user", "content": [{"type": "new", "x": 1}]},
            {"role": "user", "content": [{"type": "new", "x": 2}]},
        ),
        ({"role": "ab", "content": "c"}, {"role": "a", "content": "bc"}),
    ],
)
def test_different_messages_are_not(a, b):
    assert not equal(from_chat(a), from_chat(b))


def test_what_is_not_compared_is_kept():
    message = from_chat({"role": "assistant", "content": None, "reasoning": "Hm. ", "tool_calls": [CALL]})
    (call,) = message.tool_calls
    assert (message.text, message.reasoning) == ("", "Hm. ")
    assert (call.id, call.name) == ("call_1", "bash")
    assert (call.arguments, call.canonical) == ('{"command": "ls -a"}', '{"command":"ls -a"}')
    assert from_chat({"role": "tool", "tool_call_id": "call_1", "content": "x"}).tool_call_id == "call_1"


def test_thinking_parts_are_reasoning():
    parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]
    message = from_chat({"role": "assistant", "content": parts})
    assert (message.text, message.reasoning, message.media) == ("Yes.", "Hm.", ())


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"b": 1, "a": {"d": null, "c": true}}', '{"a":{"c":true,"d":null},"b":1}'),
        ("[1.0, 1e2, 0.5, -0.0]", "[1,100,0.5,0]"),
        (' "x" ', '"x"'),
        ("{broken ", "{broken"),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("", ""),
    ],
)
def test_canonical_json(text, canonical):
    assert canonical_json(text) == canonical


def test_what_no_parser_can_take_stands_for_itself():
    deep = "[" * 100_000
    assert canonical_json(deep) == deep
    assert canonical_json("9" * 5000) == "9" * 5000


KEYS = [
    *("role", "content", "type", "text", "tool_calls", "function", "arguments", "name", "id", "image_url", "url"),
    *("input_audio", "data", "thinking", "reasoning", "refusal", "function_call", "cache_control", "tool_call_id"),
    *("file", "input", "custom"),
]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "text",
                    "tool_calls",
                    "function",
                    "arguments",
                    "name",
                    "id",
                    "image_url",
                    "url",
                    "input_audio",
                    "data",
                    "thinking",
                    "reasoning",
                    "refusal",
                    "function_call",
                    "cache_control",
                    "tool_call_id",
                    "file",
                    "input",
                    "custom",
                ]
            )
            | st.text(max_size=2),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(anything)
def test_nothing_raises(value):
    message = from_chat(value)
    assert len(message.digest) == 16
    assert message == from_chat(value)
    assert tools_digest(value) == tools_digest(value)
    assert all(isinstance(name, str) for name in tool_names(value))


words = st.sampled_from(["", "a", "é", "\ud800", "system", "developer", "tool"])
fields = st.fixed_dictionaries(
    {"role": words, "content": words},
    optional={
        "tool_call_id": words | st.none(),
        "name": words,
        "refusal": words | st.none(),
        "reasoning": words | st.none(),
        "reasoning_content": words | st.none(),
        "tool_calls": st.sampled_from([None, [], [CALL], 5]),
        "function_call": st.sampled_from([None, {}, CALL["function"]]),
        "annotations": st.none(),
    },
)


@given(fields)
def test_the_short_way_reads_as_the_long_one_does(message):
    # What is no dict takes the long one.
    assert from_chat(message) == from_chat(MappingProxyType(message))


@given(st.text(st.characters(codec=None)))
def test_no_text_raises(text):
    assert canonical_json(canonical_json(text)) == canonical_json(text)
    assert all(strings(text)) or not strings(text)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), json_values), st.randoms(use_true_random=False), st.booleans())
def test_re_serialising_changes_nothing(value, random, ascii_only):
    shuffled = dict(random.sample(list(value.items()), len(value)))
    spelled = json.dumps(shuffled, indent=random.choice([None, 2]), ensure_ascii=ascii_only)
    assert canonical_json(spelled) == canonical_json(json.dumps(value))


def test_tools():
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"b": 1, "a": 2}}}
    same = {"function": {"parameters": {"a": 2, "b": 1.0}, "name": "bash"}, "type": "function", "cache_control": {}}
    other = {"type": "function", "function": {"name": "sh"}}
    assert tools_digest([tool]) == tools_digest([same]) != tools_digest([other])
    assert tools_digest([tool, other]) != tools_digest([other, tool])
    assert tools_digest(None) is tools_digest([]) is None
    assert tool_names([tool, {"name": "plain"}, {"type": "web_search"}, None]) == ("bash", "plain")


def test_a_chain_names_every_prefix():
    a, b = from_chat({"role": "user", "content": "a"}), from_chat({"role": "user", "content": "b"})
    assert chain([a, b])[:2] == chain([a])
    assert len({*chain([a, b]), *chain([b, a]), *chain([a, a])}) == 6
    assert chain([]) == (b"",)


def test_strings_of_arguments():
    assert strings('{"a": "x", "b": [1, {"c": "y"}, "", null]}') == ("x", "y")
    assert strings("not json") == ("not json",)
    assert strings(" ") == ()


def test_half_a_surrogate_pair_is_replaced_so_that_every_message_can_be_written() -> None:
    call = {"id": "a\ud800", "function": {"name": "f\udfff", "arguments": '{"a":"\\ud800"}'}}
    message = from_chat({"role": "assistant", "content": "x\ud800y", "reasoning": "\udc00", "tool_calls": [call]})
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    assert (message.text, message.reasoning) == ("x\ufffdy", "\ufffd")
    assert message.tool_calls[0].canonical == '{"a":"\ufffd"}'


@given(st.lists(st.text(st.characters(), max_size=4), max_size=4))
def test_texts_hashed_one_by_one_have_the_digest_of_all_of_them(parts: list[str]) -> None:
    together = messages._hash(parts).digest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "LARGE", 0)
        assert messages._hash(parts).digest() == together
