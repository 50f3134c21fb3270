"""Media that an engine would have to fetch from a URL: by it an agent could reach what the agent itself can't. Pure.

Rules
1. A rollout's engine fetches none unless the rollout allows it, whatever the request is for: a call, a count of its
   tokens, or what is relayed unrecorded (vLLM's `/tokenize` and `/v1/embeddings` fetch them too).
2. What the engine may be able to read is looked at, strict JSON or not: Python's own reader takes NaN, half a surrogate
   pair, and a name spelled with escapes.
"""

from __future__ import annotations

from typing import Any

from capture import rawjson
from capture.errors import ClientError

FIELDS = ("image_url", "video_url", "audio_url")
"""Where a part of a message may hold an address (vLLM 0.32, SGLang 0.5, llama.cpp)."""

ALLOWED = "media_urls"
"""The word in a rollout's `allow` by which the engine may fetch them."""


def fetched(message: Any) -> str | None:
    """Return where a message, as parsed from JSON, names a medium by an address that is no data; None if nowhere."""
    content = message.get("content") if isinstance(message, dict) else None
    for j, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and (field := _fetched_field(part)) is not None:
            return f"content[{j}].{field}"
    return None


def refuse_in_messages(raw: bytes) -> None:
    """Raise `ClientError` `media_url_refused` where one of the messages, as JSON, names such a medium."""
    if not _may_name(raw):
        return
    try:
        messages = rawjson.loads(raw)
    except ValueError:
        raise _undecoded("messages") from None
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        if (at := fetched(message)) is not None:
            raise refused(f"messages[{i}].{at}")


def refuse_in(body: bytes) -> None:
    """Raise the same where a body names one anywhere; nothing is said of one that no reader takes for JSON."""
    # In UTF-16 and UTF-32, which Python reads as well, no name is found by its bytes.
    if b"\0" not in body and not _may_name(body):
        return
    try:
        value = rawjson.loads(body)
    except ValueError:
        if _is_object(body):
            raise _undecoded(None) from None
        return
    todo = [("", value)]
    while todo:
        at, value = todo.pop()
        if isinstance(value, dict):
            if (field := _fetched_field(value)) is not None:
                raise refused(f"{at}.{field}".removeprefix("."))
            todo.extend((f"{at}.{name}".removeprefix("."), inner) for name, inner in value.items())
        elif isinstance(value, list):
            todo.extend((f"{at}[{i}]", inner) for i, inner in enumerate(value))


def refused(at: str) -> ClientError:
    """Return the error for a medium that is named at some place."""
    return ClientError(
        "media_url_refused",
        "The engine would have to fetch this medium from a URL, and the rollout does not allow it.",
        hint='Send it as a data: URL, or register the rollout with "allow": ["media_urls"].',
        param=at,
    )


def _fetched_field(part: dict[Any, Any]) -> str | None:
    for field in FIELDS:
        at = part.get(field)
        url = at.get("url") if isinstance(at, dict) else at
        if isinstance(url, str) and url.lstrip()[:5].lower() != "data:":
            return field
    return None


def _may_name(raw: bytes) -> bool:
    """Say whether JSON may have one of the names in it, spelled as it is or with escapes."""
    return raw.find(b"_url") >= 0 or raw.find(b"\\u") >= 0


def _is_object(body: bytes) -> bool:
    try:
        rawjson.split(body)
    except ValueError:
        return False
    return True


def _undecoded(param: str | None) -> ClientError:
    # It nests deeper than Python reads, and another's reader may be more patient.
    return ClientError(
        "media_url_refused",
        "This can't be decoded here, and may name a medium that the engine would have to fetch from a URL.",
        hint='Nest it less deeply, or register the rollout with "allow": ["media_urls"].',
        param=param,
    )
