"""Requests that two readers might cut in two ways, and paths, hosts and headers that would lead elsewhere.

Both listeners are asked with raw bytes. What is refused is refused before anything reaches the engine, the connection
is closed, so that what follows is read by nobody, and nothing of what was sent is quoted, in the answer or in the log.
"""

import asyncio
import json
import logging
from pathlib import Path

import pytest
from aiohttp import web

from capture import guard
from tests.engine import whole
from tests.house import ASK, House, house
from tests.wire import WireEngine, wire, wired

BODY = json.dumps(ASK).encode()
MARK = "Mark-of-this-request"


@pytest.fixture
async def engine():
    async with wired() as one:
        yield one


@pytest.fixture
async def home(engine: WireEngine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


async def say(url: str, data: bytes) -> bytes:
    """Write bytes, and read until the other side closes; it must, within its time."""
    async with wire(url) as client:
        await client.write(data)
        async with asyncio.timeout(10):
            return await client._reader.read()


LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
ONE_CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"

# What stands behind the request line, Host and key → refused by both listeners.
SMUGGLED = {
    "length-and-chunked": LENGTH + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN,
    "chunked-and-length": CHUNKED + LENGTH + b"\r\n" + ONE_CHUNK,
    "two-lengths": LENGTH + b"Content-Length: 3\r\n\r\n" + BODY,
    "two-equal-lengths": LENGTH + LENGTH + b"\r\n" + BODY,
    "a-list-of-lengths": b"Content-Length: 5, 5\r\n\r\n" + BODY,
    "a-signed-length": b"Content-Length: +5\r\n\r\n" + BODY,
    "a-negative-length": b"Content-Length: -1\r\n\r\n" + BODY,
    "a-hexadecimal-length": b"Content-Length: 0x5\r\n\r\n" + BODY,
    "an-endless-length": b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY,
    "a-folded-line": b"X-A: b\r\n c: d\r\n" + LENGTH + b"\r\n" + BODY,
    "a-folded-coding": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + ONE_CHUNK,
    "a-bare-line-feed": b"X-A: b\nX-B: c\r\n" + LENGTH + b"\r\n" + BODY,
    "a-bare-carriage-return": b"X-A: b\rX-B: c\r\n" + LENGTH + b"\r\n" + BODY,
    "a-nul": b"X-A: b\0c\r\n" + LENGTH + b"\r\n" + BODY,
    "a-space-before-the-colon": b"Content-Length : 5\r\n\r\n" + BODY,
    "a-coding-with-a-space": b"Transfer-Encoding : chunked\r\n\r\n" + ONE_CHUNK,
    "a-line-without-a-name": b": x\r\n" + LENGTH + b"\r\n" + BODY,
    "another-coding": b"Transfer-Encoding: xchunked\r\n\r\n" + ONE_CHUNK,
    "a-coding-behind-chunked": b"Transfer-Encoding: chunked, identity\r\n\r\n" + ONE_CHUNK,
    "two-codings": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + ONE_CHUNK,
    "two-hosts": b"Host: y\r\n" + LENGTH + b"\r\n" + BODY,
    "a-line-too-long": b"X-A: " + b"a" * 70_000 + b"\r\n" + LENGTH + b"\r\n" + BODY,
    "too-many-lines": b"X-A: b\r\n" * 300 + LENGTH + b"\r\n" + BODY,
}
# Found while the body is read, when the request has its handler: an error, no reply, and a closed connection.
IN_THE_BODY = {
    "a-bad-chunk-size": CHUNKED + b"\r\n%xx\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "a-negative-chunk": CHUNKED + b"\r\n-5\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a-chunk-size-that-overflows": CHUNKED + b"\r\nfffffffffffffffff\r\n" + BODY,
    "a-chunk-that-runs-over": CHUNKED + b"\r\n3\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
    "a-line-feed-in-an-extension": CHUNKED + b"\r\n%x;a\nb\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "framing-in-a-trailer": CHUNKED + ONE_CHUNK.removesuffix(b"\r\n").join([b"\r\n", b"Content-Length: 9\r\n\r\n"]),
}


@pytest.mark.parametrize("plane", ["data", "control"])
@pytest.mark.parametrize("case", [*SMUGGLED, *IN_THE_BODY])
async def test_what_could_be_read_in_two_ways_is_refused(
    engine: WireEngine, home: House, caplog: pytest.LogCaptureFixture, case: str, plane: str
) -> None:
    rollout = await home.rollout()
    secret = rollout["secret"] if plane == "data" else home.appliance.admin_key
    url, path = (
        (home.appliance.data_url, "/v1/chat/completions")
        if plane == "data"
        else (home.appliance.control_url, "/rollouts")
    )
    start = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\nX-Mark: {MARK}\r\n".encode()
    with caplog.at_level(logging.DEBUG):
        answer = await say(url, start + {**SMUGGLED, **IN_THE_BODY}[case])
    assert b" 200 " not in answer
    assert b" 201 " not in answer
    # One answer to one request: nothing that was hidden behind it was read as a second.
    assert answer.count(b"HTTP/1.") <= 1
    if case in SMUGGLED:
        status = 431 if case == "a-line-too-long" else 400
        head_, _, body = answer.partition(b"\r\n\r\n")
        assert head_.startswith(b"HTTP/1.0 %d " % status)
        assert json.loads(body)["error"]["code"] in ("bad_request", "header_too_long")
        assert b"aiohttp" not in head_
        assert (b"Content-Security-Policy" in head_) == (plane == "control")
    assert engine.seen == []
    for written in (answer.decode(), caplog.text):
        assert secret not in written
        assert MARK not in written
    assert len((await home.control("GET", "/rollouts"))["rollouts"]) == 1


@pytest.mark.parametrize("plane", ["data", "control"])
@pytest.mark.parametrize(
    "line",
    [
        b"GET /health HTTP/1.1\nHost: 127.0.0.1\nAuthorization: Bearer MARK\n\n",
        b"GET /health\r\n\r\n",
        b"GET /health x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /he\xffalth HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /he\0alth HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
        b"G\xe9T /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_is_no_request(
    engine: WireEngine, home: House, caplog: pytest.LogCaptureFixture, line: bytes, plane: str
) -> None:
    url = home.appliance.data_url if plane == "data" else home.appliance.control_url
    with caplog.at_level(logging.DEBUG):
        answer = await say(url, line.replace(b"MARK", MARK.encode()))
    assert not answer or answer.startswith((b"HTTP/1.0 4", b"HTTP/0.9 4"))
    assert MARK not in answer.decode()
    assert MARK not in caplog.text
    assert "Traceback" not in caplog.text


async def test_chunk_extensions_are_read_past_and_go_nowhere(engine: WireEngine, home: House) -> None:
    rollout = await home.rollout()
    start = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n".encode()
    chunk = b'\r\n%x;a=b;c="d"\r\n%s\r\n0;x=y\r\nX-Trailer: z\r\n\r\n' % (len(BODY), BODY)
    async with wire(home.appliance.data_url) as client:
        await client.write(start + CHUNKED + chunk)
        answer = await client.answer()
        assert answer.status == 200
    (seen,) = engine.seen
    assert "transfer-encoding" not in seen.names()
    assert "x-trailer" not in seen.names()
    assert ("content-length", str(len(seen.body))) in seen.headers


@pytest.mark.parametrize("behind", ["at-once", "later"])
async def test_a_trailer_gets_into_no_other_request(engine: WireEngine, home: House, behind: str) -> None:
    """As behind a load balancer that sends one agent's request after another's on one connection."""
    one, other = await home.rollout(), await home.rollout()
    start = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{}: Bearer {}\r\n"
    trailer = b"\r\n%x\r\n%s\r\n0\r\nAuthorization: Bearer %s\r\n\r\n" % (len(BODY), BODY, one["secret"].encode())
    first = start.format("Authorization", one["secret"]).encode() + CHUNKED + trailer
    second = start.format("Authorization", other["secret"]).encode() + LENGTH + b"\r\n" + BODY
    async with wire(home.appliance.data_url) as client:
        await client.write(first + (second if behind == "at-once" else b""))
        answer = await client.answer()
        assert answer.status == 200
        assert ("connection", "close") in answer.headers
        assert await client.closed()
    await home.idle(one)
    assert [len((await home.graph(each))["calls"]) for each in (one, other)] == [1, 0]


# Where a request may lead


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/v1/chat/completions", "http://user:word@evil.example:99/v1/chat/completions",
        "https://169.254.169.254/v1/chat/completions", "//evil.example/v1/chat/completions",
        "/v1/chat/completions#@evil.example", "/../../v1/chat/completions", "/%2e%2e/v1/chat/completions",
    ],
)  # fmt: skip
async def test_no_request_chooses_where_the_proxy_connects_to(engine: WireEngine, home: House, target: str) -> None:
    rollout = await home.rollout()
    steering = "".join(
        f"{name}: {value}\r\n"
        for name, value in {
            "X-Forwarded-Host": "evil.example", "X-Forwarded-For": "10.9.9.9", "X-Forwarded-Proto": "https",
            "Forwarded": "host=evil.example", "X-Original-URL": "http://evil.example/", "X-Rewrite-URL": "/admin",
            "X-Host": "evil.example", "Proxy-Connection": "keep-alive", "Referer": "http://evil.example",
        }.items()
    )  # fmt: skip
    start = f"POST {target} HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {rollout['secret']}\r\n{steering}"
    async with wire(home.appliance.data_url) as client:
        await client.write(start.encode() + LENGTH + b"\r\n" + BODY)
        assert (await client.answer()).status == 200
    (seen,) = engine.seen
    assert seen.path == "/v1/chat/completions"
    assert dict(seen.headers)["host"] == engine.url.removeprefix("http://")


