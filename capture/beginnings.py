"""A long text that the next one begins with, known again.

An agent's request is the one before and something more, and so is what an engine says of its prompt: hundreds of
kilobytes of which a few are new. Who has read a text once takes from there what it says; of the next one only the rest
is read.

Rules
1. A text is known again by itself, where it is kept, and else by the hashes of all its blocks: Python's own (SipHash,
   64 bits, a secret key for each process), which two texts of one length and with the same last bytes have in common by
   chance once in 2^64. Both say the same.
2. The byte behind it must end a value of a list, `,` or `]`: `12` is no beginning of `123`.
3. Whoever keeps texts bounds them in bytes, and lets go of one at any time: `text` is None from then on, and nothing
   else changes. The hashes are always there: of a text that grew, only the last block is hashed (a few microseconds).

To keep all texts would take 4 to 6 bytes a token for every open rollout. To hash takes 0.25 ms a megabyte, to compare a
tenth of that. (A `memoryview` can be hashed without a copy, it seems; but Python then hashes all that it is a view of.)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from operator import eq
from typing import NamedTuple

BLOCK = 1 << 14
"""Bytes of text under one hash: of a text that grows, only the last block is hashed again."""

TAIL = 64
"""Bytes of a text's end that are kept: texts that part from it do so before, and are not looked at any further."""

KEPT_BYTES = 8 << 20
"""Memory for texts of ids: two prompts of 600,000 tokens, twelve of 100,000, sixty of 16,000."""


class Kept(NamedTuple):
    """A text that is kept, and where it stands in what was read."""

    data: bytes
    at: int


class Beginning:
    """The inside of a list, up to its closing bracket, by what it is known."""

    __slots__ = ("hashes", "length", "tail", "text")

    def __init__(self, length: int, hashes: tuple[int, ...], tail: bytes) -> None:
        """`hashes` are those of its blocks, `tail` its last bytes."""
        self.length = length
        self.hashes = hashes
        self.tail = tail
        # Itself, while somebody keeps it.
        self.text: Kept | None = None

    def __repr__(self) -> str:
        return f"Beginning(length={self.length}, hashes={self.hashes}, tail={self.tail!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Beginning):
            return NotImplemented
        return (self.length, self.hashes, self.tail) == (other.length, other.hashes, other.tail)

    def begins(self, text: bytes, at: int = 0) -> bool:
        """Say whether what stands from `at` on begins with this, and a value ends there."""
        end = at + self.length
        if len(text) <= end or text[end] not in b",]" or not text.startswith(self.tail, end - len(self.tail)):
            return False
        # Read once, for another thread may let go of it meanwhile.
        if (kept := self.text) is not None:
            return kept.data.startswith(memoryview(text)[at:end], kept.at)
        return all(map(eq, map(hash, _blocks(text, at, end)), self.hashes))

    @property
    def kept_bytes(self) -> int:
        """Bytes that its text takes."""
        kept = self.text
        return 0 if kept is None else len(kept.data)


def beginning(text: bytes, start: int, end: int, before: Beginning | None = None) -> Beginning:
    """Return by what the text from `start` to `end` is known again; `before` is one that it begins with."""
    whole = before.hashes[: before.length // BLOCK] if before is not None else ()
    rest = map(hash, _blocks(text, start + len(whole) * BLOCK, end))
    return Beginning(end - start, (*whole, *rest), text[max(start, end - TAIL) : end])


def _blocks(text: bytes, start: int, end: int) -> Iterator[bytes]:
    # Copies, for the reason given above.
    return (text[at : min(at + BLOCK, end)] for at in range(start, end, BLOCK))


class Texts:
    """Keeps the texts of those beginnings that were used last, all together no more than so many bytes."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        # By identity; what each takes.
        self._kept: OrderedDict[int, tuple[Beginning, int]] = OrderedDict()
        self._room = kept_bytes
        # What lets go of one may be a collection, on any thread and amidst this.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<Texts {len(self._kept)} kept, room for {self._room} bytes>"

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, known: Beginning, data: bytes, at: int) -> None:
        """Keep the text of a beginning, which stands in `data` from `at` on: as it is, where that is most of it."""
        if known.length < len(data) // 4 * 3:
            data, at = data[at : at + known.length], 0
        with self._lock:
            self.let_go(known)
            known.text = Kept(data, at)
            self._kept[id(known)] = known, len(data)
            self._room -= len(data)
            while self._room < 0:
                _, (oldest, size) = self._kept.popitem(last=False)
                oldest.text = None
                self._room += size

    def let_go(self, known: Beginning) -> None:
        """Let go of a text, if it is kept."""
        with self._lock:
            known.text = None
            found = self._kept.pop(id(known), None)
            if found is not None:
                self._room += found[1]
