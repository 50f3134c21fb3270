"""The SQLite store: one file, one writer thread, readers with connections of their own.

    loop ──▶ Writer (writes.py, in groups) ──▶ file ◀── two reader threads (reads.py, read-only)

The loop never touches the file. A read first lets the writer try all that was handed over (`Writer.settle`), so it
sees it; while the store is down it sees what is there. docs/store.md describes the stored format.

Durability, by SQLite's `synchronous`: `process` (NORMAL) survives the death of the process, however sudden, and loses
at most the last commits with the machine; `power` (FULL) syncs the log with each group; `none` (OFF) never syncs, and
may leave a broken file when the machine dies.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw

from capture import clock
from capture.errors import StoreError
from capture.store import answers, events, migrations, query, reads, states, sums, tally, writes
from capture.store.base import (
    Arrival,
    Durability,
    EngineState,
    Entry,
    Event,
    Exchange,
    Page,
    Parts,
    Query,
    Record,
    Spool,
    Start,
    State,
    Telling,
)
from capture.store.canonical import Canonical
from capture.store.lock import Lock
from capture.store.summary import Look, Overview, Sheet, Summary
from capture.store.writer import Op, Writer
from graph.records import Call, Notice, Rollout, Stop

T = TypeVar("T")

READERS = 2
"""Reader threads: a long read of calls shouldn't keep a secret from being looked up."""

BUSY_MS = 5_000
"""How long a statement waits for a person's `sqlite3` that holds the file."""

LOG_BYTES = 64 << 20
"""What the write-ahead log is cut back to when a checkpoint has emptied it after a burst."""

SHRINK_PAGES = 500
"""Free pages given back in one write: each moves one from the file's end into the hole, some 5 ms in all."""

_SYNCHRONOUS: dict[Durability, str] = {"process": "NORMAL", "power": "FULL", "none": "OFF"}
_SUFFIXES = ("", "-wal", "-shm")
# Those that are there from the start to the end.
_LASTING = ("", "-wal")
_ROLLOUT_FIELDS = frozenset(Rollout.__struct_fields__)