async def test_connect_opens_no_tunnel(engine: WireEngine, home: House) -> None:
    rollout = await home.rollout()
    where = engine.url.removeprefix("http://")
    start = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\nAuthorization: Bearer {rollout['secret']}\r\n\r\n"
    answer = await say(home.appliance.data_url, start.encode() + b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.") == 1
    assert engine.seen == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/../../../etc/passwd", "/v1/chat%2fcompletions", "/v1/chat/completions%00",
        "/v1/chat/completions/..", "/v1/chat/completions;x", "/health", "/metrics", "/abort", "/v1/load_lora_adapter",
        "/collective_rpc", "/sleep", "/v1/chat/completions/%2e%2e/abort", "/..%2fabort", "/server_info",
    ],
)  # fmt: skip
async def test_paths_that_are_not_served_reach_no_engine(engine: WireEngine, home: House, path: str) -> None:
    rollout = await home.rollout()
    start = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    async with wire(home.appliance.data_url) as client:
        await client.write(start.encode())
        assert (await client.answer()).status == 404
    assert engine.seen == []


async def test_an_engines_redirect_is_not_followed(engine: WireEngine, home: House) -> None:
    async with wired() as elsewhere:

        async def redirects(request: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": f"{elsewhere.url}/v1/chat/completions"}, text="{}")

        engine.reply = redirects
        rollout = await home.rollout()
        async with home.chat(rollout) as answer:
            # The agent's client decides; it holds no key of the engine's.
            assert answer.history[0].status == 307 if answer.history else answer.status == 307
        assert all(("user-agent", "") not in seen.headers for seen in elsewhere.seen)
        assert len(engine.seen) == 1


# Headers on their way


async def test_no_header_of_the_agents_is_split_on_its_way(engine: WireEngine, home: House) -> None:
    rollout = await home.rollout()
    body = json.dumps({**ASK, "model": "a\r\nX-Evil: 1", "user": "b\nX-Evil: 2"})
    start = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
        "x-treering-label: a%0d%0aX-Evil: 3\r\nX-Tab: a\tb\r\nContent-Length: {}\r\n\r\n{}"
    ).format(len(body), body)
    async with wire(home.appliance.data_url) as client:
        await client.write(start.encode())
        answer = await client.answer()
    assert answer.status == 200
    assert "x-evil" not in dict(answer.headers)
    (seen,) = engine.seen
    assert "x-evil" not in seen.names()
    # The model's name comes back in the body, as JSON.
    assert json.loads(answer.body)["model"] == "a\r\nX-Evil: 1"


