"""Plain HTTP to an engine: what aiohttp's own client reads is the measure."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
from collections.abc import AsyncIterator, Callable, Sequence

import aiohttp
import pytest
from aiohttp.http_exceptions import HttpProcessingError

from capture.content import Content
from capture.tasks import spawn
from capture.wire import Wire

HEAD = b"POST /x HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\n\r\n"


class Script:
    """A server that answers each request with the next of its scripts: pieces, and a close where they end in None."""

    def __init__(self, scripts: Sequence[Sequence[bytes | None]]) -> None:
        self._scripts = list(scripts)
        self.url = ""
        self.port = 0
        self.connections = 0
        self.requests: list[bytes] = []
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with (
            contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError),
            contextlib.closing(writer),
        ):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head + await reader.readexactly(2))
                self.asked.set()
                for piece in self._scripts.pop(0) if self._scripts else (None,):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    # So that it arrives on its own.
                    await asyncio.sleep(0.005)
        self.gone.set()


@contextlib.asynccontextmanager
async def scripted(*scripts: Sequence[bytes | None]) -> AsyncIterator[Script]:
    script = Script(scripts)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    script.url = f"http://127.0.0.1:{script.port}/x"
    async with server:
        yield script


@contextlib.asynccontextmanager
async def wired(script: Script, *, keepalive_s: float = 3.0) -> AsyncIterator[Wire]:
    wire = Wire("127.0.0.1", script.port, keepalive_s=keepalive_s, connect_s=5.0, max_line=65_536)
    try:
        yield wire
    finally:
        wire.close()


async def by_wire(script: Script) -> tuple[object, ...]:
    async with wired(script) as wire:
        answer = await wire.ask(HEAD, b"{}")
        async with answer:
            return answer.status, list(answer.headers.items()), answer.content_type, await answer.read()


async def by_aiohttp(script: Script) -> tuple[object, ...]:
    async with (
        aiohttp.ClientSession(max_line_size=65_536, max_field_size=65_536) as session,
        session.post(script.url, data=b"{}", allow_redirects=False) as answer,
    ):
        return answer.status, list(answer.headers.items()), answer.content_type, await answer.read()


async def outcome(way: Callable[[Script], object], script: Sequence[bytes | None]) -> object:
    async with scripted(script) as served:
        try:
            async with asyncio.timeout(5):
                return await way(served)  # type: ignore[misc]  # a coroutine function of either client
        except TimeoutError:
            return "nothing"
        except aiohttp.ClientPayloadError:
            return "broke off"
        except (aiohttp.ClientError, OSError, HttpProcessingError):
            return "no answer"


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ZIPPED = gzip.compress(b"zipped")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([OK + b"Content-Length: 5\r\n\r\nhello"], id="a length"),
        pytest.param([OK + b"Content-Length: 5\r\n\r\n", b"he", b"llo"], id="a length in pieces"),
        pytest.param([OK + b"Content-Length: 0\r\n\r\n"], id="nothing"),
        pytest.param([OK + b"Content-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello"], id="a header twice"),
        pytest.param([OK + b"Content-Length: 9\r\n\r\nhello", None], id="shorter than it said"),
        pytest.param([CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"], id="chunks"),
        pytest.param([CHUNKED, b"5\r\nhello\r\n", b"1\r\n!\r\n", b"0\r\n\r\n"], id="a chunk a piece"),
        pytest.param([CHUNKED, b"5\r\nhe", b"llo\r", b"\n0\r\n", b"\r\n"], id="chunks cut anywhere"),
        pytest.param([CHUNKED + b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n"], id="extensions and a trailer"),
        pytest.param([CHUNKED + b"5\r\nhello\r\n", None], id="no last chunk"),
        pytest.param([OK + b"\r\nhello", None], id="to the close"),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\nhello", None], id="of old"),
        pytest.param([b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"], id="of old with a length"),
        pytest.param([b"HTTP/1.1 204 No Content\r\n\r\n"], id="no content"),
        pytest.param([b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"], id="not modified"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"Content-Length: 5\r\n\r\nhello"], id="go on first"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello"], id="go on, together"),
        pytest.param([b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", CHUNKED + b"0\r\n\r\n"], id="hints first"),
        pytest.param([b"HTTP/1.1 20", b"0 OK\r\nContent-Le", b"ngth: 5\r\n\r\nhe", b"llo"], id="a head in pieces"),
        pytest.param([b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello"], id="bare line ends"),
        pytest.param(
            [OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED) + ZIPPED], id="a coding"
        ),
        pytest.param(
            [
                OK
                + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
                % (len(ZIPPED), ZIPPED)
            ],
            id="a coding in chunks",
        ),
        pytest.param([OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"], id="no such coding"),
        pytest.param([OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"], id="two lengths"),
        pytest.param([OK + b"Content-Length: 5x\r\n\r\nhello"], id="no length"),
        pytest.param([OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"], id="two codings"),
        pytest.param([b"SSH-2.0-OpenSSH_9\r\n\r\n"], id="no HTTP"),
        pytest.param([b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n"], id="a line too long"),
        pytest.param([b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops"], id="an error"),
        pytest.param([b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"], id="another protocol"),
        pytest.param([None], id="closed at once"),
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-", None], id="closed in the head"),
        pytest.param([OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", None], id="the last answer"),
    ],
)
async def test_an_answer_is_what_the_other_client_says(script: list[bytes | None]) -> None:
    ours = await outcome(by_wire, script)
    assert ours == await outcome(by_aiohttp, script)
    assert ours != "nothing"


@pytest.mark.parametrize("body", [b"zz\r\nhello\r\n0\r\n\r\n", b"2\r\nhello\r\n0\r\n\r\n"])
async def test_a_body_that_is_not_in_chunks_breaks_off(body: bytes) -> None:
    assert await outcome(by_wire, [CHUNKED + body]) == "broke off"
    assert await outcome(by_wire, [CHUNKED + b"1\r\nx\r\n", body]) == "broke off"


LENGTH = OK + b"Content-Length: 2\r\n\r\n{}"


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with scripted([LENGTH], [CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"], [LENGTH]) as script, wired(script) as wire:
        for _ in range(3):
            assert await (await wire.ask(HEAD, b"{}")).read() == b"{}"
    assert script.connections == 1
    assert script.requests == [HEAD + b"{}"] * 3


@pytest.mark.parametrize(
    "first",
    [
        pytest.param([LENGTH + b"more"], id="more than it said"),
        pytest.param([CHUNKED + b"2\r\n{}\r\n0\r\n\r\nmore"], id="something behind the chunks"),
        pytest.param([OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"], id="the last one, it said"),
        pytest.param([b"HTTP/1.1 204 No Content\r\n\r\n"], id="read by the other parser"),
        pytest.param([LENGTH, b"HTTP/1.1 408 Late\r\n\r\n"], id="something between"),
    ],
)
async def test_one_in_doubt_is_not_used_again(first: list[bytes | None]) -> None:
    async with scripted(first, [LENGTH]) as script, wired(script) as wire:
        await (await wire.ask(HEAD, b"{}")).read()
        await asyncio.sleep(0.02)
        assert await (await wire.ask(HEAD, b"{}")).read() == b"{}"
    assert script.connections == 2


async def test_one_that_was_idle_for_too_long_is_closed() -> None:
    async with scripted([LENGTH], [LENGTH]) as script, wired(script, keepalive_s=0.05) as wire:
        await (await wire.ask(HEAD, b"{}")).read()
        async with asyncio.timeout(5):
            await script.gone.wait()
        assert await (await wire.ask(HEAD, b"{}")).read() == b"{}"
        assert script.connections == 2


async def test_two_at_once_have_a_connection_each_and_both_are_kept() -> None:
    slow = [OK + b"Content-Length: 2\r\n\r\n", b"{}"]
    async with scripted(slow, slow, slow, slow) as script, wired(script) as wire:
        for _ in range(2):
            answers = await asyncio.gather(wire.ask(HEAD, b"{}"), wire.ask(HEAD, b"{}"))
            assert [await answer.read() for answer in answers] == [b"{}"] * 2
    assert script.connections == 2


@pytest.mark.parametrize("how", ["closed", "forgotten", "cancelled"])
async def test_a_request_that_nobody_wants_any_more_is_dropped(how: str) -> None:
    endless = [b"H"] * 1000 if how == "cancelled" else [CHUNKED, *[b"1\r\nx\r\n"] * 1000]
    async with scripted(endless) as script, wired(script) as wire:
        asking = spawn(wire.ask(HEAD, b"{}"), name="ask")
        if how == "cancelled":
            await script.asked.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        else:
            answer = await asking
            assert await answer.content.readany() == b"x"
            if how == "closed":
                content = answer.content
                answer.close()
                with pytest.raises(aiohttp.ClientConnectionError):
                    await content.readany()
            del answer, asking
            gc.collect()
        async with asyncio.timeout(5):
            await script.gone.wait()


async def test_what_is_poured_is_held_where_nobody_takes_it_and_all_arrives() -> None:
    piece = b"x" * 65_536
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    async with scripted([CHUNKED, *[chunk] * 64, b"0\r\n\r\n"]) as script, wired(script) as wire:
        answer = await wire.ask(HEAD, b"{}")
        assert isinstance(answer.content, Content)
        await asyncio.sleep(0.6)
        got: list[int] = []

        def sink(data: bytes) -> bool:
            got.append(len(data))
            return True

        assert await answer.content.pour(sink) is False
        assert sum(got) == 64 * len(piece)
        assert got[0] < 40 * len(piece)


@pytest.mark.parametrize("takes", [b"ae", b"a", b""])
async def test_what_comes_at_a_chunks_border_is_offered_first_and_nothing_else(takes: bytes) -> None:
    async with scripted([CHUNKED, None]) as script, wired(script) as wire:
        answer = await wire.ask(HEAD, b"{}")
        assert isinstance(answer.content, Content)
        (link,) = wire._links
        offered: list[bytes] = []
        poured: list[bytes] = []

        def rush(chunk: bytes) -> bool:
            offered.append(chunk)
            return chunk[3:4] in takes

        def sink(piece: bytes) -> bool:
            poured.append(piece)
            return True

        pouring = spawn(answer.content.pour(sink, rush), name="pour")
        await asyncio.sleep(0)
        # The second and third are cut in the middle; the fourth comes behind a rest.
        for data in (b"1\r\na\r\n", b"2\r\nb", b"b\r\n3\r\nccc\r", b"\n1\r\nd\r\n", b"1\r\ne\r\n"):
            link.data_received(data)
        assert offered == [b"1\r\na\r\n", b"2\r\nb", b"1\r\ne\r\n"]
        assert b"".join(poured) == bytes(byte for byte in b"abbcccde" if byte not in takes)
        link.data_received(b"0\r\n\r\n")
        assert await pouring is False


async def test_what_goes_wrong_with_a_chunk_is_raised_where_it_is_poured() -> None:
    async with scripted([CHUNKED, None]) as script, wired(script) as wire:
        answer = await wire.ask(HEAD, b"{}")
        assert isinstance(answer.content, Content)
        (link,) = wire._links

        def rush(chunk: bytes) -> bool:
            raise RuntimeError(chunk.decode())

        pouring = spawn(answer.content.pour(lambda _: True, rush), name="pour")
        await asyncio.sleep(0)
        link.data_received(b"1\r\na\r\n")
        with pytest.raises(RuntimeError, match="a"):
            await pouring
        link.data_received(b"1\r\nb\r\n")
        assert await answer.content.readany() == b"b"
        answer.close()


async def test_where_nothing_listens_is_an_error(unused_tcp_port: int) -> None:
    wire = Wire("localhost", unused_tcp_port, keepalive_s=3, connect_s=5, max_line=1000)
    with pytest.raises(OSError, match="Connect call failed"):
        await wire.ask(HEAD, b"{}")
    wire.close()


async def test_closing_ends_what_runs() -> None:
    async with scripted([CHUNKED, b"1\r\nx\r\n"] + [b""] * 1000) as script, wired(script) as wire:
        answer = await wire.ask(HEAD, b"{}")
        assert await answer.content.readany() == b"x"
        wire.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await answer.content.readany()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_connection_may_be_taken_again_before_who_had_it_runs(cancelled: bool) -> None:
    """An answer that comes in one piece is over at once; another request that is ready then goes out first."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with scripted([], [whole]) as script, wired(script) as wire:
        first = spawn(wire.ask(HEAD, b"{}"), name="first")
        await script.asked.wait()
        ready = asyncio.Event()

        async def later() -> bytes:
            await ready.wait()
            async with await wire.ask(HEAD, b"{}") as answer:
                return await answer.read()

        second = spawn(later(), name="second")
        await asyncio.sleep(0)
        (link,) = wire._links
        ready.set()
        link.data_received(whole)
        if cancelled:
            first.cancel()
        async with asyncio.timeout(5):
            assert await second == b"ok"
            if cancelled:
                with pytest.raises(asyncio.CancelledError):
                    await first
            else:
                assert await (await first).read() == b"ok"
        assert script.connections == 1


async def test_a_connection_that_closes_as_it_opens_is_an_error_that_can_be_told(monkeypatch) -> None:
    async with scripted() as script, wired(script) as wire:
        connect = wire._connect

        async def closing():
            link = await connect()
            link.shut()
            return link

        monkeypatch.setattr(wire, "_connect", closing)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await wire.ask(HEAD, b"{}")


async def test_one_that_is_collected_on_another_thread_is_dropped_on_its_own() -> None:
    async with scripted([CHUNKED, *[b"1\r\nx\r\n"] * 1000]) as script, wired(script) as wire:
        held = [await wire.ask(HEAD, b"{}")]
        await asyncio.to_thread(held.clear)
        async with asyncio.timeout(5):
            await script.gone.wait()
