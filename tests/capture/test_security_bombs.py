"""Small bodies that inflate to large ones, from either side: refused while they inflate, in bounded memory."""

import contextlib
import gzip
import json
import sys
import tracemalloc
import zlib
from pathlib import Path

import pytest
from aiohttp import http_parser, web

from capture import upstream
from tests.house import ASK, House, house
from tests.wire import WireEngine, head, wire, wired

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 2**20
LIMIT_MIB = 8
"""Of a request, here."""

SIZE_MIB = 256
"""What the bombs inflate to."""

MOST_MIB = 96
"""What may be held meanwhile: the limit, some copies of it, and the HTTP library's steps of inflating."""


def bomb(coding: str) -> bytes:
    """A body of `SIZE_MIB` of white space, packed: 0.25 MiB of gzip, some KiB of zstd."""
    step = b" " * MIB
    if coding == "zstd":
        packer = zstd.ZstdCompressor()
        return b"".join([*(packer.compress(step) for _ in range(SIZE_MIB)), packer.flush()])
    deflater = zlib.compressobj(9, zlib.DEFLATED, 31 if coding == "gzip" else 15)
    return b"".join([*(deflater.compress(step) for _ in range(SIZE_MIB)), deflater.flush()])


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    return {coding: bomb(coding) for coding in ("gzip", "deflate", "zstd")}


class Watched:
    """Says how many MiB were allocated at most within a block."""

    most_mib = 0.0

    def __enter__(self) -> "Watched":
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.most_mib = tracemalloc.get_traced_memory()[1] / MIB
        tracemalloc.stop()


@pytest.fixture
async def engine():
    async with wired() as one:
        yield one


@pytest.fixture
async def home(engine: WireEngine, tmp_path: Path):
    async with house(engine, tmp_path, max_body_mib=LIMIT_MIB) as one:
        yield one


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize"])
async def test_an_agents_bomb_is_refused_while_it_inflates(
    engine: WireEngine, home: House, bombs: dict[str, bytes], coding: str, path: str
) -> None:
    rollout = await home.rollout()
    headers = {"Authorization": f"Bearer {rollout['secret']}", "Content-Encoding": coding}
    with Watched() as watched:
        async with home.session.post(home.appliance.data_url + path, data=bombs[coding], headers=headers) as answer:
            assert answer.status == 413
            assert "body" in (await answer.text())
    assert watched.most_mib < MOST_MIB
    assert engine.seen == []
    # The process goes on, and what is under the limit is read.
    headers["Content-Encoding"] = "gzip"
    large = json.dumps({**ASK, "user": "x" * (LIMIT_MIB * MIB - 1_000)}).encode()
    url = home.appliance.data_url + "/v1/chat/completions"
    async with home.session.post(url, data=gzip.compress(large), headers=headers) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_one_at_the_control_plane_too(home: House, bombs: dict[str, bytes], coding: str) -> None:
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
    with Watched() as watched:
        said = await home.control("POST", "/rollouts", data=bombs[coding], headers=headers, status=413)
    assert said["error"]["code"] == "body_too_large"
    # Its limit is 64 MiB.
    assert watched.most_mib < 64 + MOST_MIB
    # Without the key nothing is inflated at all.
    with Watched() as watched:
        url = home.appliance.control_url + "/rollouts"
        async with home.session.post(url, data=bombs[coding], headers=headers) as answer:
            assert answer.status == 401
    assert watched.most_mib < MOST_MIB


@pytest.mark.parametrize("claimed", [10**9, 10**15])
async def test_a_body_that_says_that_it_is_too_large_is_not_read(home: House, claimed: int) -> None:
    rollout = await home.rollout()
    async with wire(home.appliance.data_url) as client:
        headers = {"Host": "x", "Authorization": f"Bearer {rollout['secret']}", "Content-Length": str(claimed)}
        assert (await client.ask("POST", "/v1/chat/completions", *headers.items())).status == 413


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("kind", ["whole", "stream", "error"])
async def test_an_engines_bomb_is_refused_while_it_inflates(
    engine: WireEngine, home: House, bombs: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, kind: str, coding: str
) -> None:
    for module in [each for name, each in sys.modules.items() if name.startswith("capture.")]:
        if hasattr(module, "REPLY_LIMIT"):
            monkeypatch.setattr(module, "REPLY_LIMIT", LIMIT_MIB * MIB)
    monkeypatch.setattr(upstream.whole, "__defaults__", (LIMIT_MIB * MIB,))

    async def bombs_back(request: web.Request) -> web.Response:
        return web.Response(
            body=bombs[coding],
            status=400 if kind == "error" else 200,
            headers={
                "Content-Encoding": coding,
                "Content-Type": "text/event-stream" if kind == "stream" else "application/json",
            },
        )

    engine.reply = bombs_back
    rollout = await home.rollout()
    with Watched() as watched:
        async with home.chat(rollout, stream=kind == "stream") as answer:
            if kind == "stream":
                with pytest.raises(Exception, match=r"(?i)payload|connection|incomplete|disconnected"):
                    await answer.read()
            else:
                assert answer.status == 502
                assert (await answer.json())["error"]["code"] == "engine_reply_too_large"
    assert watched.most_mib < MOST_MIB
    await home.idle(rollout)
    (call,) = (await home.graph(rollout))["calls"]
    assert call["status"] in ("error", "aborted")
    # The next call is served.
    async with wired() as fine:
        engine.reply = fine.reply
        async with home.chat(rollout) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("admitted", [True, False])
async def test_what_is_left_of_a_refused_bomb_is_not_inflated(
    home: House, bombs: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, admitted: bool
) -> None:
    inflated = 0
    real = http_parser.DeflateBuffer.feed_data

    def counting(self: http_parser.DeflateBuffer, chunk: bytes, size: int) -> bool:
        nonlocal inflated
        before = self.out.total_bytes
        more = real(self, chunk, size)
        inflated += self.out.total_bytes - before
        return more

    monkeypatch.setattr(http_parser.DeflateBuffer, "feed_data", counting)
    key = (await home.rollout())["secret"] if admitted else "wrong"
    async with wire(home.appliance.data_url) as client:
        headers = {"Host": "x", "Authorization": f"Bearer {key}", "Content-Encoding": "gzip"}
        body = bombs["gzip"]
        await client.write(
            head("POST", "/v1/chat/completions", *headers.items(), ("Content-Length", str(len(body)))) + body
        )
        assert (await client.answer()).status == (413 if admitted else 401)
        with contextlib.suppress(ConnectionError):
            assert await client.closed()
    assert inflated < (LIMIT_MIB + 2 if admitted else 2) * MIB
