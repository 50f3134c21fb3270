"""The writer: one task, one queue, one connection, and everything queued about calls committed as one transaction.

Rules, as `capture.store.writer` has them.
1. Order is kept: what was handed over first is committed in the same transaction or an earlier one.
2. A group is all that is queued when the task comes round; nothing that is awaited waits for company. While one group
   commits, the next one gathers. What is deferred waits DEFER_S at most for something else to be handed over.
3. Neighbours in a group that are about calls share a transaction (`batch`). Every other write has one of its own: it
   takes locks in another order.
4. A write that fails takes no other with it: its transaction is rolled back, and each write is run again alone.
5. The task never dies silently: whatever it ends of is logged, is `failure`, and is the error of all that waits.

Theory of failure. When the database can't be reached, the writer tries again for PATIENCE_S (PostgreSQL is back from a
crash in less), with everything behind it waiting; then the store has failed, says so at once to all that is handed
over, and tries once with each group, until one commits. Writes that nobody awaits and that must not be lost (`keep`)
are owed: they go first in the next group. When the connection is lost in the COMMIT, the database is asked what became
of the transaction, so that nothing is written twice or said to be lost when it is there. Two transactions that got in
each other's way are run again, RACES times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from capture.errors import ClientError, StoreError, TreeringError
from capture.store.canonical import Canonical
from capture.store.postgres.batch import Batch
from capture.store.postgres.driver import Connection
from capture.store.postgres.link import Link, Sort, discard, sort
from capture.store.postgres.prepared import Write, prepare, size
from capture.store.writer import DEFER_S, MAX_OWED, PROBE_BYTES, STOP_S
from capture.tasks import spawn

_log = logging.getLogger("treering.store")

PATIENCE_S = 5.0
"""How long the writer goes on trying to reach the database before it says that the store has failed."""

PAUSE_S = 0.1
"""Between two tries."""

RACES = 10
"""How often a transaction that another one got in the way of is run again."""

ASIDE_BYTES = 256 * 1024
"""Bytes of bodies in a group from which they are taken apart in a thread: some milliseconds."""

GROUP = 256
"""Writes in one transaction at most: a statement's parameters are held in memory, here and there."""

Work = Callable[[Connection], Awaitable[Any]]


class Op:
    """One write in the queue, a barrier (nothing to do), or the sentinel."""

    __slots__ = ("error", "future", "keep", "probe", "result", "stop", "what")

    def __init__(
        self,
        what: Write | Work | None,
        future: asyncio.Future[Any] | None,
        *,
        keep: bool = False,
        probe: bool = False,
        stop: bool = False,
    ) -> None:
        self.what = what
        self.future = future
        self.keep = keep
        self.probe = probe
        self.stop = stop
        self.result: Any = None
        self.error: TreeringError | None = None


