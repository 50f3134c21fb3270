"""What surrounds the relay of a call: its number, the rules, the record; over a real store, without a socket."""

import json
from pathlib import Path
from typing import Any

import pytest

from capture.calls import Calls
from capture.dialects.chat import Chat
from capture.draft import Draft
from capture.engines.base import Identity
from capture.engines.vllm import Vllm
from capture.errors import ClientError, StoreError
from capture.fleet import Fleet
from capture.live import Live
from capture.registration import Defaults, Place
from capture.rollouts import Rollouts
from capture.store import open_store
from capture.upstream import Engine
from tests.engine import PROMPT, whole
from tests.house import ASK
from tests.leads import LEADS

PLACE = Place(model="tiny", tier="train", tier_reason="", logprobs_mode="processed")


async def _place(engine: str | None) -> Place:
    return PLACE


CHAT = Chat()
HEADERS = [("Content-Type", "application/json"), ("X-Request-Id", "mine")]


class Desk:
    """Calls, and all that they lean on."""

    def __init__(self, store: Any, **options: Any) -> None:
        self.store = store
        self.lines: list[dict[str, Any]] = []
        self.rollouts = Rollouts(store, place=_place, defaults=Defaults(), reach=LEADS)
        engine = Engine(Vllm(), "http://127.0.0.1:1")
        engine.identity = Identity(kind="vllm", url=engine.url, models=("tiny",))
        given = {"relay_abort": False, "on_store_failure": "relay", **options}
        self.calls = Calls(rollouts=self.rollouts, store=store, fleet=Fleet([engine]), log=self.lines.append, **given)

    async def live(self, **body: Any) -> Live:
        made = json.loads(await self.rollouts.register(body, key=None, digest="d"))
        return await self.rollouts.admit(made["secret"])

    async def arrive(self, live: Live, **asked: Any) -> Draft:
        return await self.calls.arrive(live, CHAT, json.dumps({**ASK, **asked}).encode(), HEADERS)

    async def begin(self, live: Live, **asked: Any) -> Draft:
        draft = await self.arrive(live, **asked)
        assert self.calls.reserve(draft) is None
        await self.calls.admit(draft, CHAT, HEADERS)
        self.calls.begin(draft, lambda: None)
        return draft

    async def run(self, live: Live, *sampled: int, prompt: list[int] | None = None, **asked: Any) -> Draft:
        draft = await self.begin(live, **asked)
        draft.recorder.answered(200)
        draft.recorder.whole(json.dumps(whole(list(sampled), prompt=prompt)).encode(), 1.0)
        await self.calls.conclude(draft)
        return draft


