"""`treering serve --workers N` as it runs: a supervisor and its workers, killed, stopped, and asked together.

Each test starts the program (one or two seconds), so each tells a whole story.
"""

import asyncio
import json
import os
import signal
import sys

import aiohttp
import pytest

from capture.errors import CaptureError, StoreError, UsageError
from capture.processes import supervisor
from capture.processes.supervisor import listening
from capture.settings import Settings
from tests.capture.store.samples import NOW, entry
from tests.engine import STREAM, Engine, Exchange, running
from tests.processes import descendants, until
from tests.replicas import Replica, replica

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are counted by ps")


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


async def begun(one: Replica, rollout: dict, engine: Engine) -> tuple[aiohttp.ClientResponse, Exchange]:
    """A stream whose agent has seen its first token, and the engine's hand on it."""
    asking = asyncio.get_running_loop().create_task(one.chat(rollout, stream=True).__aenter__())
    exchange = await engine.next()
    exchange.send(*STREAM[:2])
    answer = await asking
    one.opened.append(answer)
    seen = b""
    while b"Hel" not in seen:
        seen += await answer.content.readany()
    return answer, exchange


def workers(one: Replica) -> list[int]:
    return sorted(pid for pid in descendants(one.pid, "capture.processes.worker"))


def on_store(tmp_path, *more: str) -> tuple[str, ...]:
    return ("--workers", "2", "--store", f"sqlite:///{tmp_path}/t.db", *more)


async def test_limits_and_numbers_are_those_of_one(tmp_path):
    async with replica(tmp_path / "one", "--engine", "scripted", *on_store(tmp_path)) as one:
        assert len(workers(one)) == 2
        rollout = await one.rollout(limits={"max_calls": 9})

        async def call() -> bool:
            async with one.chat(rollout) as answer:
                return "limit" in await answer.text()

        assert sorted(await asyncio.gather(*(call() for _ in range(16)))) == [False] * 9 + [True] * 7
        graph = await one.graph(rollout)
        assert [one["n"] for one in graph["calls"]] == list(range(16))
        assert [one["status"] for one in graph["calls"]] == ["complete"] * 9 + ["stopped"] * 7
        health = {json.dumps(await (await one.http.get(one.data_url + "/healthz")).json()) for _ in range(8)}
        assert len(health) == 1, "the nonce is the appliance's, whichever process answers"
        closed = await one.control("POST", f"/rollouts/{rollout['id']}/close", json={})
        assert closed["rollout"]["state"] == "closed"
        async with one.chat(rollout) as answer:
            assert answer.status == 401
        one.signal(signal.SIGTERM)
        assert await one.ended() == 0


async def test_a_killed_worker_loses_what_it_ran_and_nothing_else(tmp_path, engine):
    async with replica(tmp_path / "one", "--engine", f"vllm={engine.url}", *on_store(tmp_path)) as one:
        rollout = await one.rollout()
        before = workers(one)
        assert (await one.control("GET", "/ready"))["workers"] == {"ok": True, "reason": None}
        answer, _ = await begun(one, rollout, engine)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()
        # Those who come meanwhile wait for the next worker.
        answer, exchange = await begun(one, rollout, engine)
        exchange.send(*STREAM[2:]).end()
        assert b"[DONE]" in await answer.content.read()
        await until(lambda: len(workers(one)) == 2)
        assert not set(before) & set(workers(one))
        calls = (await one.graph(rollout))["calls"]
        assert [(call["n"], call["status"]) for call in calls] == [(0, "aborted"), (1, "complete")]
        assert "another is started" in one.said


async def test_a_stop_lets_streams_end_and_leaves_no_one_behind(tmp_path, engine):
    async with replica(tmp_path / "one", "--engine", f"vllm={engine.url}", *on_store(tmp_path)) as one:
        rollout = await one.rollout()
        answer, exchange = await begun(one, rollout, engine)
        children = descendants(one.pid)
        one.signal(signal.SIGTERM)
        await until(lambda: "stopping" in one.said)
        exchange.send(*STREAM[2:]).end()
        assert b"[DONE]" in await answer.content.read()
        assert await one.ended() == 0
        assert children
        for pid in children:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        await one.start()
        (call,) = (await one.graph(rollout))["calls"]
        assert (call["status"], call["delivered"], call["n_sampled"]) == ("complete", True, 3)


async def test_a_killed_supervisor_takes_its_workers_along(tmp_path):
    async with replica(tmp_path / "one", "--engine", "scripted", *on_store(tmp_path)) as one:
        children = workers(one)
        os.kill(one.pid, signal.SIGKILL)
        await one.ended()
        for pid in children:
            await until(lambda pid=pid: not _lives(pid))
        await one.start()
        rollout = await one.rollout()
        async with one.chat(rollout) as answer:
            assert answer.status == 200


