"""Retries: which request is one, and that a call which is answered twice is one call with two deliveries."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from capture import retries
from capture.dialects.chat import Chat
from capture.retries import NO_CLAIM, Claim, Tries, Try, claim, same_but_for_mode
from graph.records import Call
from tests import tongues
from tests.capture.dialects.test_completions_sdk import Completing
from tests.engine import STREAM, Exchange, running, whole
from tests.house import House, house

SDK = [name for name in tongues.NAMES if name != "completions"]
"""Dialects that the engine under the hand serves: it has no route for completions (see test_replays)."""


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


@pytest.fixture
async def home(engine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


# Which request is a retry


def request(text: str = "Hello", **more: Any) -> Any:
    return Chat().read(json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode())


def stored(n: int, asked: Any, *, delivered: bool | None, status: str = "complete", **more: Any) -> Call:
    given = {"messages": asked.messages, "body": asked.body, "arrived": 2 * n, "ended": 2 * n + 1, **more}
    return Call(n=n, status=status, delivered=delivered, **given)


def learned(*calls: Call) -> Tries:
    tries = Tries()
    for each in calls:
        tries.learn(each)
    return tries


def found(tries: Tries, asked: Any, said: Claim = NO_CLAIM) -> int | None:
    tried = tries.find("chat", asked, said)
    return None if tried is None else tried.n


AGAIN = Claim(retry=1)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, NO_CLAIM),
        ({"x-stainless-retry-count": "0"}, NO_CLAIM),
        ({"x-stainless-retry-count": "2"}, Claim(retry=2)),
        ({"x-stainless-retry-count": "-1"}, NO_CLAIM),
        ({"x-stainless-retry-count": "9" * 5000}, NO_CLAIM),
        ({"Idempotency-Key": "k"}, Claim(key="k")),
        ({"Idempotency-Key": ""}, NO_CLAIM),
    ],
)
def test_what_a_request_says_of_itself(headers: Any, expected: Claim) -> None:
    assert claim(headers) == expected


@pytest.mark.parametrize(
    ("status", "delivered", "plain", "counted"),
    [
        ("complete", False, 0, 0),
        ("complete", None, None, 0),
        ("complete", True, None, None),
        ("aborted", False, None, None),
        ("error", None, None, None),
        ("stopped", None, None, None),
    ],
)
def test_what_became_of_the_first_try_decides(status: str, delivered: Any, plain: Any, counted: Any) -> None:
    """`plain`: without a word of its own; `counted`: with a retry count."""
    tries = learned(stored(0, request(), delivered=delivered, status=status))
    assert found(tries, request()) == plain
    assert found(tries, request(), AGAIN) == counted


def test_a_request_that_differs_is_no_retry() -> None:
    tries = learned(stored(0, request(), delivered=False))
    for other in (request("Hi"), request(stream=True), request(max_tokens=5)):
        assert found(tries, other, AGAIN) is None
    assert tries.find("messages", request(), AGAIN) is None


def test_the_order_of_keys_is_no_difference() -> None:
    tries = learned(stored(0, Chat().read(b'{"messages": [], "a": {"x": 1, "y": 2}, "user": "u"}'), delivered=False))
    assert found(tries, Chat().read(b'{"user": "u", "a": {"y": 2, "x": 1}, "messages": []}')) == 0


def test_behind_a_delivered_reply_an_equal_body_is_a_new_sample() -> None:
    tries = learned(stored(0, request(), delivered=False), stored(1, request(), delivered=True))
    assert found(tries, request(), AGAIN) is None


def test_of_several_first_tries_the_latest_is_meant() -> None:
    tries = learned(*(stored(n, request(), delivered=False) for n in (0, 2, 1)))
    assert found(tries, request()) == 2
    (tried,) = (tries.find("chat", request(), NO_CLAIM),)
    assert tried is not None
    tries.mark(tried, delivered=True)
    assert found(tries, request()) is None


@pytest.mark.parametrize("fate", ["failed", "aborted", "delivered"])
def test_a_sibling_that_runs_is_not_taken_for_the_first_try(fate: str) -> None:
    """Two equal subagents: one's call runs, the other's has ended; the retry is that one's."""
    tries = Tries()
    sibling, mine = tries.begin(_draft(0), NO_CLAIM), tries.begin(_draft(1), NO_CLAIM)
    assert found(tries, request(), AGAIN) == 1
    if fate == "aborted":
        tries.leave(mine, through=False)
    else:
        tries.end(mine, numbers=[1], complete=fate == "delivered")
        tries.mark(mine, delivered=True)
    assert found(tries, request(), AGAIN) is None
    # The sibling's own retry comes when that has been lost in its turn.
    tries.end(sibling, numbers=[0], complete=True)
    tries.mark(sibling, delivered=False)
    assert found(tries, request()) == 0


