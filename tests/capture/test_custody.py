"""What is in hand for the store: bounded in bytes and in time, with a store that hangs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from capture import custody
from capture.custody import Custody
from capture.errors import CaptureError, StoreError
from capture.store import open_store
from capture.store.base import Spool
from tests import tongues
from tests.engine import STREAM, running, whole
from tests.house import House, house

NOTHING = Spool(prompt_ids=None, sampled_ids=None, logprobs=None)


@pytest.fixture
async def store(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    await store.open()
    yield store
    store.release()
    await store.close()


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


async def test_what_is_in_hand_is_counted_until_the_store_has_it(store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custody, "HELD_BYTES", 10)
    hand = Custody(store)
    hand.take(10)
    hand.admit()
    hand.take(1)
    with pytest.raises(CaptureError) as caught:
        hand.admit()
    assert (caught.value.code, caught.value.status, caught.value.headers()) == ("busy", 503, {"Retry-After": "2"})
    await hand.finish("r", [], size=11)
    hand.admit()
    assert hand.held == 0


async def test_a_record_is_not_waited_for_without_end(store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custody, "FINISH_S", 0.01)
    hand = Custody(store)
    hand.take(7)
    store.hold()
    with pytest.raises(StoreError, match=r"in 0\.01 s"):
        await hand.finish("r", [], size=7)
    # It still lies in the store's queue.
    assert hand.held == 7
    store.release()
    async with asyncio.timeout(10):
        while hand.held:  # noqa: ASYNC110  nobody is told of it
            await asyncio.sleep(0.001)


async def test_a_record_that_fails_is_in_hand_no_more(store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*args: Any) -> None:
        raise StoreError("store_full", "The disk is full.")

    monkeypatch.setattr(store, "finish", fails)
    hand = Custody(store)
    hand.take(7)
    with pytest.raises(StoreError, match="full"):
        await hand.finish("r", [], size=7)
    assert hand.held == 0


async def test_a_store_that_hangs_is_not_handed_the_same_again_and_again(
    store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custody, "BEHIND_S", 0.0)
    handed = []
    monkeypatch.setattr(store, "spool", lambda *given: handed.append(given))
    hand = Custody(store)
    store.hold()
    for n in range(100):
        hand.spool("r", n, NOTHING)
    assert len(handed) == 1
    store.release()
    assert hand._asking is not None
    await hand._asking
    hand.spool("r", 1, NOTHING)
    assert len(handed) == 2


# Under an appliance


async def ask(engine, home: House, rollout: Any, *, stream: bool) -> tuple[int, bytes]:
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(tongues.told(home.chat(rollout, stream=stream)))
        asked = await engine.next()
        if stream:
            asked.send(*STREAM).end()
        else:
            asked.answer(whole([5, 6, 7], text="Hello"))
    return reply.result()


@pytest.mark.parametrize("stream", tongues.STREAMED)
async def test_an_agent_of_a_store_that_hangs_gets_its_reply_in_time(
    engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(custody, "FINISH_S", 0.05)
    monkeypatch.setattr("capture.calls.READY_S", 0.05)
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        await home.appliance.rollouts.admit(rollout["secret"])
        home.appliance.store.hold()
        status, raw = await ask(engine, home, rollout, stream=stream)
        assert (status, tongues.read("chat", raw, stream=stream).text) == (200, "Hello")
        # Nothing new begins while that is owed.
        status, raw = await tongues.told(home.chat(rollout))
        assert (status, json.loads(raw)["error"]["code"]) == (503, "store_failed")
        home.appliance.store.release()
        status, _ = await ask(engine, home, rollout, stream=stream)
        assert status == 200
        graph = await home.graph(rollout)
        assert graph["rollout"]["incomplete"]
        (found,) = [found for found in graph["findings"] if found["code"] == "capture_incomplete"]
        assert found["calls"] == [0]


async def test_an_operator_may_refuse_what_takes_too_long(
    engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custody, "FINISH_S", 0.05)
    async with house(engine, tmp_path, on_store_failure="refuse") as home:
        rollout = await home.rollout()
        await home.appliance.rollouts.admit(rollout["secret"])
        home.appliance.store.hold()
        status, raw = await ask(engine, home, rollout, stream=False)
        assert (status, json.loads(raw)["error"]["code"]) == (503, "store_failed")
        home.appliance.store.release()


async def test_with_too_much_in_hand_new_calls_come_again_later(
    engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custody, "HELD_BYTES", 10)
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            first = both.create_task(tongues.told(home.chat(rollout)))
            asked = await engine.next()
            for name in tongues.NAMES:
                async with tongues.ask(home, rollout, name, stream=False) as response:
                    assert (response.status, response.headers["Retry-After"]) == (503, "2")
                    assert "in hand" in (await response.json())["error"]["message"]
            asked.answer(whole([5]))
        assert first.result()[0] == 200
        status, _ = await ask(engine, home, rollout, stream=False)
        assert status == 200
        assert home.appliance._calls._custody.held == 0
