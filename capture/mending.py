"""While the store is down: what is tried until it is back.

Rule 1: a store that failed is asked again by whoever wants to know (a new call, `/ready`), and without being asked
every `MEND_EVERY_S`: a balancer that sends no calls to a process that isn't ready would wait for ever.
Rule 2: a file that was moved or removed under us is a store that failed: SQLite would go on writing into it, and all of
that would be gone with the process. So it is looked for, as often.
Rule 3: it counts as back when it takes a page, and when the marks of the calls that were lost are in it: those come
first, so that nothing is recorded in a rollout that doesn't say yet that something is missing.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn, Protocol, runtime_checkable

from capture.errors import StoreError
from capture.rollouts import Rollouts
from capture.store.base import Store

MEND_EVERY_S = 2.0
"""Between two tries. One is a small write and its removal."""

MEND_S = 5.0
"""For one try, and for the read that shows that the store can be read: longer than SQLite waits for a lock."""


@runtime_checkable
class Looking(Protocol):
    """A store that can look whether what it writes into is still where it was."""

    def look(self) -> None:
        """Look; `failure` says what was seen. A few system calls."""


async def mend(store: Store, rollouts: Rollouts) -> str | None:
    """Try whether the store takes writes again, and pay what it is owed; return why not, None if all is well."""
    if store.failure is None and not rollouts.owed:
        return None
    try:
        async with asyncio.timeout(MEND_S):
            await store.flush()
            await rollouts.tell_lost()
    except StoreError as error:
        return error.message
    except TimeoutError:
        return f"{store.where} took no write in {MEND_S:g} s"
    return None


async def usable(store: Store, rollouts: Rollouts) -> str | None:
    """Return why the store can't be used at present, None if it can: written, read, and nothing owed to it."""
    if isinstance(store, Looking):
        store.look()
    if (reason := await mend(store, rollouts)) is not None:
        return reason
    try:
        async with asyncio.timeout(MEND_S):
            # Any read will do; this one finds nothing.
            await store.get("")
    except StoreError as error:
        return error.message
    except TimeoutError:
        return f"{store.where} gave no answer in {MEND_S:g} s"
    return None


async def watch(store: Store, rollouts: Rollouts) -> NoReturn:
    """Mend, for ever."""
    while True:
        await asyncio.sleep(MEND_EVERY_S)
        if isinstance(store, Looking):
            store.look()
        await mend(store, rollouts)