def test_the_choices_of_one_request_are_delivered_together() -> None:
    tries = learned(*(stored(n, request(n=2), delivered=False, choice=n) for n in (0, 1)))
    tried = tries.find("chat", request(n=2), NO_CLAIM)
    assert tried is not None
    assert tried.numbers == [0, 1]


def test_nothing_is_compared_where_nothing_is_undelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = learned(*(stored(n, request(), delivered=True) for n in range(50)))
    assert tries._waiting == {}
    monkeypatch.setattr(Try, "body", property(lambda self: pytest.fail("compared")), raising=False)
    assert found(tries, request()) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"a": 1}', b'{"a":1, "stream": true, "stream_options": {}}', True),
        (b'{"a": 1}', b'{"a": 2}', False),
        (b"[]", b"[ ]", False),
        (b"{", b"{}", False),
    ],
)
def test_bodies_may_differ_in_how_the_reply_is_to_come(one: bytes, other: bytes, same: bool) -> None:
    assert same_but_for_mode(one, other) == same


def test_keys_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "KEPT_KEYS", 2)
    tries = Tries()
    for n in range(3):
        tries.begin(_draft(n), Claim(key=f"k{n}"))
    assert [found(tries, request(), Claim(key=f"k{n}")) for n in range(3)] == [None, 1, 2]


def _draft(n: int) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(n=n, dialect="chat", request=request())


# A reply that was sampled in full


COUNTED = {"X-Stainless-Retry-Count": "1"}


async def settled(home: House, rollout: dict[str, Any]) -> None:
    """Wait until nothing runs and all is recorded."""
    live = home.appliance.rollouts._live[rollout["id"]]
    async with asyncio.timeout(10):
        while live.running:
            await live.changed.wait()
    await home.idle(rollout)


def replies(exchange: Exchange) -> None:
    """Answer in full, in the mode that was asked for."""
    if exchange.body.get("stream"):
        exchange.send(*STREAM).end()
    else:
        exchange.answer(whole([5, 6, 7], text="Hello"))


async def lose(engine, home: House, rollout: dict[str, Any], name: str, *, stream: bool, **options: Any) -> None:
    """A first try whose agent hangs up when all has been sampled and nothing of the end delivered."""
    home.appliance.store.hold()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(tongues.ask(home, rollout, name, stream=stream, **options)))
        replies(await engine.next())
        live = home.appliance.rollouts._live[rollout["id"]]
        (draft,) = [tried.draft for tried in live.tries._running.values()]
        async with asyncio.timeout(10):
            while not draft.recorder.finish_seen:  # noqa: ASYNC110  nobody is told of it
                await asyncio.sleep(0)
        first.cancel()
    home.appliance.store.release()
    await settled(home, rollout)


async def one_call(home: House, rollout: dict[str, Any], *deliveries: bool) -> Any:
    """The rollout's only call, with these deliveries."""
    await settled(home, rollout)
    assert len((await home.graph(rollout))["calls"]) == 1
    call = await home.call(rollout, 0)
    assert [delivery["complete"] for delivery in call["deliveries"]] == list(deliveries)
    return call


@pytest.mark.parametrize("stream", tongues.STREAMED)
@pytest.mark.parametrize("name", SDK)
async def test_a_lost_reply_is_given_again_and_is_one_call(engine, home: House, name: str, stream: bool) -> None:
    rollout = await home.rollout(limits={"max_calls": 1})
    await lose(engine, home, rollout, name, stream=stream)
    await one_call(home, rollout, False)
    # The limit is reached, and a retry costs nothing of it.
    status, raw = await tongues.told(tongues.ask(home, rollout, name, stream=stream))
    said = tongues.read(name, raw, stream=stream)
    assert (status, said.text, said.end) == (200, "Hello", tongues.NORMAL_END[name])
    call = await one_call(home, rollout, False, True)
    assert (call["status"], call["delivered"], call["id"], call["sampled_ids"]) == (
        "complete", True, "chatcmpl-1", [5, 6, 7],
    )  # fmt: skip
    assert said.id == "chatcmpl-1"
    assert engine.calls.empty()
    # It has been delivered now: the same again is a new sample, and here over the limit.
    status, raw = await tongues.told(tongues.ask(home, rollout, name, stream=stream))
    assert "max_calls=1" in tongues.read(name, raw, stream=stream).text


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
async def test_a_retry_may_want_it_in_the_other_mode(engine, home: House, first: bool, second: bool) -> None:
    """Gemini's mode stands in its path, so the body is the same."""
    rollout = await home.rollout()
    await lose(engine, home, rollout, "gemini", stream=first)
    _, raw = await tongues.told(tongues.ask(home, rollout, "gemini", stream=second))
    assert tongues.read("gemini", raw, stream=second)[0] == "Hello"
    await one_call(home, rollout, False, True)


