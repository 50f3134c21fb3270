"""What becomes of writes when PostgreSQL is killed, is full, or is silent: kept or reported, and never done twice."""

import asyncio
import logging

import pytest

from capture.errors import StoreError
from capture.store.base import Spool
from capture.store.postgres import link as link_module
from capture.store.postgres import store as store_module
from capture.store.postgres import writer as writer_module
from capture.store.postgres.driver import asyncpg
from graph.records import Notice
from tests.capture.store.places import DatabasePlace, opened
from tests.capture.store.samples import NOW, call, ended, entry, ids, listed, request
from tests.postgres import PASSWORD, QUOTED, Server, missing

BODY = request("hello")


@pytest.fixture
def server(postgres):
    """A server of the test's own, which it may kill; its commits are as safe as PostgreSQL's are by default."""
    with Server.running(fsync=True) as own:
        yield own


@pytest.fixture
async def mortal(server):
    """A place on a server that the test may kill."""
    return DatabasePlace(await server.database())


@pytest.fixture
def impatient(monkeypatch):
    """Say at once that the store has failed."""
    monkeypatch.setattr(writer_module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.0)


@pytest.fixture
def patient(monkeypatch):
    """However long a busy machine takes to start a PostgreSQL."""
    monkeypatch.setattr(writer_module, "PATIENCE_S", 60.0)
    monkeypatch.setattr(store_module, "PATIENCE_S", 60.0)


def record(n, **fields):
    return ended(call(n, BODY), BODY, **{"ended": None, "sampled_ids": ids(n)} | fields)


async def code(work):
    try:
        await work
    except StoreError as error:
        return error.code
    return None


def test_there_is_a_postgresql():
    assert missing() is None


async def test_what_a_write_holds_is_let_go_of_when_it_is_committed(postgres):
    """Who may take it back holds it for as long as the call runs, and it holds the call's request."""
    store = await opened(DatabasePlace(await postgres.database()))
    await store.add([entry("r")])
    store.begin("r", call(0, BODY), BODY)
    (begun,) = store._begun.values()
    assert begun.what is not None
    assert await store.running() == [("r", 0)]
    assert begun.what is None
    await store.close()


# -- killed


@pytest.mark.usefixtures("patient")
async def test_what_waits_while_postgresql_is_killed_and_back_is_written(server, mortal):
    store = await opened(mortal)
    await store.add([entry("r")])
    for _ in range(3):
        await store.arrive("r", choices=1, started_at=NOW)
    await store.finish("r", [record(0)])
    server.kill()
    store.begin("r", call(1, BODY), BODY)
    store.notice("r", Notice(code="x"))
    waiting = [asyncio.get_running_loop().create_task(store.finish("r", [record(n)])) for n in (1, 2)]
    arriving = asyncio.get_running_loop().create_task(store.arrive("r", choices=1, started_at=NOW))
    await asyncio.sleep(0)
    await asyncio.to_thread(server.start)
    await asyncio.gather(*waiting)
    at = await arriving
    assert store.failure is None
    found = await store.calls("r")
    assert [(each.n, each.status, listed(each.sampled_ids)) for each in found] == [
        (n, "complete", [n]) for n in range(3)
    ]
    assert [notice.code for notice in await store.notices("r")] == ["x"]
    assert at.n == 3
    assert await store.running() == [("r", 3)]
    await store.close()


async def test_all_that_was_said_to_be_stored_is_there_after_a_kill(server, mortal):
    """Kill it in the middle of 16 writers, as they go, four times over."""
    store = await opened(mortal)
    await store.add([entry("r")])
    said: list[int] = []
    ending = False

    async def lane(first):
        n = first
        while not ending:
            if await code(store.finish("r", [record(n)])) is None:
                said.append(n)
            n += 16

    async with asyncio.TaskGroup() as group:
        for first in range(16):
            group.create_task(lane(first))
        for _ in range(4):
            before = len(said)
            while len(said) < before + 50:  # noqa: ASYNC110 - the lanes are the clock
                await asyncio.sleep(0.001)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        ending = True
    found = {each.n: each for each in await store.calls("r")}
    assert set(said) <= set(found)
    assert len(said) == len(set(said))
    assert all(listed(found[n].sampled_ids) == [n] for n in said)
    moments = [each.ended for each in found.values()]
    assert len(set(moments)) == len(moments)
    await store.close()


