"""A copy of a store: whole, of one moment, while another writes."""

import asyncio
import stat
import threading

import apsw
import pytest

from capture.errors import StoreError
from capture.store import backup as backups
from capture.store.backup import backup
from capture.store.check import check
from tests.capture.store.samples import call, ended, entry, ids, open_at, plain, request


async def put(store, n: int, *, rollout: str = "r") -> None:
    body = request(*(f"turn {at}" for at in range(n % 20)))
    await store.finish(
        rollout, [ended(call(n, body), body, prompt_ids=ids(*range(n % 50 + 1)), sampled_ids=ids(*[n] * 3))]
    )


@pytest.fixture
async def store(tmp_path):
    store = open_at(tmp_path / "t.db")
    await store.open()
    await store.add([entry("r")])
    await put(store, 0)
    yield store
    await store.close()


async def test_a_copy_holds_all_and_is_its_owners(store, tmp_path):
    size = await asyncio.to_thread(backup, tmp_path / "t.db", tmp_path / "copy.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "t.db", "t.db-lock", "t.db-shm", "t.db-wal"]
    assert (tmp_path / "copy.db").stat().st_size == size
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    assert check(tmp_path / "copy.db").faults == ()
    copy = open_at(tmp_path / "copy.db")
    await copy.open()
    assert [plain(each) for each in await copy.calls("r")] == [plain(each) for each in await store.calls("r")]
    await copy.close()


async def test_while_calls_are_written_each_copy_is_of_one_moment(store, tmp_path):
    """Call n names call n - 1 as finished: a copy with a gap, or with less than was there before, shows itself."""
    done, stop = [0], threading.Event()

    def copies() -> list[tuple[int, int]]:
        out = []
        for at in range(8):
            least = done[0]
            backup(tmp_path / "t.db", tmp_path / f"copy{at}.db")
            out.append((least, done[0]))
        stop.set()
        return out

    copying = asyncio.get_running_loop().run_in_executor(None, copies)
    n = 0
    while not stop.is_set():
        n += 1
        await put(store, n)
        done[0] = n
    bounds = await copying
    assert n > 8
    for at, (least, most) in enumerate(bounds):
        assert check(tmp_path / f"copy{at}.db").faults == ()
        copy = open_at(tmp_path / f"copy{at}.db")
        await copy.open()
        numbers = [each.n for each in await copy.calls("r")]
        assert numbers == list(range(len(numbers)))
        # One may have been committed whose waiter had not been told yet.
        assert least <= numbers[-1] <= most + 1
        await copy.close()


async def test_a_call_that_runs_is_aborted_where_the_copy_is_opened_and_runs_on_where_it_runs(store, tmp_path):
    body = request("still at it")
    store.begin("r", call(1, body), body)
    await store.flush()
    backup(tmp_path / "t.db", tmp_path / "copy.db")
    copy = open_at(tmp_path / "copy.db")
    await copy.open()
    assert copy.recovered == (("r", 1),)
    await copy.close()
    assert (await store.calls("r"))[1].status == "running"


async def test_a_store_that_nobody_runs_is_copied_too(store, tmp_path):
    await store.close()
    backup(tmp_path / "t.db", tmp_path / "copy.db")
    assert check(tmp_path / "copy.db").calls == 1


async def test_nothing_is_overwritten(store, tmp_path):
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(StoreError, match="is there already"):
        backup(tmp_path / "t.db", tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


async def test_not_even_what_came_there_meanwhile(store, tmp_path, monkeypatch):
    copy = backups._copy

    def slow(source, part):
        copy(source, part)
        (tmp_path / "copy.db").write_text("mine")

    monkeypatch.setattr(backups, "_copy", slow)
    with pytest.raises(StoreError, match="File exists"):
        backup(tmp_path / "t.db", tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"
    assert not (tmp_path / "copy.db.part").exists()


async def test_what_an_earlier_try_left_is_no_hindrance(store, tmp_path):
    (tmp_path / "copy.db.part").write_text("half")
    backup(tmp_path / "t.db", tmp_path / "copy.db")
    assert check(tmp_path / "copy.db").faults == ()


def test_what_is_no_store_is_not_copied(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        backup(tmp_path / "t.db", tmp_path / "copy.db")
    (tmp_path / "t.db").write_bytes(b"no database " * 100)
    with pytest.raises(StoreError, match="can't be copied"):
        backup(tmp_path / "t.db", tmp_path / "copy.db")
    theirs = apsw.Connection(str(tmp_path / "theirs.db"))
    theirs.execute("CREATE TABLE theirs (x)")
    theirs.close()
    with pytest.raises(StoreError, match="another program"):
        backup(tmp_path / "theirs.db", tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy*"))


async def test_a_damaged_store_is_not_passed_off_as_a_backup(store, tmp_path):
    for n in range(1, 200):
        await put(store, n)
    await store.close()
    path = tmp_path / "t.db"
    db = apsw.Connection(str(path))
    page = db.pragma("page_size")
    (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'call'").fetchone()
    db.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\0" * page)
    with pytest.raises(StoreError, match="is damaged, and so is a copy"):
        backup(path, tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy*"))


async def test_a_folder_that_cannot_take_it(store, tmp_path):
    with pytest.raises(StoreError, match="can't be copied"):
        backup(tmp_path / "t.db", tmp_path / "none" / "copy.db")
    await put(store, 1)
    assert [call.n for call in await store.calls("r")] == [0, 1]
