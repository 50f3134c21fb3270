"""Records to columns and back. Pure, but for the reading of columns in the order that a query names.

Records are JSON by the standard library where msgspec has another opinion: what an agent chose lies in them (a
temperature of NaN, a lone surrogate in a hint), and a record that can't be written would lose the call. Fields at
their default are left out; a field that is unknown on reading is an error, for only a newer format has it, and that is
refused at open.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from capture.store.base import Delta, Entry, Registration
from graph.messages import from_chat
from graph.records import Call, FloatArray, IntArray, Message, Rollout, Weights

T = TypeVar("T", bound=msgspec.Struct)

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")

# Fields of a call with columns of their own.
_CALL_COLUMNS = frozenset(
    {"n", "status", "delivered", "arrived", "ended", "messages", "prompt_ids", "sampled_ids", "logprobs"}
)
# Set with each call, so kept beside the record rather than in it.
_ROLLOUT_COLUMNS = frozenset({"first_call_at", "last_call_at"})


_encode = json.JSONEncoder(separators=(",", ":")).encode
_encode_quickly = msgspec.json.Encoder().encode

# In none of them is a number that JSON lacks.
_SIMPLE = frozenset({str, int, bool, type(None), bytes, Message, Weights})

_NEVER = object()


class _Plan(NamedTuple):
    """How the records of one type are written: their fields but for those in columns of their own."""

    # Takes them all out of a record, in one step.
    values: Callable[[Any], tuple[Any, ...]]
    names: tuple[str, ...]
    # What each is when it is left out: `_NEVER` of one that may not be.
    defaults: tuple[Any, ...]
    # Those that are left out when they are empty, or equal to their default.
    emptied: tuple[str, ...]
    compared: tuple[tuple[str, Any], ...]


# Worked out once a type: it evaluates annotations, in a third of a millisecond.
@functools.cache
def _plan(sort: type[msgspec.Struct], leave: frozenset[str]) -> _Plan:
    fields = [field for field in msgspec.structs.fields(sort) if field.name not in leave]
    return _Plan(
        values=attrgetter(*[field.name for field in fields]),
        names=tuple(field.encode_name for field in fields),
        defaults=tuple(_NEVER if field.default is msgspec.NODEFAULT else field.default for field in fields),
        emptied=tuple(field.encode_name for field in fields if field.default_factory is not msgspec.NODEFAULT),
        compared=tuple((each.encode_name, each.default) for each in fields if isinstance(each.default, msgspec.Struct)),
    )


def dump(record: msgspec.Struct, *, leave: frozenset[str] = frozenset()) -> str:
    """Return a record, of several fields, as JSON text, without the fields in `leave` and those at their default."""
    plan = _plan(type(record), leave)
    each = zip(plan.names, plan.values(record), plan.defaults, strict=True)
    out = {name: value for name, value, default in each if value is not default}
    for name in plan.emptied:
        if not out.get(name, True):
            del out[name]
    for name, default in plan.compared:
        if name in out and out[name] == default:
            del out[name]
    return quick(out) or slow(out)


def quick(out: dict[str, Any]) -> str | None:
    """Return fields as msgspec writes them, in a fifth of the time; None where that isn't what `slow` says.

    It writes null for what is no number; it can't write half a character; and it leaves letters as they are, for which
    not every database has a place.
    """
    if not _finite(out):
        return None
    try:
        made = _encode_quickly(out)
    except UnicodeEncodeError:
        return None
    return made.decode() if made.isascii() else None


def slow(out: dict[str, Any]) -> str:
    """Return fields as JSON text, whatever they are."""
    return _encode(msgspec.to_builtins(out, str_keys=True))


def _finite(value: Any) -> bool:
    """Say if a value has, as far as it can be told, neither NaN nor an infinity in it."""
    sort = type(value)
    if sort in _SIMPLE:
        return True
    if sort is float:
        return math.isfinite(value)
    if sort is dict:
        inner = value.values()
    elif sort in (list, tuple):
        inner = value
    elif isinstance(value, msgspec.Struct):
        inner = [getattr(value, name) for name in value.__struct_fields__]
    else:
        return False
    for each in inner:
        # As above, without a call: most of what a record holds is one of these.
        sort = type(each)
        if sort in _SIMPLE or (sort is float and math.isfinite(each)):
            continue
        if not _finite(each):
            return False
    return True


def load(text: str, sort: type[T], **columns: Any) -> T:
    """Return the record that `dump` wrote, with fields from columns of their own."""
    return msgspec.convert(json.loads(text) | columns, sort, str_keys=True)


def dump_messages(messages: Sequence[Message]) -> bytes:
    """Return canonical messages as JSON, for a call whose messages can't be read from its request.

    One text of a user's is that text: a completion's prompt, which its request has too, so that it is stored once.
    """
    if len(messages) == 1 and (text := _maybe_text(messages[0])) is not None:
        return msgspec.json.encode(text)
    return json.dumps(msgspec.to_builtins(tuple(messages)), separators=(",", ":")).encode()


def load_messages(data: bytes) -> tuple[Message, ...]:
    """Return what `dump_messages` wrote."""
    if data.startswith(b'"'):
        return (from_chat({"role": "user", "content": msgspec.json.decode(data)}),)
    return msgspec.convert(json.loads(data), tuple[Message, ...])


def _maybe_text(message: Message) -> str | None:
    """Return the text of a user's message that has nothing else."""
    more = message.reasoning or message.tool_calls or message.tool_call_id is not None or message.media
    return None if message.role != "user" or more else message.text


