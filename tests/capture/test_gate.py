"""The data plane's gate: right keys always get in, wrong ones cost little."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from capture import keys
from capture.errors import ClientError, StoreError
from capture.gate import LINE, REFUSED, Gate
from capture.rollouts import unknown_key
from capture.throttle import BURST


class Rollouts:
    """One secret opens; each look-up is counted, and waits where a test says so."""

    def __init__(self) -> None:
        self.looked: list[str | None] = []
        self.strangers = 0
        self.cached: set[bytes] = set()
        self.wait: asyncio.Event | None = None
        self.inside = self.most = 0

    def knows(self, digest: bytes) -> bool:
        return digest in self.cached

    def stranger(self) -> None:
        self.strangers += 1

    async def admit(self, secret: str | None, whose: str = "agent"):
        self.looked.append(secret)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if self.wait is not None:
                await self.wait.wait()
            if secret == "down":
                raise StoreError("store_failed", "down")
            if secret != "right":
                raise unknown_key()
            return SimpleNamespace(id="r")
        finally:
            self.inside -= 1


@pytest.fixture
def rollouts() -> Rollouts:
    return Rollouts()


@pytest.fixture
def gate(rollouts: Rollouts) -> Gate:
    return Gate(rollouts, now=lambda: 0.0)


async def refused(gate: Gate, secret: str | None, address: str = "10.0.0.1") -> float | None:
    with pytest.raises(ClientError) as caught:
        await gate.admit(secret, address)
    assert caught.value.status == 401
    return caught.value.retry_after_s


async def test_a_right_key_gets_in_whatever_its_address_did(gate: Gate, rollouts: Rollouts) -> None:
    answers = [await refused(gate, f"wrong {i}") for i in range(BURST + 50)]
    assert answers[:BURST] == [None] * BURST
    assert all(answers[BURST:])
    for _ in range(3):
        assert (await gate.admit("right", "10.0.0.1")).id == "r"


async def test_a_refused_key_costs_no_second_look_up(gate: Gate, rollouts: Rollouts) -> None:
    for _ in range(5):
        await refused(gate, "old")
    assert rollouts.looked == ["old"]
    assert rollouts.strangers == 5


async def test_no_key_is_no_strangers_key(gate: Gate, rollouts: Rollouts) -> None:
    await refused(gate, None)
    await refused(gate, "")
    assert rollouts.strangers == 0


async def test_a_store_that_is_down_makes_no_key_wrong(gate: Gate, rollouts: Rollouts) -> None:
    for _ in range(2):
        with pytest.raises(StoreError):
            await gate.admit("down", "10.0.0.1")
    assert rollouts.looked == ["down", "down"]


async def test_refused_keys_take_bounded_room(gate: Gate) -> None:
    for i in range(REFUSED + 5):
        await refused(gate, f"wrong {i}", f"10.{i % 200}.{i % 250}.1")
    assert repr(gate).startswith(f"<Gate {REFUSED} refused")


async def test_look_ups_of_whoever_guesses_stand_in_a_line_of_their_own(gate: Gate, rollouts: Rollouts) -> None:
    for i in range(BURST + 1):
        await refused(gate, f"wrong {i}")
    rollouts.wait = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        guesses = [group.create_task(refused(gate, f"guess {i}")) for i in range(50)]
        # Of the same address: a key that is known waits for nothing, one that isn't waits and gets in.
        rollouts.cached.add(keys.digest("right"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert rollouts.inside == LINE
        known = group.create_task(gate.admit("right", "10.0.0.1"))
        other = group.create_task(gate.admit("right", "10.0.0.2"))
        await asyncio.sleep(0)
        assert rollouts.inside == LINE + 2
        rollouts.cached.clear()
        late = group.create_task(gate.admit("right", "10.0.0.1"))
        rollouts.wait.set()
    assert [task.result().id for task in (known, other, late)] == ["r", "r", "r"]
    assert len(guesses) == 50


async def test_the_log_says_it_once_and_names_no_key(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="treering"):
        for i in range(3 * BURST):
            await refused(gate, f"guess-{i}")
    (record,) = caplog.records
    assert record.getMessage() == f"{BURST + 1} requests from 10.0.0.1 showed no key that opens anything"
