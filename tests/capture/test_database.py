"""A look at a PostgreSQL store: what is there is said, nothing is changed, no password is shown."""

import pytest

from capture import database
from tests.capture.store.places import DatabasePlace

pytest.importorskip("asyncpg")


async def test_an_empty_database_and_one_with_a_store(postgres):
    url = await postgres.database()
    place = DatabasePlace(url)
    before = {check.name: check for check in await database.look(url)}
    assert {check.level for check in before.values()} == {"ok"}
    assert before["store"].message.endswith("version 0, made at start")
    assert await place.sql("SELECT 1 FROM pg_namespace WHERE nspname = 'treering'") == []
    store = place.store()
    await store.open()
    await store.close()
    after = {check.name: check for check in await database.look(url)}
    assert "made at start" not in after["store"].message
    assert set(after) == {"store", "space", "clock"}
    await place.sql("UPDATE format SET version = 999 RETURNING 1")
    (newer,) = await database.look(url)
    assert (newer.level, "newer Treering" in newer.message) == ("fail", True)
    await postgres.drop(url)


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:hunter2@127.0.0.1:1/t", "postgresql://me:hunter2@127.0.0.1", "postgresql://me:hunter2@[::1/t"],
)
async def test_one_that_is_not_there(url):
    (check,) = await database.look(url)
    assert check.level == "fail"
    assert check.todo
    assert "hunter2" not in repr(check)