@pytest.fixture
async def store(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def desk(store) -> Desk:
    return Desk(store)


async def test_calls_are_numbered_as_they_arrive(desk: Desk) -> None:
    live = await desk.live()
    first, several, last = await desk.arrive(live), await desk.arrive(live, n=3), await desk.arrive(live)
    assert [first.n, several.n, last.n] == [0, 1, 4]
    assert first.arrived < several.arrived < last.arrived


async def test_a_request_that_cannot_be_read_is_recorded_all_the_same(desk: Desk) -> None:
    live = await desk.live()
    with pytest.raises(ClientError):
        await desk.calls.arrive(live, CHAT, b"{", HEADERS)
    (call,) = await desk.store.calls(live.id)
    exchange = await desk.store.exchange(live.id, 0)
    assert (call.status, exchange.error["blame"], exchange.request) == ("error", "client", b"{")


async def test_a_request_whose_rollout_was_closed_while_it_was_read_comes_too_late(desk: Desk) -> None:
    live = await desk.live()
    live.seal()
    with pytest.raises(ClientError) as caught:
        await desk.arrive(live)
    assert caught.value.status == 401
    assert await desk.store.calls(live.id) == []


async def test_a_running_call_is_in_the_store_before_it_ends(desk: Desk) -> None:
    live = await desk.live()
    draft = await desk.begin(live)
    await desk.store.flush()
    assert [(call.n, call.status) for call in await desk.store.calls(live.id)] == [(0, "running")]
    assert list(live.running) == [draft.n]


async def test_an_ended_call_is_stored_and_supports_the_next(desk: Desk) -> None:
    live = await desk.live()
    await desk.run(live, 5, 6)
    delta = live.delta(_ids([*PROMPT, 5, 6, 9]))
    assert (delta.holder, delta.shared) == (0, len(PROMPT) + 2)
    await desk.run(live, 8, prompt=[*PROMPT, 5, 6, 9])
    first, second = await desk.store.calls(live.id)
    assert (first.status, first.ended < second.arrived) == ("complete", True)
    assert second.prompt_ids.tolist() == [*PROMPT, 5, 6, 9]
    assert live.running == {}
    assert [(line["call"], line["status"]) for line in desk.lines] == [(0, "complete"), (1, "complete")]


async def test_steering_is_taken_out_and_noted(desk: Desk) -> None:
    live = await desk.live()
    await desk.begin(live, priority=3)
    (notice,) = await desk.store.notices(live.id)
    assert (notice.code, notice.calls, notice.data) == (
        "steering_removed", (0,), {"fields": ["priority", "x-request-id"]},
    )  # fmt: skip


async def test_media_by_url_are_refused_recorded_and_noted(desk: Desk) -> None:
    live = await desk.live(allow=["x-request-id"])
    part = {"type": "image_url", "image_url": {"url": "http://h/x.png"}}
    draft = await desk.arrive(live, messages=[{"role": "user", "content": [part]}])
    assert desk.calls.reserve(draft) is None
    with pytest.raises(ClientError, match="URL"):
        await desk.calls.admit(draft, CHAT, HEADERS)
    (notice,) = await desk.store.notices(live.id)
    assert (notice.code, notice.data["param"]) == ("request_refused", "messages[0].content[0].image_url")
    assert [call.status for call in await desk.store.calls(live.id)] == ["error"]


async def test_a_stop_says_which_limit_and_never_speaks_of_the_context(desk: Desk) -> None:
    live = await desk.live(limits={"max_calls": 1})
    await desk.run(live, 5)
    for _ in range(3):
        kind, reply = await desk.calls.stop(await desk.arrive(live), CHAT, "max_calls")
        assert kind == "application/json"
        said = json.loads(reply)["choices"][0]
        assert (said["finish_reason"], "max_calls=1" in said["message"]["content"]) == ("stop", True)
    with pytest.raises(ClientError) as caught:
        await desk.calls.stop(await desk.arrive(live), CHAT, "max_calls")
    assert (caught.value.code, "context" in str(caught.value)) == ("rollout_limit", False)
    assert [call.status for call in await desk.store.calls(live.id)] == ["complete", *["stopped"] * 4]


async def test_a_call_that_cannot_be_stored_is_named_and_its_place_is_used(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await desk.live(limits={"max_calls": 1})
    monkeypatch.setattr(desk.store, "finish", _fail)
    draft = await desk.begin(live)
    draft.recorder.answered(200)
    draft.recorder.whole(json.dumps(whole([5])).encode(), 1.0)
    assert isinstance(await desk.calls.conclude(draft), StoreError)
    assert desk.rollouts.owed
    assert live.running == {}
    assert live.reserve() == "max_calls"
    assert live.delta(_ids(PROMPT)) is None


async def test_refusing_what_cannot_be_stored_raises(store, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(store, on_store_failure="refuse")
    live = await desk.live()
    monkeypatch.setattr(store, "finish", _fail)
    draft = await desk.begin(live)
    draft.recorder.answered(200)
    draft.recorder.whole(json.dumps(whole([5])).encode(), 1.0)
    with pytest.raises(StoreError):
        await desk.calls.conclude(draft)
    assert live.running == {}


async def test_new_calls_wait_until_the_store_has_been_told_of_the_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await desk.live()
    desk.rollouts.lost(live, 0)
    with monkeypatch.context() as broken:
        broken.setattr(desk.store, "change", _fail)
        with pytest.raises(StoreError):
            await desk.calls.ready()
    await desk.calls.ready()
    assert not desk.rollouts.owed
    assert (await desk.rollouts.entry(live.id)).rollout.incomplete


async def test_the_mark_of_delivery_is_kept(desk: Desk) -> None:
    live = await desk.live()
    draft = await desk.run(live, 5)
    assert [call.delivered for call in await desk.store.calls(live.id)] == [None]
    desk.calls.mark(draft, delivered=True)
    await desk.store.flush()
    assert [call.delivered for call in await desk.store.calls(live.id)] == [True]
    (delivery,) = (await desk.store.exchange(live.id, 0)).deliveries
    assert delivery["complete"] is True


async def _fail(*args: Any, **options: Any) -> None:
    raise StoreError("store_full", "The disk is full.")


def _ids(numbers: list[int]) -> Any:
    import numpy as np

    return np.array(numbers, dtype=np.int32)
