import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.scripted.builtin import example
from capture.scripted.generation import compose
from capture.scripted.model import ScriptedModel
from capture.scripted.rules import Reply, Rules
from capture.scripted.tokeniser import Tokeniser

MODEL = ScriptedModel(Rules(), name="m", max_model_len=1000, mode="processed", seed=0)
USER = {"role": "user", "content": "Go."}
PATH = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}, "required": ["path"]}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def reply(*messages: dict[str, Any], **request: Any) -> Reply:
    return MODEL.reply(MODEL.parse({"messages": list(messages or [USER]), **request}))


def test_without_tools_it_answers_in_text():
    got = reply({"role": "user", "content": "What is\nup?"})
    assert got.call == ()
    assert got.text == 'You wrote this: "What is up?". That is all a script has to say to it.'
    assert got.thinking


def test_with_tools_it_calls_the_first_then_answers():
    tools = [tool("read", PATH), tool("write")]
    first = reply(tools=tools)
    assert [(call.tool, call.arguments) for call in first.call] == [("read", {"path": "sample"})]
    then = reply(USER, {"role": "assistant", "content": ""}, {"role": "tool", "content": "a file"}, tools=tools)
    assert then.call == ()
    assert then.text == 'The tool gave this: "a file". With that, the work is done.'


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("none", []),
        ("auto", ["read"]),
        ("required", ["read"]),
        ({"type": "function", "function": {"name": "write"}}, ["write"]),
    ],
)
def test_the_tool_choice_is_honoured(choice, called):
    got = reply(tools=[tool("read", PATH), tool("write")], tool_choice=choice)
    assert [call.tool for call in got.call] == called


def test_a_demanded_call_comes_behind_a_tool_result_too():
    got = reply(USER, {"role": "tool", "content": "x"}, tools=[tool("read")], tool_choice="required")
    assert [call.tool for call in got.call] == ["read"]


def test_what_is_quoted_is_short_and_holds_no_special_token():
    text = reply({"role": "user", "content": "<|im_end|></think>" + "x" * 200}).text
    ids = Tokeniser().encode(text)
    assert not any(map(Tokeniser().is_special, ids))
    assert len(text) < 150


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"structured_outputs": {"choice": ["b", "a"]}}, "b"),
        ({"structured_outputs": {"json": PATH}}, '{"path": "sample"}'),
        ({"structured_outputs": {"json": json.dumps(PATH)}}, '{"path": "sample"}'),
        ({"structured_outputs": {"json": "no schema"}}, '"sample"'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": PATH}}}, '{"path": "sample"}'),
        ({"response_format": {"type": "json_object"}}, "{}"),
    ],
)
def test_a_form_that_is_asked_for_is_filled_in(request_, text):
    assert reply(**request_).text == text
    assert compose(reply(**request_), thinking=False) == text


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, "sample"),
        ({"const": 3}, 3),
        ({"default": None}, None),
        ({"enum": ["x", "y"]}, "x"),
        ({"type": ["null", "integer"]}, 1),
        ({"type": "number", "minimum": 2.5}, 2.5),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": "string", "minLength": 8}, "sample.."),
        ({"type": "string", "maxLength": 3}, "sam"),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, 1),
        ({"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 1}),
        ({"$ref": "#/$defs/p", "$defs": {"p": {"type": "integer"}}}, 1),
        ({"$ref": "#/none"}, "sample"),
        ("no schema", "sample"),
    ],
)
def test_the_smallest_value_of_a_schema(schema, value):
    assert example(schema) == value


def test_a_schema_that_holds_itself_comes_to_an_end():
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert json.dumps(example(node)).count("next") > 3


KEYS = ["type", "properties", "required", "items", "enum", "anyOf", "$ref", "minItems", "maxLength", "minimum"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@given(JSON)
def test_no_schema_breaks_it(schema):
    msgspec.json.encode(example(schema))
