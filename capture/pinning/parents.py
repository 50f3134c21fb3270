"""Whom a call goes on from: recorded calls by the chain of their messages and their reply.

A request's chain up to an assistant message equals a recorded call's messages and reply, in canonical form: role, text
(an assistant's without the white space around it, which agents trim), tool names and canonical arguments. Reasoning and
tool-call ids don't count: agents drop the one and rewrite the others. The deepest such message wins; among calls that
read alike, the latest.

Costs: 16 bytes and one hash a message, over digests that are there already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from graph.records import Call, Message

_SIZE = 16


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The call that a request goes on from, and the place of its reply among the request's messages."""

    n: int
    place: int


class Parents:
    """The recorded calls of one rollout that may be gone on from."""

    def __init__(self) -> None:
        # Chain of messages and reply → the calls that have it, in order.
        self._ends: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, call: Call) -> None:
        """Add a call that has ended with a reply; any other is left out."""
        if call.reply is None or call.status != "complete" or not call.messages:
            return
        calls = self._ends.setdefault(_link(chain(call.messages), call.reply), [])
        if call.n not in calls:
            calls.append(call.n)

    def candidates(self, messages: Sequence[Message]) -> Iterable[Parent]:
        """Yield the calls that a request with these messages may go on from, the best first."""
        ends: list[tuple[int, bytes]] = []
        link = b""
        for place, message in enumerate(messages):
            link = _link(link, message)
            if message.role == "assistant":
                ends.append((place, link))
        for place, link in reversed(ends):
            for n in reversed(self._ends.get(link, ())):
                yield Parent(n=n, place=place)


def chain(messages: Iterable[Message]) -> bytes:
    """Return the digest of a chain of messages, 16 bytes; empty for none."""
    link = b""
    for message in messages:
        link = _link(link, message)
    return link


def _link(before: bytes, message: Message) -> bytes:
    if message.role != "assistant":
        # Of the canonical form as it stands.
        return hashlib.blake2b(before + message.digest, digest_size=_SIZE).digest()
    said = hashlib.blake2b(before, digest_size=_SIZE)
    said.update(b"assistant\0" + message.text.strip().encode("utf-8", "surrogatepass"))
    for call in message.tool_calls:
        said.update(f"\0{call.name}\0{call.canonical}".encode("utf-8", "surrogatepass"))
    for digest in message.media:
        said.update(f"\1{digest}".encode())
    return said.digest()
