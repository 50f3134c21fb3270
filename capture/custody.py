"""What this process has in hand for the store: never more than so much, and never waited for without end.

Rules
1. A request counts from its arrival until the store has its record, wherever that waits. Where all that is in hand
   comes to more than `HELD_BYTES`, new calls get 503 and a time to come again; what runs goes on.
2. A record is waited for `FINISH_S` at most. A store that takes longer counts as one that failed: what the agent gets
   then is the operator's choice, and the rollout is incomplete. What was handed over stays in the store's own queue,
   and counts, until the store says that it has nothing left.
3. What a running stream has brought is handed over only to a store that keeps up: each time it is all of it anew, and
   a store that hangs would be handed the same ids every second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from capture.errors import CaptureError, StoreError
from capture.patience import Patience
from capture.store.base import Record, Spool, Store
from capture.tasks import spawn

HELD_BYTES = 2**30
"""Bytes of requests in hand at once. A request of 600,000 tokens has some 3 MB, so this is several hundred of them."""

FINISH_S = 30.0
"""For a record to be committed: SQLite's longest wait for a lock is 5 s, and a commit is milliseconds."""

READY_S = 5.0
"""For a store that failed to show that it is back, while a new call waits."""

BEHIND_S = 2.0
"""After which a store that hasn't taken what it was handed counts as behind."""

RETRY_S = 2.0
"""`Retry-After` of a call for which there is no room."""


class Custody:
    """The way to the store, for calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Bytes of requests whose record the store doesn't have yet.
        self.held = 0
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0

    def __repr__(self) -> str:
        return f"<Custody {self.held} bytes{', behind' if self.is_behind() else ''}>"

    def admit(self) -> None:
        """Raise `CaptureError` 503 `busy` where too much is in hand for a new call."""
        if self.held > HELD_BYTES:
            raise CaptureError(
                "busy",
                "Treering has more in hand than its store takes at present.",
                hint="Try again.",
                status=503,
                retry_after_s=RETRY_S,
            )

    def take(self, size: int) -> None:
        """Count a request that has arrived."""
        self.held += size

    def give(self, size: int) -> None:
        """Count it no more: the store has it, or nobody wants it."""
        self.held -= size

    async def finish(self, rollout: str, records: Sequence[Record], *, size: int) -> None:
        """Store an ended call, whose request has so many bytes. Raises `StoreError`, also where that takes too long."""
        try:
            with Patience(FINISH_S):
                await self._store.finish(rollout, records)
        except TimeoutError:
            spawn(self._until_taken(size), name=f"wait for what the store was handed of {rollout}")
            raise StoreError("store_failed", f"{self._store.where} did not take a record in {FINISH_S:g} s.") from None
        except BaseException:  # cancelled or not, it is counted no more
            self.give(size)
            raise
        self.give(size)

    def spool(self, rollout: str, n: int, spool: Spool) -> None:
        """Keep what a running stream has brought so far, if the store keeps up."""
        if self.is_behind():
            return
        self._store.spool(rollout, n, spool)
        if self._asking is None or self._asking.done():
            self._asked_at = asyncio.get_running_loop().time()
            self._asking = spawn(self._ask(), name="ask the store whether it keeps up")

    def is_behind(self) -> bool:
        """Say whether the store hasn't taken what it was handed some time ago."""
        if self._asking is None or self._asking.done():
            return False
        return asyncio.get_running_loop().time() - self._asked_at > BEHIND_S

    async def _ask(self) -> None:
        try:
            await self._store.flush()
        except StoreError:
            # Said elsewhere.
            return

    async def _until_taken(self, size: int) -> None:
        await self._ask()
        self.give(size)
