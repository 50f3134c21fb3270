"""The pool: who gets which tunnel, when one is lost, and in which order they close."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.processes import until
from tunnel.base import Local
from tunnel.errors import TunnelError
from tunnel.pool import Pool
from tunnel.spec import Spec


class Line:
    """A tunnel in name only, of a `World` that says what becomes of it."""

    kind = "line"

    def __init__(self, world, n):
        self.world, self.n, self.name = world, n, f"line {n}"
        self.ended = None

    async def open(self, local):
        self.world.did.append(f"open {self.n}")
        if self.world.gate is not None:
            await self.world.gate.wait()
        if self.world.refusals:
            raise TunnelError(self.world.refusals.pop(0))
        return f"http://line{self.n}"

    async def close(self):
        self.world.did.append(f"close {self.n}")
        if self.n in self.world.stuck:
            raise OSError("stuck")


class World:
    """Makes lines, and answers probes."""

    def __init__(self):
        self.did, self.lines, self.refusals, self.stuck = [], [], [], set()
        self.dead: dict[str, str] = {}
        self.gate = None
        self.losses = []
        self.closed = False

    def make(self):
        self.lines.append(Line(self, len(self.lines)))
        return self.lines[-1]

    @property
    def spec(self):
        return Spec(kind="line", text="line", make=self.make)

    async def probe(self, url):
        if url in self.dead:
            raise TunnelError(self.dead[url])

    async def close(self):
        self.closed = True

    def pool(self, n=1, **options):
        return Pool(
            [self.spec] * n, Local(host="127.0.0.1", port=1), self,
            on_lost=lambda rollouts, data: self.losses.append((sorted(rollouts), data)),
            **{"pause_s": 0.0, "ready_s": 0.1, **options},
        )  # fmt: skip


@contextlib.asynccontextmanager
async def closing(pool):
    try:
        yield pool
    finally:
        await pool.close()


@pytest.fixture
def world():
    return World()


async def test_nothing_is_opened_before_it_is_needed(world):
    async with closing(world.pool()) as pool:
        assert world.did == []
        assert [health.reason for health in pool.health] == ["not opened yet"]
        assert await pool.acquire(["a"]) == "http://line0"
        assert await pool.acquire(["b"]) == "http://line0"
        assert world.did == ["open 0"]
        (health,) = pool.health
        assert (health.healthy, health.rollouts, health.opened, health.lost) == (True, 2, 1, 0)
    assert world.did == ["open 0", "close 0"]
    assert world.closed


async def test_two_that_come_at_once_open_one(world):
    world.gate = asyncio.Event()
    async with closing(world.pool()) as pool:
        async with asyncio.TaskGroup() as group:
            urls = [group.create_task(pool.acquire([name])) for name in "ab"]
            await until(lambda: world.did)
            world.gate.set()
        assert [url.result() for url in urls] == ["http://line0"] * 2
        assert world.did == ["open 0"]


async def test_a_static_pool_gives_the_least_loaded(world):
    async with closing(world.pool(3)) as pool:
        assert [await pool.acquire([name]) for name in "abcd"] == [f"http://line{n}" for n in (0, 1, 2, 0)]
        pool.release("b")
        assert await pool.acquire(["e"]) == "http://line1"


async def test_an_elastic_pool_grows_and_shrinks(world):
    async with closing(world.pool(elastic=True, multiplex=2)) as pool:
        urls = [await pool.acquire([name]) for name in "abcde"]
        assert urls == [f"http://line{n}" for n in (0, 0, 1, 1, 2)]
        pool.release("c")
        pool.release("e")
        await pool.look()
        # The second still carries one; the third went, and the first stays whatever happens.
        assert [health.rollouts for health in pool.health] == [2, 1]
        pool.release("d")
        await pool.look()
        assert [health.rollouts for health in pool.health] == [2]
        assert world.did[-2:] == ["close 2", "close 1"]


async def test_a_group_goes_together_or_not_at_all(world):
    async with closing(world.pool(elastic=True, multiplex=4)) as pool:
        await pool.acquire(["a"])
        assert await pool.acquire(["b", "c", "d", "e"]) == "http://line1"
        assert {pool.of(name).url for name in "bcde"} == {"http://line1"}


async def test_an_opening_that_fails_once_is_tried_again(world):
    world.refusals = ["login failed"]
    async with closing(world.pool()) as pool:
        assert await pool.acquire(["a"]) == "http://line1"
        assert world.did == ["open 0", "close 0", "open 1"]


async def test_an_opening_that_fails_for_good_is_told_and_holds_nothing(world):
    world.refusals = ["login failed"] * 3
    async with closing(world.pool()) as pool:
        with pytest.raises(TunnelError, match="login failed"):
            await pool.acquire(["a"])
        (health,) = pool.health
        assert (health.healthy, health.reason, health.rollouts) == (False, "login failed", 0)
        assert world.did == ["open 0", "close 0", "open 1", "close 1", "open 2", "close 2"]
        assert await pool.acquire(["a"]) == "http://line3"


async def test_one_that_opens_and_leads_elsewhere_is_never_given_out(world):
    world.dead = {f"http://line{n}": "leads to another Treering" for n in range(3)}
    async with closing(world.pool()) as pool:
        with pytest.raises(TunnelError, match="line 2 opened, but leads to another Treering"):
            await pool.acquire(["a"])
        assert [did for did in world.did if did.startswith("close")] == ["close 0", "close 1", "close 2"]


async def test_a_program_that_ended_is_lost_at_once_and_replaced(world):
    async with closing(world.pool()) as pool:
        await pool.acquire(["a", "b"])
        world.lines[0].ended = "line 0 ended with 255"
        await pool.look()
        ((rollouts, data),) = world.losses
        assert rollouts == ["a", "b"]
        assert data == {"tunnel": "line 0", "url": "http://line0", "reason": "line 0 ended with 255"}
        assert await pool.acquire(["c"]) == "http://line1"
        (health,) = pool.health
        assert (health.lost, health.opened, health.healthy) == (1, 2, True)


async def test_one_failed_probe_is_not_a_loss_two_are(world):
    async with closing(world.pool()) as pool:
        await pool.acquire(["a"])
        world.dead = {"http://line0": "carries nothing"}
        await pool.look()
        assert world.losses == []
        assert not pool.health[0].healthy
        world.dead = {}
        await pool.look()
        assert pool.health[0].healthy
        world.dead = {"http://line0": "carries nothing"}
        await pool.look()
        await pool.look()
        assert [data["reason"] for _, data in world.losses] == ["carries nothing"]
        assert pool.health[0].url == "http://line1"


async def test_a_registration_probes_first_and_finds_a_loss_before_the_watch(world):
    async with closing(world.pool()) as pool:
        await pool.acquire(["a"])
        world.dead = {"http://line0": "carries nothing"}
        assert await pool.acquire(["b"]) == "http://line1"
        assert [rollouts for rollouts, _ in world.losses] == [["a", "b"]] or [r for r, _ in world.losses] == [["a"]]


async def test_one_that_can_not_be_replaced_stays_down_until_it_can(world):
    async with closing(world.pool()) as pool:
        await pool.acquire(["a"])
        world.lines[0].ended = "gone"
        world.refusals = ["no route"] * 3
        await pool.look()
        (health,) = pool.health
        assert (health.healthy, health.reason, health.url) == (False, "no route", None)
        assert await pool.acquire(["b"]) == "http://line4"


async def test_they_close_last_in_first_out_even_if_one_fails(world):
    world.stuck = {1}
    pool = world.pool(3)
    for name in "abc":
        await pool.acquire([name])
    await pool.close()
    await pool.close()
    assert world.did[-3:] == ["close 2", "close 1", "close 0"]
    with pytest.raises(TunnelError, match="shutting down"):
        await pool.acquire(["d"])


async def test_a_cancelled_registration_leaves_no_tunnel(world):
    world.gate = asyncio.Event()
    async with closing(world.pool()) as pool:
        asking = asyncio.get_running_loop().create_task(pool.acquire(["a"]))
        await until(lambda: world.did)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert world.did == ["open 0", "close 0"]
        assert pool.health[0].rollouts == 0
        world.gate.set()
        assert await pool.acquire(["b"]) == "http://line1"


async def test_closing_while_one_opens_leaves_nothing(world):
    world.gate = asyncio.Event()
    pool = world.pool()
    asking = asyncio.get_running_loop().create_task(pool.acquire(["a"]))
    await until(lambda: world.did)
    await pool.close()
    world.gate.set()
    with pytest.raises(TunnelError):
        await asking
    assert world.did.count("close 0") >= 1
    assert not any(health.healthy for health in pool.health)


async def test_it_is_watched_until_the_watch_is_cancelled(world):
    async with closing(world.pool(watch_s=0.01)) as pool:
        await pool.acquire(["a"])
        watching = asyncio.get_running_loop().create_task(pool.watch())
        world.lines[0].ended = "gone"
        await until(lambda: world.losses)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
