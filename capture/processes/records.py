"""The store's values as they pass between processes: plain arrays, text and bytes, and back.

Rules
1. What an agent chose is text: a seed of thirty digits, a NaN or half a surrogate pair fits no msgpack, and fits the
   store's own JSON (`store.rows`), which is what passes.
2. Nothing large passes twice. Choices of one call share their exchange. Canonical messages stay at home where the
   request's own elements say the same: the other side makes them from those again, each once (`Canonical`).
3. Identity is kept where the store goes by it: `parts.messages is call.messages` says that no comparing is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capture.store import rows
from capture.store.base import Delta, Entry, Exchange, Parts, Record, Registration, Spool
from capture.store.canonical import Canonical
from graph.records import Call, Message, Notice, Rollout, Status

_NONE, _PARTS, _SENT_PARTS = 0, 1, 2

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


class PackedCall(msgspec.Struct, array_like=True, frozen=True):
    """A `Call`: its record as the store's JSON, its columns, its arrays as little-endian int32 and float32."""

    record: str
    n: int
    status: Status
    delivered: bool | None
    arrived: int
    ended: int | None
    # Whose messages they are, or, as the store's JSON, the messages themselves.
    messages: int | bytes
    prompt: bytes | None
    sampled: bytes | None
    logprobs: bytes | None


class PackedParts(msgspec.Struct, array_like=True, frozen=True):
    """`Parts` without its messages, which its elements say."""

    fields: dict[str, bytes]
    elements: list[bytes]
    names: list[bytes]
    sent: dict[str, bytes] | None


class PackedExchange(msgspec.Struct, array_like=True, frozen=True):
    """An `Exchange`; `error` and `deliveries` are JSON."""

    request: bytes
    sent: bytes | None
    reply: bytes | None
    error: str | None
    usage: bytes | None
    top_logprobs: bytes | None
    undecoded: bytes | None
    deliveries: str
    parts: PackedParts | None
    sent_parts: PackedParts | None


class PackedRecord(msgspec.Struct, array_like=True, frozen=True):
    """A `Record`; `exchange` is its place in the list beside it."""

    call: PackedCall
    exchange: int
    holder: int | None
    shared: int


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
    messages: tuple[Message, ...] = ()
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


def pack_parts(parts: Parts | None) -> PackedParts | None:
    """Return a request's parts, packed; None stays None."""
    if parts is None:
        return None
    return PackedParts(parts.fields, parts.elements, parts.names, parts.sent)


def parts(packed: PackedParts | None, canonical: Canonical) -> Parts | None:
    """Return a request's parts; its messages are made from its elements. Raises `ValueError` if they can't be."""
    if packed is None:
        return None
    messages: list[Message] = []
    for name, raw in zip(packed.names, packed.elements, strict=True):
        message = canonical.read(name, raw)
        if message is None:
            raise ValueError("an element of a request has no canonical form")
        messages.append(message)
    return Parts(
        fields=packed.fields,
        elements=packed.elements,
        names=packed.names,
        messages=tuple(messages),
        sent=packed.sent,
    )


def pack_exchange(exchange: Exchange) -> PackedExchange:
    """Return an exchange, packed."""
    return PackedExchange(
        exchange.request,
        exchange.sent,
        exchange.reply,
        None if exchange.error is None else json.dumps(exchange.error),
        exchange.usage,
        exchange.top_logprobs,
        exchange.undecoded,
        json.dumps(exchange.deliveries),
        pack_parts(exchange.parts),
        pack_parts(exchange.sent_parts),
    )


def exchange(packed: PackedExchange, canonical: Canonical) -> Exchange:
    """Return an exchange."""
    return Exchange(
        request=packed.request,
        sent=packed.sent,
        reply=packed.reply,
        error=None if packed.error is None else json.loads(packed.error),
        usage=packed.usage,
        top_logprobs=packed.top_logprobs,
        undecoded=packed.undecoded,
        deliveries=tuple(json.loads(packed.deliveries)),
        parts=parts(packed.parts, canonical),
        sent_parts=parts(packed.sent_parts, canonical),
    )


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
        holder, shared = (None, 0) if one.delta is None else (one.delta.holder, one.delta.shared)
        packed.append(PackedRecord(pack_call(one.call, one.exchange), place, holder, shared))
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
            delta=None if one.holder is None else Delta(holder=one.holder, shared=one.shared),
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
