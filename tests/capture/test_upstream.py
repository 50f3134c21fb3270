"""The engine's side of the wire."""

import asyncio
import contextlib

import pytest
from aiohttp import web

from capture.dialects.chat import Chat
from capture.engines.base import Ask, Inquirer
from capture.engines.llamacpp import Llamacpp
from capture.engines.vllm import Vllm
from capture.errors import EngineError
from capture.upstream import PIECEWISE_FROM, Engine, whole
from tests.engine import running
from tests.faults import faulty


@pytest.fixture
async def server():
    async with running() as one:
        yield one


async def opened(url: str, **options) -> Engine:
    engine = Engine(Vllm(), url, **options)
    await engine.open()
    return engine


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
async def test_an_engine_says_who_it_is(server, tail: str) -> None:
    engine = await opened(server.url + tail)
    identity = await engine.identify()
    assert (identity.models, identity.version, identity.max_model_len) == (("tiny",), "0.32.0", 4096)
    assert (engine.url, engine.name, engine.healthy) == (server.url, f"vllm={server.url}", True)
    await engine.close()


async def test_an_engine_that_is_not_there_is_named(unused_tcp_port: int) -> None:
    engine = await opened(f"http://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(EngineError) as caught:
        await engine.identify()
    assert caught.value.code == "engine_unreachable"
    assert str(unused_tcp_port) in caught.value.message
    assert not engine.healthy
    assert not await engine.check()
    await engine.close()


async def answering(handler):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (web.Response(text="<html>"), "engine_garbled"),
        (web.json_response([]), "engine_garbled"),
        (web.json_response({"data": 5}), "engine_garbled"),
        (web.Response(status=401), "engine_refused"),
        (web.Response(status=500), "engine_refused"),
    ],
)
async def test_something_else_on_the_port_is_found_out(answer: web.Response, code: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=answer.body, status=answer.status, content_type=answer.content_type)

    runner, url = await answering(handler)
    engine = await opened(url)
    with pytest.raises(EngineError) as caught:
        await engine.identify()
    assert caught.value.code == code
    await engine.close()
    await runner.cleanup()


async def test_the_engines_key_goes_with_every_request_and_into_no_repr(server) -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers)
        return web.json_response({"data": [{"id": "m"}]})

    runner, url = await answering(handler)
    engine = await opened(url, key="engine-secret")
    await engine.identify()
    assert [headers["Authorization"] for headers in seen] == ["Bearer engine-secret"] * 2
    assert "User-Agent" not in seen[0]
    assert "engine-secret" not in repr(engine) + repr(vars(engine).get("identity"))
    await engine.close()
    await runner.cleanup()


async def test_a_connection_that_closed_before_a_byte_came_is_tried_once_more() -> None:
    requests = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if requests == 1:
            assert request.transport is not None
            request.transport.close()
        return web.json_response({"n": requests})

    runner, url = await answering(handler)
    engine = await opened(url)
    async with await engine.send("POST", "/x", body=b"{}") as answer:
        assert await answer.json() == {"n": 2}
    await engine.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("size", "begin"),
    [
        (2, b"HTTP/1.1 200 OK\r\nContent-"),
        (2, b"HTTP/1.1 100 Continue\r\n\r\n"),
        (PIECEWISE_FROM + 1, b"HTTP/1.1 200 OK\r\nContent-"),
    ],
)
async def test_a_post_whose_answer_had_begun_is_not_sent_again(size: int, begin: bytes) -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(size)
        writer.write(begin)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        engine = await opened(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        with pytest.raises(EngineError):
            async with asyncio.timeout(10):
                await engine.send("POST", "/x", body=b" " * size)
        assert requests == 1
        await engine.close()


async def test_behind_a_dead_connection_all_others_that_were_kept_are_left_alone() -> None:
    """An engine that comes back on its port leaves as many of them as calls had run at one time."""
    asked = 0
    both = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            for _ in range(1 if asked < 2 else 2):
                await reader.readuntil(b"\r\n\r\n")
                asked += 1
                if asked >= 2:
                    both.set()
                await both.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                await writer.drain()
            # Closed when the next comes, and not before: as dead as can't be seen.
            await reader.readuntil(b"\r\n\r\n")

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        engine = await opened(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(10):
            for answer in await asyncio.gather(engine.send("GET", "/a"), engine.send("GET", "/b")):
                assert await whole(answer) == b"{}"
            assert await whole(await engine.send("POST", "/x", body=b"")) == b"{}"
        await engine.close()


async def test_one_that_goes_on_closing_is_not_tried_for_ever(server) -> None:
    async with faulty(server.url, up_after=1, way="reset") as proxy:
        engine = await opened(proxy.url)
        with pytest.raises(EngineError) as caught:
            async with asyncio.timeout(10):
                await engine.send("GET", "/v1/models")
        assert caught.value.code == "engine_unreachable"
        await engine.close()


async def test_a_large_body_arrives_whole() -> None:
    got = []

    async def handler(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.json_response({"length": request.content_length})

    runner, url = await answering(handler)
    runner.app._client_max_size = 0
    engine = await opened(url)
    body = b"x" * (PIECEWISE_FROM + 1)
    async with await engine.send("POST", "/x", body=body) as answer:
        assert await answer.json() == {"length": len(body)}
    assert got == [body]
    await engine.close()
    await runner.cleanup()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (404, True), (503, False)])
async def test_health_is_what_the_engine_says(status: int, healthy: bool) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status)

    runner, url = await answering(handler)
    engine = await opened(url)
    assert await engine.check() is healthy
    assert ("503" in engine.reason) is not healthy
    await engine.close()
    await runner.cleanup()


