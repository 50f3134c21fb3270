"""Silence in a stream, and the comment that breaks it, so that no tunnel or client cuts a long prefill.

Rule: a comment goes out at an event border, never within an event and never behind the reply's end. Whoever relays says
when that is (`breakable`): while it waits for the engine. It is looked at in the very step that writes.

One timer a stream, set anew only when it goes off: a time limit on each read would cost 4 us an event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from capture.tasks import spawn

SILENCE_S = 5.0
"""Of a stream, after which a comment goes out: below the shortest idle limit seen on the way (tunnels: 10 s)."""

KEEP_ALIVE = b": keep-alive\n\n"


class Silence:
    """Watches over one stream while it is relayed."""

    def __init__(
        self, response: web.StreamResponse | None, *, name: str, heard: Callable[[], float] | None = None
    ) -> None:
        """Without a response there is nobody to say it to; `heard` says of more when it went out, as `since` does."""
        self._response = response
        self._name = name
        self._heard = heard
        # Whether a comment may go out now.
        self.breakable = False
        # When something last went out, on the monotonic clock.
        self.since = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._breaking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Silence for {time.monotonic() - self.since:.1f} s, {'' if self.breakable else 'not '}breakable>"

    def __enter__(self) -> Self:
        self._watch(SILENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.breakable = False
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        since = self.since if self._heard is None else max(self.since, self._heard())
        left = since + SILENCE_S - time.monotonic()
        # A loop's clock may be coarser than ours.
        if left < 0.001:
            # One at a time: a client that takes nothing is not helped by more.
            if self.breakable and (self._breaking is None or self._breaking.done()):
                self._breaking = spawn(self._break(), name=self._name)
            left = SILENCE_S
        self._watch(left)

    async def _break(self) -> None:
        # The engine may have spoken since the timer went off.
        if not self.breakable or self._response is None:
            return
        self.since = time.monotonic()
        try:
            # Written before it first waits, so nothing comes between the look and the write.
            await self._response.write(KEEP_ALIVE)
        except ConnectionError:
            # The client has gone; its handler is told so by the server.
            return
