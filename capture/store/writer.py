"""The writer: one thread, one queue, one sentinel, and everything queued committed as one transaction.

Rules.
1. Only this thread writes, and only through its own connection. The loop hands over functions of a connection.
2. Order is kept: what was handed over first is committed in the same group or an earlier one.
3. A group is all that is queued when the thread comes round. While one group commits, the next one gathers, so the
   groups grow with the load by themselves. The end of a call is handed over when the loop has nothing else to do: at
   once where there is no load, and with those of other calls, `GATHER_S` later at most, where there is. (A group of one
   takes twice as much a call as a group of four: its commit, two wake-ups, and the interpreter's lock, which changes
   hands between two busy threads with each statement.) What is deferred stays on the loop until something else is
   handed over, `DEFER_S` at most: waking the thread costs the loop more than a short write.
   What a call's end makes needless (a start) stays there although ends of others are handed over, and is made only when
   it is queued.
4. An awaited write is resolved on the loop, after COMMIT, with its group in one hop.
5. A write that fails takes no other with it: its group is rolled back and each write is run again in a transaction of
   its own. (Savepoints were rejected: they cost every group what only a failing one needs, and a full disk makes SQLite
   roll back the whole transaction, savepoints and all.) Only a `ClientError`, raised before any change, stays in the
   group. So a write may run twice, and keeps nothing but in the file.
6. The thread never dies silently: whatever it ends of is logged, is `failure`, and is the error of all that waits.

Theory of failure. An error of SQLite is the store's (disk full, I/O); any other is ours. The first sort sets `failure`
until a later group commits. Writes that nobody awaits and that must not be lost (`keep`) are owed: they go first in the
next group. When asked (`flush`) while something failed, the writer proves that the disk takes a page before it says
that all is well.

Checkpoints run here too, after the group's waiters were told, and so never before an agent's reply. With one
connection that writes and checkpoints, the reset of the log can't race (SQLite before 3.51.3 could corrupt then).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import apsw

from capture.errors import ClientError, StoreError, TreeringError

_log = logging.getLogger("treering.store")

CHECKPOINT_PAGES = 1000
"""Pages in the log from which it is copied into the file (SQLite's own default): 4 MiB."""

MAX_OWED = 100_000
"""Writes kept while the store is down, some 100 MB of notices and deliveries at worst; beyond it the oldest are lost,
and the log says so."""

PROBE_BYTES = 65_536
"""What a probe writes: more than the free pages of a full file are likely to hold."""

DEFER_S = 0.02
"""How long a write may be deferred: a mark of delivery then rides with the next call's record, or alone."""

START_S = 0.25
"""The same of a start: with its request it takes twice what its call's end takes, and most that a call is shorter than
this never has to be made. Of a call that began within it a crash leaves nothing, whatever the agent had of it."""

IDLE_S = 60e-6
"""CPU time: a loop that comes round to the same callback in less had nothing else to do. An empty round takes some
20 us of it, however long the machine keeps the thread waiting, and one with a request or a reply some hundreds."""

GATHER_S = 0.003
"""How long the ends of calls are gathered at most, by a loop that always has something to do: some calls' worth."""

GATHER_MOST = 8
"""Ends of calls that are handed over at once: more take no less each, and meanwhile the thread has nothing to do."""

STOP_S = 60.0
"""How long `stop` waits for what was handed over to be committed."""

Work = Callable[[apsw.Connection], Any]


class Op:
    """One write in the queue, a barrier (no work), or the sentinel."""

    __slots__ = ("error", "future", "keep", "make", "probe", "result", "since", "stop", "work")

    def __init__(
        self,
        work: Work | None,
        future: asyncio.Future[Any] | None,
        *,
        keep: bool = False,
        probe: bool = False,
        stop: bool = False,
    ) -> None:
        self.work = work
        self.future = future
        self.keep = keep
        self.probe = probe
        self.stop = stop
        # Of a start: makes its work when it is queued, and since when it waits.
        self.make: Callable[[], Work] | None = None
        self.since = 0.0
        self.result: Any = None
        self.error: TreeringError | None = None


class Writer:
    """Runs writes in groups on a thread of its own; made and used on one event loop."""

    def __init__(self, opener: Callable[[], apsw.Connection], *, where: str) -> None:
        self._opener = opener
        self._where = where
        # Writes handed over together, so that the thread is woken once for all of them.
        self._queue: queue.SimpleQueue[list[Op]] = queue.SimpleQueue()
        # Guards `_open` against the thread's end, so that nothing is queued behind the last look at the queue.
        self._door = threading.Lock()
        self._open = False
        self._gate = threading.Event()
        self._gate.set()
        self._handed = 0
        self._settled = 0
        self._owed: list[Op] = []
        # Handed over already, in order, and not yet queued; `_due` will see to it.
        self._deferred: list[Op] = []
        self._starts: list[Op] = []
        self._due: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        # Since when ends of calls are gathered, None while none is; what the loop had spent when it came round last.
        self._gathering: float | None = None
        self._came_round = 0.0
        # How many of them there are.
        self._ends = 0
        self._wal_pages = 0
        self._thread: threading.Thread | None = None
        # Why the last write failed; None when it didn't.
        self.failure: str | None = None
        # Transactions committed, for the metrics and the tests.
        self.groups = 0

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<Writer {self._where} {state}, {self.groups} groups, owed {len(self._owed)}, failure {self.failure!r}>"

    async def start(self) -> None:
        """Start the thread and open its connection. Raises what the opener raises."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._open = True
        self._thread = threading.Thread(target=self._run, args=(started,), name="treering-store-writer", daemon=True)
        self._thread.start()
        await started

    def submit(self, work: Work, *, keep: bool = False) -> None:
        """Hand over a write that nobody awaits. Raises `StoreError` when the writer isn't running."""
        self._put(Op(work, None, keep=keep))

    def defer(self, work: Work, *, keep: bool = False) -> Op:
        """Hand over a write that nobody awaits, on the loop; it is queued before all that is handed over later.

        Raises `StoreError` when the writer isn't running. Returns what `retract` takes.
        """
        op = Op(work, None, keep=keep)
        with self._door:
            self._must_be_open()
            self._deferred.append(op)
        self._see_to(self._loop.time() + DEFER_S)
        return op

    def defer_start(self, make: Callable[[], Work]) -> Op:
        """Hand over a write that something handed over later may make needless, made when it is queued, on the loop.

        It is queued before all that is handed over later but for what is deferred, and ends (`run`).
        Raises `StoreError` when the writer isn't running. Returns what `retract` takes.
        """
        op = Op(None, None)
        op.make, op.since = make, self._loop.time()
        with self._door:
            self._must_be_open()
            self._starts.append(op)
        self._see_to(op.since + START_S)
        return op

    def retract(self, op: Op) -> bool:
        """Take a deferred write back; False when it has been queued."""
        with self._door:
            waiting = self._starts if op.make is not None else self._deferred
            if op not in waiting:
                return False
            waiting.remove(op)
            return True

    async def run(self, work: Work, *, ends: bool = False) -> Any:
        """Hand over a write and return its result when it is committed; raise its error when it isn't.

        `ends`: it is the end of a call, behind which the starts of others may stay.
        """
        future = asyncio.get_running_loop().create_future()
        if ends:
            self._end(Op(work, future))
        else:
            self._put(Op(work, future))
        return await future

    async def settle(self) -> None:
        """Return when all that was handed over was tried."""
        if self._deferred or self._starts or self._settled != self._handed:
            await self._barrier(probe=False)

    async def flush(self) -> None:
        """Return when all that was handed over is committed. Raises `StoreError` while the store can't be written."""
        await self._barrier(probe=True)

    async def stop(self) -> None:
        """Commit what was handed over, close the connection and end the thread.

        Raises `StoreError` if some of it can't be committed, after the thread has ended.
        """
        if self._thread is None:
            return
        self._gate.set()
        last: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._door:
            stopping, self._open = self._open, False
            if stopping:
                self._queue_all([*self._due_starts(before=None), *self._due_ops(), Op(None, last, stop=True)])
        if self._due is not None:
            self._due.cancel()
        try:
            if stopping:
                async with asyncio.timeout(STOP_S):
                    await last
        except TimeoutError:
            raise StoreError("store_failed", f"{self._where} didn't take its last writes in {STOP_S:.0f} s") from None
        finally:
            await asyncio.to_thread(self._thread.join, 1.0)

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
        """Queue a write, and before it all that waits."""
        with self._door:
            self._must_be_open()
            self._queue_all([*self._due_starts(before=None), *self._due_ops(), op])

    def _end(self, op: Op) -> None:
        """Queue a call's end when the loop has nothing else to do, or `GATHER_S` later: others may end meanwhile."""
        with self._door:
            self._must_be_open()
            self._deferred.append(op)
            self._ends += 1
        if self._gathering is None:
            self._gathering, self._came_round = time.perf_counter(), time.thread_time()
            self._loop.call_soon(self._hand_over_ends)
        elif self._ends == GATHER_MOST:
            self._queue_ends()

    def _hand_over_ends(self) -> None:
        assert self._gathering is not None
        before, self._came_round = self._came_round, time.thread_time()
        busy = self._came_round - before > IDLE_S
        if self._ends and busy and time.perf_counter() - self._gathering < GATHER_S:
            self._loop.call_soon(self._hand_over_ends)
            return
        self._gathering = None
        self._queue_ends()

    def _queue_ends(self) -> None:
        with self._door:
            ops = self._due_ops()
            if self._open:
                self._queue_all(ops)
                return
        # The thread ended while they gathered.
        error = StoreError("store_failed", self.failure or f"{self._where} is closed")
        _resolve([(op.future, None, error) for op in ops if op.future is not None])

    def _see_to(self, at: float) -> None:
        """Have what is deferred looked at by then, on the loop's clock."""
        if self._due is not None:
            if self._due_at <= at:
                return
            self._due.cancel()
        self._due, self._due_at = self._loop.call_at(at, self._hand_over), at

    def _hand_over(self) -> None:
        """Queue what is deferred, and the starts whose time is over."""
        self._due = None
        with self._door:
            if self._open:
                # A loop's clock may be coarser than its timers.
                self._queue_all([*self._due_starts(before=self._loop.time() - START_S + 0.001), *self._due_ops()])
                if self._starts:
                    self._see_to(self._starts[0].since + START_S)

    def _due_starts(self, *, before: float | None) -> list[Op]:
        """Take the starts that wait since `before` or longer; all of them with None."""
        due: list[Op] = []
        while self._starts and (before is None or self._starts[0].since <= before):
            op = self._starts.pop(0)
            assert op.make is not None
            op.work = op.make()
            due.append(op)
        return due

    def _due_ops(self) -> list[Op]:
        """Take what is deferred."""
        deferred, self._deferred, self._ends = self._deferred, [], 0
        return deferred

    def _queue_all(self, ops: list[Op]) -> None:
        if ops:
            self._handed += len(ops)
            self._queue.put(ops)

    def _must_be_open(self) -> None:
        if not self._open:
            raise StoreError("store_failed", self.failure or f"{self._where} is closed")

    # What follows runs on the thread.

    def _run(self, started: asyncio.Future[None]) -> None:
        try:
            db = self._opener()
            db.set_wal_hook(self._logged)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's of `start`
            with self._door:
                self._open = False
            self._tell([(started, None, error)])
            return
        self._tell([(started, None, None)])
        try:
            while self._group(db):
                pass
        except BaseException:  # noqa: BLE001, S110 - `_group` logged it and told all that wait; the thread ends here
            pass
        finally:
            with self._door:
                self._open = False
            self._abandon()
            db.close()

    def _group(self, db: apsw.Connection) -> bool:
        """Commit all that is queued; False after the sentinel."""
        ops = list(self._queue.get())
        self._gate.wait()
        while True:
            try:
                ops += self._queue.get_nowait()
            except queue.Empty:
                break
        try:
            self._commit(db, ops)
        except BaseException as error:  # whatever it was, all that wait are told
            # Said before it is told: who hears of it may look at `failure` at once.
            _log.critical("the writer of %s died", self._where, exc_info=True)
            self.failure = f"the writer of {self._where} died: {error!r}"
            with self._door:
                self._open = False
            for op in ops:
                op.error = StoreError("store_failed", self.failure)
            self._settle(ops)
            raise
        self._settle(ops)
        if self._wal_pages >= CHECKPOINT_PAGES:
            self._checkpoint(db)
        return not ops[-1].stop

    def _commit(self, db: apsw.Connection, ops: list[Op]) -> None:
        owed, self._owed = self._owed, []
        work = owed + [op for op in ops if op.work is not None]
        if len(work) == 1 or (work and not self._together(db, work)):
            self._one_by_one(db, owed, work[len(owed) :])
        # Who flushes asks for the store's health; who stops, only for what is still owed.
        asked = [op for op in ops if (op.probe and self.failure is not None) or ((op.probe or op.stop) and self._owed)]
        if asked:
            error = self._probe(db)
            for op in asked:
                op.error = error

    def _together(self, db: apsw.Connection, ops: list[Op]) -> bool:
        """Run writes in one transaction; False when that failed, and nothing of it is left."""
        try:
            db.execute("BEGIN IMMEDIATE")
            for op in ops:
                assert op.work is not None
                op.error = None
                try:
                    op.result = op.work(db)
                except ClientError as error:
                    op.error = error
            db.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whose fault it was is found out one by one
            self._roll_back(db)
            if len(ops) == 1:
                ops[0].error = self._failed(db, error)
            return False
        self.groups += 1
        self.failure = None
        return True

    def _one_by_one(self, db: apsw.Connection, owed: list[Op], ops: list[Op]) -> None:
        """Run each write alone; what is owed stops at its first failure, to be tried again with the next group."""
        while owed and self._alone(db, owed[0]):
            owed.pop(0)
        self._owed = owed
        for op in ops:
            if not self._alone(db, op) and op.keep:
                self._owed.append(op)
        if len(self._owed) > MAX_OWED:
            _log.error("%s is down: %d writes are lost", self._where, len(self._owed) - MAX_OWED)
            del self._owed[:-MAX_OWED]

    def _alone(self, db: apsw.Connection, op: Op) -> bool:
        """Run one write; False when the store failed (and not the write itself)."""
        return self._together(db, [op]) or op.error is None or not self._is_store(op.error)

    def _is_store(self, error: TreeringError) -> bool:
        return isinstance(error.__cause__, apsw.Error) and not isinstance(error.__cause__, apsw.ConstraintError)

    def _failed(self, db: apsw.Connection, error: Exception) -> TreeringError:
        """Return the error for those who wait, and note it."""
        if isinstance(error, TreeringError):
            return error
        full = isinstance(error, apsw.FullError) or (
            isinstance(error, apsw.IOError) and db.system_errno in (errno.ENOSPC, errno.EDQUOT)
        )
        if full:
            out = StoreError("store_full", f"{self._where} can't grow: the disk is full", hint="make room on its disk")
        elif isinstance(error, apsw.Error):
            out = StoreError("store_failed", f"{self._where} can't be written: {error}")
        else:
            out = StoreError("store_failed", f"a write to {self._where} failed: {error!r}")
        out.__cause__ = error
        if self._is_store(out):
            if self.failure is None:
                _log.error("%s", out.message)
            self.failure = out.message
        else:
            _log.error("a write to %s failed", self._where, exc_info=error)
        return out

    def _probe(self, db: apsw.Connection) -> TreeringError | None:
        """Prove that the file can grow, then pay what is owed; return why not."""
        probes = [
            Op(lambda db: db.execute("INSERT INTO probe VALUES (zeroblob(?))", (PROBE_BYTES,)), None),
            Op(lambda db: db.execute("DELETE FROM probe"), None),
        ]
        for probe in probes:
            if not self._together(db, [probe]):
                return probe.error
        owed, self._owed = self._owed, []
        if owed and not self._together(db, owed):
            self._one_by_one(db, owed, [])
            if self._owed:
                return self._owed[0].error
        return None

    def _roll_back(self, db: apsw.Connection) -> None:
        # SQLite may have rolled back by itself (disk full, I/O error).
        if db.in_transaction:
            db.execute("ROLLBACK")

    def _logged(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        """Note the log's length after a commit; in place of SQLite's own checkpoint, which would run inside it."""
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self, db: apsw.Connection) -> None:
        try:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            # The log keeps what it has; the next group tries again.
            _log.warning("%s: the log can't be copied into the file: %s", self._where, error)
        self._wal_pages = 0

    def _settle(self, ops: list[Op]) -> None:
        self._settled += len(ops)
        for op in ops:
            if not op.keep:
                # Who may take it back holds it for as long as a call runs, and it holds the call's request.
                op.work = None
        self._tell([(op.future, op.result, op.error) for op in ops if op.future is not None])

    def _abandon(self) -> None:
        """Fail all that is still queued; nothing can be queued behind it, for the door is shut."""
        left: list[Op] = []
        while True:
            try:
                left += self._queue.get_nowait()
            except queue.Empty:
                break
        for op in left:
            op.error = StoreError("store_failed", self.failure or f"{self._where} is closed")
        self._settle(left)

    def _tell(self, outcomes: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
        if not outcomes:
            return
        try:
            self._loop.call_soon_threadsafe(_resolve, outcomes)
        except RuntimeError:
            # The loop was closed while the thread still wrote: nobody waits any more.
            _log.debug("%s: the loop is gone", self._where)


def _resolve(outcomes: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
