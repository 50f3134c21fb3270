"""Output items, growing: what opens and closes them, and what can't be told any more."""

from typing import Any

import pytest

from capture.dialects.responses_output import Output
from capture.dialects.responses_tools import Tools
from tests.capture.dialects.responses_wire import CUSTOM, FUNCTION, call


def output() -> Output:
    return Output("r", Tools([FUNCTION, CUSTOM]))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_one_item_is_open_at_a_time() -> None:
    made = output()
    assert kinds(made.add({"reasoning": "a", "content": "b"})) == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
    ]
    made.add({"reasoning": "c"})
    made.close("incomplete")
    assert [(item["id"], item["status"]) for item in made.items()] == [
        ("rs_r_0", "completed"),
        ("msg_r_1", "completed"),
        ("rs_r_2", "incomplete"),
    ]
    assert made.close("completed") == []


def test_reasoning_under_both_names_is_said_once() -> None:
    made = output()
    made.add({"reasoning": "a", "reasoning_content": "a"})
    assert made.items()[0]["content"] == [{"type": "reasoning_text", "text": "a"}]


def test_a_refusal_is_a_part_of_its_own() -> None:
    made = output()
    made.add({"content": "I "})
    assert kinds(made.add({"refusal": "won't."})) == [
        "output_text.done",
        "content_part.done",
        "content_part.added",
        "refusal.delta",
    ]
    assert kinds(made.close("completed")) == ["refusal.done", "content_part.done", "output_item.done"]
    assert [part["type"] for part in made.items()[0]["content"]] == ["output_text", "refusal"]


def test_two_calls_on_one_index_are_two() -> None:
    made = output()
    made.add(call(0, id="a", name="look", arguments='{"b":2}'))
    made.add(call(0, id="b", name="look", arguments='{"c":3}'))
    assert [(item["call_id"], item["arguments"]) for item in made.items()] == [("a", '{"b":2}'), ("b", '{"c":3}')]


def test_calls_without_an_index_are_told_apart_by_id() -> None:
    made = output()
    for id_ in ("a", "b"):
        made.add({"tool_calls": [{"id": id_, "function": {"name": "look", "arguments": "{"}}]})
        made.add({"tool_calls": [{"function": {"arguments": "}"}}]})
    assert [(item["call_id"], item["arguments"]) for item in made.items()] == [("a", "{}"), ("b", "{}")]


def test_a_call_waits_for_its_name() -> None:
    made = output()
    assert made.add(call(0, id="a", arguments="{")) == []
    assert kinds(made.add(call(0, name="look"))) == ["output_item.added", "function_call_arguments.delta"]
    # Some engines say it again with each piece.
    assert kinds(made.add(call(0, name="look", arguments="}"))) == ["function_call_arguments.delta"]
    assert made.items()[0]["arguments"] == "{}"


def test_a_call_whose_name_never_comes_is_told_all_the_same() -> None:
    made = output()
    made.add(call(0, id="a", arguments="{}"))
    made.add(call(1, id="b", arguments="[]"))
    made.close("incomplete")
    assert [(item["name"], item["arguments"]) for item in made.items()] == [("", "{}"), ("", "[]")]


def test_a_call_without_an_id_gets_one() -> None:
    made = output()
    made.add({"function_call": {"name": "look", "arguments": "{}"}})
    assert made.items()[0]["call_id"] == "call_fc_r_0"


def test_what_comes_too_late_is_an_error() -> None:
    made = output()
    made.add(call(0, id="a", name="look", arguments="{"))
    made.add(call(1, id="b", name="look", arguments="{"))
    with pytest.raises(ValueError, match="after the next item"):
        made.add(call(0, arguments="}"))
    with pytest.raises(ValueError, match="name came in pieces"):
        made.add(call(1, name="ing"))


def test_what_no_engine_says_brings_nothing() -> None:
    made = output()
    odd = {"content": 3, "reasoning": None, "refusal": [], "tool_calls": [3, {"index": 0}], "function_call": "x"}
    assert made.add(odd) == []
    assert made.items() == []
