"""Digests by which messages and contents are known, and lists of them.

With an object for each digest, a list of hundreds would take four times the room. In one piece it would lie among the
bodies of requests, on the C library's heap, and keep a page of it for each kilobyte when they are gone: of a thousand
lists 30 MB. So it is in pieces that Python's own allocator takes (up to 512 bytes), which a list that goes on shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import overload

from capture.compiled import maybe_compiled

DIGEST_BYTES = 16
"""Of one digest."""

PIECE = 28
"""Digests in a piece: with what a `bytes` takes beside them, 481 bytes."""

MANY = 4
"""Texts from which they are hashed side by side, where that is compiled."""

compiled = maybe_compiled("capture._digests")
"""The same of many in C, four at a time; None where it was not built."""

_PIECE_BYTES = PIECE * DIGEST_BYTES


def digest(data: bytes) -> bytes:
    """Return the name of some bytes: 16 bytes of BLAKE2b."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def digests(texts: list[bytes]) -> bytes:
    """Return the names of some texts, one behind the other."""
    found: bytes | None = compiled.digests(texts) if compiled is not None and len(texts) >= MANY else None
    return b"".join(map(digest, texts)) if found is None else found


class Digests(Sequence[bytes]):
    """A list of digests."""

    __slots__ = ("_count", "pieces")

    def __init__(self, data: bytes = b"", *, before: Digests | None = None) -> None:
        """`data` are some, one behind the other, that come behind those `before`."""
        self._count = len(data) // DIGEST_BYTES
        pieces: tuple[bytes, ...] = ()
        if before is not None:
            self._count += len(before)
            pieces = before.pieces
            if len(before) % PIECE:
                # Its last piece is not full.
                data = pieces[-1] + data
                pieces = pieces[:-1]
        # None longer than that.
        self.pieces: tuple[bytes, ...]
        if len(data) <= _PIECE_BYTES:
            self.pieces = (*pieces, data) if data else pieces
        else:
            cuts = range(0, len(data), _PIECE_BYTES)
            self.pieces = (*pieces, *[data[at : at + _PIECE_BYTES] for at in cuts])

    @classmethod
    def of(cls, each: Iterable[bytes], *, before: Digests | None = None) -> Digests:
        """Return some as a list, behind those `before`."""
        return cls(b"".join(each), before=before)

    @property
    def data(self) -> bytes:
        """All of them, one behind the other."""
        return b"".join(self.pieces)

    def __repr__(self) -> str:
        return f"<Digests of {self._count}>"

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self._at(place) for place in range(*at.indices(self._count))]
        place = at + self._count if at < 0 else at
        if not 0 <= place < self._count:
            raise IndexError(at)
        return self._at(place)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._at, range(self._count))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Digests):
            return self.pieces == other.pieces
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as any list

    def shared(self, other: Digests) -> int:
        """Return how many this and another have in common at their beginning."""
        same = 0
        for one, two in zip(self.pieces, other.pieces, strict=False):
            if one == two:
                same += len(one) // DIGEST_BYTES
                continue
            return same + next(
                (at for at in range(PIECE) if _cut(one, at) != _cut(two, at)),
                PIECE,
            )
        return same

    def _at(self, place: int) -> bytes:
        piece, at = divmod(place, PIECE)
        return _cut(self.pieces[piece], at)


def _cut(piece: bytes, at: int) -> bytes:
    return piece[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]
