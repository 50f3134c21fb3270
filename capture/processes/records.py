"""The store's values as they pass between processes: plain arrays, text and bytes, and back.

Rules
1. What an agent chose is text: a seed of thirty digits, a NaN or half a surrogate pair fits no msgpack, and fits the
   store's own JSON (`store.rows`), which is what passes.
2. Nothing large passes twice: `exchanges` says how bodies do; calls that are read together pass each message once, and
   each prompt as what it adds to one before it.
3. Identity is kept where the store goes by it: `parts.messages is call.messages` says that no comparing is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from capture.processes.exchanges import PackedExchange, exchange, pack_exchange
from capture.store import rows
from capture.store.base import Delta, Entry, Exchange, Record, Registration, Spool
from capture.store.canonical import Canonical
from graph.records import Call, IntArray, Message, Notice, Rollout, Status

_NONE, _PARTS, _SENT_PARTS = 0, 1, 2


LOOKED_AT = 8
"""Calls before one of which its prompt is compared with: the last of its conversation is mostly among them."""

LEAST_SHARED = 64
"""Tokens from which a prompt is packed as what it adds."""


_ROLLOUT_FIELDS = {field.name: field.type for field in msgspec.structs.fields(Rollout)}


class PackedEntry(msgspec.Struct, array_like=True, frozen=True):
    """An `Entry`; `rollout` and `registration` are the store's JSON."""

    rollout: str
    registration: str
    secret: bytes
    tools_secret: bytes
    version: int
    first_call_at: str | None
    last_call_at: str | None


class Tail(msgspec.Struct, array_like=True, frozen=True):
    """A prompt: the first `shared` ids of another call's prompt and sampled ids, and the rest."""

    # Place of that call in the list.
    at: int
    shared: int
    rest: bytes


class PackedCall(msgspec.Struct, array_like=True, frozen=True):
    """A `Call`: its record as the store's JSON, its columns, its arrays as little-endian int32 and float32."""

    record: str
    n: int
    status: Status
    delivered: bool | None
    arrived: int
    ended: int | None
    # Whose messages they are, or places in the list beside the calls, or, as the store's JSON, the messages themselves.
    messages: int | list[int] | bytes
    # Its ids, or what it adds to an earlier call of the list.
    prompt: bytes | Tail | None
    sampled: bytes | None
    logprobs: bytes | None


class PackedRecord(msgspec.Struct, array_like=True, frozen=True):
    """A `Record`; `exchange` is its place in the list beside it."""

    call: PackedCall
    exchange: int
    holder: int | None
    shared: int
    check: int | None


class PackedSpool(msgspec.Struct, array_like=True, frozen=True):
    """A `Spool`."""

    prompt: bytes | None
    sampled: bytes | None
    logprobs: bytes | None


def pack_entry(entry: Entry) -> PackedEntry:
    """Return an entry, packed."""
    rollout = entry.rollout
    return PackedEntry(
        rows.dump_rollout(rollout),
        rows.dump(entry.registration),
        entry.secret,
        entry.tools_secret,
        entry.version,
        rollout.first_call_at,
        rollout.last_call_at,
    )


def entry(packed: PackedEntry) -> Entry:
    """Return an entry."""
    return Entry(
        rollout=rows.load(
            packed.rollout, Rollout, first_call_at=packed.first_call_at, last_call_at=packed.last_call_at
        ),
        registration=rows.load(packed.registration, Registration),
        secret=packed.secret,
        tools_secret=packed.tools_secret,
        version=packed.version,
    )


def pack_call(call: Call, exchange: Exchange | None = None) -> PackedCall:
    """Return a call, packed; `exchange` is what passes beside it."""
    messages: int | bytes
    if not call.messages:
        messages = _NONE
    elif exchange is not None and exchange.parts is not None and exchange.parts.messages is call.messages:
        messages = _PARTS
    elif exchange is not None and exchange.sent_parts is not None and exchange.sent_parts.messages is call.messages:
        messages = _SENT_PARTS
    else:
        messages = rows.dump_messages(call.messages)
    return PackedCall(
        rows.dump_call(call),
        call.n,
        call.status,
        call.delivered,
        call.arrived,
        call.ended,
        messages,
        rows.ints(call.prompt_ids),
        rows.ints(call.sampled_ids),
        rows.floats(call.logprobs),
    )


def call(packed: PackedCall, exchange: Exchange | None = None) -> Call:
    """Return a call; `exchange` is what passed beside it."""
    if isinstance(packed.messages, list) or isinstance(packed.prompt, Tail):
        raise ValueError(f"call {packed.n} is one of a list")
    messages: Sequence[Message] = ()
    if isinstance(packed.messages, bytes):
        messages = rows.load_messages(packed.messages)
    elif packed.messages != _NONE:
        parts = None if exchange is None else exchange.parts if packed.messages == _PARTS else exchange.sent_parts
        if parts is None:
            raise ValueError(f"call {packed.n} refers to messages that did not come with it")
        messages = parts.messages
    made = rows.load(
        packed.record,
        Call,
        n=packed.n,
        status=packed.status,
        delivered=packed.delivered,
        arrived=packed.arrived,
        ended=packed.ended,
    )
    return msgspec.structs.replace(
        made,
        messages=messages,
        prompt_ids=rows.read_ints(packed.prompt),
        sampled_ids=rows.read_ints(packed.sampled),
        logprobs=rows.read_floats(packed.logprobs),
    )


