"""What the control plane's requests and answers look like on the wire: JSON or msgpack, queries, bodies, errors.

Rules:
- A form is made once and encoded twice. Token arrays stay numpy until then: JSON lists, or in msgpack raw
  little-endian int32 (ids) and float32 (logprobs, NaN where none came).
- What passed on the data plane is embedded as the JSON text that it was, not decoded and written anew: key order and
  numbers are kept. In msgpack it has to be decoded; what can't be (a bare NaN) is given as text, in both.
- A query parameter or a field that nobody reads is an error: a misspelt `rolse=main` would train on the wrong calls.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec
import numpy as np
from aiohttp import web

from capture import intake
from capture.errors import ClientError, TreeringError
from capture.values import nearest
from graph.findings import TABLE

VERSION = "1"
"""Version of the control plane's interface."""

MSGPACK = "application/msgpack"

COMPRESS_FROM = 1_024
"""Bytes from which an answer is compressed on request; below, headers outweigh the gain."""

BODY_LIMIT = 64 * 2**20
"""Bytes of a request's body: 4,096 registrations with 16 KB of task each."""

MOST_SECONDS = 3_600.0
"""The longest wait that may be asked for: proxies and clients cut idle connections long before."""


class Passed:
    """JSON text as it passed, to be embedded in an answer."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<Passed {len(self.text)} bytes>"


def passed(text: bytes | None) -> Passed | None:
    """Return JSON text to be embedded; None for None."""
    return None if text is None else Passed(text)


def encode(form: Any, *, packed: bool) -> bytes:
    """Encode an answer's form as JSON, or as msgpack."""
    make, hook = (msgspec.msgpack.encode, _into_msgpack) if packed else (msgspec.json.encode, _into_json)
    try:
        return make(form, enc_hook=hook)
    except (UnicodeEncodeError, OverflowError):
        # Agents send lone surrogates and numbers of any size; that mustn't hide a rollout. Rare, so paid for only then.
        return make(_mended(form, packed=packed), enc_hook=hook)


def wants_msgpack(request: web.Request) -> bool:
    """Say whether the caller asked for msgpack."""
    ranges = request.headers.get("Accept", "").lower().split(",")
    return any(each.partition(";")[0].strip() == MSGPACK for each in ranges)


def answer(request: web.Request, form: Any, *, status: int = 200) -> web.Response:
    """Return an answer in the encoding that was asked for."""
    packed = wants_msgpack(request)
    return encoded(request, encode(form, packed=packed), status=status, packed=packed)


def encoded(request: web.Request, body: bytes, *, status: int = 200, packed: bool = False) -> web.Response:
    """Return an answer that is encoded already."""
    response = web.Response(
        body=body,
        status=status,
        content_type=MSGPACK if packed else "application/json",
    )
    if len(body) >= COMPRESS_FROM and "Accept-Encoding" in request.headers:
        response.enable_compression()
    return response


def failure(request: web.Request, error: TreeringError) -> web.Response:
    """Return an error's answer."""
    form = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    response = answer(request, form, status=error.status)
    response.headers.update(error.headers())
    return response


async def body(request: web.Request, *, fields: tuple[str, ...] | None = None) -> Any:
    """Read a request's JSON body; an empty one is `{}`.

    With `fields`, it must be an object with no other fields. Raises `ClientError`: 400 `invalid_json` or
    `body_incomplete`, 408 `body_too_slow`, 413 `body_too_large`, 415 `coding_unknown`, 422 `invalid_body`.
    """
    text = await intake.read(request, BODY_LIMIT)
    if not text.strip():
        return {}
    try:
        read = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError("invalid_json", f"The body is not JSON: {error}.", hint="Send a JSON object.") from error
    if fields is not None:
        if not isinstance(read, dict):
            invalid_body("The body must be a JSON object.")
        for name in read:
            if name not in fields:
                invalid_body(f"Unknown field {name!r}{nearest(name, fields)}.", hint=f"Accepted: {', '.join(fields)}.")
    return read


def invalid_body(message: str, *, hint: str = "") -> NoReturn:
    """Raise the error for a body that can't be taken."""
    raise ClientError("invalid_body", message, hint=hint, status=422)


def digest(read: Any) -> str:
    """Return the digest of a JSON value, equal whatever order its keys came in."""
    return hashlib.sha256(msgspec.json.encode(read, order="deterministic")).hexdigest()


Reader = Callable[[str], Any]


