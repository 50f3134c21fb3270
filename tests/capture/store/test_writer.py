"""The writer thread: order, groups, failures that stay with their write, and no silent death."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from capture.errors import ClientError, StoreError
from capture.store import writer as writer_module
from capture.store.writer import MAX_OWED, Work, Writer
from capture.tasks import spawn


def opener(path: Path) -> Callable[[], apsw.Connection]:
    def open_it() -> apsw.Connection:
        db = apsw.Connection(str(path))
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE IF NOT EXISTS t (v); CREATE TABLE IF NOT EXISTS probe (data BLOB)")
        return db

    return open_it


def insert(value: object) -> Work:
    return lambda db: db.execute("INSERT INTO t VALUES (?)", (value,)).close()


def fail(error: BaseException) -> Work:
    def work(db: apsw.Connection) -> None:
        db.execute("INSERT INTO t VALUES ('half')")
        raise error

    return work


def refuse(db):
    raise ClientError("id_taken", "no", status=409)


async def values(writer: Writer) -> list[Any]:
    return [value for (value,) in await writer.run(lambda db: db.execute("SELECT v FROM t").fetchall())]


async def full(writer: Writer, pages: int) -> None:
    await writer.run(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchall())


@pytest.fixture
async def writer(tmp_path):
    writer = Writer(opener(tmp_path / "t.db"), where="the store")
    await writer.start()
    yield writer
    await writer.stop()


async def test_writes_keep_their_order_awaited_or_not(writer):
    writer.submit(insert(1))
    await writer.run(insert(2))
    writer.submit(insert(3))
    assert await values(writer) == [1, 2, 3]


async def test_a_result_comes_back_after_the_commit(writer, tmp_path):
    assert await writer.run(lambda db: "result") == "result"
    await writer.run(insert(1))
    other = apsw.Connection(str(tmp_path / "t.db"))
    assert other.execute("SELECT v FROM t").fetchall() == [(1,)]
    other.close()


async def test_what_gathers_while_it_is_held_is_one_transaction(writer):
    await writer.flush()
    before = writer.groups
    writer.hold()
    async with asyncio.TaskGroup() as group:
        for n in range(500):
            group.create_task(writer.run(insert(n)))
        await asyncio.sleep(0)
        assert writer.groups == before
        writer.release()
    assert writer.groups == before + 1
    assert await values(writer) == list(range(500))


async def test_writes_from_several_threads_all_arrive(writer):
    threads = [threading.Thread(target=lambda: [writer.submit(insert(n)) for n in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await writer.flush()
    assert len(await values(writer)) == 400


async def gather_held(writer: Writer, *works: Work) -> list[Any]:
    """Hand over writes as one group; return what came of each."""
    writer.hold()
    tasks = [asyncio.get_running_loop().create_task(writer.run(work)) for work in works]
    await asyncio.sleep(0)
    writer.release()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_write_with_a_bug_fails_alone_and_leaves_nothing(writer):
    one, bad, two = await gather_held(writer, insert(1), fail(ZeroDivisionError("bug")), insert(2))
    assert (one, two) == (None, None)
    assert isinstance(bad, StoreError)
    assert bad.code == "store_failed"
    assert "bug" in bad.message
    assert await values(writer) == [1, 2]
    # The store itself is well.
    assert writer.failure is None


async def test_a_refusal_costs_the_group_nothing(writer):
    await writer.flush()
    before = writer.groups
    one, refused, two = await gather_held(writer, insert(1), refuse, insert(2))
    assert (one, two) == (None, None)
    assert isinstance(refused, ClientError)
    assert writer.groups == before + 1


async def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(writer):
    await full(writer, 1)
    small, big = await gather_held(writer, insert("x"), insert("z" * 100_000))
    assert small is None
    assert (big.code, big.status) == ("store_full", 507)
    assert await values(writer) == ["x"]


async def test_failure_is_said_until_a_write_works(writer):
    await full(writer, 1)
    with pytest.raises(StoreError):
        await writer.run(insert("z" * 100_000))
    assert "disk is full" in writer.failure
    # Small enough for a page that is there.
    await writer.run(insert("x"))
    assert writer.failure is None
    await writer.flush()


async def test_flush_proves_that_the_file_can_grow(writer):
    await full(writer, 1)
    with pytest.raises(StoreError):
        await writer.run(insert("z" * 100_000))
    # An empty transaction would do on a full disk, and prove nothing.
    for _ in range(2):
        with pytest.raises(StoreError, match="disk is full"):
            await writer.flush()
        assert "disk is full" in writer.failure
    writer.submit(lambda db: db.execute("PRAGMA max_page_count = 1000").fetchall())
    await writer.flush()
    assert writer.failure is None


async def test_what_must_not_be_lost_is_owed_and_paid_first_and_in_order(writer):
    await full(writer, 1)
    for n in range(5):
        writer.submit(insert(f"{n}" + "z" * 50_000), keep=True)
    writer.submit(insert("lost" + "z" * 50_000))
    with pytest.raises(StoreError):
        await writer.flush()
    assert "owed 5" in repr(writer)
    await full(writer, 10_000)
    await writer.run(insert("new"))
    assert [value[:3] for value in await values(writer)] == ["0zz", "1zz", "2zz", "3zz", "4zz", "new"]
    assert "owed 0" in repr(writer)


async def test_what_is_owed_is_bounded(writer, monkeypatch, caplog):
    assert MAX_OWED == 100_000
    monkeypatch.setattr("capture.store.writer.MAX_OWED", 3)
    await full(writer, 1)
    for n in range(5):
        writer.submit(insert(f"{n}" + "z" * 50_000), keep=True)
    with pytest.raises(StoreError):
        await writer.flush()
    assert "writes are lost" in caplog.text
    await full(writer, 10_000)
    await writer.flush()
    assert [value[:1] for value in await values(writer)] == ["2", "3", "4"]


async def test_a_kept_write_with_a_bug_is_not_tried_for_ever(writer, caplog):
    writer.submit(fail(ZeroDivisionError("bug")), keep=True)
    writer.submit(insert(1))
    await writer.flush()
    assert await values(writer) == [1]
    assert "bug" in caplog.text


async def test_a_waiter_that_gave_up_disturbs_nobody(writer):
    writer.hold()
    task = asyncio.get_running_loop().create_task(writer.run(insert(1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    writer.release()
    await writer.run(insert(2))
    assert await values(writer) == [1, 2]


async def test_settle_waits_for_what_was_tried_and_says_nothing_of_failures(writer):
    await full(writer, 1)
    writer.submit(insert("z" * 100_000))
    await writer.settle()
    assert writer.failure is not None
    await full(writer, 1000)


async def test_stopping_commits_what_was_handed_over_even_when_held(tmp_path):
    writer = Writer(opener(tmp_path / "t.db"), where="the store")
    await writer.start()
    writer.hold()
    for n in range(10):
        writer.submit(insert(n))
    await writer.stop()
    await writer.stop()
    db = apsw.Connection(str(tmp_path / "t.db"))
    assert db.execute("SELECT count(*) FROM t").get == 10
    db.close()
    with pytest.raises(StoreError, match="the store is closed"):
        writer.submit(insert(1))
    with pytest.raises(StoreError, match="the store is closed"):
        await writer.flush()


async def test_a_connection_that_cannot_be_opened_is_the_error_of_start():
    def opener():
        raise StoreError("store_newer", "too new")

    writer = Writer(opener, where="the store")
    with pytest.raises(StoreError, match="too new"):
        await writer.start()
    with pytest.raises(StoreError):
        writer.submit(insert(1))
    await writer.stop()


def broken(self, db, ops):
    raise SystemExit("out of the blue")


async def test_a_thread_that_dies_is_heard(tmp_path, monkeypatch, caplog):
    writer = Writer(opener(tmp_path / "t.db"), where="the store")
    await writer.start()
    monkeypatch.setattr(Writer, "_commit", broken)
    first, second = await gather_held(writer, insert(1), insert(2))
    for error in (first, second):
        assert isinstance(error, StoreError)
        assert "out of the blue" in error.message
    assert writer.failure is not None
    assert "out of the blue" in writer.failure
    assert "died" in caplog.text
    with pytest.raises(StoreError, match="out of the blue"):
        await writer.run(insert(3))
    await writer.stop()


async def test_the_log_is_copied_into_the_file_and_starts_anew(writer, tmp_path):
    for _ in range(12):
        await writer.run(insert("z" * 2_000_000))
    await writer.flush()
    # 24 MB were written. Without a checkpoint all of it would be in the log.
    assert (tmp_path / "t.db-wal").stat().st_size < 8_000_000


# -- deferred


async def test_what_is_deferred_goes_before_all_that_is_handed_over_later(writer):
    writer.defer(insert(1))
    writer.submit(insert(2))
    writer.defer(insert(3))
    await writer.run(insert(4))
    assert await values(writer) == [1, 2, 3, 4]


async def test_what_is_deferred_is_committed_with_nothing_behind_it(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "DEFER_S", 0.001)
    before = writer.groups
    writer.defer(insert(1))
    async with asyncio.timeout(10):
        while writer.groups == before:  # noqa: ASYNC110 - the thread has nobody to tell of a write that nobody awaits
            await asyncio.sleep(0)
    assert await values(writer) == [1]


async def test_what_is_deferred_can_be_taken_back_until_it_is_queued(writer):
    gone, stays = writer.defer(insert(1)), writer.defer(insert(2))
    assert writer.retract(gone)
    assert not writer.retract(gone)
    await writer.settle()
    assert not writer.retract(stays)
    assert await values(writer) == [2]


async def test_what_is_deferred_is_committed_at_the_stop(tmp_path):
    path = tmp_path / "t.db"
    one = Writer(opener(path), where="t")
    await one.start()
    one.defer(insert(1))
    await one.stop()
    other = apsw.Connection(str(path))
    assert other.execute("SELECT v FROM t").fetchall() == [(1,)]
    other.close()
    with pytest.raises(StoreError):
        one.defer(insert(2))


# -- starts


async def test_a_start_that_an_end_makes_needless_is_never_made(writer):
    made = []

    def make():
        made.append(1)
        return insert(1)

    start = writer.defer_start(make)
    await writer.run(insert(2), ends=True)
    assert writer.retract(start)
    assert not writer.retract(start)
    await writer.settle()
    assert (made, await values(writer)) == ([], [2])


async def test_what_a_write_holds_is_let_go_of_when_it_is_committed(writer):
    """Who may take it back holds it for as long as the call runs."""
    start, deferred = writer.defer_start(lambda: insert(1)), writer.defer(insert(2))
    await writer.settle()
    assert (start.work, deferred.work) == (None, None)
    assert await values(writer) == [1, 2]


async def test_a_start_goes_before_all_that_is_handed_over_later_but_ends(writer):
    writer.defer_start(lambda: insert(1))
    await writer.run(insert(2), ends=True)
    writer.submit(insert(3))
    writer.defer_start(lambda: insert(4))
    await writer.settle()
    assert await values(writer) == [2, 1, 3, 4]


async def test_a_start_is_committed_when_its_time_is_over_and_not_before(writer, monkeypatch):
    at = 0.0
    monkeypatch.setattr(writer._loop, "time", lambda: at)
    first = writer.defer_start(lambda: insert(1))
    at += writer_module.START_S / 2
    second = writer.defer_start(lambda: insert(2))
    at += writer_module.START_S / 2
    writer._hand_over()
    assert not writer.retract(first)
    assert writer.retract(second)


async def test_a_mark_does_not_wait_for_a_starts_time(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "START_S", 60.0)
    monkeypatch.setattr(writer_module, "DEFER_S", 0.001)
    before = writer.groups
    start = writer.defer_start(lambda: insert(1))
    writer.defer(insert(2))
    async with asyncio.timeout(10):
        while writer.groups == before:  # noqa: ASYNC110 - the thread has nobody to tell of a write that nobody awaits
            await asyncio.sleep(0)
    assert writer.retract(start)
    assert await values(writer) == [2]


async def test_what_is_deferred_is_seen_to_at_its_own_time(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "START_S", 0.002)
    before = writer.groups
    writer.defer_start(lambda: insert(1))
    async with asyncio.timeout(10):
        while writer.groups == before:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    assert await values(writer) == [1]


async def test_starts_are_committed_at_the_stop(tmp_path):
    path = tmp_path / "t.db"
    one = Writer(opener(path), where="t")
    await one.start()
    one.defer_start(lambda: insert(1))
    await one.stop()
    other = apsw.Connection(str(path))
    assert other.execute("SELECT v FROM t").fetchall() == [(1,)]
    other.close()
    with pytest.raises(StoreError):
        one.defer_start(lambda: insert(2))


class Clock:
    """In place of `time`: each look at either clock finds it so many seconds after the look before."""

    def __init__(self, step: float, *, spent: float = 1.0) -> None:
        self.step, self.spent = step, spent
        self.now = self.used = 0.0

    def perf_counter(self) -> float:
        self.now += self.step
        return self.now

    def thread_time(self) -> float:
        self.used += self.spent
        return self.used


async def ended(writer: Writer, *, rounds: int) -> int:
    """End a call in each of so many rounds of the loop; return the groups that they were."""
    before = writer.groups
    async with asyncio.TaskGroup() as group:
        for n in range(rounds):
            group.create_task(writer.run(insert(n), ends=True))
            await asyncio.sleep(0)
    assert (await values(writer))[-rounds:] == list(range(rounds))
    return writer.groups - before - 1


async def test_an_end_that_gathers_while_the_thread_dies_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "time", Clock(writer_module.GATHER_S / 10))
    writer = Writer(opener(tmp_path / "t.db"), where="the store")
    await writer.start()
    monkeypatch.setattr(Writer, "_commit", broken)
    end = spawn(writer.run(insert(1), ends=True), name="end")
    await asyncio.sleep(0)
    # What the thread dies of is not the end: that still gathers.
    held, writer._deferred = writer._deferred, []
    writer.submit(insert(2))
    writer._deferred = held
    assert writer._thread is not None
    await asyncio.to_thread(writer._thread.join, 10)
    with pytest.raises(StoreError, match="out of the blue"):
        async with asyncio.timeout(10):
            await end
    await writer.stop()


async def test_ends_of_calls_gather_while_the_loop_has_other_things_to_do(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "time", Clock(writer_module.GATHER_S / 10))
    assert await ended(writer, rounds=writer_module.GATHER_MOST - 1) == 1


async def test_ends_of_calls_that_are_enough_for_a_group_wait_for_no_others(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "time", Clock(writer_module.GATHER_S / 50))
    futures = []
    for n in range(writer_module.GATHER_MOST):
        assert len(writer._deferred) == n
        futures.append(spawn(writer.run(insert(n), ends=True), name="end"))
        await asyncio.sleep(0)
    assert writer._deferred == []
    await asyncio.gather(*futures)
    assert await ended(writer, rounds=1) == 1


async def test_ends_of_calls_gather_no_longer_than_their_time(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "time", clock := Clock(writer_module.GATHER_S / 4))
    future = spawn(writer.run(insert(1), ends=True), name="end")
    for _ in range(5):
        await asyncio.sleep(0)
    assert (writer._deferred, clock.now) == ([], clock.step * 5)
    await future


async def test_an_end_is_handed_over_at_once_by_a_loop_with_nothing_else_to_do(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "time", clock := Clock(0.0, spent=writer_module.IDLE_S / 2))
    future = spawn(writer.run(insert(1), ends=True), name="end")
    await asyncio.sleep(0)
    assert len(writer._deferred) == 1
    await asyncio.sleep(0)
    assert (writer._deferred, clock.used) == ([], clock.spent * 2)
    await future


async def test_an_end_goes_before_all_that_is_handed_over_later(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "time", Clock(writer_module.GATHER_S / 10))
    future = spawn(writer.run(insert(1), ends=True), name="end")
    await asyncio.sleep(0)
    writer.submit(insert(2))
    assert await values(writer) == [1, 2]
    await future


async def test_ends_that_gather_are_committed_at_the_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "time", Clock(writer_module.GATHER_S / 10))
    one = Writer(opener(tmp_path / "t.db"), where="t")
    await one.start()
    future = spawn(one.run(insert(1), ends=True), name="end")
    await asyncio.sleep(0)
    await one.stop()
    await future
    other = apsw.Connection(str(tmp_path / "t.db"))
    assert other.execute("SELECT v FROM t").fetchall() == [(1,)]
    other.close()
