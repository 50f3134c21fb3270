"""An agent may leave at any point: whatever the handler then awaits, the engine is let go and the record is written."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from tests.engine import STREAM, Exchange, running, whole
from tests.house import ASK, House, house


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


@pytest.fixture
async def home(engine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


async def begin(home: House, rollout: dict, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a socket of one's own, which can be closed at any moment."""
    host, port = rollout["url"].removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({**ASK, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def settled(home: House, rollout: dict) -> dict:
    """Wait until the call is recorded; nothing of it may be left."""
    live = home.appliance.rollouts._live[rollout["id"]]
    async with asyncio.timeout(10):
        while live.running:
            await live.changed.wait()
    await home.idle(rollout)
    assert home.appliance.engine.in_flight == 0
    assert live._reserved == 0
    (call,) = (await home.graph(rollout))["calls"]
    return call


async def gone(exchange: Exchange) -> None:
    async with asyncio.timeout(10):
        await exchange.dropped.wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_engine_has_said_anything(engine, home: House, stream: bool) -> None:
    rollout = await home.rollout()
    _, writer = await begin(home, rollout, stream=stream)
    exchange = await engine.next()
    await leave(writer)
    await gone(exchange)
    call = await settled(home, rollout)
    assert (call["status"], call["delivered"], call["n_sampled"]) == ("aborted", False, None)


@pytest.mark.parametrize("events", range(1, 4))
async def test_between_two_events_of_a_stream(engine, home: House, events: int) -> None:
    rollout = await home.rollout()
    reader, writer = await begin(home, rollout, stream=True)
    exchange = await engine.next()
    exchange.send(*STREAM[:events])
    seen = b""
    async with asyncio.timeout(10):
        while seen.count(b"data: ") < events:
            seen += await reader.read(65536)
    await leave(writer)
    await gone(exchange)
    call = await settled(home, rollout)
    assert (call["status"], call["delivered"], call["n_sampled"]) == ("aborted", False, (None, 1, 2)[events - 1])


@pytest.mark.parametrize("stream", [False, True])
async def test_while_the_record_is_committed(engine, home: House, stream: bool) -> None:
    rollout = await home.rollout()
    _, writer = await begin(home, rollout, stream=stream)
    exchange = await engine.next()
    home.appliance.store.hold()
    try:
        exchange.send(*STREAM).end() if stream else exchange.answer(whole([5, 6, 7]))
        live = home.appliance.rollouts._live[rollout["id"]]
        async with asyncio.timeout(10):
            while not any(task.get_name().startswith("record call") for task in asyncio.all_tasks()):  # noqa: ASYNC110  no event says that a task began
                await asyncio.sleep(0)
        await leave(writer)
        assert live.running
    finally:
        home.appliance.store.release()
    call = await settled(home, rollout)
    assert (call["status"], call["delivered"], call["n_sampled"]) == ("undelivered", False, 3)


async def test_between_the_finish_and_what_comes_behind_it(engine, home: House) -> None:
    rollout = await home.rollout()
    reader, writer = await begin(home, rollout, stream=True)
    exchange = await engine.next()
    exchange.send(*STREAM[:4])
    seen = b""
    async with asyncio.timeout(10):
        while seen.count(b"data: ") < 3:
            seen += await reader.read(65536)
    await leave(writer)
    exchange.send(*STREAM[4:]).end()
    call = await settled(home, rollout)
    # The finish was on its way and the rest was read: the call is whole, and nobody got it.
    assert (call["status"], call["delivered"], call["n_sampled"]) == ("undelivered", False, 3)


async def test_behind_the_whole_of_it(engine, home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent closes as soon as it has the end, before the server has come as far as noticing that it is done."""
    rollout = await home.rollout()
    reader, writer = await begin(home, rollout, stream=True)
    exchange = await engine.next()
    write_eof, left, noticed = web.StreamResponse.write_eof, asyncio.Event(), []

    async def late(response: web.StreamResponse, data: bytes = b"") -> None:
        try:
            await left.wait()
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            # How the server says that the agent has gone.
            noticed.append(response)
            raise
        await write_eof(response, data)

    with monkeypatch.context() as slow:
        slow.setattr(web.StreamResponse, "write_eof", late)
        exchange.send(*STREAM).end()
        seen = b""
        async with asyncio.timeout(10):
            while b"[DONE]" not in seen:
                seen += await reader.read(65536)
        await leave(writer)
        left.set()
        async with asyncio.timeout(10):
            while not noticed:  # noqa: ASYNC110  no event says that a handler was cancelled
                await asyncio.sleep(0)
    call = await settled(home, rollout)
    assert (call["status"], call["delivered"], call["n_sampled"]) == ("complete", True, 3)


async def test_when_the_server_stops(engine, tmp_path: Path) -> None:
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        _, writer = await begin(home, rollout, stream=True)
        exchange = await engine.next()
        exchange.send(*STREAM[:2])
    await gone(exchange)
    writer.close()
    async with house(engine, tmp_path) as home:
        (call,) = (await home.graph(rollout))["calls"]
        assert call["status"] == "aborted"