class Writer:
    """Runs writes in groups, on one event loop."""

    def __init__(self, link: Link, canonical: Canonical, *, process: str) -> None:
        self._link = link
        self._where = link.address.shown
        self._canonical = canonical
        self._process = process
        self._queue: list[Op] = []
        self._filled = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()
        self._open = False
        self._handed = 0
        self._settled = 0
        self._owed: list[Op] = []
        self._deferred: list[Op] = []
        self._due: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._db: Connection | None = None
        # Why the last write failed; None when it didn't.
        self.failure: str | None = None
        # Transactions committed, for the metrics and the tests.
        self.groups = 0

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<Writer {self._where} {state}, {self.groups} groups, owed {len(self._owed)}, failure {self.failure!r}>"

    def start(self, db: Connection) -> None:
        """Start the task, with a connection that is the writer's from now on."""
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._task = spawn(self._run(), name="store writer")

    def submit(self, what: Write | Work, *, keep: bool = False) -> None:
        """Hand over a write that nobody awaits. Raises `StoreError` when the writer isn't running."""
        self._put(Op(what, None, keep=keep))

    def defer(self, what: Write | Work, *, keep: bool = False) -> Op:
        """Hand over a write that nobody awaits and that may wait for another; return what `retract` takes."""
        op = Op(what, None, keep=keep)
        self._must_be_open()
        self._deferred.append(op)
        if self._due is None:
            self._due = self._loop.call_later(DEFER_S, self._hand_over)
        return op

    def retract(self, op: Op) -> bool:
        """Take a deferred write back; False when it has been queued."""
        if op not in self._deferred:
            return False
        self._deferred.remove(op)
        return True

    async def run(self, what: Write | Work) -> Any:
        """Hand over a write and return its result when it is committed; raise its error when it isn't."""
        future = asyncio.get_running_loop().create_future()
        self._put(Op(what, future))
        return await future

    async def settle(self) -> None:
        """Return when all that was handed over was tried."""
        if self._deferred or self._settled != self._handed:
            await self._barrier(probe=False)

    async def flush(self) -> None:
        """Return when all that was handed over is committed. Raises `StoreError` while the store can't be written."""
        await self._barrier(probe=True)

    async def stop(self) -> None:
        """Commit what was handed over and close the connection. Raises `StoreError` if some of it can't be."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._gate.set()
        last = asyncio.get_running_loop().create_future()
        if self._open:
            self._put(Op(None, last, stop=True))
            self._open = False
        else:
            last.set_result(None)
        if self._due is not None:
            self._due.cancel()
        try:
            async with asyncio.timeout(STOP_S):
                await last
        except TimeoutError:
            raise StoreError("store_failed", f"{self._where} didn't take its last writes in {STOP_S:.0f} s") from None
        finally:
            task.cancel()
            await asyncio.wait([task])

    def hold(self) -> None:
        """Stop committing, for tests: what is handed over waits."""
        self._gate.clear()

    def release(self) -> None:
        """Commit again after `hold`."""
        self._gate.set()

    async def _barrier(self, *, probe: bool) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(Op(None, future, probe=probe))
        await future

    def _put(self, op: Op) -> None:
        self._must_be_open()
        self._queue_deferred()
        self._handed += 1
        self._queue.append(op)
        self._filled.set()

    def _hand_over(self) -> None:
        """Queue what is deferred; its time is over."""
        self._due = None
        if self._open:
            self._queue_deferred()

    def _queue_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        self._handed += len(deferred)
        self._queue += deferred
        if deferred:
            self._filled.set()

    def _must_be_open(self) -> None:
        if not self._open:
            raise StoreError("store_failed", self.failure or f"{self._where} is closed")

    # The task

    async def _run(self) -> None:
        ops: list[Op] = []
        try:
            while not (ops and ops[-1].stop):
                ops = []
                await self._filled.wait()
                await self._gate.wait()
                ops, self._queue = self._queue, []
                self._filled.clear()
                await self._commit(ops)
                self._settle(ops)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # told before it ends, whatever it was, a cancellation too
            _log.critical("the writer of %s died", self._where, exc_info=True)
            self.failure = f"the writer of {self._where} died: {error!r}"
            raise
        finally:
            self._open = False
            self._abandon(ops)
            await self._hang_up()

    async def _commit(self, ops: list[Op]) -> None:
        owed, self._owed = self._owed, []
        down: TreeringError | None = None
        for together in _segments([*owed, *(op for op in ops if op.what is not None)]):
            if down is not None:
                # Unreachable a moment ago: everything behind it shares its fate, and no one waits for it in turn.
                for op in together:
                    op.error = down
            elif not await self._together(together) and len(together) > 1 and not _is_down(together[0]):
                for op in together:
                    await self._together([op])
            down = next((op.error for op in together if _is_down(op)), None)
            self._owed += [op for op in together if op.keep and op.error is not None and _is_stores(op.error)]
        if len(self._owed) > MAX_OWED:
            _log.error("%s is down: %d writes are lost", self._where, len(self._owed) - MAX_OWED)
            del self._owed[:-MAX_OWED]
        # Who flushes asks for the store's health; who stops, only for what is still owed.
        asked = [op for op in ops if (op.probe and self.failure is not None) or ((op.probe or op.stop) and self._owed)]
        if asked:
            error = await self._probe()
            for op in asked:
                op.error = error

    async def _together(self, ops: Sequence[Op]) -> bool:
        """Run writes in one transaction; False when that failed, and nothing of it is left."""
        for op in ops:
            op.error = None
        work = await self._work(ops)
        loop = asyncio.get_running_loop()
        patience = loop.time() + (PATIENCE_S if self.failure is None else 0.0)
        races = 0
        while True:
            try:
                result = await self._transact(work)
            except ClientError as error:
                # Raised before any change, by a write that is alone.
                ops[0].error = error
                return True
            except Exception as error:  # noqa: BLE001 - whose fault it is is told by its sort
                meaning = sort(error)
                if meaning is Sort.RACE and races < RACES:
                    races += 1
                    continue
                if meaning is Sort.DOWN and loop.time() < patience:
                    await asyncio.sleep(PAUSE_S)
                    continue
                failed = self._failed(error, alone=len(ops) == 1 or meaning is Sort.DOWN)
                for op in ops:
                    op.error = failed
                return False
            break
        ops[-1].result = result
        self.groups += 1
        self.failure = None
        return True

    async def _work(self, ops: Sequence[Op]) -> Work:
        """Return what to do inside a transaction."""
        first = ops[0].what
        assert first is not None
        if callable(first):
            return first
        writes = [op.what for op in ops if op.what is not None and not callable(op.what)]
        if sum(map(size, writes)) < ASIDE_BYTES:
            ready, kept = prepare(writes, self._canonical)
        else:
            ready, kept = await asyncio.to_thread(prepare, writes, self._canonical)
        return Batch(ready, kept, process=self._process).run

    async def _transact(self, work: Work) -> Any:
        db = await self._connection()
        try:
            await db.execute("BEGIN")
            result = await work(db)
            name = await db.fetchval("SELECT pg_current_xact_id_if_assigned()::text")
        except BaseException:  # cancelled or not, nothing of a transaction stays
            await self._roll_back(db)
            raise
        try:
            await db.execute("COMMIT")
        except BaseException:  # in doubt, cancelled or not, until it is asked for
            await self._hang_up()
            if name is None or not await self._is_committed(name):
                raise
        return result

    async def _is_committed(self, name: str) -> bool:
        """Ask what became of a transaction whose COMMIT wasn't answered. Raises while it can't be known."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + PATIENCE_S
        while True:
            try:
                db = await self._connection()
                status = await db.fetchval("SELECT pg_xact_status($1::text::xid8)", name)
            except Exception as error:
                await self._hang_up()
                if sort(error) is not Sort.DOWN or loop.time() > patience:
                    raise
                status = "in progress"
            if status != "in progress":
                return bool(status == "committed")
            if loop.time() > patience:
                raise TimeoutError("the commit was not confirmed")
            await asyncio.sleep(PAUSE_S)

    async def _connection(self) -> Connection:
        if self._db is None or self._db.is_closed():
            self._db = None
            self._db = await self._link.connect()
        return self._db

    async def _roll_back(self, db: Connection) -> None:
        try:
            if not db.is_closed():
                await db.execute("ROLLBACK")
                return
        except Exception:  # noqa: BLE001, S110 - the error that led here is the one that counts
            pass
        await self._hang_up()

    async def _hang_up(self) -> None:
        db, self._db = self._db, None
        await discard(db)

    def _failed(self, error: Exception, *, alone: bool) -> TreeringError:
        """Return the error for those who wait; of one that isn't its group's only suspect, nothing is noted yet."""
        out = self._link.address.failed(error)
        if not alone:
            return out
        if _is_stores(out):
            if self.failure is None:
                _log.error("%s", out.message)
            self.failure = out.message
        else:
            _log.error("a write to %s failed", self._where, exc_info=error)
        return out

    async def _probe(self) -> TreeringError | None:
        """Prove that the database can grow, then pay what is owed; return why not."""
        probe = Op(_grow, None)
        if not await self._together([probe]):
            return probe.error
        owed, self._owed = self._owed, []
        for together in _segments(owed):
            if not await self._together(together) and len(together) > 1:
                for op in together:
                    await self._together([op])
        self._owed = [op for op in owed if op.error is not None and _is_stores(op.error)]
        return self._owed[0].error if self._owed else None

    def _settle(self, ops: Sequence[Op]) -> None:
        self._settled += len(ops)
        for op in ops:
            if not op.keep:
                # Who may take it back holds it for as long as a call runs, and it holds the call's request.
                op.what = None
            if op.future is None or op.future.done():
                continue
            if op.error is None:
                op.future.set_result(op.result)
            else:
                op.future.set_exception(op.error)

    def _abandon(self, ops: list[Op]) -> None:
        """Fail all that waits and won't be tried any more."""
        left, self._queue = [op for op in ops if op.future is not None and not op.future.done()] + self._queue, []
        for op in left:
            op.error = op.error or StoreError("store_failed", self.failure or f"{self._where} is closed")
        self._settle(left)


def _segments(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yield writes in order: those about calls together as they come, each other one alone."""
    together: list[Op] = []
    for op in ops:
        if callable(op.what):
            if together:
                yield together
            together = []
            yield [op]
            continue
        together.append(op)
        if len(together) == GROUP:
            yield together
            together = []
    if together:
        yield together


def _is_stores(error: TreeringError) -> bool:
    cause = error.__cause__
    return cause is not None and sort(cause) is not Sort.OURS


def _is_down(op: Op) -> bool:
    return op.error is not None and op.error.__cause__ is not None and sort(op.error.__cause__) is Sort.DOWN


async def _grow(db: Connection) -> None:
    await db.execute("INSERT INTO probe (data) VALUES (decode(repeat('00', $1), 'hex'))", PROBE_BYTES)
    await db.execute("DELETE FROM probe")
