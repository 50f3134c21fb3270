"""Errors as Anthropic's API tells them: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from __future__ import annotations

from typing import Any

import msgspec

from capture import rawjson

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The API's names for kinds of error, by status; another one is `invalid_request_error`, or `api_error` from 500."""


def error_type(status: int) -> str:
    """Return the API's name for the kind of error that a status means."""
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def error_body(status: int, message: str, **more: Any) -> bytes:
    """Return the body of an error; `more` are further fields of its `error`, which the API's clients pass over."""
    error = {"type": error_type(status), "message": message, **more}
    return msgspec.json.encode(rawjson.mended({"type": "error", "error": error, "request_id": None}))


def error_of(said: Any) -> tuple[int | None, str]:
    """Return status and message of an engine's error, as parsed from JSON or as text; a status only where it has one.

    Read are vLLM's and OpenAI's `{"error": {"message", "code"}}`, its bare `{"error": "…"}`, `{"message"}` and
    FastAPI's `{"detail"}`.
    """
    status = None
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and name in said:
            code = said.get("code")
            status = code if status is None and isinstance(code, int) and 400 <= code < 600 else status
            said = said[name]
    if isinstance(said, dict) and isinstance(code := said.get("code"), int) and 400 <= code < 600:
        status = status or code
    return status, said if isinstance(said, str) else msgspec.json.encode(rawjson.mended(said)).decode()
