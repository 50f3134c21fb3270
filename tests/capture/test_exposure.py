"""What others can reach, or read."""

import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from capture import exposure
from capture.errors import UsageError
from capture.settings import Settings
from tests.house import house


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text("a-key-of-sixteen\n")
    path.chmod(0o600)
    return str(path)


def found(tmp_path: Path, key: str, **given: Any) -> dict[str, str]:
    settings = Settings(**{"store": f"sqlite:///{tmp_path}/t.db", "admin_key_file": key, **given})
    return {one.name: f"{one.message} | {one.todo}" for one in exposure.exposed(settings)}


def test_the_defaults_expose_nothing(tmp_path: Path, key: str) -> None:
    assert found(tmp_path, key) == {}
    assert found(tmp_path, key, engine=("vllm=http://gpu:8000",), allow_engine=("http://gpu:8000",)) == {}


@pytest.mark.parametrize(
    ("given", "name", "word"),
    [
        ({"listen": "0.0.0.0:8400"}, "data plane", "in clear"),
        ({"listen": "[::]:8400"}, "data plane", "in clear"),
        ({"listen": "10.1.1.1:8400"}, "data plane", "--tls-cert"),
        ({"admin_listen": "0.0.0.0:8401"}, "control plane", "in clear"),
        ({"admin_listen": "0.0.0.0:8401", "tls_cert": "c", "tls_key": "k"}, "control plane", "guess"),
        ({"no_admin_key": True}, "control plane", "no key"),
        ({"allow_engine": ("http://169.254.169.254",)}, "allowed engines", "credentials"),
        ({"allow_engine": ("http://gpu:8000", "http://127.0.0.1:22")}, "allowed engines", "this machine"),
        ({"allow_engine": ("http://gpu",)}, "allowed engines", "names no port"),
        ({"allow_path": ("/v1/rerank",)}, "allowed paths", "not recorded"),
        ({"engine": ("openai=http://far.example",), "engine_key_file": ("openai=/none",)}, "engine key", "https://"),
    ],
)
def test_each_exposed_setting_is_named_with_what_to_do(
    tmp_path: Path, key: str, given: dict[str, Any], name: str, word: str
) -> None:
    assert word in found(tmp_path, key, **given)[name]


@pytest.mark.parametrize(
    "given",
    [
        {"listen": "0.0.0.0:8400", "tls_cert": "c", "tls_key": "k"},
        {"engine": ("openai=https://far.example",), "engine_key_file": ("openai=/none",)},
        {"engine": ("vllm=http://127.0.0.1:1",), "engine_key_file": ("vllm=/none",)},
    ],
)
def test_what_is_covered_is_not_warned_of(tmp_path: Path, key: str, given: dict[str, Any]) -> None:
    assert found(tmp_path, key, **given) == {}


@pytest.mark.parametrize("weak", ["hunter2", "aaaaaaaaaaaaaaaaaaaaaaaa"])
def test_a_weak_admin_key_is_warned_of_and_not_shown(tmp_path: Path, weak: str) -> None:
    said = found(tmp_path, "", admin_key_file=None, admin_key=weak)["admin key"]
    assert "guessed" in said
    assert weak not in said


@pytest.mark.parametrize(("mode", "who"), [(0o640, "group"), (0o604, "everyone"), (0o644, "everyone"), (0o600, None)])
def test_key_files_that_others_may_read(tmp_path: Path, key: str, mode: int, who: str | None) -> None:
    Path(key).chmod(mode)
    said = found(tmp_path, key)
    assert ("key file" in said) == (who is not None)
    if who is not None:
        assert who in said["key file"]
        assert f"chmod 600 {key}" in said["key file"]


def test_a_store_that_everyone_may_read(tmp_path: Path, key: str) -> None:
    store = tmp_path / "t.db"
    store.touch()
    store.chmod(0o644)
    assert str(store) in found(tmp_path, key)["store file"]
    store.chmod(0o600)
    assert "store file" not in found(tmp_path, key)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_a_new_store_and_its_log_are_its_owners_alone(tmp_path: Path) -> None:
    async with house("scripted", tmp_path) as home:
        async with home.chat(await home.rollout()) as answer:
            assert answer.status == 200
        assert {mode & 0o077 for mode in modes(tmp_path).values()} == {0}, modes(tmp_path)


def set_mode(path: str, mode: int) -> None:
    Path(path).chmod(mode)


async def test_the_start_warns_of_open_key_files_and_refuses_one_that_all_may_write(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    set_mode(key, 0o644)
    with caplog.at_level(logging.WARNING, logger="treering"):
        async with house("scripted", tmp_path, admin_key_file=key):
            pass
    assert f"{key} is open to everyone on this machine (chmod 600 {key})" in caplog.text
    assert "a-key-of-sixteen" not in caplog.text
    set_mode(key, 0o602)
    with pytest.raises(UsageError, match="may write"):
        async with house("scripted", tmp_path, admin_key_file=key):
            pass
