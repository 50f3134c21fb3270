"""Records to columns and back. Pure, but for the reading of columns in the order that a query names.

Records are JSON by the standard library, not by msgspec: what an agent chose lies in them (a seed of thirty digits, a
temperature of NaN, a lone surrogate in a hint), and a record that can't be written would lose the call. Fields at
their default are left out; a field that is unknown on reading is an error, for only a newer format has it, and that is
refused at open.
"""

from __future__ import annotations

import functools
import json
import zlib
from typing import Any, TypeVar

import msgspec
import numpy as np

from capture.store.base import Entry, Registration
from graph.records import Call, FloatArray, IntArray, Message, Rollout

T = TypeVar("T", bound=msgspec.Struct)

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")

# Fields of a call with columns of their own.
_CALL_COLUMNS = frozenset(
    {"n", "status", "delivered", "arrived", "ended", "messages", "prompt_ids", "sampled_ids", "logprobs"}
)
# Set with each call, so kept beside the record rather than in it.
_ROLLOUT_COLUMNS = frozenset({"first_call_at", "last_call_at"})


# Worked out once a type: it evaluates annotations, in a third of a millisecond.
_fields = functools.cache(msgspec.structs.fields)


def dump(record: msgspec.Struct, *, leave: frozenset[str] = frozenset()) -> str:
    """Return a record as JSON text, without the fields in `leave` and those at their default."""
    out = {}
    for field in _fields(type(record)):
        value = getattr(record, field.name)
        if field.name in leave or (field.default_factory is not msgspec.NODEFAULT and not value):
            continue
        if field.default is not msgspec.NODEFAULT and value is field.default:
            continue
        out[field.encode_name] = msgspec.to_builtins(value, str_keys=True)
    return json.dumps(out, separators=(",", ":"))


def load(text: str, sort: type[T], **columns: Any) -> T:
    """Return the record that `dump` wrote, with fields from columns of their own."""
    return msgspec.convert(json.loads(text) | columns, sort, str_keys=True)


def dump_messages(messages: tuple[Message, ...]) -> bytes:
    """Return canonical messages as JSON, for a call whose messages can't be read from its request."""
    return json.dumps(msgspec.to_builtins(messages), separators=(",", ":")).encode()


def load_messages(data: bytes) -> tuple[Message, ...]:
    """Return what `dump_messages` wrote."""
    return msgspec.convert(json.loads(data), tuple[Message, ...])


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


def check(prompt: bytes) -> int:
    """Return the check sum (CRC-32) of a whole prompt's bytes, by which a prompt that is put together is verified."""
    return zlib.crc32(prompt)


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
