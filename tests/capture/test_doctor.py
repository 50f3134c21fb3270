"""The doctor's checks: what is wrong is found, named, and comes with what to do."""

import resource
import shutil
import socket

import apsw
import msgspec
import pytest

from capture import doctor
from capture.scripted import ScriptedEngine
from capture.settings import Settings
from capture.store import open_store
from capture.store.base import FORMAT_VERSION
from capture.version import version
from tests.engine import running
from tests.proxy import proxy


@pytest.fixture
def settings(tmp_path):
    return Settings(
        engine=("scripted",), store=f"sqlite:///{tmp_path}/t.db", listen="127.0.0.1:0", admin_listen="127.0.0.1:0"
    )


async def found(settings, **changes):
    """Return the checks by name."""
    checks = await doctor.examine(msgspec.structs.replace(settings, **changes))
    for check in checks:
        assert bool(check.todo) == (check.level != "ok"), check
    return {check.name: check for check in checks}


async def test_a_sound_installation(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65_536, 65_536))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 2**40))
    checks = await found(settings)
    # The scripted engine's own template drops what was thought in earlier turns, as real ones do.
    drifts = checks.pop("template")
    assert (drifts.level, "the reply had reasoning" in drifts.message) == ("warn", True)
    assert {check.level for check in checks.values()} == {"ok"}
    assert checks["treering"].message.startswith(version())
    assert checks["engine"].message.startswith("scripted ")
    assert list(tmp_path.iterdir()) == [], "it changed something"


async def test_what_is_to_be_pinned_is_tried(settings):
    assert "pinned" not in await found(settings)
    assert (await found(settings, tokens="pinned"))["pinned"].level == "ok"
    engine = ScriptedEngine()
    url = await engine.start()
    try:
        check = (await found(settings, engine=(f"openai={url}",), tokens="pinned"))["pinned"]
        assert (check.level, "can't be pinned" in check.message) == ("fail", True)
    finally:
        await engine.close()


async def test_a_store_that_is_there(settings, tmp_path):
    store = open_store(settings.store, durability="none")
    await store.open()
    await store.close()
    assert (await found(settings))["store"].message.endswith(f"version {FORMAT_VERSION}")


async def test_a_store_of_a_newer_version(settings, tmp_path):
    connection = apsw.Connection(str(tmp_path / "t.db"))
    connection.pragma("user_version", FORMAT_VERSION + 1)
    connection.close()
    check = (await found(settings))["store"]
    assert (check.level, check.todo) == ("fail", "update Treering")


async def test_a_file_that_is_no_store(settings, tmp_path):
    (tmp_path / "t.db").write_bytes(b"not a database at all" * 100)
    assert (await found(settings))["store"].level == "fail"


async def test_a_folder_that_is_not_there(settings, tmp_path):
    check = (await found(settings, store=f"sqlite:///{tmp_path}/none/t.db"))["store"]
    assert check.level == "fail"
    assert check.todo == f"mkdir -p {tmp_path}/none"


async def test_a_store_that_cannot_be_written(settings, monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert (await found(settings))["store"].level == "fail"


@pytest.mark.parametrize(("free", "level"), [(2**40, "ok"), (2**30, "warn"), (2**20, "fail")])
async def test_space(settings, monkeypatch, free, level):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
    assert (await found(settings))["space"].level == level


async def test_descriptors(settings, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 524_288))
    check = (await found(settings))["descriptors"]
    assert check.level == "warn"
    assert check.todo.startswith("ulimit -n ")


async def test_what_is_exposed(settings):
    assert (await found(settings, no_admin_key=True))["control plane"].level == "warn"
    assert (await found(settings, admin_listen="0.0.0.0:0"))["control plane"].level == "warn"
    assert (await found(settings, allow_path=("/v1/rerank",)))["allowed paths"].level == "warn"


async def test_keys_that_others_may_read(settings, tmp_path):
    path = tmp_path / "key"
    path.write_text("a-key-of-sixteen")
    path.chmod(0o644)
    checks = await found(settings, admin_key_file=str(path))
    assert (checks["key file"].level, checks["key file"].todo) == ("warn", f"chmod 600 {path}")
    path.chmod(0o600)
    checks = await found(settings, admin_key_file=str(path))
    assert (checks["admin key"].level, "key file" in checks) == ("ok", False)
    path.chmod(0o602)
    assert (await found(settings, admin_key_file=str(path)))["admin key"].level == "fail"
    path.chmod(0o600)
    assert (await found(settings, admin_key_file=str(tmp_path / "none")))["admin key"].level == "fail"


