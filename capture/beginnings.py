"""A long text that the next one begins with, known again without being kept.

An agent's request is the one before and something more, and so is what an engine says of its prompt: hundreds of
kilobytes of which a few are new. Who has read a text once takes from there what it says; of the next one only the rest
is read.

Rule: texts are held to be equal when their lengths are, their last bytes, and the hashes of all their blocks: Python's
own (SipHash, 64 bits, a secret key for each process), which two texts have in common by chance once in 2^64. The byte
behind it must end a value of a list, `,` or `]`: `12` is no beginning of `123`.

To keep the texts themselves would take 4 to 6 bytes a token for every open rollout. Hashing takes 0.2 us a kilobyte.
"""

from __future__ import annotations

from typing import NamedTuple

BLOCK = 1 << 16
"""Bytes of text under one hash: of a text that grows, only the last block is hashed again."""

TAIL = 64
"""Bytes of a text's end that are kept: texts that part from it do so before, and are not hashed."""


class Beginning(NamedTuple):
    """The inside of a list, up to its closing bracket, by what it is known."""

    length: int
    # By block.
    hashes: tuple[int, ...]
    tail: bytes

    def begins(self, text: bytes, at: int = 0) -> bool:
        """Say whether what stands from `at` on begins with this, and a value ends there."""
        end = at + self.length
        if len(text) <= end or text[end] not in b",]" or not text.startswith(self.tail, end - len(self.tail)):
            return False
        view = memoryview(text)[at:end]
        return all(hash(view[i * BLOCK : (i + 1) * BLOCK]) == known for i, known in enumerate(self.hashes))


def beginning(text: bytes, start: int, end: int, before: Beginning | None = None) -> Beginning:
    """Return by what the text from `start` to `end` is known again; `before` is one that it begins with."""
    view = memoryview(text)[start:end]
    whole = before.hashes[: before.length // BLOCK] if before is not None else ()
    rest = [hash(view[at : at + BLOCK]) for at in range(len(whole) * BLOCK, len(view), BLOCK)]
    return Beginning(len(view), (*whole, *rest), bytes(view[-TAIL:]))
