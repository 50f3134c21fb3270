"""Retries: which request is one, and that a call which is answered twice is one call with two deliveries."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capture import passage, retries, transcripts
from capture.dialects.chat import Chat
from capture.retries import NO_CLAIM, Claim, Tries, Try, claim, same_but_for_mode
from graph.records import Call
from tests import tongues
from tests.engine import STREAM, Exchange, running, whole
from tests.house import ASK, House, house
from tests.playbook import case, data_of

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


# A call that runs


COUNTED = {"X-Stainless-Retry-Count": "1"}
KEYED = {"Idempotency-Key": "stainless-node-retry-7"}


async def follower(home: House, rollout: dict[str, Any]) -> None:
    """Wait until a retry follows the call that runs."""
    live = home.appliance.rollouts._live[rollout["id"]]
    async with asyncio.timeout(10):
        while not any(tried.draft.passage.said.followers for tried in live.tries._running.values()):  # noqa: ASYNC110  nobody is told of it
            await asyncio.sleep(0)


@pytest.mark.parametrize("headers", [COUNTED, KEYED], ids=["count", "key"])
@pytest.mark.parametrize("name", SDK)
async def test_a_running_stream_is_joined_and_given_from_the_start(engine, home: House, name: str, headers: Any):
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        firstly = {} if headers is COUNTED else headers
        first = both.create_task(tongues.told(tongues.ask(home, rollout, name, stream=True, headers=firstly)))
        asked = await engine.next()
        asked.send(*STREAM[:3])
        second = both.create_task(tongues.told(tongues.ask(home, rollout, name, stream=True, headers=headers)))
        await follower(home, rollout)
        asked.send(*STREAM[3:]).end()
    # The very same bytes.
    assert first.result() == second.result()
    assert tongues.read(name, second.result()[1], stream=True).text == "Hello"
    assert engine.calls.empty()
    call = await one_call(home, rollout, True, True)
    assert call["sampled_ids"] == [5, 6, 7]


@pytest.mark.parametrize("stream", tongues.STREAMED)
@pytest.mark.parametrize("name", SDK)
async def test_a_call_goes_on_for_who_joined_when_the_first_leaves(engine, home: House, name: str, stream: bool):
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(tongues.ask(home, rollout, name, stream=stream)))
        asked = await engine.next()
        if stream:
            asked.send(*STREAM[:3])
        second = both.create_task(tongues.told(tongues.ask(home, rollout, name, stream=stream, headers=COUNTED)))
        await follower(home, rollout)
        first.cancel()
        await left(home, rollout)
        assert not asked.dropped.is_set()
        if stream:
            asked.send(*STREAM[3:]).end()
        else:
            asked.answer(whole([5, 6, 7], text="Hello"))
    said = tongues.read(name, second.result()[1], stream=stream)
    assert (said.text, said.end, said.id) == ("Hello", tongues.NORMAL_END[name], "chatcmpl-1")
    assert engine.calls.empty()
    call = await one_call(home, rollout, False, True)
    assert (call["status"], call["delivered"]) == ("complete", True)


async def left(home: House, rollout: dict[str, Any]) -> None:
    """Wait until the first agent's leaving has been noticed."""
    live = home.appliance.rollouts._live[rollout["id"]]
    (tried,) = live.tries._running.values()
    assert tried.draft is not None
    carries = tried.draft.passage
    assert carries is not None
    async with asyncio.timeout(10):
        while not carries._alone:  # noqa: ASYNC110  nobody is told of it
            await asyncio.sleep(0)


async def test_a_stream_whose_head_had_not_come_is_asked_for_again(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(home.chat(rollout, stream=True)))
        dropped = await engine.next()
        second = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=True, headers=COUNTED)))
        await follower(home, rollout)
        first.cancel()
        replies(await engine.next())
        async with asyncio.timeout(5):
            await dropped.dropped.wait()
    assert tongues.read("chat", second.result()[1], stream=True).text == "Hello"
    await one_call(home, rollout, False, True)
    assert home.appliance.engine.in_flight == 0


async def test_when_all_have_left_the_engine_is_let_go(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(home.chat(rollout, stream=True)))
        asked = await engine.next()
        asked.send(*STREAM[:3])
        second = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=True, headers=COUNTED)))
        await follower(home, rollout)
        first.cancel()
        await left(home, rollout)
        second.cancel()
        async with asyncio.timeout(5):
            await asked.dropped.wait()
    await settled(home, rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["delivered"], call["sampled_ids"]) == ("aborted", False, [5, 6])
    assert home.appliance.engine.in_flight == 0


async def test_a_rollout_that_is_closed_cuts_a_call_whoever_follows(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.cut(home.chat(rollout, stream=True)))
        asked = await engine.next()
        asked.send(*STREAM[:3])
        second = both.create_task(tongues.cut(tongues.ask(home, rollout, "chat", stream=True, headers=COUNTED)))
        await follower(home, rollout)
        await home.control("POST", f"/rollouts/{rollout['id']}/close", json={"wait_s": 0})
        async with asyncio.timeout(5):
            await asked.dropped.wait()
    assert first.result().count(b"data: ") == second.result().count(b"data: ") == 3
    assert (await home.call(rollout, 0))["status"] == "aborted"


async def test_who_joined_gets_the_error_that_the_first_gets(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(home.chat(rollout)))
        await engine.next()
        second = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=False, headers=COUNTED)))
        await follower(home, rollout)
        await engine.close()
    assert first.result()[0] == second.result()[0] == 502
    assert json.loads(first.result()[1]) == json.loads(second.result()[1])