class SqliteStore:
    """A `Store` in one SQLite file, which is made, mode 0600, if it isn't there."""

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "process",
        shared: bool = False,
        now: Callable[[], str] = clock.now,
    ) -> None:
        """`shared`: this process writes for others too, which ask it."""
        self._shared = shared
        self._where = f"sqlite:///{path}"
        # One file has one lock, under whatever name it was given, and stays the same when the working folder changes.
        self._path = path = path.resolve()
        self._durability: Durability = durability
        self._now = now
        self._canonical = Canonical()
        self._lock = Lock(path)
        self._writer = Writer(self._open_writer, where=str(path))
        # The starts of running calls, by rollout and number, as handed over.
        self._begun: dict[tuple[str, int], Op] = {}
        # It gave out numbers, so it may hold an arrival of any call.
        self._gave_out = False
        # Which files those are that were opened, and why they are no more where they were, by the last look.
        self._here: list[tuple[int, int]] = []
        self._astray: str | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._reading = threading.local()
        self._connections: list[apsw.Connection] = []
        # Of those, the ones that no reader thread has taken yet.
        self._spare: queue.SimpleQueue[apsw.Connection] = queue.SimpleQueue()
        # Rollout and number of the calls that were running when the last process died; known after `open`.
        self.recovered: tuple[tuple[str, int], ...] = ()

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path} {self._durability} {self._writer!r}>"

    @property
    def failure(self) -> str | None:
        """Why the store can't be used (a sentence): its file has gone astray, or the last write failed; or None."""
        return self._astray or self._writer.failure

    @property
    def where(self) -> str:
        """The store's address, for people."""
        return self._where

    @property
    def shared(self) -> bool:
        """Whether other processes may write the same rollouts: only by way of this one, since the file is locked."""
        return self._shared

    @property
    def identity(self) -> str | None:
        """None: one process answers for a file, and those that it starts."""
        return None

    @property
    def groups(self) -> int:
        """Transactions committed since `open`."""
        return self._writer.groups

    async def open(self) -> None:
        """Open or create the file; climb the migrations; end what was running when the last process died.

        Raises `StoreError`: `store_newer` for a file from a newer Treering; `store_failed` for one that is in use,
        isn't ours, or can't be opened; `store_full`.
        """
        await self._writer.start()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="treering-store-reader")
        try:
            await asyncio.to_thread(self._open_readers)
            self._here = [_identity(self._path.with_name(self._path.name + suffix)) for suffix in _LASTING]
            self._astray = None
        except apsw.Error as error:
            await self.close()
            raise StoreError("store_failed", f"{self._path} can't be read: {error}") from error

    async def close(self) -> None:
        """Commit all that was handed over, and close; a second time does nothing.

        Raises `StoreError` if something could not be committed; the store is closed all the same.
        """
        readers, self._readers = self._readers, None
        try:
            # The readers first: the last connection to close copies the log into the file, and they may not.
            if readers is not None:
                await self._writer.settle()
        finally:
            if readers is not None:
                await asyncio.to_thread(readers.shutdown)
                for db in self._connections:
                    db.close()
                self._connections.clear()
                self._spare = queue.SimpleQueue()
            try:
                await self._writer.stop()
            finally:
                self._lock.free()

    def hold(self) -> None:
        """Stop committing, for tests: what is handed over waits, and so do reads behind it."""
        self._writer.hold()

    def release(self) -> None:
        """Commit again after `hold`."""
        self._writer.release()

    async def add(self, entries: Sequence[Entry], *, key: str | None = None, answer: bytes | None = None) -> None:
        """Add rollouts, all or none; with `key` (Idempotency-Key, a space, body's digest) keep `answer` for an hour.

        Raises `ClientError`: `id_taken` (409) naming the id; `idempotency_key_raced` (409) if the key was answered
        since it was looked up; `idempotency_key_reused` (422) if that was for another body.
        """
        entries, now = tuple(entries), self._now()
        await self._writer.run(lambda db: writes.add(db, entries, key=key, answer=answer, now=now))

    async def answered(self, key: str, body: str) -> bytes | None:
        """Return the answer kept under an Idempotency-Key, None for a new key.

        Raises `ClientError` `idempotency_key_reused` (422) if `body` (a digest) differs.
        """
        now = self._now()
        return await self._read(lambda db: answers.get(db, key, body, now=now))

    async def get(self, rollout: str) -> Entry | None:
        """Return a rollout's entry, None if there is none such."""
        return await self._read(lambda db: reads.get(db, rollout))

    async def by_secret(self, digest: bytes) -> tuple[Entry, Literal["agent", "tools"]] | None:
        """Return the rollout with a secret of that SHA-256, and whose secret it is."""
        return await self._read(lambda db: reads.by_secret(db, digest))

    async def page(self, query: Query) -> Page:
        """Return a page of rollouts. Raises `ClientError` `bad_cursor` (400)."""
        return await self._read(lambda db: reads.page(db, query))

    async def change(self, rollout: str, changes: Mapping[str, Any]) -> Entry | None:
        """Set fields of the stored `Rollout`; return the entry as changed, None if there is none such.

        Raises `TypeError` for a name that is no field, or is its id.
        """
        changes, now = dict(changes), self._now()
        if unknown := set(changes) - _ROLLOUT_FIELDS | ({"id"} & set(changes)):
            raise TypeError(f"can't change {', '.join(sorted(unknown))} of a rollout")
        entry: Entry | None = await self._writer.run(lambda db: writes.change(db, rollout, changes, now=now))
        return entry

    async def delete(self, rollout: str) -> bool:
        """Remove a rollout, its calls, and the content that only it used; False if there is none such."""
        return bool(await self._writer.run(lambda db: writes.delete(db, rollout)))

    async def arrive(self, rollout: str, *, choices: int, started_at: str) -> Arrival | None:
        """Give a call its number and its place in time, and say what is spent; None when no more may arrive."""
        self._gave_out = True
        arrival: Arrival | None = await self._writer.run(
            lambda db: tally.arrive(db, rollout, choices=choices, started_at=started_at)
        )
        return arrival

    async def seal(self, rollout: str, *, cut: bool = False) -> None:
        """Let no more calls arrive, and with `cut` end those that run; opening it again takes the seal off."""
        await self._writer.run(lambda db: tally.seal(db, rollout, cut=cut))

    async def sealed(self) -> dict[str, bool]:
        """Return the rollouts that are sealed and not closed yet, and whether what runs of them is to be cut."""
        return await self._read(tally.sealed)

    async def running(self, rollout: str | None = None, *, engine: str | None = None) -> list[tuple[str, int]]:
        """Return (rollout, n) of the calls that run, in order; with `engine` those that went or may yet go to it."""
        return await self._read(lambda db: tally.running(db, rollout, engine=engine))

    async def abort(self, calls: Sequence[tuple[str, int]]) -> None:
        """End calls whose process can't any more, `aborted` with what was spooled; one that doesn't run is left."""
        calls = tuple(calls)
        await self._writer.run(lambda db: writes.abort(db, calls))

    async def stop(self, rollout: str, n: int, limit: str) -> Stop:
        """Count a call that met a limit; return the rollout's `stopped` as it now is."""
        stop: Stop = await self._writer.run(lambda db: tally.stop(db, rollout, n, limit))
        return stop

    async def engines(self) -> dict[str, EngineState]:
        """Return what the operator said of each engine, by name."""
        return await self._read(tally.engines)

    async def set_engine(self, name: str, *, held: bool | None = None, version: str | None = None) -> None:
        """Note a hold, or the version of an engine's weights; None leaves what there is."""
        await self._writer.run(lambda db: tally.set_engine(db, name, held=held, version=version))

    def begin(self, rollout: str, call: Call, request: bytes, *, parts: Parts | None = None) -> None:
        """Note that a call runs; one that ends at once is stored with its end alone."""
        exchange = Exchange(request=request, parts=parts)
        self._begun[rollout, call.n] = self._writer.defer(
            lambda db: writes.begin(db, rollout, call, exchange, self._canonical)
        )

    def begin_later(self, rollout: str, n: int, made: Callable[[], Start]) -> None:
        """Note that a call runs, of which `made` tells; it is asked only for one that has not ended by then."""

        def make() -> Callable[[apsw.Connection], Any]:
            start = made()
            exchange = Exchange(request=start.request, parts=start.parts)
            return lambda db: writes.begin(db, rollout, start.call, exchange, self._canonical)

        self._begun[rollout, n] = self._writer.defer_start(make)

    def spool(self, rollout: str, n: int, spool: Spool) -> None:
        """Keep what a running stream has brought so far."""
        self._writer.submit(lambda db: writes.spool(db, rollout, n, spool))

    async def finish(self, rollout: str, records: Sequence[Record]) -> None:
        """Store an ended call, all choices at once, and return when it is committed."""
        records = tuple(records)
        fresh = False
        for record in records:
            begun = self._begun.pop((rollout, record.call.n), None)
            if begun is not None and self._writer.retract(begun):
                # Nothing of it was ever written.
                fresh = not (self._shared or self._gave_out)
        await self._writer.run(
            lambda db: writes.finish(db, rollout, records, self._canonical, fresh=fresh), ends=not self._shared
        )

    def deliver(self, rollout: str, numbers: Sequence[int], *, delivered: bool, at: str) -> None:
        """Add a delivery to calls, and mark them; kept and tried again while the store is down."""
        numbers = tuple(numbers)
        for n in numbers:
            # A mark needs a row to stand in: that start may not be left out any more.
            self._begun.pop((rollout, n), None)
        self._writer.defer(lambda db: writes.deliver(db, rollout, numbers, delivered=delivered, at=at), keep=True)

    def notice(self, rollout: str, notice: Notice) -> None:
        """Keep a notice; kept in memory and tried again while the store is down."""
        self._writer.submit(lambda db: writes.notice(db, rollout, notice), keep=True)

    async def calls(self, rollout: str, *, after: int = -1, limit: int | None = None) -> list[Call]:
        """Return calls in order of `n`, prompts whole.

        A prompt that can't be put together, since what it goes on from is missing or damaged, is None, and the notice
        `capture_incomplete` names the call.
        """
        found = await self._read(
            lambda db: reads.calls(db, rollout, after=after, limit=limit, canonical=self._canonical)
        )
        for n in found.broken:
            lost = Notice(code="capture_incomplete", at=self._now(), calls=(n,), data={"reason": "prompt_lost"})
            self._writer.submit(lambda db, lost=lost: writes.notice(db, rollout, lost, once=True), keep=True)  # type: ignore[misc]  # mypy can't infer a lambda with a default
        return found.calls

    async def exchange(self, rollout: str, n: int) -> Exchange | None:
        """Return what passed in a call, None if there is none such."""
        return await self._read(lambda db: reads.exchange(db, rollout, n))

    async def notices(self, rollout: str) -> list[Notice]:
        """Return a rollout's notices in the order in which they came."""
        return await self._read(lambda db: reads.notices(db, rollout))

    async def state(self, rollout: str) -> State | None:
        """Return the state of a rollout's tool servers; None if there is no such rollout."""
        return await self._read(lambda db: states.get(db, rollout))

    async def set_state(
        self, rollout: str, body: bytes, *, at: str, owner: bytes | None = None, expected: frozenset[int] | None = None
    ) -> State | None:
        """Set that state, if it is as expected, and return it as it now is; see `Store`."""
        state: State | None = await self._writer.run(
            lambda db: states.put(db, rollout, body, at=at, owner=owner, expected=expected)
        )
        return state

    async def summarise(self, made: Sequence[tuple[Entry, Summary]]) -> None:
        """Keep summaries of rollouts; see `Store`."""
        made = tuple(made)
        await self._writer.run(lambda db: sums.put(db, made))

    async def sheet(self, look: Look) -> Sheet:
        """Return a page of rollouts by their summaries. Raises `ClientError` `bad_cursor` (400)."""
        return await self._read(lambda db: sums.sheet(db, look))

    async def overview(self, look: Look) -> Overview:
        """Return sums over the rollouts that are looked for."""
        return await self._read(lambda db: sums.overview(db, look))

    async def events(self, after: str, *, rollout: str | None = None, limit: int = 500) -> list[Event]:
        """Return the committed events behind one; see `Store`. Nothing is waited for: what isn't there yet comes."""
        return await self._look(lambda db: events.after(db, after, rollout=rollout, limit=limit))

    async def newest_event(self) -> str:
        """Return the id of the newest event."""
        return await self._look(events.newest)

    async def tell(self, told: Sequence[Telling]) -> None:
        """Add events; those of a rollout that is gone are left out."""
        told = tuple(told)
        await self._writer.run(lambda db: events.put(db, told))

    async def drop_events(self, before: str) -> bool:
        """Drop some of the events from before a time; False when none is left to drop."""
        return bool(await self._writer.run(lambda db: events.drop(db, before)))

    async def flush(self) -> None:
        """Return when all that was handed over is committed; after a failure, try whether writes work again.

        Raises `StoreError` while they don't.
        """
        if self._astray is not None:
            raise StoreError("store_failed", self._astray, hint="put it back, or stop and bring a backup back")
        await self._writer.flush()

    def look(self) -> None:
        """Look whether the file still lies where it was opened; `failure` says so from then on, until it does again.

        SQLite goes on with a file that was moved or removed, and all that it takes in is gone with the process.
        """
        if self._readers is None:
            # Not open: closing takes the log away.
            return
        try:
            here = [_identity(self._path.with_name(self._path.name + suffix)) for suffix in _LASTING]
        except OSError:
            here = []
        self._astray = None if here == self._here else f"{self._path} was moved or removed while it is in use"

    async def size(self) -> int:
        """Return the bytes that rows and indexes take; free pages of the file are not among them."""
        return await self._read(reads.size)

    async def shrink(self) -> None:
        """Give free pages back to the disk, some at a time, so that no call's record waits long for its commit.

        The file is shorter once the log has been copied into it.
        """
        while await self._writer.run(lambda db: writes.shrink(db, pages=SHRINK_PAGES)):
            pass

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        await self._writer.settle()
        return await self._look(work)

    async def _look(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run a read of what is committed."""
        if self._readers is None:
            raise StoreError("store_failed", f"{self._path} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._reader, work)

    def _reader(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run a read on a reader thread: its own connection, one snapshot."""
        try:
            db: apsw.Connection | None = getattr(self._reading, "db", None)
            if db is None:
                db = self._reading.db = self._spare.get_nowait()
            db.execute("BEGIN")
            try:
                return work(db)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except apsw.Error as error:
            raise StoreError("store_failed", f"{self._path} can't be read: {error}") from error

    def _open_readers(self) -> None:
        """Open the readers' connections, each to the point where it holds all files that it will ever need.

        Not with their first read: a process that has used up its descriptors by then could look up no secret.
        """
        for _ in range(READERS):
            db = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
            self._connections.append(db)
            db.set_busy_timeout(BUSY_MS)
            db.execute("PRAGMA query_only = ON")
            reads.get(db, "")
            self._spare.put(db)

    def _open_writer(self) -> apsw.Connection:
        """Lock, create and open the file, on the writer's thread."""
        try:
            self._lock.take()
            try:
                return self._connect()
            except BaseException:  # whatever fails, the lock goes
                self._lock.free()
                raise
        except apsw.FullError as error:
            raise StoreError("store_full", f"{self._path} can't be opened: the disk is full") from error
        except (apsw.Error, OSError) as error:
            raise StoreError(
                "store_failed", f"{self._path} can't be opened: {error}", hint="is its folder there, and writable?"
            ) from error

    def _connect(self) -> apsw.Connection:
        # SQLite gives the log and its index the mode of the file.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for suffix in _SUFFIXES:
            beside = self._path.with_name(self._path.name + suffix)
            if beside.exists():
                beside.chmod(0o600)
        db = query.OneCursor(str(self._path), apsw.SQLITE_OPEN_READWRITE)
        try:
            db.set_busy_timeout(BUSY_MS)
            fresh = migrations.version(db) == 0
            if fresh:
                # Only an empty file takes it; without it, space that is freed never leaves the file.
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            if query.value(db, "PRAGMA journal_mode = WAL") != "wal":
                raise StoreError(
                    "store_failed",
                    f"{self._path} can't have a write-ahead log where it lies",
                    hint="put the store on a local disk",
                )
            db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}")
            db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            db.execute("PRAGMA foreign_keys = ON")
            migrations.climb(db)
            db.execute("BEGIN IMMEDIATE")
            self.recovered = tuple(writes.recover(db))
            db.execute("COMMIT")
        except BaseException:  # whatever fails, the connection goes
            db.close()
            raise
        return db


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
