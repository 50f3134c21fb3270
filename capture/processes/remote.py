"""The store of a worker: everything is asked of the supervisor, which has the file (`desk` is its end).

Every `Store` method is here, and means what it means there: `finish` returns after the commit, so a reply's end is
released after it, in whichever process the agent's socket is. What is not awaited is told and not asked; of that a
start and a spool may be left out when the supervisor does not keep up, for the record at the end holds both.

The supervisor is the worker's parent and the channel their bond: a worker whose supervisor is gone ends itself, so
there is nothing to connect to again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from capture.errors import CaptureError, StoreError
from capture.processes import exchanges, records
from capture.processes.channel import Channel, GoneError, unpack
from capture.processes.exchanges import PackedExchange
from capture.processes.records import PackedCall, PackedEntry
from capture.store.base import (
    Arrival,
    EngineState,
    Entry,
    Event,
    Exchange,
    Page,
    Parts,
    Query,
    Record,
    Spent,
    Spool,
    Start,
    State,
    Telling,
)
from capture.store.canonical import Canonical
from capture.store.summary import Look, Overview, Sheet, Summary
from graph.records import Call, Notice, Stop

_canonical = Canonical(kept_bytes=0)


class PackedArrival(msgspec.Struct, array_like=True, frozen=True):
    """An `Arrival`."""

    n: int
    arrived: int
    entry: PackedEntry
    spent: Spent
    engines: dict[str, EngineState]


class PackedPage(msgspec.Struct, array_like=True, frozen=True):
    """A `Page`."""

    entries: list[PackedEntry]
    next: str | None


class RemoteStore:
    """A `Store` at the other end of a channel."""

    def __init__(self, channel: Channel, *, where: str) -> None:
        """`where` is the store's own address, for people."""
        self._channel = channel
        self._where = where
        # Why the supervisor can't write at present, as it told last.
        self.told: str | None = None

    def __repr__(self) -> str:
        return f"<RemoteStore {self._where} by {self._channel!r}>"

    @property
    def failure(self) -> str | None:
        """Why the store can't be written at present (a sentence), or None."""
        return self.told if self._channel.open else "the process that writes the store is gone"

    @property
    def recovered(self) -> tuple[tuple[str, int], ...]:
        """Nothing: the supervisor recovers."""
        return ()

    @property
    def where(self) -> str:
        """The store's address, for people."""
        return self._where

    @property
    def identity(self) -> str | None:
        """None: the supervisor answers for the store."""
        return None

    @property
    def shared(self) -> bool:
        """Whether other processes may write the same rollouts: they do."""
        return True

    async def open(self) -> None:
        """Do nothing: the supervisor has it open."""

    async def close(self) -> None:
        """Return when all that was handed over is committed; the store stays open. Raises `StoreError`."""
        await self.flush()

    async def add(self, entries: Sequence[Entry], *, key: str | None = None, answer: bytes | None = None) -> None:
        """Add rollouts, all or none; see `Store`."""
        await self._ask("add", ([records.pack_entry(each) for each in entries], key, answer))

    async def answered(self, key: str, body: str) -> bytes | None:
        """Return the answer kept under an Idempotency-Key, None for a new key; see `Store`."""
        return unpack(await self._ask("answered", (key, body)), bytes | None)  # type: ignore[arg-type]  # msgspec takes unions

    async def get(self, rollout: str) -> Entry | None:
        """Return a rollout's entry, None if there is none such."""
        return _entry(await self._ask("get", rollout))

    async def by_secret(self, digest: bytes) -> tuple[Entry, Literal["agent", "tools"]] | None:
        """Return the rollout with a secret of that SHA-256, and whose secret it is."""
        found: tuple[PackedEntry, Literal["agent", "tools"]] | None = msgspec.msgpack.decode(
            await self._ask("by_secret", digest), type=tuple[PackedEntry, Literal["agent", "tools"]] | None
        )
        return None if found is None else (records.entry(found[0]), found[1])

    async def page(self, query: Query) -> Page:
        """Return a page of rollouts. Raises `ClientError` `bad_cursor` (400)."""
        found = unpack(await self._ask("page", query), PackedPage)
        return Page(entries=tuple(records.entry(each) for each in found.entries), next=found.next)

    async def change(self, rollout: str, changes: Mapping[str, Any]) -> Entry | None:
        """Set fields of the stored `Rollout`; return the entry as changed, None if there is none such."""
        return _entry(await self._ask("change", (rollout, records.pack_changes(changes))))

    async def delete(self, rollout: str) -> bool:
        """Remove a rollout; False if there is none such."""
        return unpack(await self._ask("delete", rollout), bool)

    async def arrive(self, rollout: str, *, choices: int, started_at: str) -> Arrival | None:
        """Give a call its number and its place in time; None when the rollout is gone, sealed or closed."""
        found: PackedArrival | None = msgspec.msgpack.decode(
            await self._ask("arrive", (rollout, choices, started_at)), type=PackedArrival | None
        )
        if found is None:
            return None
        entry = records.entry(found.entry)
        return Arrival(n=found.n, arrived=found.arrived, entry=entry, spent=found.spent, engines=found.engines)

    async def seal(self, rollout: str, *, cut: bool = False) -> None:
        """Let no more calls arrive; with `cut` what still runs is to be cut."""
        await self._ask("seal", (rollout, cut))

    async def sealed(self) -> dict[str, bool]:
        """Return the rollouts that are sealed and not closed yet, and whether what runs of them is to be cut."""
        return unpack(await self._ask("sealed"), dict[str, bool])

    async def running(self, rollout: str | None = None, *, engine: str | None = None) -> list[tuple[str, int]]:
        """Return (rollout, n) of the calls that run, in any process, in order."""
        return unpack(await self._ask("running", (rollout, engine)), list[tuple[str, int]])

    async def abort(self, calls: Sequence[tuple[str, int]]) -> None:
        """End calls whose process can't any more."""
        await self._ask("abort", list(calls))

    async def stop(self, rollout: str, n: int, limit: str) -> Stop:
        """Count a call that met a limit."""
        return unpack(await self._ask("stop", (rollout, n, limit)), Stop)

    async def engines(self) -> dict[str, EngineState]:
        """Return what the operator said of each engine, by name."""
        return unpack(await self._ask("engines"), dict[str, EngineState])

    async def set_engine(self, name: str, *, held: bool | None = None, version: str | None = None) -> None:
        """Note a hold, or the version of an engine's weights."""
        await self._ask("set_engine", (name, held, version))

    def begin(self, rollout: str, call: Call, request: bytes, *, parts: Parts | None = None) -> None:
        """Note that a call runs."""
        passed = Exchange(request=request, parts=parts)
        packed = (rollout, records.pack_call(call, passed), exchanges.pack_exchange(passed))
        self._tell("begin", packed, may_drop=True)

    def begin_later(self, rollout: str, n: int, made: Callable[[], Start]) -> None:  # noqa: ARG002 - see `Store`
        """Note that a call runs, of which `made` tells."""
        start = made()
        self.begin(rollout, start.call, start.request, parts=start.parts)

    def spool(self, rollout: str, n: int, spool: Spool) -> None:
        """Keep what a running stream has brought so far."""
        self._tell("spool", (rollout, n, records.pack_spool(spool)), may_drop=True)

    async def finish(self, rollout: str, given: Sequence[Record]) -> None:
        """Store an ended call, all choices at once, and return when it is committed."""
        await self._ask("finish", (rollout, *records.pack_records(given)))

    def deliver(self, rollout: str, numbers: Sequence[int], *, delivered: bool, at: str) -> None:
        """Mark whether a reply reached its client."""
        self._tell("deliver", (rollout, list(numbers), delivered, at))

    def notice(self, rollout: str, notice: Notice) -> None:
        """Keep a notice."""
        self._tell("notice", (rollout, records.pack_notice(notice)))

    async def calls(self, rollout: str, *, after: int = -1, limit: int | None = None) -> list[Call]:
        """Return calls in order of `n`, prompts whole."""
        body = await self._ask("calls", (rollout, after, limit))
        said, found = msgspec.msgpack.decode(body, type=tuple[bytes, list[PackedCall]])
        return await asyncio.to_thread(records.calls, said, found) if found else []

    async def exchange(self, rollout: str, n: int) -> Exchange | None:
        """Return what passed in a call, None if there is none such."""
        found: PackedExchange | None = msgspec.msgpack.decode(
            await self._ask("exchange", (rollout, n)), type=PackedExchange | None
        )
        return None if found is None else exchanges.exchange(found, _canonical)

    async def notices(self, rollout: str) -> list[Notice]:
        """Return a rollout's notices in the order in which they came."""
        found = unpack(await self._ask("notices", rollout), list[str])
        return [records.notice(each) for each in found]

    async def state(self, rollout: str) -> State | None:
        """Return the state of a rollout's tool servers; None if there is no such rollout."""
        found: State | None = msgspec.msgpack.decode(await self._ask("state", rollout), type=State | None)
        return found

    async def set_state(
        self, rollout: str, body: bytes, *, at: str, owner: bytes | None = None, expected: frozenset[int] | None = None
    ) -> State | None:
        """Set that state, if it is as expected, and return it as it now is; see `Store`."""
        asked = (rollout, body, at, owner, None if expected is None else sorted(expected))
        found: State | None = msgspec.msgpack.decode(await self._ask("set_state", asked), type=State | None)
        return found

    async def summarise(self, made: Sequence[tuple[Entry, Summary]]) -> None:
        """Keep summaries of rollouts; see `Store`."""
        await self._ask("summarise", [(records.pack_entry(entry), summary) for entry, summary in made])

    async def sheet(self, look: Look) -> Sheet:
        """Return a page of rollouts by their summaries. Raises `ClientError` `bad_cursor` (400)."""
        return unpack(await self._ask("sheet", look), Sheet)

    async def overview(self, look: Look) -> Overview:
        """Return sums over the rollouts that are looked for."""
        return unpack(await self._ask("overview", look), Overview)

    async def events(self, after: str, *, rollout: str | None = None, limit: int = 500) -> list[Event]:
        """Return the committed events behind one; see `Store`."""
        return unpack(await self._ask("events", (after, rollout, limit)), list[Event])

    async def newest_event(self) -> str:
        """Return the id of the newest event."""
        return unpack(await self._ask("newest_event"), str)

    async def tell(self, told: Sequence[Telling]) -> None:
        """Add events; see `Store`."""
        await self._ask("tell", list(told))

    async def drop_events(self, before: str) -> bool:
        """Drop some of the events from before a time; False when none is left to drop."""
        return unpack(await self._ask("drop_events", before), bool)

    async def flush(self) -> None:
        """Return when all that was handed over is committed. Raises `StoreError` while the store can't be written."""
        await self._ask("flush")

    async def _ask(self, word: str, body: Any = None) -> msgspec.Raw:
        try:
            return await self._channel.ask(word, body)
        except GoneError as error:
            raise StoreError("store_failed", error.message) from error
        except CaptureError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError("store_failed", error.message) from error

    def _tell(self, word: str, body: Any, *, may_drop: bool = False) -> None:
        try:
            self._channel.tell(word, body, may_drop=may_drop)
        except GoneError as error:
            raise StoreError("store_failed", error.message) from error


def _entry(body: msgspec.Raw) -> Entry | None:
    found: PackedEntry | None = msgspec.msgpack.decode(body, type=PackedEntry | None)
    return None if found is None else records.entry(found)
