"""An engine's places, and who waits for one. No socket, no clock but the loop's.

Rules
1. So many calls are at an engine at once; the others wait, in turn by rollout, and within a rollout in their order. A
   rollout that sends hundreds at once holds up another's one call by one place, not by hundreds.
2. A wait is bounded (`WAIT_S`), and so is the line. Who waited too long, or finds no room, is told to come again. Room
   is shared as places are: where the line is full, the last of the rollout with most in it goes, if that is not the one
   that comes.
3. Who hangs up leaves the line at once. A place that was given to it in that very moment goes to the next.
4. A hold lets nobody in; who is in goes on. The line, and its time, are the same as without it.

A place that is free costs no wait: `enter` takes it without giving the loop a turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import NamedTuple

from capture.errors import EngineError

WAIT_S = 20.0
"""In the line at most: agents' own time limits for a first byte begin at 30 s, and what they do then costs more."""

RETRY_S = 2.0
"""`Retry-After` of who is sent away. Most agents come again soon after a 503, some twice as late as they are told."""

PLACES = 1024
"""Calls at one engine at once, unless set otherwise: engines queue by themselves, up to memory. vLLM runs 256 to 1024
together; more than that waits better here, where it is fair, and where a hold can keep it."""

LONGEST = 4096
"""Calls in one line, unless set otherwise. Each keeps its request in memory."""


FULL = ("engine_busy", "engine_held")
"""Codes of who is sent away."""


class Call(NamedTuple):
    """Who is in, or waits: a rollout and the call's number in it."""

    rollout: str
    n: int


class Line:
    """Who waits, in turn by rollout. Pure."""

    def __init__(self) -> None:
        # The rollout whose turn is next comes first.
        self._waiting: OrderedDict[str, deque[tuple[Call, asyncio.Future[None]]]] = OrderedDict()
        self._n = 0

    def __repr__(self) -> str:
        return f"<Line { ({name: len(line) for name, line in self._waiting.items()}) }>"

    def __len__(self) -> int:
        return self._n

    def of(self, rollout: str) -> int:
        """Return how many of a rollout wait."""
        return len(self._waiting.get(rollout, ()))

    def longest(self) -> str:
        """Return the rollout with most in the line."""
        return max(self._waiting, key=lambda name: len(self._waiting[name]))

    def join(self, call: Call, waiter: asyncio.Future[None]) -> None:
        """Put a call at the end of its rollout's line."""
        self._waiting.setdefault(call.rollout, deque()).append((call, waiter))
        self._n += 1

    def next(self) -> tuple[Call, asyncio.Future[None]]:
        """Take out whose turn it is; its rollout then is the last to have another."""
        name, line = next(iter(self._waiting.items()))
        found = line.popleft()
        self._waiting.move_to_end(name)
        self._left(name)
        return found

    def last_of(self, rollout: str) -> tuple[Call, asyncio.Future[None]]:
        """Take out the last of a rollout."""
        found = self._waiting[rollout].pop()
        self._left(rollout)
        return found

    def leave(self, call: Call, waiter: asyncio.Future[None]) -> None:
        """Take a call out, if it is there."""
        line = self._waiting.get(call.rollout, deque())
        if (call, waiter) in line:
            line.remove((call, waiter))
            self._left(call.rollout)

    def _left(self, rollout: str) -> None:
        self._n -= 1
        if not self._waiting[rollout]:
            del self._waiting[rollout]


class Queue:
    """One engine's places and its line."""

    def __init__(self, name: str, *, places: int = PLACES, longest: int = LONGEST) -> None:
        """`name` is the engine's, for people."""
        self._name = name
        self._places = places
        self._longest = longest
        self._line = Line()
        self._inside: dict[Call, None] = {}
        self._changed = asyncio.Event()
        self.held = False

    def __repr__(self) -> str:
        state = "held, " if self.held else ""
        return f"<Queue {self._name} {state}{len(self._inside)} of {self._places} in, {len(self._line)} waiting>"

    @property
    def inside(self) -> list[Call]:
        """Who is in, in the order in which they came in."""
        return list(self._inside)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    async def enter(self, call: Call, *, wait_s: float = WAIT_S, despite_hold: bool = False) -> bool:
        """Take a place, within a time; say if there was a wait. Each `enter` is followed by one `leave`.

        `despite_hold` is for one that arrived before the hold, and that whoever holds waits for.

        Raises `EngineError` (503, with a time to come again): `engine_busy`, or `engine_held` under a hold.
        """
        is_free = despite_hold if self.held else not self._line
        if is_free and len(self._inside) < self._places:
            self._inside[call] = None
            return False
        self._make_room(call)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.join(call, waiter)
        try:
            async with asyncio.timeout(wait_s):
                await waiter
        except TimeoutError:
            if not _given(waiter):
                self._line.leave(call, waiter)
                raise self._busy(f"no place became free within {wait_s:g} s") from None
        except BaseException:  # one that leaves the line, cancelled or not, gives its place to the next
            if _given(waiter):
                self.leave(call)
            self._line.leave(call, waiter)
            raise
        return True

    def leave(self, call: Call) -> None:
        """Give a place back."""
        self._inside.pop(call, None)
        self._let_in()
        if not self._inside:
            self._changed.set()

    def hold(self) -> None:
        """Let nobody in."""
        self.held = True

    def release(self) -> None:
        """Let in again, as many as there are places for."""
        self.held = False
        self._let_in()

    async def empty(self, wait_s: float) -> bool:
        """Wait until nobody is in; False when the time is over."""
        try:
            async with asyncio.timeout(wait_s):
                while self._inside:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return not self._inside
        return True

    def _let_in(self) -> None:
        while self._line and not self.held and len(self._inside) < self._places:
            call, waiter = self._line.next()
            if not waiter.done():
                # In from now on, although it learns of it only when the loop comes round.
                self._inside[call] = None
                waiter.set_result(None)

    def _make_room(self, call: Call) -> None:
        if len(self._line) < self._longest:
            return
        longest = self._line.longest() if self._line else call.rollout
        if self._line.of(longest) <= self._line.of(call.rollout) + 1:
            raise self._busy(f"{len(self._line)} calls wait for it already")
        _, waiter = self._line.last_of(longest)
        if not waiter.done():
            waiter.set_exception(self._busy("others wait for it that have had less of it"))

    def _busy(self, why: str) -> EngineError:
        return EngineError(
            "engine_held" if self.held else "engine_busy",
            f"The engine {'takes no calls at present' if self.held else 'is busy'}: {why}.",
            hint="Try again.",
            status=503,
            retry_after_s=RETRY_S,
        )


def _given(waiter: asyncio.Future[None]) -> bool:
    """Say whether a place was given to a waiter."""
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None
