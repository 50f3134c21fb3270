import json
from typing import Any

import pytest

from capture.scripted.request import ChatRequest, RequestError, decode_json, parse_chat

USER = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "look"}}


def parse(**data: Any) -> ChatRequest:
    return parse_chat({"messages": USER, **data}, model="m", max_model_len=100, vocabulary=50)


def refused(**data: Any) -> tuple[int, str, str | None, str]:
    with pytest.raises(RequestError) as caught:
        parse(**data)
    error = caught.value.body["error"]
    assert error["code"] == caught.value.status
    return caught.value.status, error["type"], error["param"], error["message"]


def test_unknown_fields_are_not_read_and_known_ones_are_converted():
    asked = parse(max_tokens="5", zzz={"a": 1}, kv_transfer_params={"x": 1}, stop="a", seed=2**60)
    assert (asked.output_limit, asked.stops, asked.seed) == (5, ["a"], 2**60)
    assert parse(max_tokens=5, max_completion_tokens=7).output_limit == 7


@pytest.mark.parametrize(
    ("data", "choice", "parses"),
    [
        ({}, "none", False),
        ({"tool_choice": None}, "none", False),
        ({"tools": [TOOL]}, "auto", True),
        ({"tools": [TOOL], "tool_choice": None}, "auto", True),
        ({"tools": [TOOL], "tool_choice": "none"}, "none", False),
    ],
)
def test_the_tool_choice_follows_from_the_tools(data, choice, parses):
    asked = parse(**data)
    assert (asked.tool_choice, asked.parses_tools) == (choice, parses)


def test_the_role_of_the_reply():
    assert parse().role == "assistant"
    assert parse(add_generation_prompt=False).role == "user"


@pytest.mark.parametrize(
    ("data", "param", "message"),
    [
        ({"max_tokens": "many"}, "body.max_tokens", "unable to parse string as an integer"),
        ({"messages": [3]}, "body.messages.0", "Input should be a valid dictionary"),
        (
            {"messages": "x"},
            "body.messages",
            "'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list', 'input': 'x'",
        ),
        (
            {"seed": [1]},
            "body.seed",
            "'int_type', 'loc': 'body.seed', 'msg': 'Input should be a valid integer', 'input': '<list of 1 items>'",
        ),
        ({"stream_options": 1, "stream": True}, "body.stream_options", "Input should be a valid dictionary or object"),
        ({"tools": [{}]}, "body.tools.0.function", "Field required"),
        ({"tools": [{"function": {}}]}, "body.tools.0.function.name", "Field required"),
        ({"logprobs": 5}, "body.logprobs", "unable to interpret input"),
    ],
)
def test_a_wrong_type_is_named(data, param, message):
    status, kind, where, text = refused(**data)
    assert (status, kind, where) == (400, "Bad Request", param)
    assert message in text


@pytest.mark.parametrize(
    ("data", "param", "message"),
    [
        ({"tools": []}, "tools", "`tools` must not be an empty array"),
        ({"tool_choice": "auto"}, "tool_choice", "`tools` must be set"),
        ({"tool_choice": "maybe", "tools": [TOOL]}, "tool_choice", "Invalid value for `tool_choice`: maybe!"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [TOOL]},
            "tool_choice",
            "does not match any",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options", "can only be defined when `stream=True`"),
        ({"top_logprobs": 2}, "top_logprobs", "`logprobs` must be set to true"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not available when `stream=True`"),
        ({"prompt_logprobs": 99}, "prompt_logprobs", "greater than max allowed: 20"),
        ({"max_tokens": 101}, "max_tokens", "max_tokens=101 cannot be greater than max_model_len=100"),
        ({"max_completion_tokens": 101}, "max_completion_tokens", "max_completion_tokens=101 cannot"),
        ({"max_tokens": 0}, "max_tokens", "must be at least 1, got 0"),
        ({"temperature": 3}, "temperature", "temperature must be in [0, 2]"),
        ({"n": 0}, None, "n must be at least 1"),
        ({"n": 2, "temperature": 0}, None, "n must be 1 when using greedy sampling"),
        ({"stop": ["a", ""]}, None, "stop cannot contain an empty string"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "empty"),
        ({"allowed_token_ids": [50]}, "allowed_token_ids", "out-of-vocab"),
        ({"continue_final_message": True, "add_generation_prompt": True}, None, "are not compatible"),
        ({"messages": []}, None, "empty conversation"),
        ({"temperature": -1}, "temperature", "must be non-negative, got -1.0"),
        ({"top_logprobs": -1, "logprobs": True}, "logprobs", "Requested sample logprobs of 50"),
        ({"top_logprobs": -2, "logprobs": True}, "top_logprobs", "must be a positive value or -1"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "cannot be converted to integer token IDs: ['x']"),
    ],
)
def test_what_the_engine_refuses(data, param, message):
    status, kind, where, text = refused(**data)
    assert (status, kind, where) == (400, "BadRequestError", param)
    assert message in text


def test_another_model_is_not_found():
    assert refused(model="x")[:3] == (404, "NotFoundError", "model")


@pytest.mark.parametrize("kind", ["", "text/plain", "application/jsonp", "multipart/form-data; boundary=x"])
def test_only_json_is_taken(kind):
    with pytest.raises(RequestError, match="Only 'application/json' is allowed"):
        decode_json(b"{}", kind)


def test_json_is_taken_with_a_charset_and_with_what_only_python_takes():
    assert decode_json(b'{"a": NaN}', "application/json; charset=utf-8").keys() == {"a"}


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'{"a": ', {"type": "Bad Request", "param": "body.6"}),
        (b"[]", {"type": "Bad Request", "param": "body"}),
        (b"", {"type": "Bad Request", "param": "body"}),
    ],
)
def test_what_is_no_json_object_is_refused(body, answer):
    with pytest.raises(RequestError) as caught:
        decode_json(body, "application/json")
    assert caught.value.body["error"] | answer == caught.value.body["error"]


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(RequestError) as caught:
        decode_json(json.dumps({"a": "é"}, ensure_ascii=False).encode("latin-1"), "application/json")
    assert caught.value.body == {"detail": "There was an error parsing the body"}
