"""JSON kept raw: a body's top-level fields as the bytes they came as, so that one can change and the rest not.

Rules
- A value that nobody changes keeps its bytes: numbers (`0.10`, 12345678901234567890), key order inside it, escapes.
- What a JSON writer really emits is read, strict or not: bare `NaN` and `Infinity` (Python), lone surrogate escapes
  (JavaScript), 1e999, any nesting. What is not JSON at all is a ValueError with the byte where it went wrong.
- Of equal keys the last wins and takes the first one's place, as in Python's and JavaScript's own readers.

Theory of operation
msgspec's `Raw` does it in one pass in C (about 1 us for a streamed chunk), but is strict: NaN and a lone surrogate
are errors to it, and nesting is bounded by the interpreter's stack (msgspec 0.23). Only then does the scanner here
step in: a loop over regular expressions, one token or one run of scalars a step, with its own stack. It is linear: each
of them can be matched in one way only, and sets of characters are possessive; a list of 120,000 numbers is one step, a
string of 5 MiB another. Groups are not possessive but for one: CPython before 3.11.5 matches those wrongly (gh-106052).
Rejected: `json.loads` and dumping again, which loses `0.10`, exponents and escapes; and a scanner alone, which costs
ten times as much on the ordinary path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])

TEXT = rb'(?:[ !#-\[\]-~\x80-\xff]++|\\[bfnrt"\\])*'
"""A string's text as every JSON writer spells it, with no escapes but those of one letter: an expression."""

ASCII = rb'(?:[ !#-\[\]-~]++|\\[bfnrt"\\])*'
"""Such text of ASCII alone."""

_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_SCALAR = rb"(?:" + _STRING + rb"|" + _NUMBER + rb"|true|false|null|NaN|-?Infinity)"
_S = rb"[ \t\n\r]*+"

_space = re.compile(_S)
_string = re.compile(_STRING)
_scalar = re.compile(_SCALAR)
# A scalar and all scalars that follow it in a list, so that a long list of ids is one step. Possessive, or each takes
# 450 bytes until the last one is found; `_end_of` has its end.
_run = re.compile(_SCALAR + rb"(?:" + _S + rb"," + _S + _SCALAR + rb")*+")
# A key with its colon, up to its value.
_key = re.compile(_STRING + _S + rb":" + _S)

_OBJECT, _LIST = ord("{"), ord("[")
_CLOSE = {_OBJECT: ord("}"), _LIST: ord("]")}
_COMMA = ord(",")
_BETWEEN = b", \t\n\r"


def split(body: bytes) -> dict[str, bytes]:
    """Return the top-level fields of a JSON object, in order, each with its value's raw bytes.

    Raises ValueError, naming the byte, for what is not JSON, and for JSON that is no object.
    """
    try:
        return {name: bytes(raw) for name, raw in _fields.decode(body).items()}
    except (msgspec.DecodeError, RecursionError):
        return _scan_fields(body)


def elements(raw: bytes) -> list[bytes]:
    """Return the elements of a JSON list, each as raw bytes. Raises ValueError as `split` does."""
    try:
        return [bytes(element) for element in _elements.decode(raw)]
    except (msgspec.DecodeError, RecursionError):
        return _scan_elements(raw)


def objects(raw: bytes) -> list[dict[str, bytes]]:
    """Return the fields of each object of a JSON list. Raises ValueError as `split` does."""
    try:
        return [{name: bytes(value) for name, value in fields.items()} for fields in _objects.decode(raw)]
    except (msgspec.DecodeError, RecursionError):
        return [split(element) for element in elements(raw)]


