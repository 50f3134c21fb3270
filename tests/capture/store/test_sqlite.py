"""The store as its users see it: what goes in comes out, on one file, by one process, whatever happens."""

import asyncio
import stat
from collections.abc import Awaitable
from pathlib import Path

import apsw
import numpy as np
import pytest

from capture.errors import StoreError
from capture.store.base import FORMAT_VERSION
from capture.store.sqlite import SqliteStore
from graph.records import Notice
from tests.capture.store.samples import (
    NOW,
    call,
    ended,
    entry,
    ids,
    open_at,
    request,
)


@pytest.fixture
async def store(tmp_path):
    store = open_at(tmp_path / "t.db")
    await store.open()
    yield store
    await store.close()


async def fail_disk(store: SqliteStore) -> None:
    """Make the file as large as it may be."""
    await store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1"))


async def mend_disk(store: SqliteStore) -> None:
    await store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1000000"))


BIG = np.arange(200_000, dtype=np.int32)
"""Ids that don't fit into the free pages of a full file."""


# -- one file, one process


async def test_a_second_store_on_the_file_is_refused_by_name(store, tmp_path):
    second = open_at(tmp_path / "t.db")
    with pytest.raises(StoreError, match=r"t\.db is in use by process \d+"):
        await second.open()
    # The first goes on.
    await store.add([entry("r")])


async def test_another_name_of_the_file_is_the_same_file(store, tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "t.db")
    with pytest.raises(StoreError, match="in use"):
        await open_at(tmp_path / "link.db").open()


async def test_a_relative_path_stays_what_it_was_when_the_folder_changes(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_at(Path("t.db"))
    assert store.where == "sqlite:///t.db"
    monkeypatch.chdir("elsewhere")
    await store.open()
    assert await store.get("r") is None
    await store.close()
    assert (tmp_path / "t.db").exists()


async def test_the_file_can_be_opened_again_after_close(tmp_path):
    for n in range(3):
        store = open_at(tmp_path / "t.db")
        await store.open()
        await store.add([entry(f"r{n}")])
        await store.close()
        await store.close()
    assert {path.name for path in tmp_path.iterdir()} == {"t.db", "t.db-lock"}


async def test_only_the_owner_can_read_any_of_its_files(tmp_path):
    (tmp_path / "t.db").touch(0o644)
    store = open_at(tmp_path / "t.db")
    await store.open()
    await store.add([entry("r")])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    await store.close()
    assert modes == dict.fromkeys(("t.db", "t.db-wal", "t.db-shm", "t.db-lock"), 0o600)


@pytest.mark.parametrize("path", ["no/such/folder/t.db", "folder"])
async def test_a_path_that_cannot_be_a_store_is_an_error_that_names_it(tmp_path, path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=path) as caught:
        await open_at(tmp_path / path).open()
    assert caught.value.code == "store_failed"


async def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "t.db").write_bytes(b"not a database, but long enough to look like one" * 100)
    with pytest.raises(StoreError, match="not a database"):
        await open_at(tmp_path / "t.db").open()
    # Let go of: another attempt meets the same, not a lock.
    with pytest.raises(StoreError, match="not a database"):
        await open_at(tmp_path / "t.db").open()


async def test_a_newer_file_is_refused_with_a_sentence_and_left_as_it_is(tmp_path):
    path = tmp_path / "t.db"
    store = open_at(path)
    await store.open()
    await store.close()
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer Treering") as caught:
        await open_at(path).open()
    assert caught.value.code == "store_newer"
    assert path.read_bytes() == before


@pytest.mark.parametrize(("durability", "synchronous"), [("none", 0), ("process", 1), ("power", 2)])
async def test_durability_is_how_far_sqlite_syncs(tmp_path, durability, synchronous):
    store = open_at(tmp_path / "t.db", durability=durability)
    await store.open()
    found = await store._writer.run(lambda db: db.execute("PRAGMA synchronous").fetchall())
    assert await store._writer.run(lambda db: db.execute("PRAGMA journal_mode").fetchall()) == [("wal",)]
    await store.close()
    assert found == [(synchronous,)]


# -- when the disk is full


async def test_a_full_disk_is_said_and_forgotten_when_there_is_room_again(store):
    body = request("hello")
    await store.add([entry("r")])
    await store.finish("r", [ended(call(0, body), body, prompt_ids=ids(1))])
    await fail_disk(store)
    with pytest.raises(StoreError) as caught:
        await store.finish("r", [ended(call(1, body), body, prompt_ids=BIG)])
    assert (caught.value.code, caught.value.status) == ("store_full", 507)
    assert "disk is full" in store.failure
    with pytest.raises(StoreError) as caught:
        await store.flush()
    assert caught.value.code == "store_full"
    # What is there can still be read.
    assert [found.n for found in await store.calls("r")] == [0]
    await mend_disk(store)
    await store.flush()
    assert store.failure is None
    await store.finish("r", [ended(call(1, body), body, prompt_ids=BIG)])
    assert [len(found.prompt_ids) for found in await store.calls("r")] == [1, len(BIG)]


async def test_what_nobody_awaits_is_written_when_the_store_is_back(store):
    body = request("hello")
    await store.add([entry("r")])
    await store.finish("r", [ended(call(0, body), body)])
    await fail_disk(store)
    for n in range(50):
        store.notice("r", Notice(code="x", calls=(n,), data={"pad": "z" * 4000}))
    store.deliver("r", [0], delivered=True, at=NOW)
    with pytest.raises(StoreError):
        await store.flush()
    await mend_disk(store)
    await store.flush()
    assert [notice.calls for notice in await store.notices("r")] == [(n,) for n in range(50)]
    (found,) = await store.calls("r")
    assert found.delivered is True
    assert (await store.exchange("r", 0)).deliveries == ({"at": NOW, "complete": True},)


async def test_a_write_that_fails_in_a_group_takes_no_other_with_it(store):
    body = request("hello")
    await store.add([entry("r")])
    await fail_disk(store)
    store.hold()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(fails_or_not(store.finish("r", [ended(call(n, body), body, prompt_ids=prompt)])))
            for n, prompt in enumerate([None, BIG, None])
        ]
        await asyncio.sleep(0)
        store.release()
    assert [task.result() for task in tasks] == [None, "store_full", None]
    await mend_disk(store)
    assert [found.n for found in await store.calls("r")] == [0, 2]


async def fails_or_not(work: Awaitable[None]) -> str | None:
    try:
        await work
    except StoreError as error:
        return error.code
    return None


async def test_closing_on_a_full_disk_says_what_was_lost(tmp_path):
    store = open_at(tmp_path / "t.db")
    await store.open()
    await store.add([entry("r")])
    await fail_disk(store)
    store.notice("r", Notice(code="x", data={"pad": "z" * 100_000}))
    with pytest.raises(StoreError) as caught:
        await store.close()
    assert caught.value.code == "store_full"
    # Closed all the same: the lock is free.
    again = open_at(tmp_path / "t.db")
    await again.open()
    await again.close()
