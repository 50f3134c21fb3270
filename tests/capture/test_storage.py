"""Another's storage, with those that fsspec brings itself."""

import importlib
import importlib.util

import pytest

from capture.errors import ClientError, UsageError
from capture.storage import Storage

fsspec = importlib.import_module("fsspec")


def test_a_file_is_sent_as_one_object(tmp_path):
    (tmp_path / "made").write_bytes(b"data")
    storage = Storage("memory://a/b/runs.jsonl")
    assert not storage.exists()
    storage.put(tmp_path / "made")
    assert storage.exists()
    assert fsspec.filesystem("memory").cat("/a/b/runs.jsonl") == b"data"


def test_each_url_has_a_name_of_its_own():
    names = {Storage(f"memory://{name}").local for name in ("a", "b", "a")}
    assert len(names) == 2
    assert all("/" not in name for name in names)


def test_a_storage_that_fails_says_so_and_keeps_the_file(tmp_path, monkeypatch):
    (tmp_path / "made").write_bytes(b"data")
    storage = Storage("memory://a/runs.jsonl")

    def put_file(*words):
        raise PermissionError("not yours")

    monkeypatch.setattr(storage._system, "put_file", put_file)
    with pytest.raises(ClientError, match="not yours") as caught:
        storage.put(tmp_path / "made")
    assert caught.value.code == "storage_failed"
    assert (tmp_path / "made").exists()


def test_a_scheme_that_nobody_serves():
    with pytest.raises(UsageError, match="nosuch"):
        Storage("nosuch://x")


def test_without_fsspec_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        Storage("memory://x")
    assert "treering[cloud]" in caught.value.hint
