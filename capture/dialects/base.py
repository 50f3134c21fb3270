"""What a dialect gives the relay: a request read, and the shapes of what Treering itself says in it.

Sans-I/O. `fields` keeps the request's top-level keys with their values as raw JSON, in order; only the keys that
capture needs are ever changed, everything else passes with its value intact.

OpenAI Chat and Completions are the engine's own and pass through. The other dialects are translated: `read` makes the
chat request that the engine gets, and a `Translator` turns its reply back, event by event as it comes. What can't be
translated is refused by `read`, naming the field; it is never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from capture import sse
from capture.dialects.said import Said
from capture.digests import Digests
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


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says beside its body: in its path, its query, its headers."""

    # Gemini's model, from the path.
    model: str | None = None
    # Whether the path asks for a stream; None where the body says it.
    streamed: bool | None = None
    # Gemini's `alt=sse`; without it a stream is one JSON array, sent piece by piece.
    sse: bool = True
    # Lower-case names.
    headers: Mapping[str, str] = {}


NO_TARGET = Target()
"""All is in the body."""


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier exchange of the rollout that a request refers to: its request and reply, as they passed."""

    request: bytes
    reply: bytes


class Own(msgspec.Struct, frozen=True, kw_only=True):
    """A body in its own dialect, taken apart; only of one that is strict JSON."""

    # Top-level keys in order, values as raw JSON.
    fields: dict[str, bytes]
    # The one that holds the list of what was said: `messages`, `input`, `contents`.
    key: str
    # The list's raw elements, and the digest of each (`capture.store.contents`).
    elements: list[bytes]
    names: Digests


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request as read from its body."""

    # Of the request that the engine gets: the body's own, or, translated, the chat request's.
    fields: dict[str, bytes]
    # The engine's route.
    path: str = "/v1/chat/completions"
    streamed: bool = False
    model: str | None = None
    # How many replies are asked for (`n`).
    choices: int = 1
    asked: Asked = Asked()
    messages: Sequence[Message] = ()
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
    # What was changed because no engine could take it, named; recorded with the call, and a finding says so.
    repairs: tuple[str, ...] = ()
    # For the translator: the body as parsed, and whatever else `read` found out.
    original: Any = None
    # The elements of `fields["messages"]`, each read; None where strict JSON can't read them.
    elements: Said | None = None
    # Of a translated request: the body that it came in; None where nobody has taken that apart.
    own: Own | None = None


class Translator(Protocol):
    """Turns one chat reply into another dialect's, as it comes. Made for one reply, fed in order.

    Raises `ValueError` from any method for a reply that is none; what was relayed then is broken off.
    """

    # Content type of a stream.
    stream_type: str

    def whole(self, body: bytes) -> bytes:
        """Return the dialect's reply for a whole chat completion."""

    def event(self, data: bytes) -> bytes:
        """Return what a client gets for one chat event's data (`[DONE]` and error objects too); often nothing."""

    def end(self) -> bytes:
        """Return what is still owed when the engine's stream has ended cleanly."""

    def failed(self, status: int, body: bytes) -> bytes:
        """Return the dialect's error body for the engine's, with its message kept."""

    def reply(self) -> bytes | None:
        """Return the reply as the client got it; of a stream the assembled whole; None when nothing came."""


class Dialect(Protocol):
    """One API shape that agents speak."""

    name: str
    # Whether clients bear comments in a stream (`: keep-alive`).
    bears_comments: bool

    def read(
        self, body: bytes, *, target: Target = NO_TARGET, earlier: Sequence[Earlier] = (), rollout: str = ""
    ) -> Request:
        """Read a request. Raises `ClientError` (400) naming the field for what can't be taken or translated.

        `earlier` are the exchanges that it goes on from (see `refers_to`), the oldest first; `rollout` is the one whose
        earlier requests this may begin as.
        """

    def read_count(self, body: bytes, *, target: Target = NO_TARGET) -> Request:
        """Read a request to count tokens: a call's body, but for what only sampling needs. Raises `ClientError`."""

    def refers_to(self, body: bytes) -> str | None:
        """Return the id of the earlier reply that a request goes on from, if it names one; never raises."""

    def translator(self, request: Request) -> Translator | None:
        """Return a translator for the reply; None for a dialect that is the engine's own."""

    def counted(self, tokens: int) -> bytes:
        """Return the body that answers a request to count tokens."""

    def models(self, cards: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the body that lists models; each card has id, created (seconds) and max_model_len (or None)."""

    def model(self, card: Mapping[str, Any]) -> bytes:
        """Return the body that shows one model."""

    def error(self, error: TreeringError) -> bytes:
        """Return the body of an error in this dialect's shape."""

    def last_reply(self, request: Request, *, reply_id: str, created: int, text: str) -> tuple[str, bytes]:
        """Return content type and body of a well-formed reply with `text`, no tool call and a normal stop.

        In the request's own stream mode; used at a limit, so that the agent's loop ends.
        """


def translated(translator: Translator, kind: str, body: bytes, *, streamed: bool) -> tuple[str, bytes]:
    """Translate a last reply of the chat dialect: its content type and body in, the translator's out."""
    if not streamed:
        return kind, translator.whole(body)
    out = [translator.event(event.data) for event in sse.Decoder().feed(body) if event.data is not None]
    return translator.stream_type, b"".join([*out, translator.end()])


def with_fields(fields: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return `fields` with some values replaced (in place), added (at the end) or, where None, removed."""
    out = dict(fields)
    for name, value in changes.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = value
    return out
