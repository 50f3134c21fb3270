"""Bodies taken apart by top-level key, and put together again. Pure.

An agent's request repeats all that was said before; its tools and its earlier messages are the same bytes each time.
So a body that is a JSON object is seen as its top-level keys with their values as raw JSON (`fields`), and three sorts
of values are told apart:

- the list of messages, under any of `LISTS`: a chain of elements, each stored once a store, each prefix once a rollout;
- any other value of `CONTENT_SIZE` bytes or more (tools, schemas, a system prompt): stored once by digest;
- the rest, which stays where it stands.

Rule 1: what comes back is equal as JSON, with key order, number spelling and escapes kept; only white space between
top-level tokens and between messages is lost. Of a key that occurs twice the last value counts, as in `json.loads`.
Rule 2: what can't be taken apart (not JSON, not an object, a bare NaN, a lone surrogate, nesting beyond the parser) is
no error: `fields` says None, and the body is kept whole.

`sent` is the request but for a few keys, and is kept as that (`difference`, `changed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

LISTS = frozenset({"messages", "input", "contents"})
"""Where requests keep their messages: Chat and Anthropic, Responses, Gemini."""

CONTENT_SIZE = 256
"""Bytes from which a value is stored by digest; below, a row of its own (some 50 bytes) costs more than it saves."""

Fields = dict[str, bytes]
"""Top-level keys in order, values as raw JSON."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def fields(body: bytes) -> Fields | None:
    """Return a body's top-level keys with their raw values, None if it can't be taken apart."""
    try:
        return {key: bytes(value) for key, value in _OBJECT.decode(body).items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def elements(value: bytes) -> list[bytes] | None:
    """Return the raw elements of a JSON array, None if `value` isn't one."""
    if not value.startswith(b"["):
        return None
    try:
        return [bytes(element) for element in _ARRAY.decode(value)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def whole(parts: Mapping[str, bytes]) -> bytes:
    """Return the JSON object of `parts`."""
    return b"{" + b",".join(_encode(key) + b":" + value for key, value in parts.items()) + b"}"


def array(parts: Iterable[bytes]) -> bytes:
    """Return the JSON array of `parts`."""
    return b"[" + b",".join(parts) + b"]"


def difference(base: Fields, other: Fields) -> tuple[list[str], Fields] | None:
    """Return the keys to take out of `base` and those to set, so that `changed` gives `other`.

    None when it wouldn't, because the order of keys differs.
    """
    without = [key for key in base if key not in other]
    changes = {key: value for key, value in other.items() if base.get(key) != value}
    if list(changed(base, without, changes)) != list(other):
        return None
    return without, changes


def changed(base: Fields, without: Iterable[str], changes: Fields) -> Fields:
    """Return `base` without some keys, with others replaced in place or added at the end."""
    out = dict(base)
    for key in without:
        out.pop(key, None)
    out.update(changes)
    return out
