"""Who waits for news on the control plane: a rollout's close, its rest.

A trainer always waits for something. At a stop it is told at once that nothing came (it asks again, of whoever comes
next); else each stop would take the whole of `shutdown_timeout`, which is there for streams to end in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class News:
    """The waits that go on now."""

    def __init__(self) -> None:
        self._over = False
        self._waits: set[asyncio.Timeout] = set()

    def __repr__(self) -> str:
        return f"<News {len(self._waits)} wait{', over' if self._over else ''}>"

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Wait in a block. Raises `TimeoutError` out of it when the server begins to stop."""
        async with asyncio.timeout(0 if self._over else None) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)

    def end(self) -> None:
        """Let nobody wait any more."""
        self._over = True
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())
