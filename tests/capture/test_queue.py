"""An engine's places and its line: the line alone, the places, and both under a whole appliance."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import calls, queue
from capture.errors import EngineError
from capture.queue import Call, Line, Queue
from tests import tongues
from tests.engine import STREAM, running, whole
from tests.house import House, house


def call(name: str) -> Call:
    """`a3`: the call 3 of the rollout a."""
    return Call(name[0], int(name[1:] or 0))


def future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


# The line


async def test_rollouts_take_turns() -> None:
    line = Line()
    for name in ("a0", "a1", "a2", "b0", "c0", "b1"):
        line.join(call(name), future())
    order = [line.next()[0] for _ in range(6)]
    assert order == [call(name) for name in ("a0", "b0", "c0", "a1", "b1", "a2")]
    assert len(line) == 0


async def test_one_that_comes_late_waits_for_one_call_of_each() -> None:
    line = Line()
    for n in range(100):
        line.join(Call("a", n), future())
    line.next()
    line.join(Call("b", 0), future())
    assert [line.next()[0] for _ in range(2)] == [Call("a", 1), Call("b", 0)]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40))
def test_nobody_waits_longer_than_the_others_before_it(comers: str) -> None:
    """Whose turn comes k-th in its rollout waits for at most k calls of each other one."""

    async def check() -> None:
        line = Line()
        numbered = [Call(name, i) for i, name in enumerate(comers)]
        for each in numbered:
            line.join(each, future())
        order = [line.next()[0] for _ in range(len(line))]
        assert sorted(order) == sorted(numbered)
        for at, each in enumerate(order):
            mine = [before for before in order[:at] if before.rollout == each.rollout]
            assert mine == sorted(mine)
            for other in set(comers) - {each.rollout}:
                assert sum(before.rollout == other for before in order[:at]) <= len(mine) + 1

    asyncio.run(check())


# The places


async def waits(line: Queue, name: str) -> asyncio.Task[bool]:
    """A call that waits by now."""
    task = asyncio.ensure_future(line.enter(call(name)))  # noqa: TID251  the test ends each of them itself
    await turn()
    return task


async def turn() -> None:
    """Let everything that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_free_place_is_taken_without_a_wait() -> None:
    places = Queue("e", places=2)
    assert [await places.enter(call(name)) for name in ("a0", "b0")] == [False, False]
    assert places.inside == [call("a0"), call("b0")]
    third = await waits(places, "c0")
    assert (places.waiting, third.done()) == (1, False)
    places.leave(call("a0"))
    assert await third
    assert places.inside == [call("b0"), call("c0")]


async def test_nobody_slips_in_before_the_line() -> None:
    places = Queue("e", places=1)
    await places.enter(call("a0"))
    first = await waits(places, "b0")
    places.leave(call("a0"))
    # The place is the waiter's, although it has not come round yet.
    second = await waits(places, "c0")
    assert (first.done(), second.done()) == (True, False)
    places.leave(call("b0"))
    assert await second


async def test_a_wait_ends_and_says_when_to_come_again() -> None:
    places = Queue("e", places=1)
    await places.enter(call("a0"))
    with pytest.raises(EngineError) as caught:
        await places.enter(call("b0"), wait_s=0)
    assert (caught.value.code, caught.value.status, caught.value.headers()) == (
        "engine_busy", 503, {"Retry-After": "2"},
    )  # fmt: skip
    assert (places.waiting, places.inside) == (0, [call("a0")])


async def test_a_full_line_sends_away_who_comes_unless_another_has_more_of_it() -> None:
    places = Queue("e", places=1, longest=3)
    await places.enter(call("z0"))
    held = [await waits(places, name) for name in ("a0", "a1", "a2")]
    with pytest.raises(EngineError, match="3 calls wait"):
        await places.enter(call("a3"))
    late = await waits(places, "b0")
    with pytest.raises(EngineError, match="less of it"):
        await held[2]
    # Now a has two, and b one: nobody has more to give.
    with pytest.raises(EngineError, match="3 calls wait"):
        await places.enter(call("b1"))
    for name, task in [("z0", held[0]), ("a0", late), ("b0", held[1])]:
        places.leave(call(name))
        assert await task