def pack_calls(given: Sequence[Call]) -> tuple[bytes, list[PackedCall]]:
    """Return calls of one rollout, packed: each message once, and each prompt as what it adds to one before it."""
    places: dict[int, int] = {}
    said: list[Message] = []
    packed: list[PackedCall] = []
    streams: list[IntArray] = []
    for one in given:
        for message in one.messages:
            # By identity: who reads several calls reads each message once.
            if id(message) not in places:
                places[id(message)] = len(said)
                said.append(message)
        bare = pack_call(msgspec.structs.replace(one, messages=(), prompt_ids=None))
        prompt: bytes | Tail | None = rows.ints(one.prompt_ids)
        if one.prompt_ids is not None:
            shared, at = max(
                ((_common(streams[at], one.prompt_ids), at) for at in range(len(streams))[-LOOKED_AT:]),
                default=(0, 0),
            )
            if shared > LEAST_SHARED:
                prompt = Tail(at, shared, rows.ints(one.prompt_ids[shared:]) or b"")
        packed.append(
            msgspec.structs.replace(bare, messages=[places[id(message)] for message in one.messages], prompt=prompt)
        )
        streams.append(_stream(one.prompt_ids, one.sampled_ids))
    return rows.dump_messages(tuple(said)), packed


def calls(said: bytes, packed: Sequence[PackedCall]) -> list[Call]:
    """Return calls of one rollout. Raises `ValueError` or `IndexError` for what `pack_calls` never makes."""
    messages = rows.load_messages(said)
    found: list[Call] = []
    streams: list[IntArray] = []
    for one in packed:
        if not isinstance(one.messages, list):
            raise ValueError(f"call {one.n} is none of a list")
        prompt: IntArray | None
        if isinstance(one.prompt, Tail):
            rest = rows.read_ints(one.prompt.rest)
            assert rest is not None
            prompt = np.concatenate([streams[one.prompt.at][: one.prompt.shared], rest])
            prompt.flags.writeable = False
        else:
            prompt = rows.read_ints(one.prompt)
        bare = call(msgspec.structs.replace(one, messages=_NONE, prompt=None))
        said_here = tuple(messages[at] for at in one.messages)
        found.append(msgspec.structs.replace(bare, messages=said_here, prompt_ids=prompt))
        streams.append(_stream(prompt, bare.sampled_ids))
    return found


def _stream(prompt: IntArray | None, sampled: IntArray | None) -> IntArray:
    return np.concatenate([each for each in (prompt, sampled) if each is not None] or [np.empty(0, np.int32)])


def _common(one: IntArray, other: IntArray) -> int:
    """Return the length of the common prefix."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    at = int(differs.argmax()) if length else 0
    return at if length and differs[at] else length


def pack_records(given: Sequence[Record]) -> tuple[list[PackedExchange], list[PackedRecord]]:
    """Return a call's records, packed, with each exchange once."""
    known: dict[int, int] = {}
    exchanges: list[PackedExchange] = []
    packed: list[PackedRecord] = []
    for one in given:
        place = known.get(id(one.exchange))
        if place is None:
            place = known[id(one.exchange)] = len(exchanges)
            exchanges.append(pack_exchange(one.exchange))
        delta = one.delta
        holder, shared, check = (None, 0, None) if delta is None else (delta.holder, delta.shared, delta.check)
        packed.append(PackedRecord(pack_call(one.call, one.exchange), place, holder, shared, check))
    return exchanges, packed


def records(
    exchanges: Sequence[PackedExchange], packed: Sequence[PackedRecord], canonical: Canonical
) -> tuple[Record, ...]:
    """Return a call's records."""
    passed = [exchange(one, canonical) for one in exchanges]
    return tuple(
        Record(
            call=call(one.call, passed[one.exchange]),
            exchange=passed[one.exchange],
            delta=None if one.holder is None else Delta(holder=one.holder, shared=one.shared, check=one.check),
        )
        for one in packed
    )


def pack_spool(spool: Spool) -> PackedSpool:
    """Return a spool, packed."""
    return PackedSpool(rows.ints(spool.prompt_ids), rows.ints(spool.sampled_ids), rows.floats(spool.logprobs))


def spool(packed: PackedSpool) -> Spool:
    """Return a spool."""
    return Spool(
        prompt_ids=rows.read_ints(packed.prompt),
        sampled_ids=rows.read_ints(packed.sampled),
        logprobs=rows.read_floats(packed.logprobs),
    )


def pack_notice(notice: Notice) -> str:
    """Return a notice as the store's JSON."""
    return rows.dump(notice)


def notice(packed: str) -> Notice:
    """Return a notice."""
    return rows.load(packed, Notice)


def pack_changes(changes: Mapping[str, Any]) -> str:
    """Return changes of a rollout's fields, as JSON."""
    return json.dumps({name: msgspec.to_builtins(value, str_keys=True) for name, value in changes.items()})


def changes(packed: str) -> dict[str, Any]:
    """Return changes of a rollout's fields. Raises `KeyError` for a name that is none."""
    return {
        name: msgspec.convert(value, _ROLLOUT_FIELDS[name], str_keys=True) for name, value in json.loads(packed).items()
    }
