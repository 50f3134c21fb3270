"""Blocks to chat messages: what goes in, what comes out, and what is named on the way."""

import base64
import json
from typing import Any

import pytest

from capture.dialects.messages_content import LEFT_OUT, UNPARSED, UNSAID, chat_messages
from capture.errors import ClientError

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n0").decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def use(id_: str, name: str = "f", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": given}


def result(id_: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **more}


def tool(id_: str, content: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def said(*messages: Any, system: Any = None) -> tuple[list[dict[str, Any]], list[str]]:
    notes: list[str] = []
    return chat_messages(system, list(messages), notes.append), notes


MAPPED: list[tuple[str, Any, list[dict[str, Any]]]] = [
    ("a string", {"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]),
    ("one block is its text", user(text("hi")), [{"role": "user", "content": "hi"}]),
    (
        "a cache mark is no change",
        user(text("hi", cache_control={"type": "ephemeral"})),
        [{"role": "user", "content": "hi"}],
    ),
    (
        "several stay parts",
        user(text("a"), text(""), text("b")),
        [{"role": "user", "content": [text("a"), text("b")]}],
    ),
    ("nothing", user(), [{"role": "user", "content": ""}]),
    ("an empty text", user(text("")), [{"role": "user", "content": ""}]),
    ("an image", user(text("see"), IMAGE), [{"role": "user", "content": [text("see"), IMAGE_PART]}]),
    (
        "an image by its address",
        user({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}),
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}],
    ),
    (
        "a document of text",
        user(
            {
                "type": "document",
                "title": "T",
                "context": "C",
                "source": {"type": "text", "media_type": "text/plain", "data": "D"},
            }
        ),
        [{"role": "user", "content": "T\nC\nD"}],
    ),
    (
        "a document of blocks",
        user({"type": "document", "title": "T", "source": {"type": "content", "content": [text("a"), IMAGE]}}),
        [{"role": "user", "content": [text("T"), text("a"), IMAGE_PART]}],
    ),
    (
        "a document that is a string of content",
        user({"type": "document", "source": {"type": "content", "content": "a"}}),
        [{"role": "user", "content": "a"}],
    ),
    (
        "a search result",
        user(
            {"type": "search_result", "title": "T", "source": "https://example.org", "content": [text("a"), text("b")]}
        ),
        [{"role": "user", "content": "T\nhttps://example.org\na\nb"}],
    ),
    (
        "results and then text",
        user(result("a", "1"), result("b", [text("2"), text("3")]), text("go on")),
        [tool("a", "1"), tool("b", "2\n3"), {"role": "user", "content": "go on"}],
    ),
    (
        "text between results keeps its place",
        user(text("x"), result("a"), text("y"), result("b")),
        [{"role": "user", "content": "x"}, tool("a"), {"role": "user", "content": "y"}, tool("b")],
    ),
    (
        "a result without content, and one of nothing",
        user({"type": "tool_result", "tool_use_id": "a", "is_error": True}, result("b", [])),
        [tool("a", ""), tool("b", "")],
    ),
    (
        "a document in a result",
        user(result("a", [{"type": "document", "source": {"type": "text", "data": "D"}}])),
        [tool("a", "D")],
    ),
    (
        "images of results open the message behind them",
        user(result("a", [text("1"), IMAGE]), result("b"), text("go on")),
        [tool("a", "1"), tool("b"), {"role": "user", "content": [IMAGE_PART, text("go on")]}],
    ),
    (
        "or are one",
        user(result("a", [IMAGE])),
        [tool("a", ""), {"role": "user", "content": [IMAGE_PART]}],
    ),
    ("a reply of text", assistant(text("a"), text("b")), [{"role": "assistant", "content": "ab"}]),
    ("a reply of nothing", assistant(), [{"role": "assistant", "content": ""}]),
    (
        "thinking, text and calls",
        assistant(
            {"type": "thinking", "thinking": "t\u200b é", "signature": "AbC+/=="},
            {"type": "redacted_thinking", "data": "zz"},
            text("so"),
            use("tu_1", b=1, a=[1.0, 2]),
            use("tu_2", "g"),
        ),
        [
            {
                "role": "assistant",
                "content": "so",
                "reasoning": "t\u200b é",
                "tool_calls": [
                    {
                        "id": "tu_1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"b": 1, "a": [1.0, 2]}'},
                    },
                    {"id": "tu_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ],
            }
        ],
    ),
    (
        "a call alone has no text",
        assistant({"type": "tool_use", "id": "a", "name": "f"}),
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            }
        ],
    ),
    (
        "arguments that were no object go as they came",
        assistant(use("a", **{UNPARSED: "[1"})),
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "f", "arguments": json.dumps({UNPARSED: "[1"})},
                    }
                ],
            }
        ],
    ),
    (
        "a system message in the middle",
        {"role": "system", "content": [text("a"), text("b")]},
        [{"role": "system", "content": "a\nb"}],
    ),
]


@pytest.mark.parametrize(("message", "expected"), [row[1:] for row in MAPPED], ids=[row[0] for row in MAPPED])
def test_a_message(message: Any, expected: list[dict[str, Any]]) -> None:
    assert said(message)[0] == expected


def test_system_comes_first_as_one_text() -> None:
    billing = text("x-header: abc;", cache_control={"type": "ephemeral"})
    messages, notes = said(user(text("hi")), system=[billing, text(""), text("You help.")])
    assert messages[0] == {"role": "system", "content": "x-header: abc;\nYou help."}
    assert said(user(text("hi")), system="You help.")[0][0] == {"role": "system", "content": "You help."}
    assert said(user(text("hi")), system=[])[0] == said(user(text("hi")))[0]
    assert notes == []


