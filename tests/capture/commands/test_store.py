"""`treering backup`, `treering migrate` and `treering doctor --store`, as they are called."""

import asyncio
import json
from pathlib import Path

import apsw
import pytest

from capture import cli
from capture.store import migrations
from capture.store.base import FORMAT_VERSION
from capture.store.check import check
from capture.store.lock import Lock
from tests.capture.store.samples import call, ended, entry, ids, open_at, request

FILES = Path(__file__).parents[1] / "store" / "files"
OLD = range(1, FORMAT_VERSION)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


async def fill(path: Path) -> None:
    store = open_at(path)
    await store.open()
    await store.add([entry("r")])
    body = request("hi")
    await store.finish("r", [ended(call(0, body), body, prompt_ids=ids(1, 2), sampled_ids=ids(3))])
    await store.close()


@pytest.fixture
def path(tmp_path):
    asyncio.run(fill(tmp_path / "treering.db"))
    return tmp_path / "treering.db"


def older(path: Path, version: int) -> None:
    db = apsw.Connection(str(path))
    db.execute((FILES / f"v{version}.sql").read_text())
    db.close()


def version(path: Path) -> int:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = migrations.version(db)
    db.close()
    return found


# -- backup


def test_a_backup_of_the_store_that_is_set(path, tmp_path, capsys):
    assert cli.main(["backup", "--out", "copy.db", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"store": "treering.db", "out": "copy.db", "bytes": (tmp_path / "copy.db").stat().st_size}
    assert check(tmp_path / "copy.db").calls == 1
    assert cli.main(["backup", "--out", "other.db", "--store", "sqlite:///copy.db"]) == 0
    assert "copy.db copied to other.db" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["backup"], 2, "needs a file"),
        (["backup", "--out", "treering.db"], 4, "is there already"),
        (["backup", "--out", "copy.db", "--store", "sqlite:///none.db"], 4, "there is no store"),
        (["migrate", "--store", "sqlite:///none.db"], 4, "there is no store"),
        (["doctor", "--store", "sqlite:///none.db"], 4, "there is no store"),
        (["doctor", "--store", "mysql://x"], 2, "is no store"),
        (["doctor", "--store", "postgresql://u:secret@h/d"], 2, "PostgreSQL has means of its own"),
        (["backup", "--out", "copy.db", "--store", "postgresql://u:secret@h/d"], 2, "pg_dump"),
    ],
)
def test_what_cannot_be_done_has_its_exit_code(path, words, code, said, capsys):
    assert cli.main(words) == code
    err = capsys.readouterr().err
    assert said in err
    assert "secret" not in err


# -- migrate


def test_a_store_of_this_version_is_left_as_it_is(path, tmp_path, capsys):
    before = path.read_bytes()
    assert cli.main(["migrate"]) == 0
    assert "there is nothing to do" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.v*"))


@pytest.mark.parametrize("rung", OLD)
def test_a_dry_run_climbs_on_a_copy_and_changes_nothing(rung, tmp_path, capsys):
    path = tmp_path / "treering.db"
    older(path, rung)
    before = path.read_bytes()
    assert cli.main(["migrate", "--dry-run"]) == 0
    assert f"would go from version {rung} to {FORMAT_VERSION}" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"treering.db"}


@pytest.mark.parametrize("rung", OLD)
def test_an_older_store_climbs_and_is_kept_as_it_was(rung, tmp_path, capsys):
    path = tmp_path / "treering.db"
    older(path, rung)
    assert cli.main(["migrate", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["from"], told["to"], told["backup"]) == (rung, FORMAT_VERSION, f"treering.db.v{rung}")
    assert version(path) == FORMAT_VERSION
    assert version(tmp_path / f"treering.db.v{rung}") == rung
    report = check(path)
    assert (report.faults, report.calls) == ((), 2)


def test_the_backup_of_a_migration_may_be_named(tmp_path):
    path = tmp_path / "treering.db"
    older(path, 1)
    assert cli.main(["migrate", "--backup", "before.db"]) == 0
    assert version(tmp_path / "before.db") == 1
    # The old file stays what it is: the next migration asks for another name.
    path.unlink()
    older(path, 1)
    assert cli.main(["migrate", "--backup", "before.db"]) == 4
    assert version(path) == 1


def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path, monkeypatch, capsys):
    path = tmp_path / "treering.db"
    older(path, 1)
    before = path.read_bytes()
    monkeypatch.setattr(migrations, "STEPS", (migrations.STEPS[0], "CREATE TABLE more (x); nonsense"))
    assert cli.main(["migrate", "--dry-run"]) == 4
    assert path.read_bytes() == before
    assert cli.main(["migrate"]) == 4
    assert (version(path), version(tmp_path / "treering.db.v1")) == (1, 1)
    assert "can't be opened" in capsys.readouterr().err