async def test_an_engines_own_error_reaches_both(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(home.chat(rollout)))
        asked = await engine.next()
        second = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=False, headers=COUNTED)))
        await follower(home, rollout)
        asked.answer({"error": {"message": "no"}}, status=500)
    assert first.result() == second.result() == (500, b'{"error": {"message": "no"}}')


async def test_a_broken_stream_breaks_for_both(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.cut(home.chat(rollout, stream=True)))
        asked = await engine.next()
        asked.send(*STREAM[:2])
        second = both.create_task(tongues.cut(tongues.ask(home, rollout, "chat", stream=True, headers=COUNTED)))
        await follower(home, rollout)
        asked.send(STREAM[2]).cut()
    assert first.result() == second.result() != b""
    await settled(home, rollout)
    assert [call["status"] for call in (await home.graph(rollout))["calls"]] == ["aborted"]


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
async def test_by_its_key_a_running_call_is_given_in_the_other_mode(engine, home: House, first: bool, second: bool):
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        one = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=first, headers=KEYED)))
        asked = await engine.next()
        other = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=second, headers=KEYED)))
        await follower(home, rollout)
        replies(asked)
    assert tongues.read("chat", one.result()[1], stream=first).text == "Hello"
    assert tongues.read("chat", other.result()[1], stream=second).text == "Hello"
    await one_call(home, rollout, True, True)


async def test_a_key_repeats_a_delivered_reply_and_another_body_is_another_call(engine, home: House) -> None:
    rollout = await home.rollout()
    for count in (1, 2):
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=False, headers=KEYED)))
            if count == 1:
                replies(await engine.next())
        assert json.loads(reply.result()[1])["id"] == "chatcmpl-1"
    await one_call(home, rollout, True, True)
    async with asyncio.TaskGroup() as both:
        both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=False, headers=KEYED, seed=1)))
        replies(await engine.next())
    await settled(home, rollout)
    assert len((await home.graph(rollout))["calls"]) == 2


async def test_case_54_an_equal_request_is_a_sample_of_its_own_unless_it_says_otherwise(engine, home: House) -> None:
    expected = case(54)["expected"]["variant_same_idempotency_key"]
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        tasks = [both.create_task(tongues.told(home.chat(rollout))) for _ in range(2)]
        for _ in range(2):
            replies(await engine.next())
    assert [task.result()[0] for task in tasks] == [200, 200]
    assert len((await home.graph(rollout))["calls"]) == len(case(54)["calls"]) - 1
    keyed = await home.rollout()
    async with asyncio.TaskGroup() as both:
        tasks = [
            both.create_task(tongues.told(tongues.ask(home, keyed, "chat", stream=False, headers=KEYED)))
            for _ in range(2)
        ]
        asked = [await engine.next()]
        await follower(home, keyed)
        replies(asked[0])
    assert tasks[0].result() == tasks[1].result()
    assert (len(asked), engine.calls.empty()) == (expected["upstream_requests"], True)
    assert len((await home.graph(keyed))["calls"]) == expected["recorded_calls"]


async def test_where_no_room_is_left_for_what_was_said_the_record_answers(
    engine, home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "BUDGET", 0)
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(home.chat(rollout, stream=True)))
        asked = await engine.next()
        asked.send(*STREAM[:3])
        live = home.appliance.rollouts._live[rollout["id"]]
        (tried,) = live.tries._running.values()
        async with asyncio.timeout(10):
            while not tried.draft.passage.said.dropped:  # noqa: ASYNC110  nobody is told of it
                await asyncio.sleep(0)
        second = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=True, headers=COUNTED)))
        await follower(home, rollout)
        asked.send(*STREAM[3:]).end()
    assert tongues.read("chat", first.result()[1], stream=True) == tongues.read("chat", second.result()[1], stream=True)
    await one_call(home, rollout, True, True)


async def test_a_first_agent_that_takes_nothing_is_left_behind(
    engine, home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a tunnel a dead agent's connection may stay open: it must not hold up its own retry."""
    monkeypatch.setattr(passage, "STUCK_S", 0.05, raising=False)
    monkeypatch.setattr("capture.following.STUCK_S", 0.05)
    rollout = await home.rollout()
    host, port = rollout["url"].removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    body = json.dumps({**ASK, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    asked = await engine.next()
    large = STREAM[1].replace(b"Hel", b"x" * 2**20)
    asked.send(STREAM[0], *[large] * 16)
    live = home.appliance.rollouts._live[rollout["id"]]
    (tried,) = live.tries._running.values()
    async with asyncio.timeout(20):
        while not tried.draft.passage._writing:  # noqa: ASYNC110  nobody is told of it
            await asyncio.sleep(0)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as both:
        agent = House(home.appliance, session)
        second = both.create_task(tongues.told(tongues.ask(agent, rollout, "chat", stream=True, headers=COUNTED)))
        await left(home, rollout)
        asked.send(*STREAM[2:]).end()
    forms = data_of(second.result()[1])
    assert sum(len(form["choices"][0]["delta"].get("content") or "") for form in forms[:-1]) == 16 * 2**20 + 2
    call = await one_call(home, rollout, False, True)
    assert call["status"] == "complete"
    writer.close()


async def test_what_is_kept_of_running_calls_is_given_back(engine, home: House) -> None:
    before = transcripts.Transcript.kept
    rollout = await home.rollout()
    for end in (lambda asked: asked.send(*STREAM).end(), lambda asked: asked.send(*STREAM[:2]).cut()):
        async with asyncio.TaskGroup() as both:
            both.create_task(_whatever(home.chat(rollout, stream=True)))
            end(await engine.next())
    await settled(home, rollout)
    assert transcripts.Transcript.kept == before


async def _whatever(context: Any) -> None:
    async with context as response:
        try:
            await response.read()
        except aiohttp.ClientError:
            return
