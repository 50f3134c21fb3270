"""A retry that joins a call which still runs: both get it, from its beginning, and it stays one call."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capture import following, transcripts
from tests import tongues
from tests.capture.test_retries import COUNTED, SDK, one_call, replies, settled
from tests.engine import STREAM, running, whole
from tests.house import ASK, House, house
from tests.playbook import case, data_of


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


@pytest.fixture
async def home(engine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


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


async def test_who_waits_for_the_end_alone_holds_up_nobody(
    engine, home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "LAG", 0)
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        one = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=True, headers=KEYED)))
        asked = await engine.next()
        other = both.create_task(tongues.told(tongues.ask(home, rollout, "chat", stream=False, headers=KEYED)))
        await follower(home, rollout)
        replies(asked)
    assert tongues.read("chat", one.result()[1], stream=True).text == "Hello"
    assert tongues.read("chat", other.result()[1], stream=False).text == "Hello"


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
    monkeypatch.setattr(following, "STUCK_S", 0.05)
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


@pytest.mark.parametrize("stream", tongues.STREAMED)
@pytest.mark.parametrize("seed", range(16))
async def test_whoever_comes_and_goes_it_is_one_call(engine, home: House, seed: int, stream: bool) -> None:
    """Agents join and leave in any order while the engine speaks: who stays gets all of it, and nothing runs on."""
    draw = random.Random(seed)
    rollout = await home.rollout()
    agents: list[asyncio.Task[Any]] = []
    waits: set[int] = set()

    async def agent() -> tuple[int, bytes] | None:
        headers = COUNTED if agents else {}
        try:
            return await tongues.told(tongues.ask(home, rollout, "chat", stream=stream, headers=headers))
        except asyncio.CancelledError:
            return None

    async def join(both: asyncio.TaskGroup) -> None:
        agents.append(both.create_task(agent()))
        waits.add(len(agents) - 1)
        if len(agents) > 1:
            await _followed(home, rollout, len(waits))

    async with asyncio.TaskGroup() as both:
        await join(both)
        asked = await engine.next()
        pieces = list(STREAM) if stream else []
        while True:
            step = draw.choice(["say", "join", "leave", "turn"])
            if step == "say" and len(pieces) > 3:
                asked.send(pieces.pop(0))
            elif step == "join" and waits and len(agents) < 5:
                await join(both)
            elif step == "leave" and waits:
                gone = draw.choice(sorted(waits))
                waits.discard(gone)
                agents[gone].cancel()
                await _followed(home, rollout, len(waits))
                if gone == 0 and waits and len(pieces) == len(STREAM):
                    # Its head had not come: it is asked for again, as the same call.
                    asked = await engine.next()
            elif step == "turn" and draw.random() < 0.3:
                break
            if not waits:
                break
        if waits:
            if stream:
                asked.send(*pieces).end()
            else:
                asked.answer(whole([5, 6, 7], text="Hello"))
        else:
            async with asyncio.timeout(10):
                await asked.dropped.wait()
    await settled(home, rollout)
    for at, one in enumerate(agents):
        if at in waits:
            got = one.result()
            assert got is not None
            assert (got[0], tongues.read("chat", got[1], stream=stream).text) == (200, "Hello")
    assert home.appliance.engine.in_flight == 0
    statuses = [call["status"] for call in (await home.graph(rollout))["calls"]]
    if waits:
        assert statuses == ["complete"]
        deliveries = (await home.call(rollout, 0))["deliveries"]
        assert sum(delivery["complete"] for delivery in deliveries) == len(waits)
    else:
        assert statuses == ["aborted"]


async def _followed(home: House, rollout: dict[str, Any], by: int) -> None:
    """Wait until so many wait for the call that runs, its first agent included where that is still there."""
    live = home.appliance.rollouts._live[rollout["id"]]
    async with asyncio.timeout(10):
        while True:
            passages = [tried.draft.passage for tried in live.tries._running.values() if tried.draft is not None]
            if by == 0 and not passages:
                return
            if passages and passages[0] is not None:
                carried = passages[0]
                if carried.said.followers + (not carried._alone) == by:
                    return
            await asyncio.sleep(0)


async def test_one_who_joined_and_takes_nothing_holds_up_nobody(
    engine, home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "LAG", 0)
    rollout = await home.rollout()
    large = STREAM[1].replace(b"Hel", b"x" * 2**20)
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(home.chat(rollout, stream=True)))
        asked = await engine.next()
        asked.send(STREAM[0])
        host, port = rollout["url"].removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps({**ASK, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
        head += f"X-Stainless-Retry-Count: 1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await follower(home, rollout)
        asked.send(*[large] * 16, *STREAM[2:]).end()
    assert first.result()[0] == 200
    assert len(first.result()[1]) > 16 * 2**20
    writer.transport.abort()
    call = await one_call(home, rollout, True)
    assert call["status"] == "complete"