# -- side questions


def echo(body: bytes) -> Ask:
    return Ask(path="/second", body=b"after " + body)


async def test_a_question_may_follow_from_an_answer() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=request.path.encode() + b" " + await request.read())

    runner, url = await answering(handler)
    engine = await opened(url)
    assert await engine.ask(Ask(path="/first", body=b"one")) == (200, b"/first one")
    assert await engine.ask(Ask(path="/first", body=b"one", then=echo)) == (200, b"/second after /first one")
    await engine.close()
    await runner.cleanup()


async def test_a_refusal_ends_the_questions() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=request.path.encode(), status=404)

    runner, url = await answering(handler)
    engine = await opened(url)
    assert await engine.ask(Ask(path="/first", body=b"", then=echo)) == (404, b"/first")
    await engine.close()
    await runner.cleanup()


async def test_a_reader_is_told_even_that_the_engine_is_not_there(unused_tcp_port: int) -> None:
    reader = Llamacpp().reader(Chat().read(b'{"messages":[]}'))
    assert isinstance(reader, Inquirer)
    engine = await opened(f"http://127.0.0.1:{unused_tcp_port}")
    await engine.inquire(reader)
    assert reader.prompt_ids is None
    assert "answered 502" in reader.undecoded[0]
    await engine.close()


@contextlib.asynccontextmanager
async def asked(handler):
    runner, url = await answering(handler)
    engine = await opened(url)
    try:
        yield engine
    finally:
        await engine.close()
        await runner.cleanup()


@pytest.mark.parametrize("code", [101, 600, 999])
async def test_a_status_that_is_none_is_an_error(code: int) -> None:
    async def odd(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(f"HTTP/1.1 {code} X\r\nContent-Length: 0\r\n\r\n".encode())
        request.transport.close()
        return web.Response()

    async with asked(odd) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.send("GET", "/x")
    assert (caught.value.code, caught.value.status) == ("engine_garbled", 502)


async def test_what_is_no_http_is_not_quoted() -> None:
    async def repeats(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 200 OK\r\nX-Asked: " + request.headers["X-Word"].encode() + b"\0\r\n\r\n")
        request.transport.close()
        return web.Response()

    async with asked(repeats) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.send("GET", "/x", headers=[("X-Word", "a-word")])
        assert "a-word" not in caught.value.message + engine.reason + repr(engine)


@pytest.mark.parametrize(("size", "fits"), [(100, True), (101, False)])
async def test_an_answer_is_read_up_to_its_limit(size: int, fits: bool) -> None:
    async def large(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * size)

    async with asked(large) as engine:
        answer = await engine.send("GET", "/x")
        if fits:
            assert await whole(answer, 100) == b"x" * size
        else:
            with pytest.raises(EngineError, match="larger than 100 bytes"):
                await whole(answer, 100)
