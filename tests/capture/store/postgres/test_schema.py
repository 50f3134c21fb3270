"""The ladder on PostgreSQL: from a database as its first version wrote it, to what a fresh one is."""

from pathlib import Path

import msgspec
import pytest

from capture.errors import StoreError
from capture.store.base import Query, State
from capture.store.postgres import schema
from capture.store.postgres.driver import asyncpg
from tests.capture.store import old
from tests.capture.store.places import DatabasePlace
from tests.capture.store.samples import NOW, plain

FIRST = Path(__file__).parents[1] / "files" / "postgres-v1.sql"
"""pg_dump's, of the rollout in `tests.capture.store.old`, when version 1 was the newest."""

COLUMNS = (
    "SELECT table_name, column_name, data_type, is_nullable, collation_name FROM information_schema.columns"
    " WHERE table_schema = 'treering' ORDER BY 1, 2"
)


@pytest.fixture
async def first(postgres):
    """A database of version 1."""
    url = await postgres.database()
    db = await asyncpg.connect(url, server_settings={"search_path": "treering"})
    await db.execute(FIRST.read_text())
    await db.close()
    yield DatabasePlace(url)
    await postgres.drop(url)


async def test_all_that_the_first_version_wrote_is_read(first, database):
    store = first.store()
    await store.open()
    assert await first.sql("SELECT version FROM format") == [(schema.VERSION,)]
    page = await store.page(Query(order="closed", group="g", labels={"split": "train"}))
    (found,) = page.entries
    assert (found.rollout.id, found.rollout.reward, found.version) == ("old", 1.0, 5)
    one, two = old.records()
    delivered = msgspec.structs.replace(one.call, delivered=True)
    assert [plain(call) for call in await store.calls("old")] == [plain(delivered), plain(two.call)]
    assert await store.state("old") == State()
    await store.set_state("old", old.STATE, at=NOW)
    assert (await store.state("old")).body == old.STATE
    await store.close()
    assert await first.sql(COLUMNS) == await database.sql(COLUMNS)


async def test_a_newer_database_is_refused_and_left_as_it_is(first):
    await first.sql(f"UPDATE format SET version = {schema.VERSION + 1}")
    store = first.store()
    with pytest.raises(StoreError, match="written by a newer Treering") as refused:
        await store.open()
    assert refused.value.code == "store_newer"
    assert "state" not in await first.tables()
