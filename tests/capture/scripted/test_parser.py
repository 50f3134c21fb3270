"""Cases checked against vLLM 0.32's own parsers, with Qwen3's tokeniser in the place of ours."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.scripted.parser import Call, DeltaParser, Parsed, overlap, parse_whole
from capture.scripted.tokeniser import Tokeniser

TOKENISER = Tokeniser()
CALL = '<tool_call>\n{"name": "look", "arguments": {"at":  "src", "x": {"y": [1]}}}\n</tool_call>'
LOOK = Call(name="look", arguments='{"at": "src", "x": {"y": [1]}}')


@pytest.mark.parametrize(
    ("text", "options", "parsed"),
    [
        ("plain", {"thinking": False}, Parsed(reasoning=None, content="plain")),
        ("", {"thinking": False}, Parsed(reasoning=None, content="")),
        ("<think>\na\n</think>\n\nb", {}, Parsed(reasoning="\na\n", content="\n\nb")),
        ("a\n</think>\n\nb", {}, Parsed(reasoning="a\n", content="\n\nb")),
        ("cut in the middle of a th", {}, Parsed(reasoning="cut in the middle of a th", content=None)),
        ("<think></think>", {}, Parsed(reasoning=None, content=None)),
        ("<think>\na</think>", {"thinking": False}, Parsed(reasoning=None, content="<think>\na</think>")),
        (f"<think>\na\n</think>\n\n{CALL}", {}, Parsed(reasoning="\na\n", content=None, calls=(LOOK,))),
        (f"a{CALL}", {}, Parsed(reasoning="a", content=None, calls=(LOOK,))),
        (f"b\n{CALL}\n{CALL}", {"thinking": False}, Parsed(reasoning=None, content="b\n", calls=(LOOK, LOOK))),
        (CALL, {"thinking": False, "tools": False}, Parsed(reasoning=None, content=CALL)),
        (CALL[:30], {"thinking": False}, Parsed(reasoning=None, content=CALL[:30])),
        (CALL[:-12], {"thinking": False}, Parsed(reasoning=None, content=None, calls=(LOOK,))),
        (CALL, {"thinking": False, "forced": True}, Parsed(reasoning=None, content="", calls=(LOOK,))),
        ("a", {"forced": True}, Parsed(reasoning="a", content="")),
        ("<think>a</think>\n", {"forced": True}, Parsed(reasoning="a", content="")),
    ],
)
def test_a_whole_text(text, options, parsed):
    assert parse_whole(text, **({"thinking": True, "tools": True, "forced": False} | options)) == parsed


def stream(text: str, size: int = 1, **options: Any) -> list[dict[str, Any] | None]:
    """Feed a text's canonical ids in chunks of `size`; give the deltas."""
    numbers = itertools.count(1)
    given: dict[str, Any] = {"thinking": True, "tools": True, "call_id": lambda: f"c{next(numbers)}"} | options
    parser = DeltaParser(TOKENISER, **given)
    ids = TOKENISER.encode(text)
    chunks = [ids[n : n + size] for n in range(0, len(ids), size)]
    return [parser.feed(TOKENISER.decode(chunk), chunk, last=n + 1 == len(chunks)) for n, chunk in enumerate(chunks)]


def test_a_stream_of_thinking_then_content():
    assert stream("<think>\n the\n</think>\n\n name is") == [
        None,
        {"reasoning": "\n"},
        {"reasoning": " the"},
        {"reasoning": "\n"},
        None,
        {"content": "\n\n"},
        {"content": " name"},
        {"content": " is"},
    ]


def test_a_stream_of_a_call():
    deltas = stream('<tool_call>\n{"name": "look", "arguments": {"at": "b"}}\n</tool_call>', thinking=False)
    assert [delta for delta in deltas if delta] == [
        {"content": None, "tool_calls": [{"id": "c1", "type": "function", "index": 0, "function": {"name": "look"}}]},
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": '{"'}}]},
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": "at"}}]},
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": '":'}}]},
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": ' "'}}]},
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": "b"}}]},
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]},
    ]
    assert deltas[0] is None
    assert deltas[-1] is None


def test_one_chunk_may_hold_the_end_of_thinking_and_a_whole_call():
    (delta,) = stream(f"<think>\nso\n</think>\n\nNow. {CALL}", size=1000)
    assert delta == {
        "content": "\n\nNow. ",
        "tool_calls": [
            {"id": "c1", "type": "function", "index": 0, "function": {"name": "look"}},
            {"index": 0, "function": {"arguments": '{"at":  "src", "x": {"y": [1]}}'}},
        ],
        "reasoning": "\nso\n",
    }


def test_what_may_become_a_tag_is_held_back():
    assert stream("a <b", thinking=False) == [{"content": "a"}, {"content": " "}, {"content": "<b"}]
    assert stream("a <t", thinking=False, tools=False)[1] == {"content": " <"}


def test_a_stream_that_ends_in_a_name_gives_empty_arguments():
    deltas = stream('<tool_call>\n{"name": "look"', thinking=False)
    assert deltas[-1] is not None
    assert deltas[-1]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}


def test_with_one_call_wanted_the_others_are_dropped():
    deltas = stream(CALL + CALL, thinking=False, one_call=True)
    indexes = {call["index"] for delta in deltas if delta for call in delta.get("tool_calls", ())}
    assert indexes == {0}


PARTS = st.sampled_from(["word ", "a < b", "\n", " é", "<b>", "{", '"x"', "\n\n"])


@given(
    st.lists(PARTS, max_size=6).map("".join),
    st.lists(PARTS, max_size=6).map("".join),
    st.integers(0, 2),
    st.integers(1, 5),
    st.booleans(),
)
def test_a_stream_and_a_whole_reply_say_the_same(thought, content, calls, size, thinking):
    text = (f"<think>{thought}</think>" if thinking else "") + content + CALL * calls
    whole = parse_whole(text, thinking=thinking, tools=True, forced=False)
    deltas = [delta for delta in stream(text, size, thinking=thinking) if delta]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == (whole.reasoning or "")
    streamed = "".join(delta.get("content") or "" for delta in deltas)
    # A stream cannot take blanks back that stood before a call.
    assert streamed == (whole.content or "") or (calls and not streamed.strip() and whole.content is None)
    named = [call for delta in deltas for call in delta.get("tool_calls", ()) if "name" in call["function"]]
    assert [call["function"]["name"] for call in named] == ["look"] * calls == [call.name for call in whole.calls]


@pytest.mark.parametrize(("text", "length"), [("x<", 1), ("x<tool_call", 10), ("<tool_call>", 0), ("", 0), ("<<", 1)])
def test_the_overlap_with_a_tag(text, length):
    assert overlap(text, "<tool_call>") == length
