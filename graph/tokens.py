"""Token arrays: the common prefix of two, and the trie that keeps every distinct prefix of a rollout once.

Rules
1. A prefix is stored once, however many calls begin with it: memory is linear in distinct tokens (4 bytes each, and
   what the objects around them cost), never in calls times prompt length.
2. Inserting costs the length of what is inserted, and reads each token once.
3. Nothing here depends on the order in which calls come, but the layout: which tokens stand in which run.

Theory of operation
A textbook radix trie has a node for every end of a call and every branch, so a conversation of 2,000 calls is a linked
list of 2,000 small arrays, and each insert walks it. Here a *run* is one growable array of ids, and a call that extends
a run appends in place: a conversation of any length is one buffer, one comparison. Where calls end is a sorted column
of the run. Where calls part from it, *side* runs hang at their depth; a side's first id differs from the run's own id
there, and from the other sides'. At a new parting the longer remainder stays in the run and the shorter one becomes the
side, or conversations that drift a little at each turn would become a linked list after all. Tokens are moved only
by an insertion longer than what it moves, so moving is linear too.

    run    1 9 3 100 2 3 1 10 3 | 150 2 | 3 1 9 3 101 …         | a call's prompt or its end
    side                      └ 160 161 2                        at depth 9, first id 160

Three invariants make the walks short: every run but an empty root ends with the end of a call; a side starts before the
end of its run (at it, it would have been appended); and a call that ends just where a side starts belongs to the run.

Keys are numbers of calls: small and dense, so what belongs to a key lies in columns and not in dicts. That is 20 bytes
a call, and about 280 a side run (two arrays, the object, its place among the sides).
"""

from __future__ import annotations

import sys
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from typing import Any

import msgspec
import numpy as np

from graph.records import IntArray

FIRST_CHUNK = 4096
"""Tokens compared at first: most partings lie near, and numpy's own cost is then a few microseconds."""
LONG = 65_536
"""Ids of a prompt from which it is worth looking whether it lies where the last one does: fewer are compared sooner."""
LARGEST_CHUNK = 131_072
"""512 KiB of ids: larger chunks leave the processor's cache, and compare beyond the parting for nothing."""


