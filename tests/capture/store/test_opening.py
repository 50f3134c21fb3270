import subprocess
import sys
from pathlib import Path

import pytest

from capture.errors import UsageError
from capture.store import open_store
from capture.store.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///treering.db", "treering.db"),
        ("sqlite:///data/t.db", "data/t.db"),
        ("sqlite:////var/lib/t.db", "/var/lib/t.db"),
    ],
)
def test_a_url_names_a_file(url, path):
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store._path == Path(path).absolute()
    assert store.where == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "t.db",
        "sqlite:t.db",
        "sqlite://t.db",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///folder/",
        "sqlite:///t.db?mode=ro",
        "sqlite:///t.db#x",
        "mysql://user:secret@host/db",
        "postgresql:host/db",
    ],
)
def test_another_url_is_a_usage_error_that_says_what_is_accepted(url):
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "sqlite:///relative/path" in caught.value.hint


def test_options_go_to_the_store():
    assert "power" in repr(open_store("sqlite:///t.db", durability="power"))


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://u:w%40rd@db.example:5433/t", "postgresql://u@db.example:5433/t"),
        ("postgres://db/t", "postgresql://db/t"),
        ("postgresql:///t?host=/run/postgresql&password=w@rd", "postgresql:///t?host=/run/postgresql"),
        ("postgresql://u:w@rd@[::1]/t?sslmode=require", "postgresql://u@[::1]/t"),
    ],
)
def test_a_database_is_shown_without_its_password(url, where):
    pytest.importorskip("asyncpg")
    store = open_store(url)
    assert store.where == where
    assert "rd" not in repr(store)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql://host",
        "postgresql://host/",
        "postgresql://host/a/b",
        "postgresql://u:half/secret@host/t",
        "postgresql://u:half#secret@host/t",
        "postgresql://u:half?secret@host/t",
        "postgresql://u:secret@[host/t",
        "postgresql://u:secret@host:port/t",
    ],
)
def test_a_database_that_cannot_be_understood_is_a_usage_error_that_quotes_nothing(url):
    pytest.importorskip("asyncpg")
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value) + caught.value.hint
    assert caught.value.__cause__ is None
    assert "%40" in caught.value.hint


def test_no_error_of_another_store_quotes_what_may_be_a_password():
    with pytest.raises(UsageError) as caught:
        open_store("mysql://user:secret@host/db")
    assert "secret" not in str(caught.value)


def test_a_database_without_its_driver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for name in [name for name in sys.modules if name.startswith("capture.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match="asyncpg") as caught:
        open_store("postgresql://host/db")
    assert "treering[postgres]" in caught.value.hint


def test_a_store_in_a_file_needs_no_driver():
    code = "import sys, capture.store; capture.store.open_store('sqlite:///t.db'); assert 'asyncpg' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
