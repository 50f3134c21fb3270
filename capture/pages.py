"""One page of an export: the answer to `GET /sequences` with a limit, read as it comes.

Its last line says how many rollouts there were and where the next page begins; without that line it was cut, and
nothing of it counts.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec

from capture.errors import ClientError

SMALL = 65_536
"""Bytes. A line that refuses a rollout, or ends a page, is shorter; longer ones are passed on unread."""

CHUNK = 1 << 20


class Reader(Protocol):
    """What an answer is read from."""

    def read(self, amount: int, /) -> bytes:
        """Return some bytes, none at the end."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What the last line of a page, or of an export, says."""

    rollouts: int = 0
    refused: int = 0
    next: str | None = None
    # Code → how many were refused for it.
    reasons: dict[str, int] = {}

    def __add__(self, other: End) -> End:
        """Return both together; the next page is the other's."""
        names = sorted({*self.reasons, *other.reasons})
        return End(
            rollouts=self.rollouts + other.rollouts,
            refused=self.refused + other.refused,
            next=other.next,
            reasons={name: self.reasons.get(name, 0) + other.reasons.get(name, 0) for name in names},
        )

    def told(self) -> dict[str, Any]:
        """Return it as the last line of an export has it."""
        told = {"end": True, "rollouts": self.rollouts, "refused": self.refused, "next": None}
        return {**told, "reasons": self.reasons} if self.refused else told


class _Line(msgspec.Struct):
    end: bool = False
    # Of a refused rollout, why; of the last line, how many.
    refused: Any = None


def copy_lines(answer: Iterable[bytes], write: Callable[[bytes], object], *, plain: bool = False) -> End:
    """Write a page's lines, all but its last; return what that says. `plain` leaves out refused rollouts too.

    Raises `ClientError` `export_cut` for a page without its end, and what `write` raises.
    """
    for line in _read(iter(answer)):
        if len(line) < SMALL:
            try:
                read = msgspec.json.decode(line, type=_Line)
                if read.end:
                    return msgspec.json.decode(line, type=End)
            except msgspec.MsgspecError as error:
                raise cut(error) from error
            if plain and read.refused is not None:
                continue
        write(line)
    raise cut()


def copy_bytes(answer: Reader, write: Callable[[bytes], object]) -> None:
    """Write all of an answer. Raises `ClientError` `export_cut`, and what `write` raises."""
    for piece in _read(iter(lambda: answer.read(CHUNK), b""), torn=True):
        write(piece)


def _read(pieces: Iterator[bytes], *, torn: bool = False) -> Iterator[bytes]:
    """Yield what comes, up to a line that has no end unless `torn` ones are meant."""
    while True:
        try:
            piece = next(pieces, b"")
        except (OSError, http.client.HTTPException) as error:
            raise cut(error) from error
        if not piece or not (torn or piece.endswith(b"\n")):
            return
        yield piece


def cut(error: Exception | None = None) -> ClientError:
    """Return the error for an answer that has no end."""
    why = f": {error or type(error).__name__}" if error is not None else ""
    return ClientError(
        "export_cut", f"The answer was cut before its end{why}.", hint="The server's log says why it stopped."
    )
