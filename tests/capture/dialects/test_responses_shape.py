"""The response object, its usage, and errors."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseUsage

from capture.dialects.responses_shape import MAX_MESSAGE, echo, error_of, response, told, usage_of
from tests.capture.dialects.responses_wire import USAGE


def test_a_response_says_what_nobody_asked_for_too() -> None:
    body = response(reply_id="r", created=7, model="m", status="completed", output=[], repeated=echo({}))
    reply = Response.model_validate_json(body)
    assert (reply.id, reply.object, reply.created_at, reply.usage) == ("r", "response", 7, None)
    assert (reply.tools, reply.tool_choice, reply.parallel_tool_calls) == ([], "auto", True)


def test_what_is_repeated_keeps_its_bytes() -> None:
    body = response(
        reply_id="r", created=None, model=None, status="completed", output=[],
        repeated=echo({"temperature": b"0.10", "metadata": b"null", "unknown": b"1"}),
    )  # fmt: skip
    assert b'"temperature":0.10,' in body
    assert b'"metadata":{}' in body
    assert b"unknown" not in body


@pytest.mark.parametrize("usage", [USAGE, {}, {"prompt_tokens": None, "prompt_tokens_details": None}])
def test_usage_has_all_of_its_counts(usage: dict[str, Any]) -> None:
    found = ResponseUsage.model_validate(usage_of(usage), strict=True)
    assert found.input_tokens == (9 if usage is USAGE else 0)
    assert found.total_tokens == (14 if usage is USAGE else 0)


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (400, {"error": {"message": "No.", "type": "BadRequestError", "param": None, "code": 400}},
         ("No.", "BadRequestError", None, None)),
        (400, {"error": {"message": "No.", "param": "max_completion_tokens"}},
         ("No.", "invalid_request_error", "max_output_tokens", None)),
        (404, {"object": "error", "message": "No.", "code": "model_not_found"},
         ("No.", "invalid_request_error", None, "model_not_found")),
        (500, {"detail": [{"msg": "x"}]}, ('[{"msg":"x"}]', "server_error", None, None)),
        (429, {"error": "slow down"}, ("slow down", "rate_limit_error", None, None)),
        (400, {"error": {"message": "The maximum context length is 9 tokens."}},
         ("The maximum context length is 9 tokens.", "invalid_request_error", None, "context_length_exceeded")),
    ],
)  # fmt: skip
def test_an_engines_error_keeps_its_message(status: int, body: Any, wanted: tuple[Any, ...]) -> None:
    error = error_of(status, json.dumps(body).encode())
    assert (error["message"], error["type"], error["param"], error["code"]) == wanted


def test_an_error_that_is_no_json_is_its_text() -> None:
    assert error_of(502, b"<html>bad gateway</html>\n")["message"] == "<html>bad gateway</html>"
    assert len(error_of(502, b"x" * 9000)["message"]) == MAX_MESSAGE
    assert error_of(502, b"")["type"] == "server_error"


def test_an_error_without_a_status_has_the_one_it_tells() -> None:
    assert told({"error": {"message": "No.", "code": 400}})["type"] == "invalid_request_error"
    assert told({"error": {"message": "No."}})["type"] == "server_error"