@pytest.mark.usefixtures("impatient")
async def test_while_it_is_down_everybody_hears_it_and_what_may_not_be_lost_is_kept(server, mortal, caplog):
    caplog.set_level(logging.DEBUG)
    store = await opened(mortal, beat_s=3600.0)
    await store.add([entry("r")])
    await store.finish("r", [record(0)])
    at = await store.arrive("r", choices=1, started_at=NOW)
    store.begin("r", call(at.n, BODY), BODY)
    store.spool("r", at.n, Spool(prompt_ids=None, sampled_ids=ids(8), logprobs=None))
    await store.flush()
    server.kill()
    outcomes = await asyncio.gather(
        code(store.finish("r", [record(at.n)])),
        code(store.change("r", {"reward": 1.0})),
        code(store.arrive("r", choices=1, started_at=NOW)),
        code(store.get("r")),
        code(store.flush()),
    )
    assert outcomes == ["store_failed"] * 5
    assert store.failure is not None
    store.notice("r", Notice(code="x"))
    store.deliver("r", [0], delivered=True, at=NOW)
    assert await code(store.flush()) == "store_failed"
    said = store.failure + repr(store) + caplog.text
    assert PASSWORD not in said
    assert QUOTED not in said

    await asyncio.to_thread(server.start)
    await store.flush()
    assert store.failure is None
    await store._ask(store._bury)
    first, second = await store.calls("r")
    assert (first.status, first.delivered) == ("complete", True)
    # Its end was reported as lost; what is left of it is what was spooled.
    assert (second.status, listed(second.sampled_ids)) == ("aborted", [8])
    assert [notice.code for notice in await store.notices("r")] == ["x"]
    assert (await store.exchange("r", 0)).deliveries == ({"at": NOW, "complete": True},)
    assert await store.running() == []
    await store.close()


@pytest.mark.usefixtures("impatient")
async def test_an_arrival_that_nobody_heard_of_does_not_run_for_ever(database, monkeypatch):
    store = await opened(database, beat_s=3600.0)
    await store.add([entry("r")])
    ask = store_module.rollouts.arrive

    async def unheard(db, rollout, **options):
        await ask(db, rollout, **options)
        raise asyncpg.ConnectionDoesNotExistError("cut")

    monkeypatch.setattr(store_module.rollouts, "arrive", unheard)
    assert await code(store.arrive("r", choices=1, started_at=NOW)) == "store_failed"
    monkeypatch.undo()
    assert await store.running() == [("r", 0)]
    await store._ask(store._bury)
    assert await store.running() == []
    await store.close()


async def test_an_arrival_whose_answer_was_lost_is_answered_again_with_its_number(database, monkeypatch):
    store = await opened(database)
    await store.add([entry("r")])
    ask, cut = store_module.rollouts.arrive, [True, True]

    async def unheard(db, rollout, **options):
        found = await ask(db, rollout, **options)
        if cut:
            cut.pop()
            raise asyncpg.ConnectionDoesNotExistError("cut")
        return found

    monkeypatch.setattr(store_module.rollouts, "arrive", unheard)
    at = await store.arrive("r", choices=2, started_at=NOW)
    assert (at.n, at.arrived, at.spent.running) == (0, 0, 1)
    at = await store.arrive("r", choices=1, started_at=NOW)
    assert (at.n, at.arrived, at.spent.running) == (2, 1, 2)
    await store.close()


# -- in doubt


class Cut:
    """A connection that is lost at its first COMMIT, before or after the database got it."""

    def __init__(self, db, *, after):
        self._db = db
        self._after = after

    def __getattr__(self, name):
        return getattr(self._db, name)

    async def execute(self, sql, *values):
        if sql != "COMMIT":
            return await self._db.execute(sql, *values)
        if self._after:
            await self._db.execute(sql)
        self._db.terminate()
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


@pytest.mark.parametrize("after", [True, False])
async def test_a_connection_that_is_lost_in_the_commit_costs_nothing_and_doubles_nothing(database, after):
    store = await opened(database)
    await store.add([entry("r")])
    await store.flush()
    before = (await store.get("r")).version
    store._writer._db = Cut(store._writer._db, after=after)
    store.notice("r", Notice(code="x"))
    await store.finish("r", [record(0)])
    assert [notice.code for notice in await store.notices("r")] == ["x"]
    assert (await store.get("r")).version == before + 2
    (found,) = await store.calls("r")
    assert (found.status, found.ended) == ("complete", 1)
    await store.close()


# -- silent


async def test_a_server_that_answers_nobody_costs_a_bounded_time(server, mortal, monkeypatch, impatient):
    monkeypatch.setattr(link_module, "COMMAND_S", 0.5)
    monkeypatch.setattr(link_module, "CONNECT_S", 0.5)
    monkeypatch.setattr(store_module, "ACQUIRE_S", 1.0)
    store = await opened(mortal, beat_s=3600.0)
    await store.add([entry("r")])
    server.pause()
    async with asyncio.timeout(20):
        assert await code(store.finish("r", [record(0)])) == "store_failed"
        assert await code(store.get("r")) == "store_failed"
        assert await code(store.flush()) == "store_failed"
    assert "no answer in time" in store.failure
    server.resume()
    async with asyncio.timeout(20):
        while await code(store.flush()) is not None:  # noqa: ASYNC110 - it answers when it has woken up
            await asyncio.sleep(0.05)
        await store.finish("r", [record(1)])
    assert [each.n for each in await store.calls("r")] == [1]
    await store.close()