async def test_without_a_line_who_finds_no_place_is_sent_away() -> None:
    places = Queue("e", places=1, longest=0)
    await places.enter(call("a0"))
    with pytest.raises(EngineError):
        await places.enter(call("b0"))


async def test_who_hangs_up_leaves_at_once() -> None:
    places = Queue("e", places=1)
    await places.enter(call("a0"))
    gone, next_ = await waits(places, "b0"), await waits(places, "c0")
    gone.cancel()
    await turn()
    assert places.waiting == 1
    places.leave(call("a0"))
    assert await next_


async def test_a_place_given_to_one_that_hangs_up_goes_to_the_next() -> None:
    places = Queue("e", places=1)
    await places.enter(call("a0"))
    gone, next_ = await waits(places, "b0"), await waits(places, "c0")
    places.leave(call("a0"))
    gone.cancel()
    assert await next_
    assert (places.inside, places.waiting) == ([call("c0")], 0)


async def test_a_hold_keeps_who_comes_and_not_who_is_in() -> None:
    places = Queue("e", places=5)
    await places.enter(call("a0"))
    places.hold()
    waiting = [await waits(places, name) for name in ("b0", "b1", "c0")]
    with pytest.raises(EngineError) as caught:
        await places.enter(call("d0"), wait_s=0)
    assert caught.value.code == "engine_held"
    assert not await places.empty(0)
    places.leave(call("a0"))
    assert await places.empty(0)
    assert (places.inside, [task.done() for task in waiting]) == ([], [False] * 3)
    places.release()
    assert [await task for task in waiting] == [True] * 3


async def test_who_waits_for_the_last_one_is_told_when_it_leaves() -> None:
    places = Queue("e", places=2)
    await places.enter(call("a0"))
    await places.enter(call("b0"))
    waiting = asyncio.ensure_future(places.empty(30))  # noqa: TID251  ended below
    await turn()
    places.leave(call("a0"))
    await turn()
    assert not waiting.done()
    places.leave(call("b0"))
    assert await waiting


@given(st.data())
def test_places_are_never_lost_and_never_too_many(data: st.DataObject) -> None:
    """Comings, goings, hang-ups and holds in any order: never more inside than places, and all of them usable after."""

    async def check() -> None:
        places = Queue("e", places=2, longest=3)
        tasks: dict[Call, asyncio.Task[bool]] = {}
        for n in range(data.draw(st.integers(0, 25))):
            step = data.draw(st.sampled_from(["come", "go", "hang up", "hold", "release", "turn"]))
            if step == "come":
                each = Call(data.draw(st.sampled_from("ab")), n)
                tasks[each] = asyncio.ensure_future(places.enter(each))  # noqa: TID251  all are ended below
            elif step == "go" and places.inside:
                places.leave(data.draw(st.sampled_from(places.inside)))
            elif step == "hang up" and tasks:
                tasks[data.draw(st.sampled_from(list(tasks)))].cancel()
            elif step in ("hold", "release"):
                getattr(places, step)()
            else:
                await turn()
            assert len(places.inside) <= 2
        places.release()
        await turn()
        while places.inside:
            for each in places.inside:
                places.leave(each)
            await turn()
        assert places.waiting == 0
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert [await places.enter(Call("z", n)) for n in range(2)] == [False, False]

    asyncio.run(check())


# Under an appliance


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


@pytest.fixture
async def narrow(engine, tmp_path: Path):
    """An appliance with one place at the engine, and a line of two."""
    async with house(engine, tmp_path, max_in_flight=1, max_queued=2) as home:
        yield home


