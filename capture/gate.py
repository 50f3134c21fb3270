"""The data plane's gate: which rollout a request belongs to, and what requests that belong to none may cost.

Rule 1: a right key is never refused, whoever else fails at the same address: the key is looked up first, always.
Rule 2: a key that was refused is refused for ever: secrets are made here, at random, and one that is unknown, closed or
expired never opens anything again. So the last refused ones are remembered by their digest, and an agent that goes on
with an old key costs no look-up in the store.
Rule 3: look-ups for an address that has used up its allowance (`capture.throttle`) stand in a line of their own, a few
at a time, so that whoever invents keys doesn't stand in the way of anyone else's look-up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from capture import keys
from capture.errors import ClientError
from capture.live import Live
from capture.rollouts import Owner, Rollouts, unknown_key
from capture.throttle import Throttle

REFUSED = 8_192
"""Digests of refused keys remembered, about 1 MB."""

LINE = 2
"""Look-ups at once for addresses without allowance; the store has a few readers, and each takes some 100 us."""

_log = logging.getLogger("treering")


class Gate:
    """Lets requests in to their rollouts."""

    def __init__(self, rollouts: Rollouts, *, now: Callable[[], float] = time.monotonic) -> None:
        self._rollouts = rollouts
        self._now = now
        self._throttle = Throttle()
        self._refused: OrderedDict[bytes, None] = OrderedDict()
        self._line = asyncio.Semaphore(LINE)

    def __repr__(self) -> str:
        return f"<Gate {len(self._refused)} refused, {self._throttle!r}>"

    async def admit(self, secret: str | None, address: str | None, *, whose: Owner = "agent") -> Live:
        """Return the rollout that a secret of this owner opens, shown from an address.

        Raises `ClientError`: 401 `invalid_api_key` (with a time after which to try again, where the address has shown
        too many wrong ones), 403 `tools_secret` or `agent_secret` for the other owner's.
        """
        digest = keys.digest(secret) if secret else None
        try:
            if digest is not None and digest in self._refused:
                self._refused.move_to_end(digest)
                raise unknown_key()
            if digest is None or self._rollouts.knows(digest) or not self._throttle.is_spent(address, self._now()):
                return await self._rollouts.admit(secret, whose)
            async with self._line:
                return await self._rollouts.admit(secret, whose)
        except ClientError as error:
            if error.status == 401:
                self._failed(digest, address, error)
            raise

    def _failed(self, digest: bytes | None, address: str | None, error: ClientError) -> None:
        now = self._now()
        if digest is not None:
            self._rollouts.stranger()
            self._refused[digest] = None
            if len(self._refused) > REFUSED:
                self._refused.popitem(last=False)
        error.retry_after_s = self._throttle.failed(address, now)
        if error.retry_after_s is not None and (failures := self._throttle.to_note(address, now)):
            _log.warning("%d requests from %s showed no key that opens anything", failures, address or "a local socket")
