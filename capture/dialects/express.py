"""The short way of a translated stream: from the engine's event of one token to the dialect's, in one step.

Rules
1. It serves the tokens that a reader's stamp tells by one expression (`capture.engines.stamp`): a piece of plain text,
   one id, one logprob. For anything else it says `None`, has changed nothing, and that goes the long way.
2. What goes out is what the long way would have made of it, byte for byte. So a translator takes a token this way only
   behind an event of the long way that was said in the same field and left the same thing open (`Terse`), and only if
   that event was read by the same stamp: the two then differ in their text and in nothing else.
3. It raises nothing: a fault of the reader's costs the record, not the event.

Plain text is written alike by every JSON writer, so its bytes go on as they came. 3 us in place of 20.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from capture.chunks import framed, maybe_one

Token = tuple[bytes, bytes, bytes, str, bytes, bytes]
"""What a chat client gets of a token's event, the text's field, the text as it came and as it reads, logprob and id."""


Way = Callable[[bytes], bytes | None]
"""Records an event and returns what the client gets of it; None, and nothing is changed, if it is not for this way."""


class Lane(Protocol):
    """The way of a stream's ordinary tokens."""

    @property
    def event(self) -> Way:
        """The way itself."""

    def chunk(self, data: bytes, /) -> tuple[bytes, bytes] | None:
        """Do the same with an event in one whole chunk (RFC 9112, 7.1); return also the chunk that brings it on.

        Both are empty where the client is not shown the event.
        """


class PlainLane:
    """A lane made of a way."""

    def __init__(self, event: Way) -> None:
        self.event = event

    def __repr__(self) -> str:
        return f"<PlainLane {self.event!r}>"

    def chunk(self, data: bytes, /) -> tuple[bytes, bytes] | None:
        """Do what `Lane.chunk` says."""
        event = maybe_one(data)
        if event is None:
            return None
        shown = self.event(event)
        return None if shown is None else (shown, framed(shown))


class Terse(NamedTuple):
    """How the next piece of a text is told: what stands around it, and where it is kept."""

    # Of the chat delta.
    field: bytes
    before: bytes
    behind: bytes
    # One for each place that keeps it.
    pieces: tuple[list[str], ...]
    # The client is not shown it.
    hidden: bool = False

    def maybe_tell(self, field: bytes, text: bytes, said: str) -> bytes | None:
        """Return the event of a piece of plain text, raw and read, and keep it; None where it is for the long way."""
        if field != self.field or not text:
            return None
        for kept in self.pieces:
            kept.append(said)
        return b"" if self.hidden else b"%b%b%b" % (self.before, text, self.behind)


class Reads(Protocol):
    """A reader with a short way."""

    def maybe_token(self, raw: bytes) -> tuple[object, Token] | None:
        """Return a token, and by which stamp it was read; nothing is changed."""

    def take_token(self, token: Token) -> None:
        """Record it."""

    def maybe_told_lane(self, stamp: object, tell: Callable[[bytes, bytes, str], bytes | None]) -> Lane | None:
        """Return a lane that does all of it, while that stamp serves; None where there is none."""


class Tells(Protocol):
    """A translator with a short way."""

    def maybe_tell(self, field: bytes, text: bytes, said: str) -> bytes | None:
        """Return what the client gets of plain text, raw and read; None, and nothing is changed, for the long way."""


class Express:
    """The short way of one stream."""

    def __init__(self, reader: Reads, translator: Tells, failed: Callable[[Exception], None]) -> None:
        """`failed` is told of a fault in recording."""
        self._reader = reader
        self._maybe_token = reader.maybe_token
        self._take = reader.take_token
        self._maybe_tell = translator.maybe_tell
        self._failed = failed
        # By which the last token was read that the translator was told the long way.
        self._stamp: object | None = None

    def __repr__(self) -> str:
        return f"<Express {'under way' if self._stamp is not None else 'new'}>"

    def __call__(self, raw: bytes) -> tuple[bytes, bool] | None:
        """Return what the client gets of an event, and that something was sampled; None for the long way."""
        found = self._maybe_token(raw)
        if found is None:
            return None
        stamp, token = found
        if stamp is not self._stamp:
            # What stands in this one's head the translator hears of now.
            self._stamp = stamp
            return None
        told = self._maybe_tell(token[1], token[2], token[3])
        if told is None:
            return None
        try:
            self._take(token)
        except Exception as error:  # noqa: BLE001 - recording never decides forwarding: a fault here costs the record
            self._failed(error)
        return told, True

    def maybe_lane(self) -> Lane | None:
        """Return the same as a lane, for as long as it says something; None while there is none."""
        return self._reader.maybe_told_lane(self._stamp, self._maybe_tell)


def maybe_express(reader: Any, translator: Any, failed: Callable[[Exception], None]) -> Express | None:
    """Return the short way from a reader to a translator, None where one of them has none."""
    if not (hasattr(reader, "maybe_token") and hasattr(translator, "maybe_tell")):
        return None
    return Express(reader, translator, failed)
