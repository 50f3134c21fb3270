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
        "mysql://host/db",
        "postgresql://host/db",
    ],
)
def test_another_url_is_a_usage_error_that_says_what_is_accepted(url):
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "sqlite:///relative/path" in caught.value.hint


def test_options_go_to_the_store():
    assert "power" in repr(open_store("sqlite:///t.db", durability="power"))
