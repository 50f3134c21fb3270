"""What is old, or more than there is room for: moved to an archive, if there is one, then dropped.

Rules.
1. Off unless a limit is set. Only closed rollouts go, in the order in which they closed; one that is open is never
   touched, however old it is and however little room there is.
2. Where an archive is named, a rollout goes only when the archive has it, committed and synced. An archive is a store
   like any other, a file a month of closing (`rollouts-2026-11.db`): every verb reads it, `treering doctor --store`
   judges it, and it is moved or deleted as a file.
3. The file shrinks: freed pages are given back, a few at a time, so that no commit of a call waits behind it.

Age is counted from the close, by the clock. Size is what the store's rows and indexes take, without free pages; a
PostgreSQL database says so only after a VACUUM, and is kept by age alone.

Theory of interruption. Between the archive's commit and the drop the rollout is in both; the next sweep finds it there,
puts it there anew, and drops it. Several processes over one database may sweep at once: an archive is written by one
process at a time (its lock), the others come round again; and a rollout that somebody else dropped meanwhile is left as
the archive had it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, Protocol, runtime_checkable

import msgspec

from capture import clock
from capture.errors import StoreError
from capture.store.base import Delta, Entry, Query, Record, Store
from capture.store.sqlite import SqliteStore
from graph.records import Call
from graph.tokens import Trie

_log = logging.getLogger("treering.store")

SWEEP_EVERY_S = 600.0
"""Between two sweeps: a limit of days or GiB is not met to the minute."""

PAGE = 50
"""Rollouts that are looked at together."""

PAGE_CALLS = 32
"""Calls that are moved together: of the longest known, some 80 MB."""

GIB = 2**30

Drop = Callable[[str], Awaitable[object]]


@runtime_checkable
class Sized(Protocol):
    """A store that knows what it takes, and can give room back."""

    async def size(self) -> int:
        """Return the bytes that its rows and indexes take."""

    async def shrink(self) -> None:
        """Give free room back to the disk."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept; without limits everything is."""

    keep_days: float | None = None
    keep_gib: float | None = None
    # Where what is dropped goes first; None: nowhere.
    archive: Path | None = None

    @property
    def on(self) -> bool:
        return self.keep_days is not None or self.keep_gib is not None


async def sweep(store: Store, policy: Policy, *, drop: Drop, now: Callable[[], str] = clock.now) -> list[str]:
    """Move and drop all that is due; return the ids, in order.

    `drop` deletes a rollout from the store. Raises `StoreError` when the store or the archive can't be used.
    """
    dropped: list[str] = []
    async for entry in _due(store, policy, now()):
        if policy.archive is not None:
            await archive(store, entry, policy.archive)
        await drop(entry.rollout.id)
        dropped.append(entry.rollout.id)
    if dropped:
        _log.info("%d rollouts were dropped%s", len(dropped), f", kept in {policy.archive}" if policy.archive else "")
        if isinstance(store, Sized):
            await store.shrink()
    return dropped


async def watch(store: Store, policy: Policy, *, drop: Drop) -> NoReturn:
    """Sweep, for ever."""
    while True:
        await asyncio.sleep(SWEEP_EVERY_S)
        try:
            await sweep(store, policy, drop=drop)
        except StoreError as error:
            # What is due stays due.
            _log.warning("nothing could be dropped: %s", error.message)


async def _due(store: Store, policy: Policy, now: str) -> AsyncIterator[Entry]:
    """Yield what is to go, the one that closed first first; the size is looked at again for each."""
    oldest = None
    if policy.keep_days is not None:
        oldest = clock.text(clock.parse(now) - timedelta(days=policy.keep_days))
    after: str | None = None
    while True:
        page = await store.page(Query(state="closed", order="closed", after=after, limit=PAGE))
        for entry in page.entries:
            closed = entry.rollout.closed_at or now
            if not (oldest is not None and closed < oldest) and not await _too_large(store, policy):
                return
            yield entry
        after = page.next
        if len(page.entries) < PAGE:
            return


async def _too_large(store: Store, policy: Policy) -> bool:
    return policy.keep_gib is not None and isinstance(store, Sized) and await store.size() > policy.keep_gib * GIB


async def archive(store: Store, entry: Entry, folder: Path) -> Path:
    """Put a closed rollout into the archive of its month, whole; return that file. Raises `StoreError`."""
    name = entry.rollout.id
    month = (entry.rollout.closed_at or entry.rollout.created_at)[:7]
    try:
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        hint = "name another with --archive: nothing is dropped meanwhile"
        raise StoreError("store_failed", f"{folder} can't be made: {error.strerror}", hint=hint) from error
    path = folder / f"rollouts-{month}.db"
    kept = SqliteStore(path, durability="power")
    await kept.open()
    try:
        await _copy(store, entry, kept)
        if await store.get(name) is None:
            # Dropped by somebody else while it was read: what was read may be a part of it.
            await kept.delete(name)
    finally:
        await kept.close()
    return path


async def _copy(store: Store, entry: Entry, kept: Store) -> None:
    """Write a rollout into another store as it is in this one: records, what passed, notices, state."""
    name = entry.rollout.id
    await kept.delete(name)
    # Open until the end: what its tool servers kept can't be set when it is closed.
    opened = msgspec.structs.replace(entry.rollout, state="open", closed_at=None)
    await kept.add([msgspec.structs.replace(entry, rollout=opened)])
    trie, after = Trie(), -1
    while calls := await store.calls(name, after=after, limit=PAGE_CALLS):
        for call in calls:
            exchange = await store.exchange(name, call.n)
            if exchange is None:
                raise StoreError("store_failed", f"call {call.n} of {name} has no exchange", hint="see doctor --store")
            await kept.finish(name, [Record(call=call, exchange=exchange, delta=_delta(trie, call))])
        after = calls[-1].n
    for notice in await store.notices(name):
        kept.notice(name, notice)
    if (state := await store.state(name)) is not None and state.changed_at is not None:
        await kept.set_state(name, state.body, at=state.changed_at)
    await kept.change(name, {"state": "closed", "closed_at": entry.rollout.closed_at})
    await kept.flush()


def _delta(trie: Trie, call: Call) -> Delta | None:
    """Return how a prompt leans on the calls before it, and take the call in."""
    if call.prompt_ids is None:
        return None
    found = trie.locate(call.prompt_ids)
    if call.sampled_ids is not None:
        trie.insert(call.n, call.prompt_ids, call.sampled_ids)
    return None if found.holder is None else Delta(holder=found.holder, shared=found.shared)