class Insertion(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a call the trie already had, and a key whose ids begin with that much (None where it is nothing)."""

    shared: int
    holder: int | None


def lcp(a: IntArray, b: IntArray) -> int:
    """Return the length of the longest common prefix of two int32 arrays."""
    n = min(len(a), len(b))
    if not n or a[0] != b[0]:
        return 0
    at, chunk = 0, FIRST_CHUNK
    while at < n:
        to = min(at + chunk, n)
        differs = a[at:to] != b[at:to]
        first = int(differs.argmax())
        if differs[first]:
            return at + first
        at, chunk = to, min(chunk * 8, LARGEST_CHUNK)
    return n


class _Run:
    """A stretch of ids that nothing interrupts, the calls that end in it, and the runs that part from it."""

    __slots__ = ("ends", "ids", "parent", "sides", "start")

    def __init__(self, ids: array[int], start: int, parent: _Run | None) -> None:
        self.ids = ids
        # Depth of its first id: the number of ids before it on any path through it.
        self.start = start
        self.parent = parent
        # Keys of the calls that end here, by (depth, key).
        self.ends: array[int] = array("i")
        # By (depth, first id). The empty tuple, which costs nothing, until there is one.
        self.sides: list[_Run] | tuple[()] = ()

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    def add_side(self, side: _Run) -> None:
        if not self.sides:
            self.sides = [side]
        else:
            self.sides.insert(bisect_left(self.sides, _place(side), key=_place), side)

    def side(self, depth: int, first: int) -> _Run | None:
        if not self.sides:
            return None
        i = bisect_left(self.sides, (depth, first), key=_place)
        if i < len(self.sides):
            found = self.sides[i]
            if found.start == depth and found.ids[0] == first:
                return found
        return None


def _place(run: _Run) -> tuple[int, int]:
    return run.start, run.ids[0]


def _append(ids: array[int], more: IntArray) -> None:
    if len(more):
        ids.frombytes(more.data.cast("B"))


def _maybe_memory(prompt: IntArray) -> np.ndarray[Any, Any] | None:
    """Return the array in whose memory a long prompt lies; None where it has memory of its own, or is short."""
    return prompt.base if len(prompt) >= LONG and isinstance(prompt.base, np.ndarray) else None


def _view(ids: array[int]) -> IntArray:
    """See an array of ids without a copy. It can't grow while a view is held, so views stay within one function."""
    return np.frombuffer(ids, np.int32) if len(ids) else np.empty(0, np.int32)


class Trie:
    """A radix trie over token ids; each key (a call's number) names one path, its prompt followed by its sampled ids.

    Args are int32 arrays of one dimension. A key may have empty ids, and two keys the same.
    """

    def __init__(self) -> None:
        self._root = _Run(array("i"), 0, None)
        # Columns by key: the run that it ends in (None: no such key), its prompt's length, its whole length.
        self._runs: list[_Run | None] = []
        self._prompts: array[int] = array("i")
        self._depths: array[int] = array("i")
        self._n = 0
        # The prompt that was located last, and where: whoever asks where a call belongs stores it next.
        self._located: tuple[IntArray, _Run, int] | None = None
        # The prompt that was stored last, if it is long: the memory that it lies in, from where on, and its key.
        self._stored: tuple[weakref.ref[np.ndarray[Any, Any]], int, int] | None = None
        # Number of distinct tokens: of different non-empty prefixes.
        self.distinct = 0

    def __repr__(self) -> str:
        return f"Trie({self._n} keys, {self.distinct} tokens)"

    def __len__(self) -> int:
        return self._n

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int) and 0 <= key < len(self._runs) and self._runs[key] is not None

    def insert(self, key: int, prompt: IntArray, sampled: IntArray) -> Insertion:
        """Store a call's ids under `key`, a number not much larger than there are calls.

        Raises ValueError when the key is negative or taken.
        """
        if key < 0 or key in self:
            raise ValueError(f"{key} is no key for a new path")
        prompt = np.ascontiguousarray(prompt, np.int32)
        sampled = np.ascontiguousarray(sampled, np.int32)
        run, shared, n_more = self._find(prompt, sampled)
        self._located = None
        more = (prompt[shared:], sampled[max(0, shared - len(prompt)) :])
        holder = run.ends[-1] if shared else None
        if n_more > run.end - shared:
            # Longer than what stands there: it goes on in the run, and what stood there moves aside.
            if shared < run.end:
                self._cut(run, shared)
            for ids in more:
                _append(run.ids, ids)
        elif n_more:
            fresh: array[int] = array("i")
            for ids in more:
                _append(fresh, ids)
            # A slice has no spare room, and most sides never grow.
            side = _Run(fresh[:], shared, run)
            run.add_side(side)
            run = side
        self.distinct += n_more
        self._enter(key, run, n_prompt=len(prompt), depth=shared + n_more)
        memory = _maybe_memory(prompt)
        self._stored = None if memory is None else (weakref.ref(memory), prompt.ctypes.data, key)
        return Insertion(shared=shared, holder=holder)

    def locate(self, prompt: IntArray) -> Insertion:
        """Say how much of `prompt` is stored, and store nothing."""
        prompt = np.ascontiguousarray(prompt, np.int32)
        run, shared, _ = self._find(prompt, np.empty(0, np.int32))
        self._located = prompt, run, shared
        return Insertion(shared=shared, holder=run.ends[-1] if shared else None)

    def n_prompt(self, key: int) -> int:
        """Return the length of the prompt stored under `key`. Raises KeyError when there is none."""
        self._run(key)
        return self._prompts[key]

    def depth(self, key: int) -> int:
        """Return the length of the path of `key`, prompt and sampled ids. Raises KeyError when there is none."""
        self._run(key)
        return self._depths[key]

    def path(self, key: int, start: int = 0) -> IntArray:
        """Return a copy of the ids stored under `key`, from depth `start` on, int32.

        Costs what is copied. Raises KeyError when there are none.
        """
        out = np.empty(max(0, self.depth(key) - start), np.int32)
        for run, to in self._up(key):
            if to <= start:
                break
            first = max(run.start, start)
            out[first - start : to - start] = _view(run.ids)[first - run.start : to - run.start]
        return out

    def ends(self, key: int, depth: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (depth, keys) of the calls that end on the path of `key` at `depth` or above it, deepest first.

        The keys of one depth come in order; `key` itself is among them when it ends there. Costs a few steps for each
        run above, however many calls end elsewhere. Raises KeyError when there is no such key.
        """
        depths = self._depths
        for run, to in self._up(key):
            i = bisect_right(run.ends, min(to, depth), key=depths.__getitem__)
            while i:
                here = depths[run.ends[i - 1]]
                j = bisect_left(run.ends, here, 0, i, key=depths.__getitem__)
                yield here, tuple(run.ends[j:i])
                i = j

    def common(self, a: int, b: int) -> int:
        """Return the length of the common prefix of two stored keys, without reading a token.

        Raises KeyError when one of them isn't stored.
        """
        above = {id(run): to for run, to in self._up(a)}
        for run, to in self._up(b):
            if (other := above.get(id(run))) is not None:
                return min(to, other)
        raise AssertionError("every path ends in the root")

    def spot(self, key: int, depth: int) -> Hashable:
        """Name the place of `key` at `depth`: equal for two keys if and only if their first `depth` ids are equal.

        Holds until the next insertion or removal. Raises KeyError when there is no such key, ValueError when its path
        is shorter.
        """
        if not 0 <= depth <= self.depth(key):
            raise ValueError(f"the path of {key} has no depth {depth}")
        for run, _ in self._up(key):
            if run.start < depth or run.parent is None:
                return id(run), depth
        raise AssertionError("every path ends in the root")

    def remove(self, key: int) -> None:
        """Forget `key`, and the tokens that only it had. Raises KeyError when there is no such key."""
        run = self._run(key)
        self._located = None
        run.ends.remove(key)
        self._runs[key] = None
        self._n -= 1
        end = max(
            self._depths[run.ends[-1]] if run.ends else run.start,
            run.sides[-1].start if run.sides else run.start,
        )
        self.distinct -= run.end - end
        del run.ids[end - run.start :]
        if run.sides and run.sides[-1].start == end:
            self._absorb(run, max((side for side in run.sides if side.start == end), key=lambda side: len(side.ids)))
        elif not run.ids and run.parent is not None:
            assert isinstance(run.parent.sides, list)
            run.parent.sides = [side for side in run.parent.sides if side is not run] or ()

    def copy(self) -> Trie:
        """Return a trie of its own with the same keys. Costs 4 bytes a token, moved at once, and an object a run."""
        twin = Trie()
        made = {id(self._root): twin._root}
        todo = [self._root]
        while todo:
            run = todo.pop()
            new = made[id(run)]
            new.ids, new.ends = run.ids[:], run.ends[:]
            if run.sides:
                new.sides = [_Run(side.ids, side.start, new) for side in run.sides]
                made.update(zip(map(id, run.sides), new.sides, strict=True))
                todo.extend(run.sides)
        twin._runs = [None if run is None else made[id(run)] for run in self._runs]
        twin._prompts, twin._depths = self._prompts[:], self._depths[:]
        twin._n, twin.distinct = self._n, self.distinct
        return twin

    def pack(self) -> None:
        """Give up the room that arrays have to grow: 4 bytes a token are left. For a rollout that rests.

        It costs a copy, and the next insertion makes room again.
        """
        self._located = None
        todo = [self._root]
        while todo:
            run = todo.pop()
            # A slice has no spare room.
            run.ids, run.ends = run.ids[:], run.ends[:]
            todo.extend(run.sides)
        self._prompts, self._depths = self._prompts[:], self._depths[:]

    @property
    def nbytes(self) -> int:
        """Return the bytes that the trie holds, with the room its arrays have to grow and its own objects."""
        total = sum(map(sys.getsizeof, (self._runs, self._prompts, self._depths)))
        todo = [self._root]
        while todo:
            run = todo.pop()
            total += sys.getsizeof(run) + sys.getsizeof(run.ids) + sys.getsizeof(run.ends) + sys.getsizeof(run.start)
            if run.sides:
                total += sys.getsizeof(run.sides)
                todo.extend(run.sides)
        return total

    def _run(self, key: int) -> _Run:
        run = self._runs[key] if 0 <= key < len(self._runs) else None
        if run is None:
            raise KeyError(key)
        return run

    def _up(self, key: int) -> Iterator[tuple[_Run, int]]:
        """Yield each run on the path of `key` with the depth at which the path leaves it, from the end to the root."""
        run: _Run | None = self._run(key)
        to = self._depths[key]
        while run is not None:
            yield run, to
            to, run = run.start, run.parent

    def _find(self, prompt: IntArray, sampled: IntArray) -> tuple[_Run, int, int]:
        """Follow `prompt` and `sampled`: the last run, the depth reached, how many ids are left over."""
        run, depth = self._root, 0
        if self._located is not None and self._located[0] is prompt:
            # Nothing was stored or forgotten since, and nobody changes an array of ids.
            _, run, depth = self._located
            if depth < len(prompt):
                return run, depth, len(prompt) + len(sampled) - depth
        elif self._stored is not None and (known := self._maybe_known(prompt, *self._stored)) is not None:
            run, depth = known
        for ids, at in ((prompt, depth), (sampled, 0)):
            while True:
                n = lcp(_view(run.ids)[depth - run.start :], ids[at:])
                at, depth = at + n, depth + n
                if at == len(ids):
                    break
                side = run.side(depth, int(ids[at]))
                if side is None:
                    return run, depth, len(prompt) + len(sampled) - depth
                run = side
        return run, depth, 0

    def _maybe_known(
        self, prompt: IntArray, before: weakref.ref[np.ndarray[Any, Any]], address: int, key: int
    ) -> tuple[_Run, int] | None:
        """Say how far a prompt is sure to be stored, without a look at its ids: that run, and the depth.

        Nobody changes an array of ids, so one that lies where the last one did begins with it: a reader lets a long
        prompt grow where it stands.
        """
        memory = _maybe_memory(prompt)
        if memory is None or before() is not memory or address != prompt.ctypes.data or key not in self:
            return None
        depth = min(self._prompts[key], len(prompt))
        run = next(run for run, _ in self._up(key) if run.start < depth or run.parent is None)
        return run, depth

    def _enter(self, key: int, run: _Run, *, n_prompt: int, depth: int) -> None:
        for column, blank in ((self._prompts, 0), (self._depths, 0)):
            column.extend([blank] * (key + 1 - len(column)))
        self._runs.extend([None] * (key + 1 - len(self._runs)))
        self._runs[key], self._prompts[key], self._depths[key] = run, n_prompt, depth
        self._n += 1
        ends = run.ends
        if not ends or (self._depths[ends[-1]], ends[-1]) < (depth, key):
            # Nearly always: a later call that goes on.
            ends.append(key)
        else:
            ends.insert(bisect_left(ends, (depth, key), key=lambda k: (self._depths[k], k)), key)

    def _cut(self, run: _Run, depth: int) -> None:
        """Move what `run` has beyond `depth` into a side of its own."""
        tail = _Run(run.ids[depth - run.start :], depth, run)
        del run.ids[depth - run.start :]
        i = bisect_right(run.ends, depth, key=self._depths.__getitem__)
        tail.ends = run.ends[i:]
        del run.ends[i:]
        for key in tail.ends:
            self._runs[key] = tail
        if run.sides:
            i = bisect_right(run.sides, depth, key=lambda side: side.start)
            tail.sides = run.sides[i:] or ()
            run.sides = run.sides[:i] or ()
            for side in tail.sides:
                side.parent = tail
        run.add_side(tail)

    def _absorb(self, run: _Run, side: _Run) -> None:
        """Let `run`, which ends where `side` starts, go on with it."""
        run.ids.extend(side.ids)
        run.ends.extend(side.ends)
        for key in side.ends:
            self._runs[key] = run
        for below in side.sides:
            below.parent = run
        # Those that start at the same depth stay sides; the absorbed run's own start beyond it.
        run.sides = [other for other in run.sides if other is not side] + list(side.sides) or ()
