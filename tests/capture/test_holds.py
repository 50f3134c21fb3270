"""Holds and weights: the operator's word, obeyed at once, and after a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from capture.holds import Holds
from capture.queue import Call
from capture.store import open_store
from capture.store.base import EngineState
from tests import tongues
from tests.engine import STREAM, running, whole
from tests.house import House, house


@pytest.fixture
async def store(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


@pytest.fixture
async def home(engine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


async def test_a_hold_and_a_version_are_in_the_store_when_they_are_answered(store) -> None:
    holds = Holds(store)
    assert await holds.pause(["a", "b"], wait_s=0) == []
    await holds.resume(["b"])
    await holds.set_version(["b"], "step-7")
    assert await store.engines() == {"a": EngineState(held=True), "b": EngineState(held=False, version="step-7")}
    again = Holds(store)
    await again.load()
    assert (again.queue("a").held, again.queue("b").held) == (True, False)
    assert (again.version("a"), again.version("b"), again.version("c")) == (None, "step-7", None)


async def test_a_pause_names_what_still_runs_and_holds_all_the_same(store) -> None:
    holds = Holds(store)
    await holds.queue("a").enter(Call("r", 3))
    assert await holds.pause(["a"], wait_s=0) == [Call("r", 3)]
    assert holds.queue("a").held
    holds.queue("a").leave(Call("r", 3))
    assert await holds.pause(["a"], wait_s=0) == []


async def test_what_another_process_said_is_obeyed(store) -> None:
    holds = Holds(store)
    queue = holds.queue("a")
    holds.obey({"a": EngineState(held=True, version="7")})
    assert (queue.held, holds.version("a")) == (True, "7")
    holds.obey({"a": EngineState(held=False, version="8")})
    assert (queue.held, holds.version("a")) == (False, "8")


async def told(home: House, path: str, status: int = 200, **body: Any) -> Any:
    return await home.control("POST", path, json=body, status=status)


async def test_pause_update_weights_resume(engine, home: House) -> None:
    """The safe order: no call straddles a change."""
    rollout = await home.rollout()
    await told(home, "/engine/weights", version="step-7")
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(home.chat(rollout)))
        running_ = await engine.next()
        refused = await told(home, "/engine/pause", 409, wait_s=0)
        assert refused["error"]["code"] == "calls_running"
        assert refused["running"] == [{"rollout": rollout["id"], "n": 0}]
        pausing = both.create_task(told(home, "/engine/pause", wait_s=30))
        second = both.create_task(tongues.told(home.chat(rollout)))
        places = home.appliance.holds.queue(home.appliance.engine.name)
        async with asyncio.timeout(10):
            while places.waiting != 1:  # noqa: ASYNC110  the line tells nobody of its length
                await asyncio.sleep(0)
        assert not pausing.done()
        running_.answer(whole([5]))
        (shown,) = (await pausing)["engines"]
        assert (shown["held"], shown["queued"], shown["in_flight"], shown["weights"]) == (True, 1, 0, "step-7")
        assert engine.calls.empty()
        await told(home, "/engine/weights", version="step-8")
        (shown,) = (await told(home, "/engine/resume"))["engines"]
        assert (shown["held"], shown["weights"]) == (False, "step-8")
        (await engine.next()).answer(whole([5]))
    assert (first.result()[0], second.result()[0]) == (200, 200)
    graph = await home.graph(rollout)
    stamps = [(call["weights"]["start"], call["weights"]["end"]) for call in graph["calls"]]
    assert stamps == [("step-7", "step-7"), ("step-8", "step-8")]
    assert "weights_changed" not in [found["code"] for found in graph["findings"]]


async def test_a_version_set_while_a_call_runs_is_straddled(engine, home: House) -> None:
    rollout = await home.rollout()
    await told(home, "/engine/weights", version="7")
    async with asyncio.TaskGroup() as both:
        both.create_task(tongues.told(home.chat(rollout, stream=True)))
        asked = await engine.next()
        asked.send(*STREAM[:3])
        await told(home, "/engine/weights", version="8")
        asked.send(*STREAM[3:]).end()
    graph = await home.graph(rollout)
    assert graph["calls"][0]["weights"] == {"start": "7", "end": "8", "spans": []}
    (found,) = [found for found in graph["findings"] if found["code"] == "weights_changed"]
    assert (found["calls"], found["data"]) == ([0], {"versions": ["7", "8"]})


async def test_a_version_told_for_the_first_time_while_a_call_runs_is_straddled(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        both.create_task(tongues.told(home.chat(rollout)))
        asked = await engine.next()
        await told(home, "/engine/weights", version="8")
        asked.answer(whole([5]))
    graph = await home.graph(rollout)
    assert graph["calls"][0]["weights"] == {"start": None, "end": "8", "spans": []}
    (found,) = [found for found in graph["findings"] if found["code"] == "weights_changed"]
    assert (found["calls"], found["data"]) == ([0], {"versions": [None, "8"]})


async def test_a_hold_and_a_version_outlive_a_restart(engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capture.calls.WAIT_S", 0.0)
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        await told(home, "/engine/weights", version="7")
        await told(home, "/engine/pause")
    async with house(engine, tmp_path) as home:
        (shown,) = (await home.control("GET", "/engines"))["engines"]
        assert (shown["held"], shown["weights"]) == (True, "7")
        rollout["base_url"] = home.appliance.data_url + "/v1"
        async with home.chat(rollout) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "2")
            assert (await response.json())["error"]["code"] == "engine_held"
        await told(home, "/engine/resume")
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(tongues.told(home.chat(rollout)))
            (await engine.next()).answer(whole([5]))
        assert reply.result()[0] == 200


async def test_one_engine_of_several_is_named_by_its_name_or_its_url(engine, tmp_path: Path) -> None:
    async with running() as other, house(engine, tmp_path, also=(f"vllm={other.url}",)) as home:
        one, two = (await home.control("GET", "/engines"))["engines"]
        await told(home, "/engine/pause", engine=one["name"])
        await told(home, "/engine/weights", engine=two["url"] + "/v1/", version="9")
        shown = (await home.control("GET", "/engines"))["engines"]
        assert [(each["held"], each["weights"]) for each in shown] == [(True, None), (False, "9")]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/engine/pause", {"engine": "vllm=http://nowhere"}, 404, "engine_not_found"),
        ("/engine/pause", {"engine": 7}, 404, "engine_not_found"),
        ("/engine/pause", {"wait_s": -1}, 422, "invalid_body"),
        ("/engine/pause", {"wait": 1}, 422, "invalid_body"),
        ("/engine/resume", {"wait_s": 1}, 422, "invalid_body"),
        ("/engine/weights", {}, 422, "invalid_body"),
        ("/engine/weights", {"version": 8}, 422, "invalid_body"),
        ("/engine/weights", {"version": ""}, 422, "invalid_body"),
        ("/engine/weights", {"version": "x" * 201}, 422, "invalid_body"),
    ],
)
async def test_what_cannot_be_meant_is_refused(home: House, path: str, body: Any, status: int, code: str) -> None:
    assert (await home.control("POST", path, json=body, status=status))["error"]["code"] == code