async def test_a_rollouts_own_engine_is_opened_where_it_is_needed_also_after_a_restart(tmp_path, engine):
    async with (
        running() as own,
        replica(
            tmp_path / "one", "--engine", f"vllm={engine.url}", "--allow-engine", own.url, *on_store(tmp_path)
        ) as one,
    ):
        rollout = await one.rollout(engine=own.url)
        for _ in range(2):
            answer, exchange = await begun(one, rollout, own)
            exchange.send(*STREAM[2:]).end()
            assert b"[DONE]" in await answer.content.read()
            await one.kill()
            await one.start()
        assert engine.requests == []
        assert [call["engine"] for call in (await one.graph(rollout))["calls"]] == [f"vllm={own.url}"] * 2


async def test_a_close_cuts_what_a_worker_runs(tmp_path, engine):
    async with replica(tmp_path / "one", "--engine", f"vllm={engine.url}", *on_store(tmp_path)) as one:
        rollout = await one.rollout()
        answer, exchange = await begun(one, rollout, engine)
        loop = asyncio.get_running_loop()
        began = loop.time()
        closed = await one.control("POST", f"/rollouts/{rollout['id']}/close", json={"wait_s": 0})
        assert loop.time() - began < 5, "a look a second, and a commit"
        assert closed["rollout"]["n_calls"] == 1
        async with asyncio.timeout(5):
            await exchange.dropped.wait()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()
        (call,) = (await one.graph(rollout))["calls"]
        assert call["status"] == "aborted"


async def test_workers_that_die_at_once_are_started_ever_more_slowly(tmp_path, monkeypatch, caplog):
    given = Settings(
        engine=("scripted",), workers=1, store=f"sqlite:///{tmp_path}/t.db", listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0", shutdown_timeout=0.2,
    )  # fmt: skip
    head = supervisor.Supervisor(given)
    await head.start()
    try:
        program = sys.executable
        monkeypatch.setattr(sys, "executable", "/bin/false")
        (told,) = descendants(word="capture.processes.worker")
        # Asked to stop by someone else, it does so in good order.
        os.kill(told, signal.SIGTERM)
        await until(lambda: "is started in 0.8 s" in caplog.text)
        assert "worker 1 ended (exit code 0); another is started in 0.1 s" in caplog.text
        assert "did not start: exit code 1.); another is started in 0.4 s" in caplog.text
        assert head.parts() == {"workers": {"ok": False, "reason": "0 of 1 serve"}}
        monkeypatch.setattr(sys, "executable", program)
        await until(lambda: head.parts()["workers"]["ok"])
    finally:
        await head.close()


async def test_a_worker_that_hangs_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "HANG_S", 2.0)
    monkeypatch.setattr(supervisor, "TELL_EVERY_S", 0.05)
    given = Settings(
        engine=("scripted",), workers=1, store=f"sqlite:///{tmp_path}/t.db", listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0", shutdown_timeout=0.2,
    )  # fmt: skip
    head = supervisor.Supervisor(given)
    await head.start()
    try:
        (hung,) = descendants(word="capture.processes.worker")
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: not {hung}.issuperset(descendants(word="capture.processes.worker")), limit_s=40)
    finally:
        await head.close()
    assert descendants(word="capture.processes.worker") == {}


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_addresses_of_a_host_are_listened_on_at_one_port():
    sockets = listening("localhost:0")
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()


def test_a_port_that_is_taken_is_said():
    (sock,) = listening("127.0.0.1:0")
    try:
        with pytest.raises(UsageError, match="Can't listen on"):
            listening(f"127.0.0.1:{sock.getsockname()[1]}")
    finally:
        sock.close()


async def test_a_worker_that_can_not_start_is_the_starts_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    given = Settings(
        engine=("scripted",), workers=2, store=f"sqlite:///{tmp_path}/t.db", listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0",
    )  # fmt: skip
    head = supervisor.Supervisor(given)
    with pytest.raises(CaptureError, match=r"Worker \d did not start: exit code 1"):
        await head.start()
    assert descendants(word="capture.processes.worker") == {}


async def test_calls_of_a_dead_worker_are_ended_when_the_store_is_back(tmp_path, monkeypatch):
    head = supervisor.Supervisor(Settings(engine=("scripted",), workers=2, store=f"sqlite:///{tmp_path}/t.db"))
    await head.store.open()
    try:
        await head.store.add([entry("r")])
        await head.store.arrive("r", choices=1, started_at=NOW)
        head.unended.add(("r", 0))
        abort = head.store.abort

        async def fails(calls) -> None:
            raise StoreError("store_failed", "away")

        monkeypatch.setattr(head.store, "abort", fails)
        await head.end_calls()
        assert head.unended == {("r", 0)}
        monkeypatch.setattr(head.store, "abort", abort)
        await head.end_calls()
        assert head.unended == set()
        assert await head.store.running() == []
    finally:
        await head.store.close()
