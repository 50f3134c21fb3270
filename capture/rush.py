"""The way of a stream's ordinary tokens from the engine's connection to the agent's, a chunk at a time.

Rules
1. A token is recorded (by the reader's lane), kept in the transcript and written, in this order and in one step.
2. What can't go this way, because it is no ordinary token or the agent's connection does not take it now, is refused,
   and nothing has changed: who relays (`passage`) takes it.

Where `capture.engines._lane` was built its `Rush` does the same; this is its judge, and serves where it is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from capture.dialects.express import Lane
from capture.engines import stamp
from capture.outlet import Outlet
from capture.transcripts import Transcript


class Rush(Protocol):
    """One stream's."""

    # That of the reader at present.
    lane: Lane | None
    # When something was last taken, and from when on `attend` is to be called with the next, on the monotonic clock.
    since: float
    due: float

    def take(self, chunk: bytes, /) -> bool:
        """Record a chunk and pass it on; False, and nothing has changed, if it is not for this way."""

    def settle(self) -> None:
        """Have the transcript count what it was given without a word."""


class PlainRush:
    """One stream's, in Python."""

    def __init__(
        self, outlet: Outlet, said: Transcript, attend: Callable[[float], float], failed: Callable[[Exception], None]
    ) -> None:
        self.lane: Lane | None = None
        self.since = self.due = 0.0
        self._outlet = outlet
        self._said = said
        self._attend = attend
        self._failed = failed

    def __repr__(self) -> str:
        return f"<PlainRush by {self.lane!r}>"

    def take(self, chunk: bytes, /) -> bool:
        """Do what `Rush.take` says."""
        lane = self.lane
        if lane is None or not self._outlet.is_open():
            return False
        try:
            told = lane.chunk(chunk)
        except Exception as error:  # noqa: BLE001 - recording never decides forwarding
            self._failed(error)
            return False
        if told is None:
            return False
        self.since = now = time.monotonic()
        if now > self.due:
            self.due = self._attend(now)
        shown, whole = told
        if shown:
            self._said.add(shown)
            self._outlet.send(whole)
        return True

    def settle(self) -> None:
        """Do nothing: each piece was counted when it was kept."""


def make(
    outlet: Outlet, said: Transcript, *, attend: Callable[[float], float], failed: Callable[[Exception], None]
) -> Rush:
    """Return the way of one stream.

    `attend` is called once in a while, with the time, and returns when it is due again; `failed` hears of a fault in
    recording.
    """
    if stamp.compiled is None:
        return PlainRush(outlet, said, attend, failed)
    made: Rush = stamp.compiled.Rush(
        outlet.send, outlet.is_closing, outlet.protocol, said, said.pieces, time.monotonic, attend, failed
    )
    return made
