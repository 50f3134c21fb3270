"""Errors in the shape of Google's APIs."""

import json

import pytest

from capture.dialects.gemini_error import error_body, error_name


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND"),
        (409, "ABORTED"), (413, "INVALID_ARGUMENT"), (422, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"), (502, "INTERNAL"), (503, "UNAVAILABLE"), (507, "INTERNAL"), (504, "DEADLINE_EXCEEDED"),
    ],
)  # fmt: skip
def test_names(status: int, name: str) -> None:
    assert error_name(status) == name
    assert json.loads(error_body(status, "No.")) == {"error": {"code": status, "message": "No.", "status": name}}


def test_details() -> None:
    told = json.loads(error_body(503, "No.\ud800", reason="busy", at="contents[0]", retry_after_s=2.5))["error"]
    kind = "type.googleapis.com/google.rpc."
    assert told == {
        "code": 503,
        "message": "No.\ufffd",
        "status": "UNAVAILABLE",
        "details": [
            {"@type": kind + "ErrorInfo", "reason": "busy", "domain": "treering"},
            {"@type": kind + "BadRequest", "fieldViolations": [{"field": "contents[0]", "description": "No.\ufffd"}]},
            {"@type": kind + "RetryInfo", "retryDelay": "2.5s"},
        ],
    }
