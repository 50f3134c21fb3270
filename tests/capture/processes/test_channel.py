"""Two sides that ask and tell each other things."""

import asyncio
import contextlib
import socket

import msgspec
import pytest

from capture.errors import CaptureError, ClientError, EngineError, StoreError
from capture.processes import channel as channels
from capture.processes.channel import Channel, GoneError, unpack
from capture.tasks import spawn
from tests.processes import until


@contextlib.asynccontextmanager
async def pair(answers=None, hears=None):
    """Two channels: the near one asks, the far one answers."""
    mine, its = socket.socketpair()
    near, far = Channel(mine, name="far"), Channel(its, name="near", answers=answers, hears=hears)
    running = []
    for one in (near, far):
        await one.start()
        running.append(spawn(one.run(), name="run"))
    try:
        yield near, far
    finally:
        near.close()
        await asyncio.gather(*running)
        await far.settled()


async def test_answers_come_as_they_are_ready_and_to_who_asked():
    first = asyncio.Event()

    async def double(body: msgspec.Raw) -> int:
        n = unpack(body, int)
        if n == 1:
            await first.wait()
        return 2 * n

    async with pair({"double": double}) as (near, _):
        slow = spawn(near.ask("double", 1), name="slow")
        assert unpack(await near.ask("double", 2), int) == 4
        first.set()
        assert unpack(await slow, int) == 2


async def test_what_is_handed_over_first_is_handled_first():
    seen = []

    async def ask(body: msgspec.Raw) -> None:
        seen.append(unpack(body, int))

    async with pair({"ask": ask}, {"tell": lambda body: seen.append(unpack(body, int))}) as (near, _):
        asked = []
        for n in range(0, 40, 2):
            asked.append(spawn(near.ask("ask", n), name="ask"))
            await asyncio.sleep(0)
            near.tell("tell", n + 1)
        await asyncio.gather(*asked)
        await near.ask("ask", 40)
    assert seen == list(range(41))


@pytest.mark.parametrize(
    "error",
    [
        ClientError("c", "message", hint="h", status=409, param="p"),
        EngineError("e", "message", hint="h", status=503, retry_after_s=2.0),
        StoreError("store_full", "message", hint="h"),
        CaptureError("x", "message"),
    ],
)
async def test_an_error_comes_back_as_what_it_was(error):
    async def fail(_: msgspec.Raw) -> None:
        raise error

    async with pair({"fail": fail}) as (near, _):
        with pytest.raises(type(error)) as caught:
            await near.ask("fail")
    assert vars(caught.value) == vars(error)


async def test_an_error_that_nobody_foresaw_is_told_and_logged(caplog):
    async def fail(_: msgspec.Raw) -> None:
        raise RuntimeError("why")

    def hear(_: msgspec.Raw) -> None:
        raise RuntimeError("told")

    async with pair({"fail": fail}, {"hear": hear}) as (near, _):
        near.tell("hear")
        with pytest.raises(CaptureError, match="why"):
            await near.ask("fail")
        with pytest.raises(CaptureError, match="KeyError"):
            await near.ask("no such word")
    assert "fail could not be answered" in caplog.text
    assert "what was told (hear) could not be done" in caplog.text


async def test_when_the_other_side_goes_all_questions_fail_at_once():
    async def never(_: msgspec.Raw) -> None:
        await asyncio.get_running_loop().create_future()

    async with pair({"never": never}) as (near, far):
        asked = [spawn(near.ask("never"), name="never") for _ in range(3)]
        await asyncio.sleep(0)
        far.close()
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(outcome, GoneError)
        with pytest.raises(GoneError):
            await near.ask("never")
        with pytest.raises(GoneError):
            near.tell("x")
        for task in far._answering:
            task.cancel()


async def test_an_answer_has_its_time():
    async def never(_: msgspec.Raw) -> None:
        await asyncio.get_running_loop().create_future()

    async with pair({"never": never}) as (near, far):
        with pytest.raises(GoneError, match="did not answer in 0"):
            await near.ask("never", limit_s=0.01)
        assert repr(near) == "<Channel far open, 0 waiting>"
        for task in far._answering:
            task.cancel()


async def test_what_may_be_left_out_is_left_out_when_the_other_side_is_slow(monkeypatch):
    monkeypatch.setattr(channels, "MOST_BUFFERED", 1 << 20)
    mine, its = socket.socketpair()
    near = Channel(mine, name="far")
    await near.start()
    try:
        told = [near.tell("spool", b"x" * (1 << 20), may_drop=True) for _ in range(8)]
        assert told[:2] == [True, True]
        assert told[-1] is False
        assert near.tell("deliver") is True
    finally:
        near.close()
        its.close()


async def test_no_more_is_read_while_too_much_is_being_answered(monkeypatch):
    monkeypatch.setattr(channels, "MOST_OPEN", 2)
    open_, most, door = 0, 0, asyncio.Event()

    async def count(_: msgspec.Raw) -> None:
        nonlocal open_, most
        open_ += 1
        most = max(most, open_)
        await door.wait()
        open_ -= 1

    async with pair({"count": count}) as (near, _):
        asked = [spawn(near.ask("count"), name="count") for _ in range(9)]
        await until(lambda: open_ == 2)
        door.set()
        await asyncio.gather(*asked)
    assert most == 2


async def test_garbage_closes_the_channel(caplog):
    mine, its = socket.socketpair()
    near = Channel(mine, name="far")
    await near.start()
    its.sendall(b"\xff\xff\xff\xff")
    await near.run()
    assert not near.open
    assert "the channel far broke" in caplog.text
    its.close()
