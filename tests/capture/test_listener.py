"""A listener: connections that may still prove whose they are."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import ClassVar

import pytest
from aiohttp import web

from capture import listener
from capture.errors import TreeringError
from tests.wire import Wire, wire

GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"


class Listening:
    make: ClassVar[Callable[[], web.BaseRunner] | None] = None

    def __init__(self, url: str, door: listener.Door) -> None:
        self.url = url
        self.door = door


async def serve(request: web.BaseRequest) -> web.Response:
    if request.path == "/right":
        listener.prove(request)
    if request.path == "/broken":
        raise RuntimeError("word of a secret")
    await asyncio.sleep(0)
    return web.Response(text="fine")


def refuse(error: TreeringError) -> web.Response:
    return web.Response(text=error.code, status=error.status)


def with_application() -> web.BaseRunner:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    return listener.Runner(app, refuse=refuse, access_log=None, keepalive_timeout=3600.0, shutdown_timeout=0.1)


def plain() -> web.BaseRunner:
    return listener.Plain(serve, refuse=refuse, access_log=None, keepalive_timeout=3600.0, shutdown_timeout=0.1)


makers = {"with an application": with_application, "plain": plain}


@pytest.fixture(params=makers, autouse=True)
def maker(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have each test met by both runners."""
    Listening.make = makers[request.param]
    yield
    Listening.make = None


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    """A listener whose `/right` proves a connection."""
    assert Listening.make is not None
    runner = Listening.make()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    assert isinstance(runner.server, listener.Door)
    try:
        yield Listening(f"http://127.0.0.1:{runner.addresses[0][1]}", runner.server)
    finally:
        await runner.cleanup()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 -- nothing tells of a socket's other end
            await asyncio.sleep(0)


async def asked(client: Wire, path: bytes) -> int:
    await client.write(GET % path)
    return (await client.answer()).status


async def test_a_connection_is_unproved_until_a_right_key_is_shown() -> None:
    async with listening() as one, wire(one.url) as client:
        await until(lambda: len(one.door.unproved) == 1)
        (connection,) = one.door.unproved
        assert await asked(client, b"wrong") == 200
        assert connection._patience is not None
        assert await asked(client, b"right") == 200
        assert (len(one.door.unproved), connection._patience) == (0, None)
        assert await asked(client, b"right") == 200


@pytest.mark.parametrize("part", [b"", b"G", b"GET /right HTTP/1.1\r\n", b"GET /right HTTP/1.1\r\nHost: x\r\nX-A: b"])
async def test_a_head_that_does_not_end_is_not_waited_for(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "UNPROVED_S", 0.05)
    async with listening() as one, wire(one.url) as client:
        await client.write(part)
        assert await client.closed()


async def test_between_two_requests_a_proved_connection_may_idle_and_another_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "UNPROVED_S", 0.05)
    async with listening() as one, wire(one.url) as agent, wire(one.url) as stranger:
        assert await asked(agent, b"right") == 200
        assert await asked(stranger, b"wrong") == 200
        assert await stranger.closed()
        assert await asked(agent, b"right") == 200


async def test_too_many_unproved_push_out_each_other_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GRACE_S", 0.0)
    async with listening() as one, contextlib.AsyncExitStack() as stack:
        one.door.most_unproved = 2
        agent = await stack.enter_async_context(wire(one.url))
        assert await asked(agent, b"right") == 200
        strangers = [await stack.enter_async_context(wire(one.url)) for _ in range(4)]
        await until(lambda: len(one.door.unproved) == 2)
        assert await strangers[0].closed()
        assert await strangers[1].closed()
        for client in (agent, *strangers[2:]):
            assert await asked(client, b"right") == 200


async def test_a_batch_that_comes_at_once_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """None had its time yet, so none is pushed out."""
    monkeypatch.setattr(listener, "GRACE_S", 60.0)
    async with listening() as one, contextlib.AsyncExitStack() as stack:
        one.door.most_unproved = 2
        batch = [await stack.enter_async_context(wire(one.url)) for _ in range(8)]
        for client in batch:
            assert await asked(client, b"right") == 200
        assert len(one.door.unproved) == 0


async def test_a_connection_that_ends_is_forgotten() -> None:
    async with listening() as one:
        async with wire(one.url):
            await until(lambda: len(one.door.unproved) == 1)
        await until(lambda: len(one.door.unproved) == 0)


async def test_what_nobody_caught_is_told_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as one, wire(one.url) as client:
        await client.write(GET % b"broken")
        answer = await client._reader.read()
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.endswith(b"internal")
    assert b"secret" not in answer
    assert "word of a secret" in caplog.text


@pytest.mark.parametrize("target", ["*", "127.0.0.1:1", "evil.example:443"])
async def test_only_paths_are_served(target: str) -> None:
    method = "OPTIONS" if target == "*" else "CONNECT"
    async with listening() as one, wire(one.url) as client:
        await client.write(f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\nmore".encode())
        assert (await client._reader.read())[8:13] == b" 400 "


@pytest.mark.parametrize(("expects", "told"), [(b"100-continue", True), (b"100-Continue", True), (b"200-ok", None)])
async def test_who_waits_for_a_word_before_its_body_gets_it(expects: bytes, told: bool | None) -> None:
    """Any other expectation is refused by an application, and passed over without one."""
    head = b"POST /right HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: " + expects + b"\r\n\r\n"
    async with listening() as one, wire(one.url) as client:
        await client.write(head)
        if told:
            assert await client.line() == "HTTP/1.1 100 Continue"
            assert await client.line() == ""
        await client.write(b"hi")
        assert (await client.answer()).status == (200 if told or Listening.make is plain else 417)


async def test_a_plain_answer_does_not_say_what_serves_it() -> None:
    async with listening() as one, wire(one.url) as client:
        await client.write(GET % b"right")
        answer = await client.answer()
        server = next((value for name, value in answer.headers if name.lower() == "server"), "")
        assert ("aiohttp" in server) == (Listening.make is with_application)


async def test_an_engines_own_name_stays() -> None:
    response = web.Response(headers={"Server": "uvicorn"})
    await listener.Incoming._prepare_hook(None, response)  # type: ignore[arg-type]  # nothing of the request is read
    assert response.headers["Server"] == "uvicorn"