@pytest.mark.parametrize("stream", tongues.STREAMED)
async def test_a_lost_reply_outlives_a_restart(engine, tmp_path: Path, stream: bool) -> None:
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        await lose(engine, home, rollout, "chat", stream=stream)
    async with house(engine, tmp_path) as home:
        rollout |= {"url": home.appliance.data_url}
        _, raw = await tongues.told(tongues.ask(home, rollout, "chat", stream=stream))
        assert tongues.read("chat", raw, stream=stream)[0] == "Hello"
        await one_call(home, rollout, False, True)
    assert engine.calls.empty()


async def test_a_retry_that_differs_is_a_new_call(engine, home: House) -> None:
    rollout = await home.rollout()
    await lose(engine, home, rollout, "chat", stream=True)
    async with asyncio.TaskGroup() as both:
        both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=False)))
        replies(await engine.next())
    await settled(home, rollout)
    assert [call["status"] for call in (await home.graph(rollout))["calls"]] == ["undelivered", "complete"]


async def test_a_retry_of_what_was_aborted_is_a_new_call(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(home.chat(rollout, stream=True)))
        asked = await engine.next()
        asked.send(*STREAM[:2])
        first.cancel()
        async with asyncio.timeout(5):
            await asked.dropped.wait()
    await settled(home, rollout)
    async with asyncio.TaskGroup() as both:
        both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=True, headers=COUNTED)))
        replies(await engine.next())
    await settled(home, rollout)
    assert [call["status"] for call in (await home.graph(rollout))["calls"]] == ["aborted", "complete"]


async def test_a_reply_that_may_have_arrived_is_given_to_a_retry_that_says_so(engine, home: House) -> None:
    """The mark of delivery was lost with the process: null."""
    rollout = await home.rollout()
    live = await home.appliance.rollouts.admit(rollout["secret"])
    await lose(engine, home, rollout, "chat", stream=False)
    (tried,) = live.tries._waiting[("chat", 1)]
    tried.delivered = None
    status, raw = await tongues.told(tongues.ask(home, rollout, "chat", stream=False, headers=COUNTED))
    assert (status, json.loads(raw)["id"]) == (200, "chatcmpl-1")
    assert engine.calls.empty()


@pytest.mark.parametrize("stream", tongues.STREAMED)
async def test_a_lost_completion_is_given_again(tmp_path: Path, stream: bool) -> None:
    completing = Completing()
    await completing.start()
    try:
        async with house(completing, tmp_path) as home:
            rollout = await home.rollout()
            live = await home.appliance.rollouts.admit(rollout["secret"])
            home.appliance.store.hold()
            async with asyncio.TaskGroup() as both:
                first = both.create_task(tongues.told(tongues.ask(home, rollout, "completions", stream=stream)))
                async with asyncio.timeout(10):
                    while not _all_sampled(live):  # noqa: ASYNC110  nobody is told of it
                        await asyncio.sleep(0)
                first.cancel()
            home.appliance.store.release()
            await settled(home, rollout)
            _, raw = await tongues.told(tongues.ask(home, rollout, "completions", stream=stream))
            said = tongues.read("completions", raw, stream=stream)
            assert (said.text, said.id) == (" in a", "cmpl-1")
            await one_call(home, rollout, False, True)
    finally:
        await completing.close()


def _all_sampled(live: Any) -> bool:
    """Say whether a call runs whose reply has been sampled in full."""
    recorders = [tried.draft.recorder for tried in live.tries._running.values()]
    return any(recorder is not None and recorder.finish_seen for recorder in recorders)
