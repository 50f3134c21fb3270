"""The ladder: each step from a stored file of its version, and a fresh file equal to one that climbed."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from capture.errors import StoreError
from capture.store import migrations, query
from capture.store.base import FORMAT_VERSION, Query, State
from capture.store.summary import Line, Look
from graph.records import Notice
from tests.capture.store import old
from tests.capture.store.samples import NOW, as_json, open_at, plain

FILES = Path(__file__).parent / "files"
STATES = 3
"""The version that began to keep them."""

SUMMARIES = 5
"""The version that began to keep them."""

DESCRIBED = (Path(__file__).parents[3] / "docs" / "store.md").read_text()


def schema(db: apsw.Connection) -> list[query.Row]:
    return query.every(db, "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")


def stored(version: int) -> apsw.Connection:
    """A database as that version wrote it."""
    db = apsw.Connection(":memory:")
    db.execute((FILES / f"v{version}.sql").read_text())
    return db


@pytest.fixture
def db():
    db = apsw.Connection(":memory:")
    yield db
    db.close()


def test_an_empty_file_climbs_to_the_top(db):
    assert migrations.climb(db) == 0
    assert migrations.version(db) == FORMAT_VERSION
    assert migrations.climb(db) == FORMAT_VERSION


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_a_stored_file_climbs_to_what_a_fresh_one_is(db, version):
    migrations.climb(db)
    old = stored(version)
    assert migrations.climb(old) == version
    # A column that is changed without a step shows here.
    assert schema(old) == schema(db)
    old.close()


def test_what_a_rollout_spent_is_counted_on_the_way_up():
    columns = "SELECT next, tick, sealed, sampled, new_tokens FROM rollout"
    old, new = stored(1), stored(FORMAT_VERSION)
    migrations.climb(old)
    # Of two calls one was an error; three ids of a prompt, two sampled, and one more of the prompt that goes on.
    assert query.every(old, columns) == query.every(new, columns) == [(2, 4, 0, 1, 6)]
    old.close()
    new.close()


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
async def test_all_that_lies_in_a_stored_file_is_read(tmp_path, version):
    db = apsw.Connection(str(tmp_path / "t.db"))
    db.execute((FILES / f"v{version}.sql").read_text())
    db.close()
    store = open_at(tmp_path / "t.db")
    await store.open()
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
    await store.close()


def test_a_newer_file_is_refused(db):
    migrations.climb(db)
    db.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    with pytest.raises(StoreError, match=f"its format is {FORMAT_VERSION + 1}, this one reads up to") as caught:
        migrations.climb(db)
    assert caught.value.code == "store_newer"
    assert "update Treering" in caught.value.hint


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE theirs (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 5"]
)
def test_the_database_of_another_program_is_refused(db, statement):
    db.execute(statement)
    with pytest.raises(StoreError, match="another program"):
        migrations.climb(db)


def test_a_step_that_fails_leaves_the_file_on_its_rung(db, monkeypatch):
    migrations.climb(db)
    before = schema(db)
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, "CREATE TABLE more (x); CREATE TABLE rollout (x);"))
    with pytest.raises(apsw.SQLError):
        migrations.climb(db)
    assert not db.in_transaction
    assert schema(db) == before
    assert migrations.version(db) == FORMAT_VERSION


# -- docs/store.md


def test_every_table_and_column_is_described(db):
    migrations.climb(db)
    words = set(re.findall(r"`(\w+)`", DESCRIBED))
    for (table,) in query.every(db, "SELECT name FROM sqlite_schema WHERE type = 'table'"):
        columns = {name for (name,) in query.every(db, "SELECT name FROM pragma_table_info(?)", (table,))}
        # What `probe` holds for a moment is no part of the format.
        assert words >= {table} | (columns - {"data"} if table == "probe" else columns), table
    assert f"now **{FORMAT_VERSION}**" in DESCRIBED
    assert f"0x{migrations.APPLICATION_ID:X}" in DESCRIBED


async def test_a_store_is_read_as_the_description_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    await old.write(tmp_path / "treering.db")
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^(?:    .*)?\n)+", DESCRIBED, re.MULTILINE)]
    (sql,) = [block for block in blocks if block.strip().startswith("WITH RECURSIVE")]
    (code,) = [block for block in blocks if block.strip().startswith("import array")]
    db = apsw.Connection("treering.db", flags=apsw.SQLITE_OPEN_READONLY)
    rows = query.every(db, sql.replace("'g7-0'", "'old'").replace("call.n = 3", "call.n = 1"))
    db.close()
    assert [json.loads(data)["content"] for packed, data in rows if packed is None] == ["hi", "hello", "more"]
    names: dict[str, Any] = {}
    exec(code.replace("'g7-0'", "'old'").replace("key, 3", "key, 1"), names)
    names["db"].close()
    assert names["prompt"].tolist() == [1, 2, 3, 4, 5, 6]