def test_a_dry_run_finds_what_the_climb_would_leave_broken(tmp_path, monkeypatch, capsys):
    path = tmp_path / "treering.db"
    older(path, 1)
    spoiled = (*migrations.STEPS[:-1], migrations.STEPS[-1] + "; DELETE FROM exchange")
    monkeypatch.setattr(migrations, "STEPS", spoiled)
    assert cli.main(["migrate", "--dry-run"]) == 4
    assert "the migrated copy has 2 faults" in capsys.readouterr().err


def test_a_newer_store_is_refused(path, capsys):
    db = apsw.Connection(str(path))
    db.pragma("user_version", FORMAT_VERSION + 1)
    db.close()
    for words in (["migrate"], ["doctor", "--store"], ["backup", "--out", "copy.db"]):
        assert cli.main(words) == 4
        assert "was written by a newer Treering" in capsys.readouterr().err


async def test_a_store_in_use_is_not_migrated(tmp_path, capsys):
    path = tmp_path / "treering.db"
    older(path, 1)
    lock = Lock(path)
    lock.take()
    assert await asyncio.to_thread(cli.main, ["migrate"]) == 4
    lock.free()
    assert "is in use by process" in capsys.readouterr().err
    assert version(path) == 1


# -- doctor --store


def test_a_sound_store(path, capsys):
    assert cli.main(["doctor", "--store"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"ok    store: treering.db, version {FORMAT_VERSION}, ")
    assert line.endswith("MiB: 1 rollouts, 1 calls, 1 contents")


def test_what_is_lost_is_named_per_rollout(path, capsys):
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM exchange")
    db.close()
    assert cli.main(["doctor", "--store", f"sqlite:///{path}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "fail  rollout r call 0: exchange_lost: what passed in it is missing"
    assert "Don't train on this rollout" in lines[2]
    assert cli.main(["doctor", "--store", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (fault,) = told["store"]["faults"]
    assert (fault["code"], fault["rollout"], fault["call"]) == ("exchange_lost", "r", 0)
    assert [each["level"] for each in told["checks"]] == ["ok", "fail"]


def test_waste_is_a_warning(path, capsys):
    db = apsw.Connection(str(path))
    db.execute("INSERT INTO content (digest, data) VALUES (x'cae66941d9efbd404e4d88758ea67670', x'')")
    db.close()
    assert cli.main(["doctor", "--store"]) == 0
    assert "warn  file: content_unused" in capsys.readouterr().out


def test_a_damaged_file_is_exit_4(path, capsys):
    db = apsw.Connection(str(path))
    page = db.pragma("page_size")
    (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'notice'").fetchone()
    db.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xff" * page)
    assert cli.main(["doctor", "--store"]) == 4
    assert "fail  file: file_damaged" in capsys.readouterr().out
    path.write_bytes(b"\xff" * 8192)
    assert cli.main(["doctor", "--store"]) == 4


def test_a_long_list_is_cut_and_said_to_be(path, capsys, monkeypatch):
    monkeypatch.setattr("capture.commands.doctor.MOST_SHOWN", 1)
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM exchange")
    db.close()
    assert cli.main(["doctor", "--store"]) == 1
    assert capsys.readouterr().out.splitlines()[1] == "fail  more: 1 more; --json prints all"
