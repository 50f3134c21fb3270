"""Values of an Anthropic Messages body: decoded, checked and encoded again, each fault named by its field's path.

Paths are written as Anthropic's own errors write them: `messages.2.content.0.text`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from capture import rawjson
from capture.errors import ClientError


def decoded(body: bytes) -> tuple[dict[str, Any], bool]:
    """Return a body's values, and whether it is strict JSON; if not, it holds NaN, 1e999 or half a surrogate pair.

    Raises `ClientError` for what is no JSON, or no object.
    """
    strict = True
    try:
        values = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        strict = False
        try:
            values = rawjson.loads(body)
        except ValueError as error:
            raise unreadable(str(error)) from error
    if not isinstance(values, dict):
        raise unreadable("it is no object")
    return values, strict


def encoded(value: Any, *, strict: bool) -> bytes:
    """Return a value as JSON; with `strict` false NaN and half surrogate pairs are kept, in Python's spelling."""
    # msgspec would write null for NaN, and refuses half a pair.
    return msgspec.json.encode(value) if strict else json.dumps(value, separators=(",", ":")).encode()


def unreadable(why: str) -> ClientError:
    """Make the error for a body that is no request at all."""
    return ClientError("invalid_json", f"The request body can't be read: {why}.", hint="Send one JSON object.")


def wrong(at: str, what: str) -> ClientError:
    """Make the error for a field of the wrong type or value."""
    return ClientError("wrong_type", f"The field '{at}' must be {what}.", param=at)


def untranslatable(at: str, what: str, hint: str = "") -> ClientError:
    """Make the error for what the engine could not be told."""
    message = f"The field '{at}' holds {what}, which the engine can't be given."
    return ClientError("untranslatable", message, hint=hint, param=at)


def required(fields: Mapping[str, Any], name: str, at: str) -> Any:
    """Return a field's value; raise `ClientError` where it is missing."""
    if name not in fields:
        raise ClientError("missing_field", f"The field '{at}' is missing.", param=at)
    return fields[name]


def text(fields: Mapping[str, Any], name: str, at: str) -> str:
    """Return a string that must be there. `at` is the path of what holds it, empty for the body."""
    path = f"{at}.{name}" if at else name
    value = required(fields, name, path)
    if not isinstance(value, str):
        raise wrong(path, "a string")
    return value


def optional_text(fields: Mapping[str, Any], name: str, at: str) -> str:
    """Return a string that may be absent or null, which is as good as an empty one."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong(f"{at}.{name}" if at else name, "a string")
    return value


def flag(fields: Mapping[str, Any], name: str, at: str) -> bool:
    """Return a boolean that may be absent or null, which is false."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(f"{at}.{name}" if at else name, "true or false")
    return bool(value)


def whole_number(value: Any, at: str, *, least: int) -> int:
    """Return a value that must be an integer, and no smaller than `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(at, f"a whole number, {least} or more")
    return value


def number(value: Any, at: str) -> float:
    """Return a value that must be a finite number; an integer stays one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(at, "a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        # An integer that no double holds.
        finite = False
    if not finite:
        raise wrong(at, "a number")
    return value


def mapping(value: Any, at: str) -> dict[str, Any]:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise wrong(at, "an object")
    return value


def items(value: Any, at: str) -> list[Any]:
    """Return a value that must be a list."""
    if not isinstance(value, list):
        raise wrong(at, "a list")
    return value


def digest(said: Any, *, strict: bool) -> str:
    """Return a digest of a parsed body that key order and spaces don't change; `strict` as `decoded` gave it."""
    raw = msgspec.json.encode(said, order="sorted") if strict else json.dumps(said, sort_keys=True).encode()
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