@pytest.mark.parametrize("byte", [b"\x01", b"\x1b", b"\x7f", b"\xff", b"\xc3\xa9"])
async def test_odd_bytes_in_an_agents_header_fail_nothing_of_ours(
    engine: WireEngine, home: House, caplog: pytest.LogCaptureFixture, byte: bytes
) -> None:
    rollout = await home.rollout()
    start = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n".encode()
    data = start + b"X-A: a" + byte + b"b\r\nConnection: close\r\n" + LENGTH + b"\r\n" + BODY
    with caplog.at_level(logging.WARNING):
        answer = await say(home.appliance.data_url, data)
    assert answer[9:12] in (b"200", b"400")
    assert "Traceback" not in caplog.text


class RawEngine(WireEngine):
    """Answers an agent's call with bytes as they are, behind an engine that answers all else."""

    def __init__(self) -> None:
        super().__init__(self._bytes)
        self.bytes = b""

    async def _bytes(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(self.bytes)
        request.transport.close()
        return web.Response()


REPLY = json.dumps(whole([5, 6, 7])).encode()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
OF_REPLY = b"Content-Length: %d\r\n\r\n%s" % (len(REPLY), REPLY)


@pytest.fixture
async def raw():
    one = RawEngine()
    await one.start()
    yield one
    await one.close()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"X-A: b\r\n X-Evil: 1\r\n", 200), (b"X-A: a\x01\x7fb\r\n", 200), (b"X-A: \xe9\xff\r\n", 200),
        (b"X-A: b\rX-Evil: 1\r\n", 502), (b"X-A: b\0c\r\n", 502), (b"X A: b\r\n", 502),
        (b"Content-Length: 3\r\n", 502), (b"Transfer-Encoding: chunked\r\n", 502),
    ],
)  # fmt: skip
async def test_no_header_of_the_engines_is_split_on_its_way(
    raw: RawEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes, status: int
) -> None:
    raw.bytes = OK + line + OF_REPLY
    async with house(raw, tmp_path) as home:
        rollout = await home.rollout()
        start = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
        with caplog.at_level(logging.WARNING):
            answer = await say(
                home.appliance.data_url, start.encode() + b"Connection: close\r\n" + LENGTH + b"\r\n" + BODY
            )
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"\nX-Evil" not in answer
        if status == 502:
            # What came is not quoted: it may repeat the engine's key.
            assert b"X-A" not in answer
            assert "X-A" not in caplog.text
        assert "Traceback" not in caplog.text
        await home.idle(rollout)
        (call,) = (await home.graph(rollout))["calls"]
        assert call["status"] == ("complete" if status == 200 else "error")