def loads(raw: bytes) -> Any:
    """Return a value decoded, NaN, 1e999 and half surrogate pairs included. Raises ValueError where even that fails."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply to be decoded") from error


def mended(value: Any) -> Any:
    """Return a decoded value that UTF-8 can hold: surrogate pairs are joined, each half pair becomes U+FFFD."""
    if isinstance(value, str):
        try:
            # Nearly all text is sound as it is.
            if value.isascii() or value.encode():
                return value
        except UnicodeEncodeError:
            pass
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [mended(item) for item in value]
    if isinstance(value, dict):
        return {mended(name): mended(item) for name, item in value.items()}
    return value


def join(fields: Mapping[str, bytes]) -> bytes:
    """Return the JSON object of these fields, without spaces, each value as it is."""
    # One copy of each value: of a long conversation each would be half a megabyte.
    pieces = [piece for name, raw in fields.items() for piece in (b",", _key_of(name), raw)]
    pieces.append(b"}")
    pieces[0] = b"{" if fields else b"{}"
    return b"".join(pieces)


def join_elements(raws: list[bytes]) -> bytes:
    """Return the JSON list of these elements, each as it is."""
    return b"".join((b"[", b",".join(raws), b"]"))


@lru_cache(maxsize=1024)  # the same dozen names in every chunk
def _key_of(name: str) -> bytes:
    try:
        return msgspec.json.encode(name) + b":"
    except UnicodeEncodeError:  # a lone surrogate in a key: as an escape it is the same key
        return json.dumps(name).encode() + b":"


def _scan_fields(body: bytes) -> dict[str, bytes]:
    at = _skip_space(body, 0)
    if body[at : at + 1] != b"{":
        _check_value(body, at)
        raise ValueError(f"expected a JSON object at byte {at}")
    fields: dict[str, bytes] = {}
    at = _skip_space(body, at + 1)
    if body[at : at + 1] == b"}":
        _check_end(body, at + 1)
        return fields
    while True:
        key = _string.match(body, at)
        if key is None:
            raise ValueError(f"expected a key at byte {at}")
        try:
            name = json.loads(key.group())
        except ValueError as error:
            raise ValueError(f"the key at byte {at} is not UTF-8") from error
        at = _skip_space(body, key.end())
        if body[at : at + 1] != b":":
            raise ValueError(f"expected ':' at byte {at}")
        start = _skip_space(body, at + 1)
        end = _skip_value(body, start)
        fields[name] = body[start:end]
        at = _skip_space(body, end)
        if body[at : at + 1] == b"}":
            _check_end(body, at + 1)
            return fields
        if body[at : at + 1] != b",":
            raise ValueError(f"expected ',' or '}}' at byte {at}")
        at = _skip_space(body, at + 1)


def _scan_elements(body: bytes) -> list[bytes]:
    at = _skip_space(body, 0)
    if body[at : at + 1] != b"[":
        _check_value(body, at)
        raise ValueError(f"expected a JSON list at byte {at}")
    found: list[bytes] = []
    at = _skip_space(body, at + 1)
    if body[at : at + 1] == b"]":
        _check_end(body, at + 1)
        return found
    while True:
        end = _skip_value(body, at)
        found.append(body[at:end])
        at = _skip_space(body, end)
        if body[at : at + 1] == b"]":
            _check_end(body, at + 1)
            return found
        if body[at : at + 1] != b",":
            raise ValueError(f"expected ',' or ']' at byte {at}")
        at = _skip_space(body, at + 1)


def _skip_space(body: bytes, at: int) -> int:
    if body[at : at + 1] not in (b" ", b"\n", b"\t", b"\r"):
        return at
    match = _space.match(body, at)
    return match.end() if match else at


def _skip_value(body: bytes, at: int) -> int:
    """Return where the value that starts at `at` ends."""
    # The brackets open here, innermost last: a stack of our own, since a body may nest deeper than Python's.
    stack = bytearray()
    while True:
        # A value is due at `at`.
        opener = body[at] if at < len(body) else -1
        if opener in _CLOSE:
            stack.append(opener)
            at = _skip_space(body, at + 1)
            if at < len(body) and body[at] == _CLOSE[opener]:
                stack.pop()
                at += 1
            else:
                at = _skip_key(body, at) if opener == _OBJECT else at
                continue
        else:
            match = (_run if stack and stack[-1] == _LIST else _scalar).match(body, at)
            if match is None:
                raise ValueError(f"expected a value at byte {at}")
            at = _end_of(match)
        # A value has ended at `at`: close what closes, then on to the next one.
        while stack:
            at = _skip_space(body, at)
            mark = body[at] if at < len(body) else -1
            if mark == _COMMA:
                at = _skip_space(body, at + 1)
                at = _skip_key(body, at) if stack[-1] == _OBJECT else at
                break
            if mark != _CLOSE[stack[-1]]:
                raise ValueError(f"expected ',' or '{chr(_CLOSE[stack[-1]])}' at byte {at}")
            stack.pop()
            at += 1
        else:
            return at


def _end_of(run: re.Match[bytes]) -> int:
    """Return where scalars end: CPython before 3.11.5 takes the comma behind them for theirs, if no scalar follows."""
    body, end = run.string, run.end()
    while body[end - 1] in _BETWEEN:
        end -= 1
    return end


def _skip_key(body: bytes, at: int) -> int:
    match = _key.match(body, at)
    if match is None:
        raise ValueError(f"expected a key and ':' at byte {at}")
    return match.end()


def _check_end(body: bytes, at: int) -> None:
    at = _skip_space(body, at)
    if at != len(body):
        raise ValueError(f"unexpected text after the JSON value at byte {at}")


def _check_value(body: bytes, at: int) -> None:
    """Raise the better error when `body` isn't JSON at all."""
    _check_end(body, _skip_value(body, at))
