"""What engines that speak OpenAI's wire share: usage asked for in a stream, error objects in a reply's place."""

from __future__ import annotations

import json

from capture import rawjson
from capture.engines.sampled import NULL

ON_THE_FINISH = ("system_fingerprint",)
"""What vLLM puts on the last chunk with a finish, unless usage is asked for: then on the chunk with usage instead
(chat_completion/serving.py and completion/serving.py, 0.32.0)."""


def with_usage(options: bytes) -> dict[str, bytes | None]:
    """Return what to set so that a stream's usage comes, given `stream_options` as raw JSON, null where absent."""
    if options == NULL:
        return {"stream_options": b'{"include_usage":true}'}
    try:
        given = rawjson.split(options)
        if given.get("include_usage") == b"true":
            return {}
        return {"stream_options": rawjson.join(given | {"include_usage": b"true"})}
    except ValueError:
        # Not an object: the engine's to refuse.
        return {}


def error_message(top: dict[str, bytes]) -> str | None:
    """Return the message of an error object that stands in a reply's place; None where there is none."""
    raw = top.get("error", NULL)
    if raw == NULL:
        return None
    try:
        error = rawjson.mended(rawjson.loads(raw))
    except ValueError:
        return "an error that can't be read"
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else json.dumps(error)


def listed(entries: list[bytes]) -> bytes:
    """Return a JSON list of entries that are raw and without brackets, several to one or none."""
    return b"[" + b",".join(entries) + b"]"
