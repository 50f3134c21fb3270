"""Errors as Google's APIs tell them: `{"error": {"code", "message", "status", "details"}}`."""

from __future__ import annotations

from typing import Any

import msgspec

from capture import rawjson

_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""The API's names for kinds of error, by HTTP status (google.rpc.Code)."""

_TYPE = "type.googleapis.com/google.rpc."


def error_name(status: int) -> str:
    """Return the API's name for the kind of error that a status means."""
    return _NAMES.get(status) or ("INVALID_ARGUMENT" if status < 500 else "INTERNAL")


def error_body(
    status: int, message: str, *, reason: str | None = None, at: str | None = None, retry_after_s: float | None = None
) -> bytes:
    """Return the body of an error.

    `reason` is a code for programs, `at` the path of the field at fault, `retry_after_s` when to try again: gemini-cli
    0.61 reads it here, and no header.
    """
    details: list[dict[str, Any]] = []
    if reason is not None:
        details.append({"@type": f"{_TYPE}ErrorInfo", "reason": reason, "domain": "treering"})
    if at is not None:
        details.append({"@type": f"{_TYPE}BadRequest", "fieldViolations": [{"field": at, "description": message}]})
    if retry_after_s is not None:
        details.append({"@type": f"{_TYPE}RetryInfo", "retryDelay": f"{retry_after_s:g}s"})
    error = {"code": status, "message": message, "status": error_name(status)} | (
        {"details": details} if details else {}
    )
    return msgspec.json.encode(rawjson.mended({"error": error}))
