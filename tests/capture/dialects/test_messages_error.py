"""Errors in the API's own shape."""

import json
from typing import Any

import pytest

from capture.dialects.messages_error import error_body, error_of, error_type


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (507, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_a_status_has_a_type(status: int, kind: str) -> None:
    assert error_type(status) == kind


def test_the_body() -> None:
    assert json.loads(error_body(400, "a \ud800", code="x")) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "a \ufffd", "code": "x"},
        "request_id": None,
    }


LONG = "This model's maximum context length is 16384 tokens. However, your prompt contains at least 16385 input tokens."


@pytest.mark.parametrize(
    ("said", "status", "message"),
    [
        ({"error": {"message": LONG, "type": "BadRequestError", "param": "input_tokens", "code": 400}}, 400, LONG),
        ({"error": {"message": "m", "code": "rate_limit"}}, None, "m"),
        ({"object": "error", "message": "m", "code": 503}, 503, "m"),
        ({"error": "Unauthorized"}, None, "Unauthorized"),
        ({"detail": "Not Found"}, None, "Not Found"),
        ({"detail": [{"loc": ["body"]}]}, None, '[{"loc":["body"]}]'),
        ("Bad gateway", None, "Bad gateway"),
        ({"code": 5, "x": 1}, None, '{"code":5,"x":1}'),
        ({"error": {"code": 404}}, 404, '{"code":404}'),
        (None, None, "null"),
    ],
)
def test_an_engine_s_error(said: Any, status: int | None, message: str) -> None:
    assert error_of(said) == (status, message)