async def queued(home: House, count: int) -> None:
    """Wait until so many wait."""
    places = home.appliance.holds.queue(home.appliance.engine.name)
    async with asyncio.timeout(10):
        while places.waiting != count:  # noqa: ASYNC110  the line tells nobody of its length
            await asyncio.sleep(0)


@pytest.mark.parametrize("stream", tongues.STREAMED)
@pytest.mark.parametrize("name", tongues.NAMES)
async def test_who_is_sent_away_gets_503_in_its_dialect(
    engine, narrow: House, monkeypatch: pytest.MonkeyPatch, name: str, stream: bool
) -> None:
    monkeypatch.setattr(calls, "WAIT_S", 0.0)
    rollout = await narrow.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(narrow.chat(rollout)))
        held = await engine.next()
        async with tongues.ask(narrow, rollout, name, stream=stream) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "2")
            error = json.loads(await response.read())["error"]
            assert "busy" in error["message"]
        held.answer(whole([5]))
    assert first.result()[0] == 200
    assert engine.calls.empty()
    await narrow.idle(rollout)
    call = await narrow.call(rollout, 1)
    assert (call["status"], call["error"]["status"], call["error"]["blame"]) == ("error", 503, "engine")
    assert call["weights"] == {"start": None, "end": None, "spans": []}


async def test_rollouts_take_turns_at_the_engine_and_the_wait_is_recorded(engine, tmp_path: Path) -> None:
    async with house(engine, tmp_path, max_in_flight=1) as home:
        greedy, modest = await home.rollout(), await home.rollout()
        async with asyncio.TaskGroup() as all_:
            held = None
            for turn_, (rollout, text) in enumerate([(greedy, "g0"), (greedy, "g1"), (greedy, "g2"), (modest, "m0")]):
                asked = [{"role": "user", "content": text}]
                all_.create_task(tongues.told(home.chat(rollout, messages=asked)))
                if held is None:
                    held = await engine.next()
                else:
                    await queued(home, turn_)
            order = []
            for _ in range(4):
                order.append(held.body["messages"][0]["content"])
                held.answer(whole([5]))
                if len(order) < 4:
                    held = await engine.next()
        assert order == ["g0", "g1", "m0", "g2"]
        waited = [call["queued_ms"] for call in (await home.graph(greedy))["calls"]]
        assert waited[0] == 0
        assert all(ms > 0 for ms in waited[1:])


async def test_an_agent_that_hangs_up_in_the_line_leaves_it_at_once(engine, narrow: House) -> None:
    rollout = await narrow.rollout()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(tongues.told(narrow.chat(rollout)))
        held = await engine.next()
        second = both.create_task(tongues.told(narrow.chat(rollout)))
        await queued(narrow, 1)
        second.cancel()
        await queued(narrow, 0)
        held.answer(whole([5]))
    assert first.result()[0] == 200
    await narrow.idle(rollout)
    assert engine.calls.empty()
    call = await narrow.call(rollout, 1)
    assert (call["status"], call["delivered"], call["sent"]) == ("aborted", False, None)


async def test_the_place_comes_back_however_a_call_ends(engine, narrow: House) -> None:
    rollout = await narrow.rollout()

    async def one(end: Any, **asked: Any) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(_whatever(narrow.chat(rollout, **asked)))
            end(await engine.next())

    await one(lambda held: held.answer(whole([5])))
    await one(lambda held: held.answer({"error": {"message": "no"}}, status=500))
    await one(lambda held: held.send(*STREAM).end(), stream=True)
    await one(lambda held: held.send(*STREAM[:2]).cut(), stream=True)
    places = narrow.appliance.holds.queue(narrow.appliance.engine.name)
    assert (places.inside, places.waiting, narrow.appliance.engine.in_flight) == ([], 0, 0)


async def _whatever(context: Any) -> None:
    # A stream that is meant to break is none of its reader's business.
    async with context as response:
        with contextlib.suppress(aiohttp.ClientError):
            await response.read()


def test_a_wait_is_shorter_than_any_agents() -> None:
    assert queue.WAIT_S <= 20
