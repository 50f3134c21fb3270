"""The response object, its usage, and errors, as OpenAI's Responses have them (`openai` 3.57, `types/responses`).

A response repeats its request. What is repeated is cut from the request once, as raw JSON, and joined into each of the
three events that carry a response, so that 20 KB of tools are never decoded or encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from capture import rawjson
from capture.dialects.responses_tables import PARAMS

NULL = b"null"

MAX_MESSAGE = 2000
"""Characters kept of an error that is no JSON: a proxy's page says all that it has to say in fewer."""

TOO_LONG = "maximum context length"
"""What vLLM says of a prompt that is too long; OpenAI's code for it makes agents compact."""

# What a response repeats, with what it says where the request says nothing.
_ECHO: dict[str, bytes] = {
    "background": b"false",
    "instructions": NULL,
    "max_output_tokens": NULL,
    "max_tool_calls": NULL,
    "metadata": b"{}",
    "parallel_tool_calls": b"true",
    "previous_response_id": NULL,
    "prompt_cache_key": NULL,
    "reasoning": b'{"effort":null,"summary":null}',
    "safety_identifier": NULL,
    "service_tier": b'"auto"',
    "store": b"true",
    "temperature": NULL,
    "text": b'{"format":{"type":"text"}}',
    "tool_choice": b'"auto"',
    "tools": b"[]",
    "top_logprobs": NULL,
    "top_p": NULL,
    "truncation": b'"disabled"',
    "user": NULL,
}


def echo(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what a response repeats of its request's raw fields."""
    return {name: fields[name] if fields.get(name, NULL) != NULL else usual for name, usual in _ECHO.items()}


def response(
    *,
    reply_id: str,
    created: Any,
    model: Any,
    status: str,
    output: list[dict[str, Any]],
    repeated: Mapping[str, bytes],
    usage: Mapping[str, Any] | None = None,
    reason: str | None = None,
    error: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a response as JSON. `created` is in seconds; `reason` says why one is incomplete."""
    own = {
        "id": reply_id,
        "object": "response",
        "created_at": created if isinstance(created, int | float) else 0,
        "status": status,
        "error": error,
        "incomplete_details": {"reason": reason} if reason is not None else None,
        "model": model if isinstance(model, str) else "",
        "output": output,
        "usage": None if usage is None else usage_of(usage),
    }
    return rawjson.join({**{name: msgspec.json.encode(value) for name, value in own.items()}, **repeated})


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat reply's usage by this dialect's names; what the engine didn't count is 0."""
    asked, said = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    total = usage.get("total_tokens")
    return {
        "input_tokens": asked,
        "input_tokens_details": {
            "cached_tokens": _count(usage.get("prompt_tokens_details"), "cached_tokens"),
            "cache_write_tokens": _count(usage.get("prompt_tokens_details"), "cache_write_tokens"),
        },
        "output_tokens": said,
        "output_tokens_details": {
            "reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
        },
        "total_tokens": total if isinstance(total, int) else asked + said,
    }


def error_of(status: int, body: bytes) -> dict[str, Any]:
    """Return message, type, param and code of an engine's error; the message is verbatim."""
    try:
        said = rawjson.mended(rawjson.loads(body))
    except ValueError:
        said = body.decode("utf-8", "replace").strip()[:MAX_MESSAGE]
    return told(said, status)


def told(said: Any, status: int | None = None) -> dict[str, Any]:
    """Return message, type, param and code of an error object, however it is wrapped."""
    inner = (said.get("error") or said) if isinstance(said, Mapping) else said
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    message = next((fields[name] for name in ("message", "detail", "msg") if fields.get(name)), inner)
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    if status is None and isinstance(fields.get("code"), int):
        status = fields["code"]
    kind, param, code = fields.get("type"), fields.get("param"), fields.get("code")
    if TOO_LONG in message:
        code = "context_length_exceeded"
    return {
        "message": message,
        "type": kind if isinstance(kind, str) and kind else _type_of(status),
        "param": PARAMS.get(param, param) if isinstance(param, str) else None,
        "code": code if isinstance(code, str) else None,
    }


def _type_of(status: int | None) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status is None or status >= 500 else "invalid_request_error"


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
