"""Calls made ready to be stored: everything about them that needs no look at the database. Pure.

It is the long part of a write (bodies taken apart, digests, canonical messages compared), so that no lock is held
while it lasts, and it may run in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from capture.store import rows
from capture.store.base import Delta, Exchange, Parts, Record, Spool
from capture.store.canonical import Canonical
from capture.store.postgres.kept import Body, Kept
from capture.store.writes import is_of
from graph.records import Call, Notice


class Begin(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A call runs."""

    rollout: str
    call: Call
    request: bytes
    parts: Parts | None


class Brought(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a running stream has brought so far."""

    rollout: str
    n: int
    spool: Spool


class Finish(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A call has ended."""

    rollout: str
    records: Sequence[Record]


class Deliver(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A reply reached its client, or didn't."""

    rollout: str
    numbers: Sequence[int]
    delivered: bool
    at: str


class Note(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A notice; with `once` only if none with its code and calls is there."""

    rollout: str
    notice: Notice
    once: bool = False


Write = Begin | Brought | Finish | Deliver | Note
"""A write about calls: many are written together (`batch`)."""


class Row(msgspec.Struct, kw_only=True, eq=False):
    """A call's and its exchange's columns, but for those that depend on what is stored already."""

    call: Call
    delta: Delta | None
    prompt: bytes | None
    sampled: bytes | None
    logprobs: bytes | None
    chain: bytes | None
    messages: bytes | None
    record: str
    top_logprobs: bytes | None
    undecoded: bytes | None
    error: str | None
    deliveries: list[Any]
    usage: bytes | None
    request: bytes
    sent: bytes | None
    reply: bytes | None


Ready = tuple[Write, list[Row]]
"""A write and the rows that it brings."""


def size(write: Write) -> int:
    """Return about how many bytes it takes to make a write ready."""
    if isinstance(write, Begin):
        return len(write.request)
    if isinstance(write, Finish):
        return sum(len(each.exchange.request) + len(each.exchange.reply or b"") for each in write.records)
    return 0


def prepare(writes: Sequence[Write], canonical: Canonical) -> tuple[list[Ready], Kept]:
    """Return writes with the rows that they bring, and the content that those want stored."""
    kept = Kept()
    out: list[Ready] = []
    for write in writes:
        made: list[Row] = []
        if isinstance(write, Begin):
            exchange = Exchange(request=write.request, parts=write.parts)
            made = [_row(kept, write.rollout, write.call, exchange, None, canonical)]
        elif isinstance(write, Finish):
            made = [
                _row(kept, write.rollout, each.call, each.exchange, each.delta, canonical) for each in write.records
            ]
        out.append((write, made))
    return out, kept


def _row(kept: Kept, rollout: str, call: Call, exchange: Exchange, delta: Delta | None, canonical: Canonical) -> Row:
    parts = exchange.parts
    request = kept.put_body(rollout, exchange.request, parts=parts)
    sent = None
    if exchange.sent is not None:
        known = None if parts is None else parts.sent
        sent = kept.put_body(
            rollout,
            exchange.sent,
            base=request.fields,
            fields=known,
            parts=exchange.sent_parts if known is None else None,
        )
    chain, messages = _messages(kept, rollout, call, exchange, request, sent, canonical)

    def content(data: bytes | None) -> bytes | None:
        return None if data is None else kept.put(rollout, data)

    return Row(
        call=call,
        delta=delta,
        prompt=rows.ints(call.prompt_ids),
        sampled=rows.ints(call.sampled_ids),
        logprobs=rows.floats(call.logprobs),
        chain=chain,
        messages=messages,
        record=rows.dump_call(call),
        top_logprobs=content(exchange.top_logprobs),
        undecoded=content(exchange.undecoded),
        error=None if exchange.error is None else as_json(exchange.error),
        deliveries=list(exchange.deliveries),
        usage=exchange.usage,
        request=request.stored,
        sent=None if sent is None else sent.stored,
        reply=None if exchange.reply is None else kept.put_body(rollout, exchange.reply).stored,
    )


def _messages(
    kept: Kept, rollout: str, call: Call, exchange: Exchange, request: Body, sent: Body | None, canonical: Canonical
) -> tuple[bytes | None, bytes | None]:
    """Return the columns `chain` and `messages`: where the call's canonical messages are read from.

    A chain of one of the bodies that passed, where their canonical form is what the call says; else a content.
    """
    if is_of(exchange.parts, call):
        return request.chains["messages"].last, None
    if sent is not None and is_of(exchange.sent_parts, call) and "messages" in sent.chains:
        return sent.chains["messages"].last, None
    if not call.messages:
        return None, None
    for body in (request, sent):
        chain = None if body is None else body.chains.get("messages")
        if chain is not None and canonical.says(chain.names, chain.elements, call.messages):
            return chain.last, None
    return None, kept.put(rollout, rows.dump_messages(call.messages))


def as_json(value: Any) -> str:
    """Return JSON as columns hold it."""
    return json.dumps(value, separators=(",", ":"))