@pytest.mark.parametrize("code", [101, 199, 600, 999])
async def test_a_status_that_is_none_is_the_engines_fault(raw: RawEngine, tmp_path: Path, code: int) -> None:
    raw.bytes = b"HTTP/1.1 %d X\r\nUpgrade: x\r\nConnection: upgrade\r\n" % code + OF_REPLY
    async with house(raw, tmp_path) as home:
        rollout = await home.rollout()
        async with home.chat(rollout) as answer:
            assert answer.status == 502
        await home.idle(rollout)
        (call,) = (await home.graph(rollout))["calls"]
        assert call["status"] == "error"


@pytest.mark.parametrize("path", ["/", "/rollouts", "/nowhere", "/health", "/ready"])
@pytest.mark.parametrize("admitted", [True, False])
async def test_every_answer_of_the_control_plane_is_dressed(home: House, path: str, admitted: bool) -> None:
    headers = {"Authorization": f"Bearer {home.appliance.admin_key}"} if admitted else {}
    async with home.session.get(home.appliance.control_url + path, headers=headers) as answer:
        # A browser may keep the page's own files, if it asks each time whether they are still those.
        kept = {"Cache-Control": "no-cache"} if path == "/" else {}
        assert {name: answer.headers.get(name) for name in guard.HEADERS} == guard.HEADERS | kept
        assert "Server" not in answer.headers