def query(request: web.Request, readers: Mapping[str, Reader], *, repeatable: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the query strictly; return what was given by name, lists for repeatable ones.

    A reader raises ValueError with what it expects. Raises `ClientError` 422 `invalid_query` for an unknown, ill-typed
    or repeated parameter, naming it and what is accepted.
    """
    given: dict[str, Any] = {}
    accepted = f"Accepted: {', '.join(readers)}." if readers else "This route takes none."
    for name, text in request.query.items():
        if name not in readers:
            _invalid_query(f"Unknown query parameter {name!r}{nearest(name, readers)}.", accepted)
        try:
            value = readers[name](text)
        except ValueError as error:
            _invalid_query(f"Query parameter {name} is {text[:80]!r}; expected {error}.", accepted)
        if name in repeatable:
            given.setdefault(name, []).append(value)
        elif name in given:
            _invalid_query(f"Query parameter {name} is given twice.", accepted)
        else:
            given[name] = value
    return given


def text(value: str) -> str:
    """Read any text but an empty one."""
    if not value:
        raise ValueError("some text")
    return value


def one_of(*words: str) -> Reader:
    """Return a reader of one of these words."""

    def read(value: str) -> str:
        if value not in words:
            raise ValueError(" or ".join(words))
        return value

    return read


def some_of(*words: str) -> Reader:
    """Return a reader of a comma-separated choice of these words."""

    def read(value: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in value.split(","))
        if not all(part in words for part in parts):
            raise ValueError(f"some of {', '.join(words)}, with commas between")
        return parts

    return read


def whole(least: int, most: int) -> Reader:
    """Return a reader of a whole number in these bounds."""

    def read(value: str) -> int:
        if not value.isascii() or not value.removeprefix("-").isdigit() or not least <= int(value[:20]) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(value)

    return read


def seconds(value: str) -> float:
    """Read a number of seconds."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST_SECONDS:
        raise ValueError(f"a number of seconds from 0 to {MOST_SECONDS:g}")
    return number


def number(value: str) -> int:
    """Read a call's number from a path; -1, which no call has, for what is none."""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else -1


def flag(value: str) -> bool:
    """Read `1` or `0`."""
    if value not in ("0", "1"):
        raise ValueError("0 or 1")
    return value == "1"


def code(value: str) -> str:
    """Read a finding's code."""
    if value not in TABLE:
        raise ValueError("a finding's code (docs/findings.md)")
    return value


def label(value: str) -> tuple[str, str]:
    """Read `KEY:VALUE`; the key has no colon."""
    key, colon, rest = value.partition(":")
    if not colon or not key:
        raise ValueError("KEY:VALUE")
    return key, rest


def _invalid_query(message: str, accepted: str) -> NoReturn:
    raise ClientError("invalid_query", message, hint=accepted, status=422)


def _into_json(thing: Any) -> Any:
    if isinstance(thing, Passed):
        return msgspec.Raw(thing.text) if _is_json(thing.text) else thing.text.decode("utf-8", "replace")
    if isinstance(thing, np.ndarray):
        # msgspec writes NaN as null, which is what an unknown logprob is.
        return thing.tolist()
    if isinstance(thing, np.generic):
        return thing.item()
    raise TypeError(type(thing).__name__)


def _into_msgpack(thing: Any) -> Any:
    if isinstance(thing, Passed):
        return _decoded(thing.text)
    if isinstance(thing, np.ndarray):
        wire = "<f4" if thing.dtype.kind == "f" else "<i4"
        return thing.astype(wire, copy=False).tobytes()
    if isinstance(thing, np.generic):
        return thing.item()
    raise TypeError(type(thing).__name__)


def _mended(thing: Any, *, packed: bool) -> Any:
    """Return a form whose texts and numbers the encoding can take."""
    if isinstance(thing, str):
        try:
            thing.encode()
        except UnicodeEncodeError:
            return thing.encode("utf-8", "replace").decode() if packed else msgspec.Raw(json.dumps(thing).encode())
    elif isinstance(thing, int) and packed and not -(2**63) <= thing < 2**64:
        return str(thing)
    elif isinstance(thing, Mapping):
        names = {name: name.encode("utf-8", "replace").decode() if isinstance(name, str) else name for name in thing}
        return {names[name]: _mended(each, packed=packed) for name, each in thing.items()}
    elif isinstance(thing, list | tuple):
        return [_mended(each, packed=packed) for each in thing]
    return thing


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
        text.decode()
    except UnicodeDecodeError:
        return False
    except msgspec.DecodeError:
        # msgspec refuses lone surrogates, which JSON's grammar allows.
        return _plainly(text) is not _NOT_JSON
    return True


def _decoded(text: bytes) -> Any:
    """Decode for msgpack, whose whole numbers have 64 bits; text where that can't be."""
    try:
        value = msgspec.json.decode(text)
        msgspec.msgpack.encode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
        return text.decode("utf-8", "replace")
    return value


_NOT_JSON = object()


def _plainly(text: bytes) -> Any:
    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return _NOT_JSON