def test_a_turn_is_in_the_order_of_its_blocks() -> None:
    roles = [
        message["role"]
        for message in said(
            user(text("hi")),
            assistant(use("a"), use("b")),
            user(result("b"), result("a")),
            {"role": "system", "content": "now"},
            assistant(text("done")),
        )[0]
    ]
    assert roles == ["user", "assistant", "tool", "tool", "system", "assistant"]


@pytest.mark.parametrize("kind", sorted(LEFT_OUT))
def test_blocks_of_the_api_s_own_tools_stay_out_by_name(kind: str) -> None:
    messages, notes = said(assistant(text("a"), {"type": kind, "id": "x", "content": []}))
    assert messages == [{"role": "assistant", "content": "a"}]
    assert notes == [f"block:{kind}"]


def test_a_block_that_nobody_knows_stays_out_by_name() -> None:
    assert said(user(text("a"), {"type": "future_block", "x": 1})) == (
        [{"role": "user", "content": "a"}],
        ["block:future_block"],
    )
    assert said(user({"type": "x" * 500}))[1] == ["block:" + "x" * 64]
    assert said(user(result("a", [{"type": "tool_reference", "tool_name": "f"}])))[1] == ["block:tool_reference"]


def test_what_changes_the_order_or_the_reply_is_named() -> None:
    assert said(user(result("a", [IMAGE])))[1] == ["tool_result_images"]
    document = {"type": "document", "source": {"type": "text", "data": "D"}, "citations": {"enabled": True}}
    assert said(user(document))[1] == ["citations"]
    assert said(user(document | {"citations": {"enabled": False}}))[1] == []


def test_each_rule_has_a_reason() -> None:
    assert all(UNSAID.values())
    assert all(LEFT_OUT.values())
    assert not set(UNSAID) & set(LEFT_OUT)


FAULTS: list[tuple[Any, str]] = [
    ("hi", "messages.0"),
    ({"content": "hi"}, "messages.0.role"),
    ({"role": "tool", "content": "hi"}, "messages.0.role"),
    ({"role": 3, "content": "hi"}, "messages.0.role"),
    ({"role": "user"}, "messages.0.content"),
    ({"role": "user", "content": None}, "messages.0.content"),
    ({"role": "user", "content": {"type": "text"}}, "messages.0.content"),
    (user("hi"), "messages.0.content.0"),
    (user({"text": "hi"}), "messages.0.content.0.type"),
    (user({"type": "text"}), "messages.0.content.0.text"),
    (user(text("a"), {"type": "text", "text": None}), "messages.0.content.1.text"),
    (user({"type": "image"}), "messages.0.content.0.source"),
    (user({"type": "image", "source": "x"}), "messages.0.content.0.source"),
    (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), "messages.0.content.0.source.type"),
    (user({"type": "image", "source": {"type": "url"}}), "messages.0.content.0.source.url"),
    (
        user({"type": "image", "source": {"type": "base64", "media_type": "text/plain", "data": PNG}}),
        "messages.0.content.0.source.media_type",
    ),
    *(
        (
            user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}),
            "messages.0.content.0.source.data",
        )
        for data in ("", "!", "abc", "é", "AA AA", 5)
    ),
    (
        user({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}),
        "messages.0.content.0.source.type",
    ),
    (
        user({"type": "document", "source": {"type": "content", "content": [{"type": "document"}]}}),
        "messages.0.content.0.source.content.0.type",
    ),
    (user({"type": "search_result", "title": "T", "source": "s"}), "messages.0.content.0.content"),
    (user({"type": "tool_result", "content": "x"}), "messages.0.content.0.tool_use_id"),
    (user(result("a", 5)), "messages.0.content.0.content"),
    (user(result("a", is_error="yes")), "messages.0.content.0.is_error"),
    (user(result("a", [result("b")])), "messages.0.content.0.content.0.type"),
    (user(use("a")), "messages.0.content.0.type"),
    (user({"type": "thinking", "thinking": "t"}), "messages.0.content.0.type"),
    (user({"type": "container_upload", "file_id": "f"}), "messages.0.content.0.type"),
    (assistant(IMAGE), "messages.0.content.0.type"),
    (assistant(result("a")), "messages.0.content.0.type"),
    (assistant({"type": "thinking"}), "messages.0.content.0.thinking"),
    (assistant({"type": "thinking", "thinking": "t", "signature": 5}), "messages.0.content.0.signature"),
    (assistant({"type": "redacted_thinking", "data": 5}), "messages.0.content.0.data"),
    (assistant({"type": "tool_use", "name": "f", "input": {}}), "messages.0.content.0.id"),
    (assistant({"type": "tool_use", "id": "a", "input": {}}), "messages.0.content.0.name"),
    (assistant({"type": "tool_use", "id": "a", "name": "f", "input": "{}"}), "messages.0.content.0.input"),
    ({"role": "system", "content": [{"type": "tool_removal", "tool": {}}]}, "messages.0.content.0.type"),
]


@pytest.mark.parametrize(("message", "param"), FAULTS, ids=[f"{i}-{param}" for i, (_, param) in enumerate(FAULTS)])
def test_a_fault_is_named_by_its_path(message: Any, param: str) -> None:
    with pytest.raises(ClientError) as caught:
        said(message)
    assert caught.value.param == param
    assert caught.value.status == 400


def test_no_messages() -> None:
    nothing: tuple[Any, ...] = ([], None, {}, "hi")
    for messages in nothing:
        with pytest.raises(ClientError, match="messages"):
            chat_messages(None, messages, print)
    with pytest.raises(ClientError, match=r"system\.0\.type"):
        said(user(text("a")), system=[{"text": "a"}])
