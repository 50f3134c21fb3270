"""Digests by which messages and contents are known, and lists of them.

A list is one piece of bytes: with an object for each digest, one of hundreds of messages would take four times the
room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import overload

DIGEST_BYTES = 16
"""Of one digest."""


def digest(data: bytes) -> bytes:
    """Return the name of some bytes: 16 bytes of BLAKE2b."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class Digests(Sequence[bytes]):
    """A list of digests, one behind the other in `data`."""

    __slots__ = ("data",)

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    @classmethod
    def of(cls, each: Iterable[bytes]) -> Digests:
        """Return some as a list."""
        return cls(b"".join(each))

    def __repr__(self) -> str:
        return f"<Digests of {len(self)}>"

    def __len__(self) -> int:
        return len(self.data) // DIGEST_BYTES

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self._at(place) for place in range(*at.indices(len(self)))]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(at)
        return self._at(place)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Digests):
            return self.data == other.data
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as any list

    def _at(self, place: int) -> bytes:
        return self.data[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]
