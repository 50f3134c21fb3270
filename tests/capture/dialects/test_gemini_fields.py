"""Objects of a Gemini body: both spellings, null as good as absent, faults by their paths."""

from typing import Any

import pytest

from capture.dialects.gemini_fields import Node, camel
from capture.errors import ClientError


def test_a_field_has_two_spellings() -> None:
    node = Node({"inline_data": {"mimeType": "a/b"}, "stopSequences": ["x"], "n": None}, "contents[0]")
    assert node.node("inlineData") is not None
    assert node.texts("stopSequences") == ["x"]
    assert node.names() == ["inlineData", "stopSequences"]
    assert repr(node) == "<Node contents[0] inline_data, stopSequences, n>"
    assert (camel("a"), camel("top_p"), camel("responseMimeType")) == ("a", "topP", "responseMimeType")


def test_one_object_is_a_list_of_one() -> None:
    body = Node({"contents": {"parts": {"text": "hi"}}}, "")
    (content,) = body.nodes("contents")
    (part,) = content.nodes("parts")
    assert (part.at, part.text("text")) == ("contents.parts", "hi")
    many = Node({"contents": [{}, {"parts": []}]}, "").nodes("contents")
    assert [node.at for node in many] == ["contents[0]", "contents[1]"]


def test_what_is_absent() -> None:
    node = Node({"a": None}, "")
    assert (node.get("a"), node.node("a"), node.listed("a"), node.texts("a")) == (None, None, [], [])
    assert (node.optional_text("a"), node.flag("a"), node.number("a"), node.whole("a", least=0)) == (
        "", False, None, None,
    )  # fmt: skip
    with pytest.raises(ClientError) as missing:
        node.text("a")
    assert (missing.value.code, missing.value.param) == ("missing_field", "a")


@pytest.mark.parametrize(("value", "whole"), [(64, 64), (64.0, 64), (0, 0), (-1, -1)])
def test_whole_numbers(value: Any, whole: int) -> None:
    assert Node({"topK": value}, "").whole("topK", least=-1) == whole


@pytest.mark.parametrize("value", [0.5, -2, True, "1", [], float("nan"), float("inf"), 10**400], ids=repr)
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(ClientError) as wrong:
        Node({"top_k": value}, "generationConfig").whole("topK", least=-1, most=100)
    assert (wrong.value.code, wrong.value.param, wrong.value.status) == ("wrong_type", "generationConfig.topK", 400)


@pytest.mark.parametrize("read", ["optional_text", "text", "flag", "number", "texts", "nodes", "node"])
def test_wrong_types_are_named(read: str) -> None:
    node = Node({"it": [5] if read in ("texts", "nodes") else {"a": 1} if read != "node" else 5}, "at")
    with pytest.raises(ClientError, match=r"at\.it") as wrong:
        getattr(node, read)("it")
    assert wrong.value.param in ("at.it", "at.it[0]")


def test_the_body_itself_may_be_wrong() -> None:
    with pytest.raises(ClientError):
        Node([], "contents[0]")
