"""The HTTP edge fuzzed: whatever bytes come, in whatever pieces, they get an answer or a closed door.

Each example is a good request bent somewhere: bytes changed, cut out or put in, header lines doubled, lengths that lie,
chunks that aren't. It may be answered as the good one, or refused, or cut; it may not be a failure of ours (500), reach
the engine as anything but the whole request, or leave the server worse than before.
"""

import asyncio
import contextlib
import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import Engine, Exchange, _answer_probe, whole
from tests.house import House, house

PATIENCE_S = 0.5
MESSAGES = [{"role": "user", "content": "What is 17 * 23? \u2028 \N{GRINNING FACE}"}]
BODY = json.dumps({"model": "tiny", "messages": MESSAGES}).encode()
LINES = [
    b"POST /v1/chat/completions HTTP/1.1",
    b"Host: x",
    b"Authorization: Bearer SECRET",
    b"Content-Type: application/json",
    b"Content-Length: %d" % len(BODY),
]


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def request(lines: list[bytes], body: bytes) -> bytes:
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


ODD_LINES = st.sampled_from(
    [
        b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 1e3",
        b"Content-Length: +9",
        b"Content-Length: 99999999999999999999", b"Content-Length : 4", b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: xchunked", b"transfer-encoding:\tchunked",
        b"Expect: 100-continue", b"Expect: 200-ok", b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c",
        b"Content-Encoding: gzip", b"Content-Encoding: deflate, gzip", b"Host: a\x00b", b"Host: ", b": empty",
        b" folded",
        b"no colon", b"X: \xff\xfe", b"X: " + b"y" * 70_000, b"X-Api-Key: SECRET", b"Authorization: Bearer SECRET",
    ]
)  # fmt: skip

FIRST_LINES = st.sampled_from(
    [
        b"PRI * HTTP/2.0", b"GET /v1/models HTTP/1.1", b"POST /v1/chat/completions HTTP/1.0", b"POST  /v1 HTTP/1.1",
        b"POST /v1/chat/completions", b"POST http://elsewhere/v1/chat/completions HTTP/1.1", b"CONNECT x:1 HTTP/1.1",
        b"OPTIONS * HTTP/1.1", b"POST /v1/chat/completions HTTP/9.9", b"post /v1/chat/completions HTTP/1.1",
        b"POST /v1/../rollouts HTTP/1.1", b"POST /v1/chat/completions%00 HTTP/1.1", b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST /v1/chat/completions?key=SECRET&key=b HTTP/1.1", b"", b"\r\n\r\nPOST /v1/chat/completions HTTP/1.1",
    ]
)  # fmt: skip


@st.composite
def bent(draw) -> bytes:
    """A request that is good but for one thing, or two."""
    lines = list(LINES)
    way = draw(st.sampled_from(["line", "first", "chunks", "bytes", "bytes", "ends"]))
    if way == "line":
        lines.insert(draw(st.integers(1, len(lines))), draw(ODD_LINES))
    elif way == "first":
        lines[0] = draw(FIRST_LINES)
    if way == "chunks":
        lines[-1] = b"Transfer-Encoding: chunked"
        raw = request(lines, chunked(BODY, draw(st.integers(1, 60))))
    else:
        raw = request(lines, BODY)
    if way == "ends":
        return raw.replace(b"\r\n", draw(st.sampled_from([b"\n", b"\r", b"\n\r", b"\r\r\n"])))
    if way in ("bytes", "chunks"):
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(raw)))
            gone = draw(st.integers(0, 4))
            raw = raw[:at] + draw(st.binary(max_size=4)) + raw[at + gone :]
    return raw


PIECES = st.lists(st.integers(1, 2_000), max_size=3)


class Edge:
    """A house that stands for all examples, and what its engine was asked."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.runner = asyncio.Runner()
        self.stack = contextlib.AsyncExitStack()

    def _auto(self, exchange: Exchange) -> bool:
        if not _answer_probe(exchange):
            self.asked.append(exchange.body)
            exchange.answer(whole([5, 6]))
        return True

    async def open(self, folder: Path) -> None:
        self.engine = Engine(auto=self._auto)
        await self.engine.start()
        self.stack.push_async_callback(self.engine.close)
        self.home: House = await self.stack.enter_async_context(house(self.engine, folder))
        self.rollout = await self.home.rollout()

    async def exchange(self, raw: bytes, cuts: list[int]) -> bytes:
        """Send bytes in pieces, and return what comes back: an answer, or what came until nothing more did."""
        host, port = self.home.appliance.data_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        raw = raw.replace(b"SECRET", self.rollout["secret"].encode())
        got, at = b"", 0
        try:
            for cut in [*cuts, len(raw)]:
                writer.write(raw[at : at + cut])
                await writer.drain()
                at += cut
            # It may wait for more of a body that was said to be longer, and has every right to.
            async with asyncio.timeout(PATIENCE_S):
                while not is_whole(got) and (data := await reader.read(65_536)):
                    got += data
        except (ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        return got


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_whole(got: bytes) -> bool:
    """Whether what came is an answer with all of its body."""
    head, separator, body = got.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: (\d+)", head, re.MULTILINE)
    return bool(separator) and length is not None and len(body) >= int(length[1])


@pytest.fixture(scope="module")
def edge():
    edge = Edge()
    with tempfile.TemporaryDirectory() as folder, edge.runner:
        edge.runner.run(edge.open(Path(folder)))
        yield edge
        edge.runner.run(edge.stack.aclose())


def test_the_good_request_is_good(edge):
    got = edge.runner.run(edge.exchange(request(LINES, BODY), [30]))
    assert got.startswith(b"HTTP/1.1 200 ")
    assert edge.asked[-1]["messages"] == MESSAGES


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(bent(), PIECES)
def test_what_is_bent_is_answered_or_refused_and_never_half_believed(edge, raw, cuts):
    before = len(edge.asked)
    got = edge.runner.run(edge.exchange(raw, cuts))
    statuses = [int(status) for status in re.findall(rb"^HTTP/\d\.\d (\d{3}) ", got, re.MULTILINE)]
    # Nothing, or HTTP.
    assert got == b"" or got.startswith(b"HTTP/"), got[:200]
    # (A body that is no UTF-8 reaches the engine as it is, and this one fails at it.)
    ours = [status for status in statuses if status >= 500 and status != 505]
    assert not ours or not is_text(raw), got[:500]
    assert b"Treering failed" not in got, got[:500]
    # What reached the engine is one request at most, whole.
    new = edge.asked[before:]
    assert len(new) <= 1, (raw, new)
    for body in new:
        assert set(body) >= {"model", "messages"}
    # And the server is as it was.
    good = edge.runner.run(edge.exchange(request(LINES, BODY), []))
    assert good.startswith(b"HTTP/1.1 200 "), good[:200]
