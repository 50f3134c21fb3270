"""Prompts put together from what is stored of them. Pure.

A prompt is stored as the first `shared` ids of another call's prompt and sampled ids, then a tail; that call's prompt
may be stored likewise. A wanted prompt is filled from its end: its own tail, then, walking up, what each holder adds
below the mark that is still open, until a holder is stored whole or was put together in the same pass. So each prompt
costs its length and the holders above the nearest one known, in whatever order they come, and no holder outside the
page is ever put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np

from capture.store import rows
from graph.records import IntArray

Column = Literal["sampled", "tail"]
Piece = tuple[int, Column]
"""Some of a call's ids: of its prompt's tail, or those that it sampled."""


class Stored(NamedTuple):
    """The columns by which a prompt is put together."""

    holder: int | None
    shared: int | None
    n_prompt: int | None
    n_sampled: int | None
    check: int | None


class _Step(NamedTuple):
    """`start` to `until` of a prompt come from a piece, or, where `piece` is None, from call `n`'s whole prompt."""

    n: int
    piece: Piece | None
    start: int
    until: int


def _steps(stored: Mapping[int, Stored], n: int, known: Callable[[int], bool]) -> Iterator[_Step | None]:
    """Yield what a prompt is made of, from its end; None, and no more, where that isn't there."""
    at: int | None = n
    until = stored[n].n_prompt or 0
    seen: set[int] = set()
    while until > 0:
        call = None if at is None else stored.get(at)
        if at is None or call is None or call.n_prompt is None or at in seen:
            yield None
            return
        seen.add(at)
        if until > call.n_prompt:
            # What of the holder's sampled ids lies below the mark.
            yield _Step(at, (at, "sampled"), call.n_prompt, until)
            until = call.n_prompt
        if known(at):
            yield _Step(at, None, 0, until)
            return
        shared = call.shared or 0
        if until > shared:
            yield _Step(at, (at, "tail"), shared, until)
            until = shared
        at = call.holder


def needed(stored: Mapping[int, Stored], wanted: Iterable[int], *, alone: bool = False) -> set[Piece]:
    """Return the pieces that prompts are made of, for one who fetches them together; `wanted` in the order of `of`.

    With `alone` none of them counts on another.
    """
    out: set[Piece] = set()
    whole: set[int] = set()
    for n in wanted:
        if stored[n].n_prompt is None:
            continue
        steps = list(_steps(stored, n, whole.__contains__))
        out.update(step.piece for step in steps if step is not None and step.piece is not None)
        if None not in steps and not alone:
            whole.add(n)
    return out


class Prompts:
    """Puts the prompts of one rollout together, in one pass."""

    def __init__(self, stored: Mapping[int, Stored], fetch: Callable[[Piece], bytes | None]) -> None:
        """`fetch` returns a piece's bytes, None where there are none."""
        self._stored = stored
        self._fetch = fetch
        self._whole: dict[int, IntArray] = {}
        self.broken: list[int] = []

    def of(self, n: int) -> IntArray | None:
        """Return a call's whole prompt; None where none is stored, or where it is broken."""
        stored = self._stored[n]
        if stored.n_prompt is None:
            return None
        prompt = np.empty(stored.n_prompt, dtype=np.int32)
        if not self._fill(prompt, n) or rows.check(prompt.astype("<i4", copy=False).tobytes()) != stored.check:
            self.broken.append(n)
            return None
        prompt.flags.writeable = False
        self._whole[n] = prompt
        return prompt

    def _fill(self, prompt: IntArray, n: int) -> bool:
        """Fill `prompt` with the prompt of call `n`; False when what it is made of isn't there."""
        for step in _steps(self._stored, n, self._whole.__contains__):
            if step is None:
                return False
            if step.piece is None:
                prompt[: step.until] = self._whole[step.n][: step.until]
                continue
            ids = rows.read_ints(self._fetch(step.piece))
            if ids is None or len(ids) < step.until - step.start:
                return False
            prompt[step.start : step.until] = ids[: step.until - step.start]
        return True
