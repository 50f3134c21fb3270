"""The ladder on PostgreSQL: climbed once, by one; each step from a stored database of its version."""

import asyncio
import json
import re
import textwrap
from pathlib import Path

import msgspec
import pytest

from capture.errors import StoreError
from capture.store.base import Query, State
from capture.store.postgres import schema
from capture.store.postgres.driver import asyncpg
from capture.store.summary import Line, Look
from graph.records import Notice
from tests.capture.store import old
from tests.capture.store.places import DatabasePlace, opened
from tests.capture.store.samples import NOW, as_json, entry, plain

FILES = Path(__file__).parents[1] / "files"
DESCRIBED = (Path(__file__).parents[4] / "docs" / "store.md").read_text()
VERSIONS = range(1, schema.VERSION + 1)
STATES = 2
"""The version that began to keep them."""
SUMMARIES = 4
"""The same."""


@pytest.fixture
async def empty(postgres):
    """A database with nothing in it."""
    url = await postgres.database()
    yield DatabasePlace(url)
    await postgres.drop(url)


async def stored(place, version):
    """Fill a database as that version wrote it."""
    db = await asyncpg.connect(place.url)
    await db.execute((FILES / f"postgres-v{version}.sql").read_text())
    await db.close()


async def shape(postgres, place):
    """The schema as SQL, sorted: what a later step adds stands elsewhere."""
    found = await asyncio.to_thread(
        postgres.run, "pg_dump", "--schema-only", "--schema=treering", "--no-owner", place.url
    )
    return sorted(line for line in found.splitlines() if line and not line.startswith(("--", "\\")))


async def test_of_many_that_start_at_once_one_climbs(empty):
    stores = [empty.store() for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.add([entry(f"r{at}")]) for at, store in enumerate(stores)))
    assert len((await stores[0].page(Query())).entries) == 6
    assert await empty.sql("SELECT version FROM format") == [(schema.VERSION,)]
    for store in stores:
        await store.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_stored_database_climbs_to_what_a_fresh_one_is(postgres, empty, database, version):
    await stored(empty, version)
    store = await opened(empty)
    await store.close()
    assert await shape(postgres, empty) == await shape(postgres, database)
    assert await empty.sql("SELECT version FROM format") == [(schema.VERSION,)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_that_lies_in_a_stored_database_is_read(empty, version):
    await stored(empty, version)
    store = await opened(empty)
    page = await store.page(Query(order="closed", group="g", labels={"split": "train"}))
    (found,) = page.entries
    assert (found.rollout.id, found.rollout.reward, found.rollout.roles) == ("old", 1.0, {0: "main"})
    assert (found.rollout.task, found.rollout.closed_at, found.version) == ("say hi", NOW, 5)
    assert await store.by_secret(b"tools of old") == (found, "tools")
    one, two = old.records()
    delivered = msgspec.structs.replace(one.call, delivered=True)
    assert [plain(call) for call in await store.calls("old")] == [plain(delivered), plain(two.call)]
    deliveries = ({"at": old.DELIVERED_AT, "complete": True},)
    assert as_json(await store.exchange("old", 0)) == as_json(one.exchange) | {"deliveries": deliveries}
    assert as_json(await store.exchange("old", 1)) == as_json(two.exchange)
    notice = Notice(code="request_refused", at=NOW, calls=(1,), data={"field": "priority"})
    assert await store.notices("old") == [notice]
    kept = State(version=1, body=old.STATE, changed_at=NOW)
    assert await store.state("old") == (kept if version >= STATES else State())
    row = old.SUMMARY.row if version >= SUMMARIES else None
    assert (await store.sheet(Look())).lines == (Line(id="old", cursor="cr1", row=row),)
    # It can be gone on with.
    await store.change("old", {"state": "open"})
    at = await store.arrive("old", choices=1, started_at=NOW)
    assert (at.n, at.arrived, at.spent.sampled, at.spent.new_tokens) == (2, 4, 1, 6)
    assert await store.delete("old")
    await store.close()


async def test_a_newer_database_is_refused_with_a_sentence_and_left_as_it_is(database):
    await database.sql(f"UPDATE format SET version = {schema.VERSION + 1} RETURNING 1")
    with pytest.raises(StoreError, match="newer Treering") as caught:
        await database.store().open()
    assert (caught.value.code, "update Treering" in caught.value.hint) == ("store_newer", True)
    assert await database.sql("SELECT count(*) FROM process") == [(0,)]


async def test_one_that_is_newer_when_the_connection_comes_back_is_written_no_more(database):
    store = await opened(database, beat_s=3600.0)
    await store.add([entry("r")])
    await database.sql(f"UPDATE format SET version = {schema.VERSION + 1} RETURNING 1")
    store._writer._db.terminate()
    with pytest.raises(StoreError, match="newer Treering") as caught:
        await store.change("r", {"reward": 1.0})
    assert caught.value.code == "store_newer"
    await database.sql(f"UPDATE format SET version = {schema.VERSION} RETURNING 1")
    await store.change("r", {"reward": 1.0})
    await store.close()


async def test_a_step_that_fails_leaves_the_database_on_its_rung(database, monkeypatch):
    monkeypatch.setattr(
        schema, "STEPS", (*schema.STEPS, "CREATE TABLE more (x integer); CREATE TABLE rollout (x integer);")
    )
    with pytest.raises(StoreError, match="already exists"):
        await database.store().open()
    assert await database.sql("SELECT version FROM format") == [(schema.VERSION,)]
    assert await database.sql("SELECT to_regclass('treering.more')") == [(None,)]
    # The lock of the ladder is free.
    monkeypatch.undo()
    store = await opened(database)
    await store.close()


async def test_a_schema_that_was_made_for_us_needs_no_right_to_make_one(postgres, empty):
    await empty.sql("CREATE ROLE plain LOGIN PASSWORD 'plain'")
    await empty.sql("CREATE SCHEMA treering AUTHORIZATION plain")
    host = empty.url.rpartition("@")[2]
    store = await opened(DatabasePlace(f"postgresql://plain:plain@{host}"))
    await store.add([entry("r")])
    await store.close()
    await empty.sql("DROP OWNED BY plain CASCADE")
    await empty.sql("DROP ROLE plain")


# -- docs/store.md


async def test_every_table_and_column_is_described(database):
    words = set(re.findall(r"`(\w+)`", DESCRIBED))
    found = await database.sql(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'treering'"
    )
    for table, column in found:
        # What `probe` holds for a moment is no part of the format.
        assert words >= ({table} if table == "probe" else {table, column}), (table, column)
    section = DESCRIBED.partition("## PostgreSQL")[2]
    assert f"now **{schema.VERSION}**" in section


async def test_a_database_is_read_as_the_description_says(database):
    await old.fill(database.store())
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^(?:    .*)?\n)+", DESCRIBED, re.MULTILINE)]
    (sql,) = [block for block in blocks if "SET search_path" in block]
    query = sql.partition(";")[2].replace("'g7-0'", "'old'").replace("call.n = 3", "call.n = 1")
    rows = await database.sql(query)
    assert [json.loads(data)["content"] for packed, data in rows if packed is None] == ["hi", "hello", "more"]
