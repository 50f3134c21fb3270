"""What passed in a call, as it passes between processes: bodies once, and what they were taken apart into as places.

Choices of one call share their exchange. Pieces of a request pass as where they stand in it, and what the engine was
sent as its difference from it. Canonical messages stay at home where the request's own elements say the same: the other
side makes them from those again, each once (`Canonical`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from capture.digests import Digests
from capture.store.base import Exchange, Parts
from capture.store.canonical import Canonical
from graph.records import Message

SMALL = 64
"""Bytes of a piece below which it passes as it is; by so many a larger one is found."""

MOST_TRIES = 8
"""Places that begin as a piece does, of which none is it, after which it passes as it is."""

Piece = bytes | tuple[int, int]
"""A piece of a body: its bytes, or where it stands in it (start, end)."""

Sent = bytes | tuple[bytes, int, int, bytes]
"""What the engine was sent: its bytes, or what stands before and behind a piece of the request (start, end)."""


class PackedParts(msgspec.Struct, array_like=True, frozen=True):
    """`Parts` without its messages, which its elements say, if it `is_chat`."""

    fields: dict[str, Piece]
    elements: list[Piece]
    names: bytes
    # Pieces of what the engine was sent.
    sent: dict[str, Piece] | None
    key: str
    is_chat: bool


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
    return PackedParts(
        fields,
        elements,
        parts.names.data,
        None if parts.sent is None else _Cutter(sent).fields(parts.sent),
        parts.key,
        bool(parts.messages),
    )


def parts(
    packed: PackedParts | None, canonical: Canonical, body: bytes | None, sent: bytes | None = None
) -> Parts | None:
    """Return the parts of `body`; its messages are made from its elements. Raises `ValueError` if they can't be."""
    if packed is None:
        return None
    elements = [_value(piece, body) for piece in packed.elements]
    names = Digests(packed.names)
    messages: list[Message] = []
    for name, raw in zip(names, elements, strict=True) if packed.is_chat else ():
        message = canonical.read(name, raw)
        if message is None:
            raise ValueError("an element of a request has no canonical form")
        messages.append(message)
    return Parts(
        fields={name: _value(piece, body) for name, piece in packed.fields.items()},
        elements=elements,
        names=names,
        messages=tuple(messages),
        sent=None if packed.sent is None else {name: _value(piece, sent) for name, piece in packed.sent.items()},
        key=packed.key,
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
