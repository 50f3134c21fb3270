"""All rollouts: registration, secrets, waiting, closing, rewards, expiry; over a real store, without a socket."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from capture import rollouts as rollouts_module
from capture.errors import ClientError
from capture.registration import Defaults, Place
from capture.rollouts import Rollouts
from capture.store import open_store
from capture.store.base import Exchange, Query, Record, Store
from graph.records import Call
from tests.leads import LEADS

PLACE = Place(model="tiny", tier="train", tier_reason="", logprobs_mode="processed")


async def _place(engine: str | None) -> Place:
    return PLACE


@pytest.fixture
async def store(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def rollouts(store) -> Rollouts:
    return Rollouts(store, place=_place, defaults=Defaults(), reach=LEADS)


async def register(rollouts: Rollouts, /, key: str | None = None, digest: str = "d", **body) -> dict:
    return json.loads(await rollouts.register(body, key=key, digest=digest))


async def ended(store, name: str, n: int = 0, **more) -> None:
    given = {"n": n, "id": f"chatcmpl-{n}", "status": "complete", "arrived": 2 * n, "ended": 2 * n + 1}
    record = Record(call=Call(**{**given, **more}), exchange=Exchange(request=b'{"messages":[]}'))
    await store.finish(name, [record])


async def refused(work) -> ClientError:
    with pytest.raises(ClientError) as caught:
        await work
    return caught.value


async def test_a_secret_opens_its_rollout(rollouts: Rollouts) -> None:
    one, two = await register(rollouts, id="one"), await register(rollouts, id="two")
    assert (await rollouts.admit(one["secret"])).id == "one"
    assert (await rollouts.admit(two["secret"])).id == "two"
    assert (await rollouts.admit(one["secret"])) is (await rollouts.admit(one["secret"]))


@pytest.mark.parametrize("secret", [None, "", "sk-treering-x", "\udcff"])
async def test_what_is_no_secret_opens_nothing(rollouts: Rollouts, secret: str | None) -> None:
    error = await refused(rollouts.admit(secret))
    assert (error.status, error.code) == (401, "invalid_api_key")


async def test_a_tool_servers_secret_is_told_apart(rollouts: Rollouts) -> None:
    made = await register(rollouts)
    error = await refused(rollouts.admit(made["tools_secret"]))
    assert (error.status, error.code) == (403, "tools_secret")


async def test_an_id_is_taken_once(rollouts: Rollouts) -> None:
    await register(rollouts, id="a")
    error = await refused(register(rollouts, id="a", group="g"))
    assert (error.status, error.code) == (409, "id_taken")
    error = await refused(register(rollouts, rollouts=[{"id": "b"}, {"id": "a"}]))
    assert (error.status, "a" in error.message) == (409, True)
    assert (await refused(rollouts.entry("b"))).status == 404


async def test_the_same_idempotency_key_repeats_the_first_answer(rollouts: Rollouts) -> None:
    first = await register(rollouts, key="k", digest="d1", n=2)
    assert await register(rollouts, key="k", digest="d1", n=2) == first
    error = await refused(register(rollouts, key="k", digest="d2", n=3))
    assert (error.status, error.code) == (422, "idempotency_key_reused")
    assert len((await rollouts.page(Query())).entries) == 2


async def test_two_who_register_at_once_with_one_key_get_one_answer(rollouts: Rollouts) -> None:
    async with asyncio.TaskGroup() as both:
        tasks = [both.create_task(register(rollouts, key="k", digest="d")) for _ in range(4)]
    answers = [task.result() for task in tasks]
    assert all(answer == answers[0] for answer in answers)
    assert len((await rollouts.page(Query())).entries) == 1


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


async def test_an_answers_secrets_are_not_in_the_file(rollouts: Rollouts, tmp_path: Path, store) -> None:
    made = await register(rollouts, key="a-key")
    await store.flush()
    written = everything(tmp_path)
    for secret in (made["secret"], made["tools_secret"], "a-key"):
        assert secret.encode() not in written


async def test_waiting_for_idle_ends_when_nothing_runs(rollouts: Rollouts) -> None:
    made = await register(rollouts, id="r")
    live = await rollouts.admit(made["secret"])
    live.begin(0, lambda: None)
    assert not await rollouts.wait("r", until="idle", idle_s=0, timeout_s=0.05)
    async with asyncio.TaskGroup() as both:
        waiting = both.create_task(rollouts.wait("r", until="idle", idle_s=0.01, timeout_s=10))
        await asyncio.sleep(0)
        live.end(0)
    assert waiting.result()


async def test_waiting_for_a_close_ends_with_it(rollouts: Rollouts) -> None:
    await register(rollouts, id="r")
    assert not await rollouts.wait("r", until="closed", idle_s=0, timeout_s=0.02)
    async with asyncio.TaskGroup() as both:
        waiting = both.create_task(rollouts.wait("r", until="closed", idle_s=0, timeout_s=10))
        await asyncio.sleep(0)
        await rollouts.close_rollout("r", wait_s=0)
    assert waiting.result()
    assert await rollouts.wait("r", until="closed", idle_s=0, timeout_s=0)
    assert await rollouts.wait("r", until="idle", idle_s=0, timeout_s=0)
    assert (await refused(rollouts.wait("nope", until="idle", idle_s=0, timeout_s=0))).status == 404


async def test_closing_waits_then_cuts(rollouts: Rollouts) -> None:
    made = await register(rollouts, id="r")
    live = await rollouts.admit(made["secret"])
    cut = []

    def end() -> None:
        cut.append(0)
        live.end(0)

    live.begin(0, end)
    entry = await rollouts.close_rollout("r", wait_s=0.02)
    assert (cut, entry.rollout.state) == ([0], "closed")
    assert entry.rollout.closed_at
    assert (await refused(rollouts.admit(made["secret"]))).status == 401
    assert (await rollouts.close_rollout("r", wait_s=0)).rollout.closed_at == entry.rollout.closed_at


async def test_a_call_that_ends_in_time_is_not_cut(rollouts: Rollouts) -> None:
    made = await register(rollouts, id="r")
    live = await rollouts.admit(made["secret"])
    cut = []
    live.begin(0, lambda: cut.append(0))
    async with asyncio.TaskGroup() as both:
        closing = both.create_task(rollouts.close_rollout("r", wait_s=10))
        await live.changed.wait()
        assert live.sealed
        assert (await refused(rollouts.admit(made["secret"]))).status == 401
        live.end(0)
    assert (cut, closing.result().rollout.state) == ([], "closed")


async def test_a_reward_needs_calls(rollouts: Rollouts, store) -> None:
    await register(rollouts, id="r")
    error = await refused(rollouts.reward("r", {"reward": 0.0}))
    assert (error.status, error.code) == (409, "no_calls")
    assert (await rollouts.reward("r", {"reward": None})).rollout.reward is None
    assert (await rollouts.reward("r", {"reward": 0.0, "force": True})).rollout.reward == 0.0
    await ended(store, "r")
    assert (await rollouts.reward("r", {"reward": 1})).rollout.reward == 1.0


async def test_rewards_per_call_name_known_calls(rollouts: Rollouts, store) -> None:
    await register(rollouts, id="r")
    await ended(store, "r", 0)
    await ended(store, "r", 1, id="chatcmpl-0", choice=1)
    error = await refused(rollouts.reward("r", {"per_call": {"chatcmpl-9": 1.0}}))
    assert (error.status, error.code, "chatcmpl-9" in error.message) == (422, "unknown_call", True)
    body = {"reward": 0.5, "per_call": {"chatcmpl-0": 1.0, "chatcmpl-0#1": 0.0}, "details": {"by": "judge"}}
    rollout = (await rollouts.reward("r", body)).rollout
    assert (rollout.reward, rollout.per_call_rewards, rollout.reward_details) == tuple(body.values())
    rollout = (await rollouts.reward("r", {"reward": None})).rollout
    assert (rollout.reward, rollout.per_call_rewards, rollout.reward_details) == (None, *list(body.values())[1:])


@pytest.mark.parametrize("body", [[], {"reward": "high"}, {"rewards": 1}, {"per_call": {"x": "y"}}, {"details": 3}])
async def test_a_reward_of_another_form_is_refused(rollouts: Rollouts, body) -> None:
    await register(rollouts, id="r")
    error = await refused(rollouts.reward("r", body))
    assert (error.status, error.code) == (422, "invalid_reward")


async def test_a_reward_may_come_after_the_close(rollouts: Rollouts, store) -> None:
    await register(rollouts, id="r")
    await ended(store, "r")
    await rollouts.close_rollout("r", wait_s=0)
    assert (await rollouts.reward("r", {"reward": 2.0})).rollout.reward == 2.0


async def test_a_deleted_rollout_is_gone(rollouts: Rollouts, store) -> None:
    made = await register(rollouts, id="r")
    await rollouts.admit(made["secret"])
    await ended(store, "r")
    await rollouts.delete("r")
    assert (await refused(rollouts.entry("r"))).status == 404
    assert (await refused(rollouts.delete("r"))).status == 404
    assert (await refused(rollouts.admit(made["secret"]))).status == 401


async def test_past_its_time_a_rollout_closes_with_a_finding(rollouts: Rollouts) -> None:
    made = await register(rollouts, id="r", ttl_s=0.001)
    idle = await register(rollouts, id="s", ttl_s=0.001)
    await asyncio.sleep(0.01)
    assert (await refused(rollouts.admit(made["secret"]))).status == 401
    assert (await rollouts.entry("r")).rollout.state == "closed"
    assert "expired" in [finding.code for finding in (await rollouts.graph("r")).findings]
    assert (await rollouts.entry("s")).rollout.state == "closed"
    assert idle["secret"]


async def test_a_graph_is_made_again_only_when_something_changed(rollouts: Rollouts, store) -> None:
    await register(rollouts, id="r")
    first = await rollouts.graph("r")
    assert await rollouts.graph("r") is first
    await ended(store, "r", started_at="2026-01-01T00:00:00.000Z")
    second = await rollouts.graph("r")
    assert second is not first
    assert second.forest.rollout.first_call_at == "2026-01-01T00:00:00.000Z"


async def test_a_lost_call_marks_its_rollout_until_the_store_is_told(rollouts: Rollouts) -> None:
    made = await register(rollouts, id="r")
    live = await rollouts.admit(made["secret"])
    rollouts.lost(live, 3)
    assert rollouts.owed
    assert (await rollouts.entry("r")).rollout.incomplete
    assert "capture_incomplete" in [finding.code for finding in (await rollouts.graph("r")).findings]
    await rollouts.tell_lost()
    assert not rollouts.owed
    graph = await rollouts.graph("r")
    assert graph.forest.rollout.incomplete
    (found,) = [finding for finding in graph.findings if finding.code == "capture_incomplete"]
    assert found.calls == (3,)


async def test_stops_are_counted_and_the_fourth_is_an_error(rollouts: Rollouts) -> None:
    made = await register(rollouts, id="r", limits={"max_calls": 1})
    live = await rollouts.admit(made["secret"])
    assert [await rollouts.stop(live, n, "max_calls") for n in (4, 5, 6, 7)] == [True, True, True, False]
    stopped = (await rollouts.entry("r")).rollout.stopped
    assert stopped is not None
    assert (stopped.limit, stopped.at_call, stopped.stops) == ("max_calls", 4, 4)


async def test_drained_returns_when_nothing_runs(rollouts: Rollouts) -> None:
    await rollouts.drained()
    live = await rollouts.admit((await register(rollouts))["secret"])
    live.begin(0, lambda: None)
    async with asyncio.TaskGroup() as both:
        draining = both.create_task(rollouts.drained())
        await asyncio.sleep(0)
        assert not draining.done()
        live.end(0)


async def test_a_verdict_overrules_and_is_kept_as_evidence(rollouts: Rollouts, store) -> None:
    await register(rollouts, id="r")
    await ended(store, "r")
    await rollouts.role("r", {"conversation": 0, "role": "subagent"})
    entry = await rollouts.role("r", {"conversation": 0, "role": "title"})
    assert entry.rollout.roles == {0: "title"}
    (found,) = (await rollouts.graph("r")).conversations
    assert (found.role, found.kind, found.trainable) == ("auxiliary", "title", False)
    assert [shown.detail for shown in found.evidence if shown.rule == "overruled"] == [
        "auxiliary, where the flow of data says main"
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"conversation": 0, "role": "boss"}, "invalid_role"),
        ({"conversation": "0", "role": "main"}, "invalid_role"),
        ({"conversation": 0}, "invalid_role"),
        ({"conversation": 0, "role": "main", "why": "x"}, "invalid_role"),
        ({"conversation": 1, "role": "main"}, "unknown_conversation"),
        ({"conversation": -1, "role": "main"}, "unknown_conversation"),
    ],
)
async def test_a_verdict_that_cannot_be_taken(rollouts: Rollouts, store, body, code) -> None:
    await register(rollouts, id="r")
    await ended(store, "r")
    error = await refused(rollouts.role("r", body))
    assert (error.code, error.status) == (code, 422)
    assert (await rollouts.entry("r")).rollout.roles == {}


async def test_a_verdict_on_a_rollout_that_is_not_there(rollouts: Rollouts) -> None:
    assert (await refused(rollouts.role("none", {"conversation": 0, "role": "main"}))).status == 404


async def test_rollouts_at_rest_are_looked_after(rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capture.rollouts.LOOK_EVERY_S", 0.0)
    made = await register(rollouts, id="r", ttl_s=60)
    live = await rollouts.admit(made["secret"])
    monkeypatch.setattr("capture.clock.now", lambda: "2999-01-01T00:00:00.000Z")
    watch = asyncio.ensure_future(rollouts.watch())  # noqa: TID251  ended below
    assert await rollouts.wait("r", until="closed", idle_s=0, timeout_s=10)
    watch.cancel()
    await asyncio.wait([watch])
    assert live.sealed
    assert "expired" in [finding.code for finding in (await rollouts.graph("r")).findings]


async def test_what_no_request_has_brought_goes_and_its_room_back_to_the_machine(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.rollouts.LOOK_EVERY_S", 0.0)
    trimmed = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("capture.heap.trim", lambda: loop.call_soon_threadsafe(trimmed.set))
    told = iter([False, True])
    looks: list[bool] = []

    def rest() -> bool:
        looks.append(next(told, False))
        return looks[-1]

    one = Rollouts(store, place=_place, defaults=Defaults(), reach=LEADS, rest=rest)
    watch = asyncio.ensure_future(one.watch())  # noqa: TID251  ended below
    async with asyncio.timeout(10):
        await trimmed.wait()
    watch.cancel()
    await asyncio.wait([watch])
    assert looks[:2] == [False, True]


@pytest.mark.parametrize(
    ("last", "now", "ttl_s", "past"),
    [
        ("2026-01-01T10:00:00.000Z", "2026-01-01T10:00:59.999Z", 60.0, False),
        ("2026-01-01T10:00:00.000Z", "2026-01-01T10:00:59.999Z", 59.0, True),
        ("2026-01-01T10:00:59.000Z", "2026-01-01T10:01:00.000Z", 60.0, False),
        ("2026-01-01T10:00:59.000Z", "2026-01-01T10:02:00.000Z", 60.0, True),
        ("2026-01-01T10:00:59.000Z", "2026-01-02T10:00:59.000Z", 60.0, True),
    ],
)
def test_a_rollout_is_past_its_time_to_live_since_its_last_call(
    last: str, now: str, ttl_s: float, past: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts_module.clock, "now", lambda: now)
    rollout = SimpleNamespace(created_at="2025-01-01T00:00:00.000Z")
    entry = SimpleNamespace(rollout=rollout, registration=SimpleNamespace(ttl_s=ttl_s))
    assert rollouts_module._past(entry, last) == past  # type: ignore[arg-type]  # what is read of an entry