async def test_an_address_in_use(settings):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (await found(settings, listen=f"127.0.0.1:{port}"))["agents' address"].level == "warn"


async def test_an_engine_that_is_not_there(settings):
    check = (await found(settings, engine=("vllm=http://127.0.0.1:1",)))["engine"]
    assert (check.level, "did not answer" in check.message) == ("fail", True)


async def test_a_password_is_not_told(settings):
    checks = await found(settings, engine=("vllm=http://user:hunter2@127.0.0.1:1",))
    assert checks["engine"].level == "fail"
    assert "hunter2" not in repr(checks)


async def test_the_engine_that_is_there(settings):
    engine = ScriptedEngine(logprobs_mode="raw")
    url = await engine.start()
    try:
        checks = await found(settings, engine=(f"vllm={url}",))
        assert [checks[name].level for name in ("engine", "tier", "logprobs")] == ["ok", "ok", "ok"]
        assert checks["tier"].message.startswith("train: ")
        assert checks["logprobs"].message == "raw"
        other = (await found(settings, engine=(f"vllm={url}",), model="other"))["engine"]
        assert (other.level, "expected other" in other.message) == ("fail", True)
    finally:
        await engine.close()


async def test_no_engine_and_no_rules(settings, tmp_path):
    assert (await found(settings, engine=()))["engine"].level == "fail"
    assert (await found(settings, engine=(f"scripted={tmp_path}/none.toml",)))["engine"].level == "fail"


async def test_each_tunnel_that_is_set_up_is_tried(settings, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = msgspec.structs.replace(settings, listen=f"127.0.0.1:{port}")
    near = await found(here, tunnel=(f"custom=http://localhost:{port}",))
    assert near["tunnel"].level == "warn"
    assert near["tunnel"].message.startswith(f"custom=http://localhost:{port} carries, from http://localhost:{port} to")
    assert "only this machine" in near["tunnel"].message
    bad = await found(here, tunnel=(f"ssh=nobody@127.0.0.1:{port}",))
    assert bad["tunnel"].level == "fail"
    assert bad["tunnel"].todo
    unread = await found(here, tunnel=("ngrok",))
    assert "a tunnel is one of" in unread["tunnel"].message


async def test_engines_are_asked_through_a_proxy_only_when_told(settings, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with proxy() as between, running() as server:
        monkeypatch.setenv("http_proxy", between.url)
        assert (await found(settings, engine=(f"vllm={server.url}",)))["engine"].level == "ok"
        assert between.asked == []
        assert (await found(settings, engine=(f"vllm={server.url}",), proxy_from_env=True))["engine"].level == "ok"
        assert between.asked


async def test_the_limits_and_the_descriptors_that_they_need(settings, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8_192, 8_192))
    assert (await found(settings, max_in_flight=1_024, limits={"max_calls": 17.0}))["limits"].message == (
        "1024 calls at an engine, 4096 in line, 1024 a process, max_calls=17 a rollout"
    )
    tight = (await found(settings, max_in_flight=8_192))["limits"]
    assert (tight.level, "8192 descriptors" in tight.message) == ("warn", True)
    # Each of several processes has descriptors of its own.
    assert (await found(settings, max_in_flight=8_192, workers=4))["limits"].level == "ok"


async def test_a_template_a_context_and_a_clock_are_looked_at(settings):
    scripted = ScriptedEngine()
    url = await scripted.start()
    try:
        checks = await found(settings, engine=(f"vllm={url}",))
    finally:
        await scripted.close()
    assert "the reply had reasoning" in checks["template"].message
    assert {checks[name].level for name in ("context", "clock")} == {"ok"}


async def test_clocks_that_disagree(settings, monkeypatch):
    monkeypatch.setattr(doctor, "parsedate_to_datetime", lambda _: doctor.datetime(2020, 1, 1, tzinfo=doctor.UTC))
    scripted = ScriptedEngine()
    url = await scripted.start()
    try:
        check = (await found(settings, engine=(f"vllm={url}",)))["clock"]
    finally:
        await scripted.close()
    assert (check.level, check.todo) == ("warn", "run NTP on both")
