"""The PostgreSQL store: what the loop sees.

    loop ──▶ Writer (batch, rollouts; in groups) ──▶ one connection  ─┐
         ──▶ arrivals and reads (rollouts, calls) ──▶ a pool of few  ─┼▶ PostgreSQL ◀── other processes
             heartbeat (leases) ─────────────────────▶ one connection ─┘

A read first lets the writer try all that was handed over, so it sees it; while the store is down it fails. An arrival
waits for nothing of this process but its own statement.

Durability, by PostgreSQL's `synchronous_commit`: `process` (local) waits until the log is on the server's disk, which
survives the death of any process, ours or PostgreSQL's, and of the machine as far as `fsync` is on; `power` (on) waits
for synchronous standbys too, where there are any; `none` (off) waits for nothing, and the death of PostgreSQL may cost
the last half second. docs/store.md describes the stored format.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from capture import clock
from capture.errors import StoreError, TreeringError
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
from capture.store.postgres import calls, events, leases, link, rollouts, schema, states, sums
from capture.store.postgres.driver import Connection, Pool, asyncpg
from capture.store.postgres.leases import BEAT_S, LEASE_S, Lease
from capture.store.postgres.link import ACQUIRE_S, COMMAND_S, Address, Link, Sort
from capture.store.postgres.prepared import Begin, Brought, Deliver, Finish, Note
from capture.store.postgres.writer import PATIENCE_S, PAUSE_S, Op, Writer
from capture.store.summary import Look, Overview, Sheet, Summary
from capture.tasks import spawn
from graph.records import Call, Notice, Rollout, Stop

_log = logging.getLogger("treering.store")

T = TypeVar("T")

MIGRATE_S = 3600.0
"""How long a start waits for the ladder: another replica may be climbing it over a large database."""

_ROLLOUT_FIELDS = frozenset(Rollout.__struct_fields__)


class PostgresStore:
    """A `Store` in one PostgreSQL database, in its schema `treering`, which is made if it isn't there."""

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "process",
        now: Callable[[], str] = clock.now,
        beat_s: float = BEAT_S,
        lease_s: float = LEASE_S,
    ) -> None:
        """Raises `UsageError` for a URL that can't be understood."""
        self._address = Address(url)
        self._durability: Durability = durability
        self._now = now
        self._link = Link(self._address, durability)
        self._canonical = Canonical()
        self._lease = Lease(leases.me(), lease_s=lease_s)
        self._beat_s = beat_s
        self._writer = Writer(self._link, self._canonical, process=self._lease.mine.name)
        self._pool: Pool | None = None
        self._beating: asyncio.Task[None] | None = None
        # The starts of running calls, by rollout and number, as handed over.
        self._begun: dict[tuple[str, int], Op] = {}
        # Running calls that got their number here; and rollouts with a call that got it from its own process.
        self._numbered: set[tuple[str, int]] = set()
        self._own: set[str] = set()
        # Arrivals whose answer never came, by their token, and calls whose end could not be stored.
        self._doubtful: list[bytes] = []
        self._unstored: list[tuple[str, int]] = []
        self._identity: str | None = None
        # Rollout and number of the calls of dead processes that this one ended.
        self.recovered: tuple[tuple[str, int], ...] = ()

    def __repr__(self) -> str:
        return f"<PostgresStore {self.where} {self._durability} {self._writer!r}>"

    @property
    def failure(self) -> str | None:
        """Why the last write failed (a sentence), or None."""
        return self._writer.failure

    @property
    def where(self) -> str:
        """The store's address without the password, for people."""
        return self._address.shown

    @property
    def shared(self) -> bool:
        """Whether other processes may write the same rollouts: always."""
        return True

    @property
    def identity(self) -> str | None:
        """What tells this database from every other; known after `open`."""
        return self._identity

    @property
    def groups(self) -> int:
        """Transactions committed since `open`."""
        return self._writer.groups

    async def open(self) -> None:
        """Connect; make the schema or climb its migrations; end the calls of processes that died here.

        Raises `StoreError`: `store_newer` for a database from a newer Treering; `store_failed` for one that can't be
        reached or used.
        """
        db: Connection | None = None
        try:
            db = await self._link.connect(climbing=True)
            await db.execute(
                "SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false)"
            )
            async with asyncio.timeout(MIGRATE_S):
                await schema.climb(db)
            await link.discard(db)
            db = await self._link.connect()
            await self._lease.beat(db)
            await self._bury(db)
            self._identity = await _identity(db)
            self._pool = await self._link.pool()
        except BaseException as error:  # cancelled or not, no connection stays
            await link.discard(db)
            if isinstance(error, Exception):
                raise self._failed(error, "opened") from error
            raise
        self._writer.start(db)
        self._beating = spawn(self._beat(), name="store heartbeat")

    async def close(self) -> None:
        """Commit all that was handed over, and close; a second time does nothing.

        Raises `StoreError` if something could not be committed; the store is closed all the same.
        """
        pool, self._pool = self._pool, None
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait([beating])
        try:
            await self._writer.stop()
        finally:
            if pool is not None:
                await self._leave(pool)

    def hold(self) -> None:
        """Stop committing, for tests: what is handed over waits, and so do reads behind it."""
        self._writer.hold()

    def release(self) -> None:
        """Commit again after `hold`."""
        self._writer.release()

    # Rollouts

    async def add(self, entries: Sequence[Entry], *, key: str | None = None, answer: bytes | None = None) -> None:
        """Add rollouts, all or none; with `key` (Idempotency-Key, a space, body's digest) keep `answer` for an hour.

        Raises `ClientError`: `id_taken` (409) naming the id; `idempotency_key_raced` (409) if the key was answered
        since it was looked up; `idempotency_key_reused` (422) if that was for another body.
        """
        entries, now = tuple(entries), self._now()
        await self._writer.run(lambda db: rollouts.add(db, entries, key=key, answer=answer, now=now))

    async def answered(self, key: str, body: str) -> bytes | None:
        """Return the answer kept under an Idempotency-Key, None for a new key.

        Raises `ClientError` `idempotency_key_reused` (422) if `body` (a digest) differs.
        """
        now = self._now()
        return await self._read(lambda db: rollouts.answered(db, key, body, now=now))

    async def get(self, rollout: str) -> Entry | None:
        """Return a rollout's entry, None if there is none such."""
        return await self._read(lambda db: rollouts.get(db, rollout))

    async def by_secret(self, digest: bytes) -> tuple[Entry, Literal["agent", "tools"]] | None:
        """Return the rollout with a secret of that SHA-256, and whose secret it is."""
        return await self._read(lambda db: rollouts.by_secret(db, digest))

    async def page(self, query: Query) -> Page:
        """Return a page of rollouts. Raises `ClientError` `bad_cursor` (400)."""
        return await self._read(lambda db: rollouts.page(db, query))

    async def change(self, rollout: str, changes: Mapping[str, Any]) -> Entry | None:
        """Set fields of the stored `Rollout`; return the entry as changed, None if there is none such.

        Raises `TypeError` for a name that is no field, or is its id.
        """
        changes, now = dict(changes), self._now()
        if unknown := set(changes) - _ROLLOUT_FIELDS | ({"id"} & set(changes)):
            raise TypeError(f"can't change {', '.join(sorted(unknown))} of a rollout")
        entry: Entry | None = await self._writer.run(lambda db: rollouts.change(db, rollout, changes, now=now))
        return entry

    async def delete(self, rollout: str) -> bool:
        """Remove a rollout, its calls, and the content that only it used; False if there is none such."""
        return bool(await self._writer.run(lambda db: rollouts.delete(db, rollout)))

    async def seal(self, rollout: str, *, cut: bool = False) -> None:
        """Let no more calls arrive, and with `cut` end those that run; opening it again takes the seal off."""
        await self._writer.run(lambda db: rollouts.seal(db, rollout, cut=cut))

    async def sealed(self) -> dict[str, bool]:
        """Return the rollouts that are sealed and not closed yet, and whether what runs of them is to be cut."""
        return await self._read(rollouts.sealed)

    async def stop(self, rollout: str, n: int, limit: str) -> Stop:
        """Count a call that met a limit; return the rollout's `stopped` as it now is."""
        stop: Stop = await self._writer.run(lambda db: rollouts.stop(db, rollout, n, limit))
        return stop

    async def engines(self) -> dict[str, EngineState]:
        """Return what the operator said of each engine, by name."""
        return await self._read(rollouts.engines)

    async def set_engine(self, name: str, *, held: bool | None = None, version: str | None = None) -> None:
        """Note a hold, or the version of an engine's weights; None leaves what there is."""
        await self._writer.run(lambda db: rollouts.set_engine(db, name, held=held, version=version))

    # Calls

    async def arrive(self, rollout: str, *, choices: int, started_at: str) -> Arrival | None:
        """Give a call its number and its place in time, and say what is spent; None when no more may arrive."""
        if rollout in self._own:
            # It is seen by its start alone, which goes another way than we do.
            await self._writer.settle()
            self._own.discard(rollout)
        token = secrets.token_bytes(12)
        process = self._lease.mine.name

        async def ask(db: Connection) -> Arrival | None:
            return await rollouts.arrive(
                db, rollout, choices=choices, started_at=started_at, process=process, token=token
            )

        try:
            arrival = await self._ask(ask)
            if arrival is not None:
                self._numbered.add((rollout, arrival.n))
            return arrival
        except BaseException:  # cancelled or not, its number may have been given out
            # It may have its number all the same; nobody will ever end that call.
            self._doubtful.append(token)
            raise

    def begin(self, rollout: str, call: Call, request: bytes, *, parts: Parts | None = None) -> None:
        """Note that a call runs; one that ends at once is stored with its end alone."""
        write = Begin(rollout=rollout, call=call, request=request, parts=parts)
        self._begun[rollout, call.n] = self._writer.defer(write)
        if (rollout, call.n) not in self._numbered:
            self._own.add(rollout)

    def begin_later(self, rollout: str, n: int, made: Callable[[], Start]) -> None:  # noqa: ARG002 - see `Store`
        """Note that a call runs, of which `made` tells."""
        start = made()
        self.begin(rollout, start.call, start.request, parts=start.parts)

    def spool(self, rollout: str, n: int, spool: Spool) -> None:
        """Keep what a running stream has brought so far."""
        self._writer.submit(Brought(rollout=rollout, n=n, spool=spool))

    async def finish(self, rollout: str, records: Sequence[Record]) -> None:
        """Store an ended call, all choices at once, and return when it is committed; `ended` is given out if None."""
        records = tuple(records)
        for record in records:
            self._numbered.discard((rollout, record.call.n))
            begun = self._begun.pop((rollout, record.call.n), None)
            if begun is not None:
                self._writer.retract(begun)
        try:
            await self._writer.run(Finish(rollout=rollout, records=records))
        except StoreError:
            # It runs no more, whatever is known of it; else a close would wait for it.
            self._unstored += [(rollout, record.call.n) for record in records]
            raise

    async def abort(self, calls: Sequence[tuple[str, int]]) -> None:
        """End calls whose process can't any more, `aborted` with what was spooled; one that doesn't run is left."""
        ended = list(calls)
        self._numbered.difference_update(ended)
        await self._writer.run(lambda db: leases.abort(db, ended))

    async def running(self, rollout: str | None = None, *, engine: str | None = None) -> list[tuple[str, int]]:
        """Return (rollout, n) of the calls that run, in order; with `engine` those that went or may yet go to it."""
        return await self._read(lambda db: calls.running(db, rollout, engine=engine))

    def deliver(self, rollout: str, numbers: Sequence[int], *, delivered: bool, at: str) -> None:
        """Add a delivery to calls, and mark them; kept and tried again while the store is down."""
        numbers = tuple(numbers)
        for n in numbers:
            # A mark needs a row to stand in: that start may not be left out any more.
            self._begun.pop((rollout, n), None)
        self._writer.defer(Deliver(rollout=rollout, numbers=numbers, delivered=delivered, at=at), keep=True)

    def notice(self, rollout: str, notice: Notice) -> None:
        """Keep a notice; kept in memory and tried again while the store is down."""
        self._writer.submit(Note(rollout=rollout, notice=notice), keep=True)

    async def calls(self, rollout: str, *, after: int = -1, limit: int | None = None) -> list[Call]:
        """Return calls in order of `n`, prompts whole.

        A prompt that can't be put together, since what it goes on from is missing or damaged, is None, and the notice
        `capture_incomplete` names the call.
        """
        found = await self._read(
            lambda db: calls.calls(db, rollout, after=after, limit=limit, canonical=self._canonical), snapshot=True
        )
        for n in found.broken:
            lost = Notice(code="capture_incomplete", at=self._now(), calls=(n,), data={"reason": "prompt_lost"})
            self._writer.submit(Note(rollout=rollout, notice=lost, once=True), keep=True)
        return found.calls

    async def exchange(self, rollout: str, n: int) -> Exchange | None:
        """Return what passed in a call, None if there is none such."""
        return await self._read(lambda db: calls.exchange(db, rollout, n), snapshot=True)

    async def notices(self, rollout: str) -> list[Notice]:
        """Return a rollout's notices in the order in which they came."""
        return await self._read(lambda db: calls.notices(db, rollout))

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
        return await self._read(lambda db: sums.overview(db, look), snapshot=True)

    async def events(self, after: str, *, rollout: str | None = None, limit: int = 500) -> list[Event]:
        """Return the committed events behind one; see `Store`. Nothing is waited for: what isn't there yet comes."""
        return await self._ask(lambda db: events.after(db, after, rollout=rollout, limit=limit), snapshot=True)

    async def newest_event(self) -> str:
        """Return the id of the newest event."""
        return await self._ask(events.newest)

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
        await self._writer.flush()

    # Inside

    async def _read(self, work: Callable[[Connection], Awaitable[T]], *, snapshot: bool = False) -> T:
        await self._writer.settle()
        return await self._ask(work, snapshot=snapshot)

    async def _ask(self, work: Callable[[Connection], Awaitable[T]], *, snapshot: bool = False) -> T:
        """Run what may be run twice on a connection of the pool; again, for a while, when it is lost."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        patience = {Sort.RACE: PATIENCE_S, Sort.DOWN: PATIENCE_S if self.failure is None else 0.0}
        while True:
            pool = self._pool
            if pool is None:
                raise StoreError("store_failed", f"{self.where} is closed")
            try:
                async with asyncio.timeout(2 * COMMAND_S), pool.acquire(timeout=ACQUIRE_S) as db:
                    if not snapshot:
                        return await work(db)
                    async with db.transaction(isolation="repeatable_read", readonly=True):
                        return await work(db)
            except Exception as error:
                if loop.time() - began < patience.get(link.sort(error), 0.0):
                    await asyncio.sleep(PAUSE_S)
                    continue
                raise self._failed(error, "read") from error

    def _failed(self, error: Exception, verb: str) -> Exception:
        if isinstance(error, TreeringError) or (link.sort(error) is Sort.OURS and verb == "read"):
            return error
        return StoreError("store_failed", f"{self.where} can't be {verb}: {self._address.sentence(error)}")

    async def _beat(self) -> None:
        """Say that we are alive, and look who isn't, for ever; on a connection of its own: no read may delay it."""
        db: Connection | None = None
        try:
            while True:
                await asyncio.sleep(self._beat_s)
                try:
                    async with asyncio.timeout(COMMAND_S):
                        if db is None or db.is_closed():
                            db = await self._link.connect()
                        await self._lease.beat(db)
                        await self._bury(db)
                except Exception as error:  # noqa: BLE001 - it is tried again, and whoever needs the store hears of it
                    _log.warning("%s: no heartbeat: %s", self.where, self._address.sentence(error))
                    await link.discard(db)
        finally:
            await link.discard(db)

    async def _bury(self, db: Connection) -> None:
        """End the calls of the dead, and those of ours that nobody will end."""
        lost, unstored = list(self._doubtful), list(self._unstored)
        if lost or unstored:
            async with db.transaction():
                await leases.abort(db, unstored)
                await db.execute("DELETE FROM running WHERE token = ANY($1::bytea[])", lost)
            del self._doubtful[: len(lost)], self._unstored[: len(unstored)]
        for name in await self._lease.dead(db):
            async with db.transaction():
                ended = await leases.recover(db, name)
            if ended:
                _log.warning("%s: %d calls of a process that died are ended", self.where, len(ended))
            self.recovered += tuple(ended)

    async def _leave(self, pool: Pool) -> None:
        """Take our name out, and close the pool."""
        try:
            async with asyncio.timeout(COMMAND_S), pool.acquire(timeout=ACQUIRE_S) as db, db.transaction():
                await self._lease.leave(db)
        except Exception as error:  # noqa: BLE001 - our lease runs out, and another does it
            _log.warning("%s: can't take leave: %s", self.where, self._address.sentence(error))
        try:
            async with asyncio.timeout(COMMAND_S):
                await pool.close()
        except TimeoutError:
            pool.terminate()


async def _identity(db: Connection) -> str | None:
    """Return what tells a database from every other: its cluster's identifier, which `initdb` gave, and its own.

    None where its owner lets nobody ask for the first.
    """
    try:
        cluster, database = await db.fetchrow(
            "SELECT (SELECT system_identifier FROM pg_control_system()),"
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    except asyncpg.InsufficientPrivilegeError:
        return None
    # Not as it is: it is shown to whoever asks.
    return hashlib.blake2b(f"treering {cluster} {database}".encode(), digest_size=16).hexdigest()
