"""Token arrays: the common prefix of two, and the trie that keeps every distinct prefix of a rollout once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec

from graph.records import IntArray


class Insertion(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a call the trie already had, and a key whose ids begin with that much (None where it is nothing)."""

    shared: int
    holder: int | None


def lcp(a: IntArray, b: IntArray) -> int:
    """Return the length of the longest common prefix of two int32 arrays."""
    raise NotImplementedError


class Trie:
    """A radix trie over token ids; each key (a call's number) names one path, its prompt followed by its sampled ids."""

    distinct: int

    def insert(self, key: int, prompt: IntArray, sampled: IntArray) -> Insertion:
        """Store a call's ids under `key`."""
        raise NotImplementedError

    def locate(self, prompt: IntArray) -> Insertion:
        """Say what `insert` would find, and store nothing."""
        raise NotImplementedError

    def path(self, key: int) -> IntArray:
        """Return a copy of the ids stored under `key`."""
        raise NotImplementedError

    def ends(self, key: int, depth: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (depth, keys) of the calls that end on the path of `key` at `depth` or above it, deepest first."""
        raise NotImplementedError

    def common(self, a: int, b: int) -> int:
        """Return the length of the common prefix of two stored keys, without reading a token."""
        raise NotImplementedError

    def spot(self, key: int, depth: int) -> Hashable:
        """Name the place of `key` at `depth`: equal for two keys if and only if their first `depth` ids are equal."""
        raise NotImplementedError

    def remove(self, key: int) -> None:
        """Forget `key`, and the tokens that only it had."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Return the bytes that the trie holds, its own objects included."""
        raise NotImplementedError
