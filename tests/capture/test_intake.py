"""Bodies in bounded time: silence and trickles are given up, uploads that go on never are."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from capture import intake
from tests.house import ASK, House, house
from tests.wire import WireEngine, head, wire, wired

BODY = json.dumps({**ASK, "user": "x" * 2_000}).encode()


@pytest.fixture
async def engine():
    async with wired() as one:
        yield one


@pytest.fixture
async def home(engine: WireEngine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


def start(rollout: dict[str, Any], length: int = len(BODY)) -> bytes:
    fields = {"Host": "x", "Authorization": f"Bearer {rollout['secret']}", "Content-Length": str(length)}
    return head("POST", "/v1/chat/completions", *fields.items())


@pytest.mark.parametrize("sent", [0, 1, len(BODY) - 1])
async def test_a_body_that_stops_coming_is_given_up(
    engine: WireEngine, home: House, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    monkeypatch.setattr(intake, "IDLE_S", 0.05)
    rollout = await home.rollout()
    async with wire(home.appliance.data_url) as client:
        await client.write(start(rollout) + BODY[:sent])
        answer = await client.answer()
    assert answer.status == 408
    assert json.loads(answer.body)["error"]["code"] == "body_too_slow"
    assert engine.seen == []
    assert (await home.graph(rollout))["calls"] == []


class Content:
    """A body's stream: its pieces, and the seconds that pass before each."""

    def __init__(self, clock: Any, pieces: list[tuple[float, bytes]]) -> None:
        self._clock = clock
        self._pieces = pieces

    async def iter_any(self):
        for after_s, piece in self._pieces:
            self._clock.now += after_s
            # The loop fires what is due.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield piece


class TestLoop(asyncio.SelectorEventLoop):
    """Its time passes when a test says so."""

    __test__ = False
    now = 0.0

    def time(self) -> float:
        return self.now


def read(pieces: list[tuple[float, bytes]]) -> bytes:
    loop = TestLoop()
    incoming: Any = type("Incoming", (), {"headers": {}, "content_length": None, "content": Content(loop, pieces)})()
    try:
        return loop.run_until_complete(intake.read(incoming, 2**30))
    finally:
        loop.close()


def test_an_upload_that_goes_on_is_never_cut() -> None:
    # A GiB in the worst hour of a mobile network: a piece every 50 seconds.
    piece = b"x" * 60_000
    assert len(read([(50.0, piece)] * 500)) == 500 * len(piece)
    # A pause of nearly a minute, then the rest.
    assert read([(0.0, b"a"), (59.0, b"b"), (59.0, b"c")]) == b"abc"


def test_a_trickle_is_given_up_after_two_minutes() -> None:
    with pytest.raises(Exception, match="too long") as caught:
        read([(1.0, b"x")] * 200)
    assert (caught.value.code, caught.value.status) == ("body_too_slow", 408)


def test_a_minute_of_silence_is_given_up() -> None:
    with pytest.raises(Exception, match="too long"):
        read([(0.0, b"x" * 10**6), (61.0, b"y")])


async def test_one_slow_sender_keeps_nobody_waiting(engine: WireEngine, home: House) -> None:
    slow, quick = await home.rollout(), await home.rollout()
    async with wire(home.appliance.data_url) as client:
        await client.write(start(slow) + BODY[:10])
        for _ in range(3):
            async with home.chat(quick) as answer:
                assert answer.status == 200
        await client.write(BODY[10:])
        assert (await client.answer()).status == 200


async def test_heads_that_trickle_keep_nobody_waiting(home: House) -> None:
    rollout = await home.rollout()
    clients = [wire(home.appliance.data_url) for _ in range(30)]
    opened = [await client.__aenter__() for client in clients]
    try:
        for client in opened:
            await client.write(start(rollout)[:20])
        async with home.chat(rollout) as answer:
            assert answer.status == 200
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)
