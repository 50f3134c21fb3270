"""What a dialect gives the relay: a request read, and the shapes of what Treering itself says in it.

Sans-I/O. `fields` keeps the request's top-level keys with their values as raw JSON, in order; only the keys that
capture needs are ever changed, everything else passes with its value intact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from capture.errors import TreeringError
from graph.records import Message


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the client itself asked to see; the rest of what capture needs is taken out of its reply."""

    token_ids: bool = False
    logprobs: bool = False
    # As asked; None where absent or null.
    top_logprobs: int | None = None
    # stream_options.include_usage.
    usage: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request as read from its body."""

    fields: dict[str, bytes]
    streamed: bool = False
    model: str | None = None
    # How many replies are asked for (`n`).
    choices: int = 1
    asked: Asked = Asked()
    messages: tuple[Message, ...] = ()
    # Digest of the canonical tool list, and the tools' names.
    tools: str | None = None
    tool_names: tuple[str, ...] = ()
    # Sampling values that the client gave, by their names in the chat dialect.
    sampling: dict[str, Any] = {}
    # Names of fields that constrain sampling in a way a trainer can't rebuild.
    constrained: tuple[str, ...] = ()
    # Digest of the canonical body.
    body: str = ""
    # What could not be decoded for the record, as a sentence; the request is forwarded all the same.
    undecoded: str | None = None


class Dialect(Protocol):
    """One API shape that agents speak."""

    name: str

    def read(self, body: bytes) -> Request:
        """Read a request. Raises `ClientError` (400) naming the field for what no engine could take."""

    def error(self, error: TreeringError) -> bytes:
        """Return the body of an error in this dialect's shape."""

    def last_reply(self, request: Request, *, reply_id: str, created: int, text: str) -> tuple[str, bytes]:
        """Return content type and body of a well-formed reply with `text`, no tool call and a normal stop.

        In the request's own stream mode; used at a limit, so that the agent's loop ends.
        """


def with_fields(fields: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return `fields` with some values replaced (in place), added (at the end) or, where None, removed."""
    out = dict(fields)
    for name, value in changes.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = value
    return out
