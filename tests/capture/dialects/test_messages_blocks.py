"""The blocks of a message."""

import json
from typing import Any

import pytest

from capture.dialects.messages_blocks import Prose, ToolUse, signature
from capture.dialects.messages_content import UNPARSED


def called(*pieces: Any, name: str = "f", id_: str | None = "a") -> ToolUse:
    call = ToolUse("reply", 0)
    call.take({"id": id_, "function": {"name": name}})
    for piece in pieces:
        call.take({"function": {"arguments": piece}})
    return call


def test_a_signature_is_of_the_text_alone() -> None:
    assert signature("because") == signature("because") != signature("because ")
    assert len(signature("")) == 32
    assert int(signature("half \ud83d a pair"), 16)


def test_prose() -> None:
    assert Prose("text", "a").whole() == {"type": "text", "text": "a"}
    assert Prose("text", "a").opening() == {"type": "text", "text": ""}
    assert Prose("thinking", "a").whole() == {"type": "thinking", "thinking": "a", "signature": signature("a")}
    assert Prose("thinking").opening() == {"type": "thinking", "thinking": "", "signature": ""}


INPUTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("",), {}),
    ((" \n",), {}),
    (("null",), {}),
    (("{}",), {}),
    (('{"b": 1,', ' "a": [1.0]}'), {"b": 1, "a": [1.0]}),
    (({"a": 1},), {"a": 1}),
    (("[1]",), {UNPARSED: "[1]"}),
    (('"x"',), {UNPARSED: '"x"'}),
    (('{"a": ',), {UNPARSED: '{"a": '}),
    (("{} {}",), {UNPARSED: "{} {}"}),
    (("5", None, 7), {UNPARSED: "5"}),
]


@pytest.mark.parametrize(("pieces", "expected"), INPUTS, ids=[repr(row[0]) for row in INPUTS])
def test_input(pieces: tuple[Any, ...], expected: dict[str, Any]) -> None:
    assert called(*pieces).whole() == {"type": "tool_use", "id": "a", "name": "f", "input": expected}


def test_arguments_are_sent_from_where_they_begin_as_an_object() -> None:
    call = called()
    sent = []
    for piece in (" ", "\n{", '"a":', "", "1}"):
        call.take({"function": {"arguments": piece}})
        sent.append(call.pending())
    assert sent == ["", " \n{", '"a":', "", "1}"]
    assert call.rest() == ""


def test_other_arguments_are_held_to_the_end() -> None:
    call = called("[", "1]")
    assert call.pending() == ""
    assert json.loads(call.rest()) == {UNPARSED: "[1]"} == call.input()
    assert called("null").rest() == ""


def test_a_call_without_an_id_gets_one_that_stays() -> None:
    call = called(id_=None)
    assert call.opening()["id"].startswith("toolu_")
    assert call.opening() == call.opening()
    call.take({"id": "late"})
    assert call.opening()["id"] != "late"
    other = ToolUse("reply", 1)
    assert other.opening()["id"] != call.opening()["id"]


def test_a_name_that_is_said_again_is_said_once() -> None:
    call = called("{}")
    call.take({"function": {"name": "f"}})
    call.take({"function": "odd"})
    call.take({})
    assert call.name == "f"