async def test_a_lock_that_another_holds_is_waited_for(database):
    store = await opened(database)
    await store.add([entry("r")])
    db = await asyncpg.connect(database.url, server_settings={"search_path": "treering"})
    async with db.transaction():
        await db.execute("SELECT key FROM rollout FOR UPDATE")
        waiting = asyncio.get_running_loop().create_task(store.finish("r", [record(0)]))
        # It is in the database's own list of those who wait.
        while not await db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    await db.close()
    await store.close()


# -- full, or read-only


async def break_it(database, code):
    """Have the database refuse large prompts with an error of its own."""
    await database.sql("DROP FUNCTION IF EXISTS refuse CASCADE")
    await database.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '{code}'; END $$"
    )
    await database.sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON call FOR EACH ROW WHEN (length(NEW.tail) > 400)"
        " EXECUTE FUNCTION refuse()"
    )
    await database.sql("CREATE TRIGGER refuse BEFORE INSERT ON probe FOR EACH ROW EXECUTE FUNCTION refuse()")


async def test_a_full_disk_is_said_costs_what_does_not_fit_alone_and_is_forgotten(database):
    store = await opened(database, beat_s=3600.0)
    await store.add([entry("r")])
    await break_it(database, "53100")
    store.hold()
    big = ids(*range(1000))
    loop = asyncio.get_running_loop()
    prompts = [None, big, None]
    tasks = [loop.create_task(code(store.finish("r", [record(n, prompt_ids=p)]))) for n, p in enumerate(prompts)]
    await asyncio.sleep(0)
    store.release()
    assert await asyncio.gather(*tasks) == [None, "store_full", None]
    assert await code(store.finish("r", [record(1, prompt_ids=big)])) == "store_full"
    assert "disk is full" in store.failure
    assert await code(store.flush()) == "store_full"
    # What is there can still be read.
    assert [each.n for each in await store.calls("r")] == [0, 2]
    await database.sql("DROP FUNCTION refuse CASCADE")
    await store.flush()
    assert store.failure is None
    await store.finish("r", [record(1, prompt_ids=big)])
    assert [each.n for each in await store.calls("r")] == [0, 1, 2]
    await store.close()


async def test_a_database_that_may_only_be_read_says_so(database):
    store = await opened(database, beat_s=3600.0)
    await store.add([entry("r")])
    name = database.url.rpartition("/")[2]
    await database.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    store._writer._db.terminate()
    assert await code(store.finish("r", [record(0)])) == "store_failed"
    assert "read-only" in store.failure
    assert await code(store.flush()) == "store_failed"
    await _writable(database, name)
    store._writer._db.terminate()
    await store.flush()
    assert store.failure is None
    await store.close()


async def _writable(database, name):
    db = await asyncpg.connect(database.url)
    await db.execute("SET default_transaction_read_only = off")
    await db.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await db.close()


# -- closing


@pytest.mark.usefixtures("impatient")
async def test_closing_while_it_is_down_says_what_was_lost(server, mortal):
    store = await opened(mortal, beat_s=3600.0)
    await store.add([entry("r")])
    server.kill()
    store.notice("r", Notice(code="x"))
    assert await code(store.close()) == "store_failed"
    assert await code(store.close()) is None
    await asyncio.to_thread(server.start)
    store = await opened(mortal)
    assert await store.notices("r") == []
    await store.close()


async def test_closing_commits_what_was_handed_over_even_when_held(database):
    store = await opened(database)
    await store.add([entry("r")])
    store.hold()
    for n in range(10):
        store.notice("r", Notice(code=str(n)))
    await store.close()
    store = await opened(database)
    assert [notice.code for notice in await store.notices("r")] == [str(n) for n in range(10)]
    await store.close()


async def test_a_writer_that_dies_is_heard(database, monkeypatch, caplog):
    store = await opened(database)
    await store.add([entry("r")])

    async def broken(self, ops):
        raise SystemError("out of the blue")

    monkeypatch.setattr(writer_module.Writer, "_commit", broken)
    with pytest.raises(StoreError, match="out of the blue"):
        await store.finish("r", [record(0)])
    with pytest.raises(StoreError, match="out of the blue"):
        store.notice("r", Notice(code="x"))
    assert "out of the blue" in store.failure
    assert "died" in caplog.text
    await store.close()


async def test_what_is_owed_is_bounded(database, monkeypatch, caplog):
    monkeypatch.setattr(writer_module, "MAX_OWED", 3)
    store = await opened(database)
    await store.add([entry("r")])
    await break_it(database, "53100")
    await database.sql("CREATE TRIGGER refuse BEFORE INSERT ON notice FOR EACH ROW EXECUTE FUNCTION refuse()")
    for n in range(5):
        store.notice("r", Notice(code=str(n)))
    assert await code(store.flush()) == "store_full"
    assert "2 writes are lost" in caplog.text
    await database.sql("DROP FUNCTION refuse CASCADE")
    await store.flush()
    assert [notice.code for notice in await store.notices("r")] == ["2", "3", "4"]
    await store.close()
