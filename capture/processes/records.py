"""The store's values as they pass between processes: plain arrays, text and bytes, and back.

Rules
1. What an agent chose is text: a seed of thirty digits, a NaN or half a surrogate pair fits no msgpack, and fits the
   store's own JSON (`store.rows`), which is what passes.
2. Nothing large passes twice. Choices of one call share their exchange. What a request was taken apart into passes as
   places in it, and what the engine was sent as its difference from it. Canonical messages stay at home where the
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

SMALL = 64
"""Bytes of a piece below which it passes as it is; by so many a larger one is found."""

MOST_TRIES = 8
"""Places that begin as a piece does, of which none is it, after which it passes as it is."""

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


Piece = bytes | tuple[int, int]
"""A piece of a body: its bytes, or where it stands in it (start, end)."""

Sent = bytes | tuple[bytes, int, int, bytes]
"""What the engine was sent: its bytes, or what stands before and behind a piece of the request (start, end)."""


class PackedParts(msgspec.Struct, array_like=True, frozen=True):
    """`Parts` without its messages, which its elements say."""

    fields: dict[str, Piece]
    elements: list[Piece]
    names: list[bytes]
    # Pieces of what the engine was sent.
    sent: dict[str, Piece] | None


class PackedExchange(msgspec.Struct, array_like=True, frozen=True):
    """An `Exchange`; `error` and `deliveries` are JSON."""

    request: bytes
    sent: Sent | None
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


class _Cutter:
    """Finds pieces in a body; those that come in order are found at once."""

    def __init__(self, body: bytes | None) -> None:
        self._body = body
        self._at = 0

    def piece(self, value: bytes) -> Piece:
        """Return where a value stands in the body; the value itself if it doesn't, or is small."""
        if self._body is None or len(value) < SMALL:
            return value
        start = _find(self._body, value, self._at)
        if start < 0:
            return value
        self._at = start + len(value)
        return start, self._at

    def fields(self, fields: Mapping[str, bytes]) -> dict[str, Piece]:
        """Return the pieces that fields are."""
        return {name: self.piece(value) for name, value in fields.items()}


def _find(body: bytes, value: bytes, at: int = 0) -> int:
    """Return where a value stands in a body, -1 for nowhere near.

    By its beginning, and then at one go: `bytes.find` takes 10 ms to find one megabyte in another.
    """
    for _ in range(MOST_TRIES):
        at = body.find(value[:SMALL], at)
        if at < 0 or body.startswith(value, at):
            return at
        at += 1
    return -1


def _value(piece: Piece, body: bytes | None) -> bytes:
    if isinstance(piece, bytes):
        return piece
    if body is None or not 0 <= piece[0] <= piece[1] <= len(body):
        raise ValueError("a piece of a body that did not come with it")
    return body[piece[0] : piece[1]]


def pack_parts(parts: Parts | None, body: bytes | None, sent: bytes | None = None) -> PackedParts | None:
    """Return the parts of `body`, packed; None stays None. `sent` is what `parts.sent` was taken from."""
    if parts is None:
        return None
    fields = _Cutter(body).fields(parts.fields)
    cutter = _Cutter(body)
    elements = [cutter.piece(element) for element in parts.elements]
    return PackedParts(fields, elements, parts.names, None if parts.sent is None else _Cutter(sent).fields(parts.sent))


def parts(
    packed: PackedParts | None, canonical: Canonical, body: bytes | None, sent: bytes | None = None
) -> Parts | None:
    """Return the parts of `body`; its messages are made from its elements. Raises `ValueError` if they can't be."""
    if packed is None:
        return None
    elements = [_value(piece, body) for piece in packed.elements]
    messages: list[Message] = []
    for name, raw in zip(packed.names, elements, strict=True):
        message = canonical.read(name, raw)
        if message is None:
            raise ValueError("an element of a request has no canonical form")
        messages.append(message)
    return Parts(
        fields={name: _value(piece, body) for name, piece in packed.fields.items()},
        elements=elements,
        names=packed.names,
        messages=tuple(messages),
        sent=None if packed.sent is None else {name: _value(piece, sent) for name, piece in packed.sent.items()},
    )


def _pack_sent(exchange: Exchange) -> Sent | None:
    """Return what the engine was sent as its difference from the request, where both have the messages alike."""
    sent, request, parts = exchange.sent, exchange.request, exchange.parts
    messages = None if parts is None else parts.fields.get("messages")
    if sent is None or messages is None or len(messages) < SMALL:
        return sent
    there, here = _find(sent, messages), _find(request, messages)
    if there < 0 or here < 0:
        return sent
    return sent[:there], here, here + len(messages), sent[there + len(messages) :]


def _sent(packed: Sent | None, request: bytes) -> bytes | None:
    if packed is None or isinstance(packed, bytes):
        return packed
    before, start, end, behind = packed
    return b"".join((before, _value((start, end), request), behind))


def pack_exchange(exchange: Exchange) -> PackedExchange:
    """Return an exchange, packed."""
    return PackedExchange(
        exchange.request,
        _pack_sent(exchange),
        exchange.reply,
        None if exchange.error is None else json.dumps(exchange.error),
        exchange.usage,
        exchange.top_logprobs,
        exchange.undecoded,
        json.dumps(exchange.deliveries),
        pack_parts(exchange.parts, exchange.request, exchange.sent),
        pack_parts(exchange.sent_parts, exchange.sent),
    )


def exchange(packed: PackedExchange, canonical: Canonical) -> Exchange:
    """Return an exchange."""
    sent = _sent(packed.sent, packed.request)
    return Exchange(
        request=packed.request,
        sent=sent,
        reply=packed.reply,
        error=None if packed.error is None else json.loads(packed.error),
        usage=packed.usage,
        top_logprobs=packed.top_logprobs,
        undecoded=packed.undecoded,
        deliveries=tuple(json.loads(packed.deliveries)),
        parts=parts(packed.parts, canonical, packed.request, sent),
        sent_parts=parts(packed.sent_parts, canonical, sent),
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