def little(array: IntArray) -> IntArray:
    """Return ids as they are stored, without a copy where they lie so."""
    return np.ascontiguousarray(array, dtype=_INT)


def ints(array: IntArray | None) -> bytes | None:
    """Return ids as little-endian int32; None stays None, and an empty array is empty bytes."""
    return None if array is None else np.ascontiguousarray(array, dtype=_INT).tobytes()


def floats(array: FloatArray | None) -> bytes | None:
    """Return logprobs as little-endian float32, NaN kept."""
    return None if array is None else np.ascontiguousarray(array, dtype=_FLOAT).tobytes()


def read_ints(data: bytes | None) -> IntArray | None:
    """Return what `ints` wrote, read-only."""
    return None if data is None else np.frombuffer(data, dtype=_INT).astype(np.int32, copy=False)


def read_floats(data: bytes | None) -> FloatArray | None:
    """Return what `floats` wrote, read-only."""
    return None if data is None else np.frombuffer(data, dtype=_FLOAT).astype(np.float32, copy=False)


def check(prompt: bytes | memoryview, before: int = 0) -> int:
    """Return the check sum (CRC-32) of a whole prompt's bytes, by which a prompt that is put together is verified.

    `before` is that of what it begins with, where `prompt` is the rest.
    """
    return zlib.crc32(prompt, before)


def check_of(prompt: bytes | memoryview, delta: Delta | None) -> int:
    """Return the check sum of a whole prompt: the one that came with it, or, in the long way, that of its bytes."""
    return check(prompt) if delta is None or delta.check is None else delta.check


def dump_call(call: Call) -> str:
    """Return a call's record column."""
    return dump(call, leave=_CALL_COLUMNS)


def dump_rollout(rollout: Rollout) -> str:
    """Return a rollout's record column."""
    return dump(rollout, leave=_ROLLOUT_COLUMNS)


SELECT_ENTRY = (
    "SELECT created, closed, version, first_call_at, last_call_at, secret, tools_secret, record, registration"
    " FROM rollout"
)


def entry(row: tuple[Any, ...]) -> Entry:
    """Return the entry of a row of `SELECT_ENTRY`."""
    _, _, version, first_call_at, last_call_at, secret, tools_secret, record, registration = row
    return Entry(
        rollout=load(record, Rollout, first_call_at=first_call_at, last_call_at=last_call_at),
        registration=load(registration, Registration),
        secret=secret,
        tools_secret=tools_secret,
        version=version,
    )
