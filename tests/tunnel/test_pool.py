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
        self.ended, self.hint = None, ""

    async def open(self, local):
        self.world.did.append(f"open {self.n}")
        if self.world.gate is not None:
            await self.world.gate.wait()
        if self.world.refusals:
            refusal = self.world.refusals.pop(0)
            raise refusal if isinstance(refusal, Exception) else TunnelError(refusal)
        return self.world.fixed or f"http://line{self.n}"

    async def close(self):
        self.world.did.append(f"close {self.n}")
        if self.n in self.world.hanging:
            await asyncio.Event().wait()
        if self.n in self.world.stuck:
            raise OSError("stuck")


async def acquire(pool, names):
    """Register rollouts as the appliance does: hold a place, then keep it; return its URL."""
    hold = await pool.acquire(len(names))
    hold.keep(names)
    return hold.url


class World:
    """Makes lines, and answers probes."""

    def __init__(self):
        self.did, self.lines, self.refusals, self.stuck, self.hanging = [], [], [], set(), set()
        self.dead: dict[str, str] = {}
        self.gate = None
        # Probes wait for it.
        self.slow: asyncio.Event | None = None
        self.fixed: str | None = None
        self.losses = []
        self.probed = []
        self.closed = False

    def make(self):
        self.lines.append(Line(self, len(self.lines)))
        return self.lines[-1]

    @property
    def spec(self):
        return Spec(kind="line", text="line", make=self.make, fixed=self.fixed is not None)

    async def probe(self, url):
        self.probed.append(url)
        if self.slow is not None:
            await self.slow.wait()
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
        assert await acquire(pool, ["a"]) == "http://line0"
        assert await acquire(pool, ["b"]) == "http://line0"
        assert world.did == ["open 0"]
        (health,) = pool.health
        assert (health.healthy, health.rollouts, health.opened, health.lost) == (True, 2, 1, 0)
    assert world.did == ["open 0", "close 0"]
    assert world.closed


async def test_two_that_come_at_once_open_one(world):
    world.gate = asyncio.Event()
    async with closing(world.pool()) as pool:
        async with asyncio.TaskGroup() as group:
            urls = [group.create_task(acquire(pool, [name])) for name in "ab"]
            await until(lambda: world.did)
            world.gate.set()
        assert [url.result() for url in urls] == ["http://line0"] * 2
        assert world.did == ["open 0"]


async def test_a_static_pool_gives_the_least_loaded(world):
    async with closing(world.pool(3)) as pool:
        assert [await acquire(pool, [name]) for name in "abcd"] == [f"http://line{n}" for n in (0, 1, 2, 0)]
        pool.release("b")
        assert await acquire(pool, ["e"]) == "http://line1"


async def test_an_elastic_pool_grows_and_shrinks(world):
    async with closing(world.pool(elastic=True, multiplex=2)) as pool:
        urls = [await acquire(pool, [name]) for name in "abcde"]
        assert urls == [f"http://line{n}" for n in (0, 0, 1, 1, 2)]
        pool.release("c")
        pool.release("e")
        await pool.look()
        assert [health.name for health in pool.health] == ["line", "line #2"]
        # The second still carries one; the third went, and the first stays whatever happens.
        assert [health.rollouts for health in pool.health] == [2, 1]
        pool.release("d")
        await pool.look()
        assert [health.rollouts for health in pool.health] == [2]
        assert world.did[-2:] == ["close 2", "close 1"]


async def test_a_group_goes_together_or_not_at_all(world):
    async with closing(world.pool(elastic=True, multiplex=4)) as pool:
        await acquire(pool, ["a"])
        assert await acquire(pool, ["b", "c", "d", "e"]) == "http://line1"
        assert {pool.of(name).url for name in "bcde"} == {"http://line1"}


async def test_an_opening_that_fails_once_is_tried_again(world):
    world.refusals = ["login failed"]
    async with closing(world.pool()) as pool:
        assert await acquire(pool, ["a"]) == "http://line1"
        assert world.did == ["open 0", "close 0", "open 1"]


async def test_an_opening_that_fails_for_good_is_told_and_holds_nothing(world):
    world.refusals = ["login failed"] * 3
    async with closing(world.pool()) as pool:
        with pytest.raises(TunnelError, match="login failed"):
            await acquire(pool, ["a"])
        (health,) = pool.health
        assert (health.healthy, health.reason, health.rollouts) == (False, "login failed", 0)
        assert world.did == ["open 0", "close 0", "open 1", "close 1", "open 2", "close 2"]
        assert await acquire(pool, ["a"]) == "http://line3"


async def test_one_that_opens_and_leads_elsewhere_is_never_given_out(world):
    world.dead = {f"http://line{n}": "leads to another Treering" for n in range(3)}
    async with closing(world.pool()) as pool:
        with pytest.raises(TunnelError, match="line 2 opened, but leads to another Treering"):
            await acquire(pool, ["a"])
        assert [did for did in world.did if did.startswith("close")] == ["close 0", "close 1", "close 2"]


async def test_a_program_that_ended_is_lost_at_once_and_replaced(world):
    async with closing(world.pool()) as pool:
        await acquire(pool, ["a", "b"])
        world.lines[0].ended = "line 0 ended with 255"
        await pool.look()
        ((rollouts, data),) = world.losses
        assert rollouts == ["a", "b"]
        assert data == {"tunnel": "line 0", "url": "http://line0", "reason": "line 0 ended with 255"}
        assert await acquire(pool, ["c"]) == "http://line1"
        (health,) = pool.health
        assert (health.lost, health.opened, health.healthy) == (1, 2, True)


async def test_one_failed_probe_is_not_a_loss_two_are(world):
    async with closing(world.pool()) as pool:
        await acquire(pool, ["a"])
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
        await acquire(pool, ["a"])
        world.dead = {"http://line0": "carries nothing"}
        assert await acquire(pool, ["b"]) == "http://line1"
        # The one that only just asks has nothing to lose.
        assert [rollouts for rollouts, _ in world.losses] == [["a"]]


async def test_one_that_can_not_be_replaced_stays_down_until_it_can(world):
    async with closing(world.pool()) as pool:
        await acquire(pool, ["a"])
        world.lines[0].ended = "gone"
        world.refusals = ["no route"] * 3
        await pool.look()
        (health,) = pool.health
        assert (health.healthy, health.reason, health.url) == (False, "no route", None)
        assert await acquire(pool, ["b"]) == "http://line4"


async def test_they_close_last_in_first_out_even_if_one_fails(world):
    world.stuck = {1}
    pool = world.pool(3)
    for name in "abc":
        await acquire(pool, [name])
    await pool.close()
    await pool.close()
    assert world.did[-3:] == ["close 2", "close 1", "close 0"]
    with pytest.raises(TunnelError, match="shutting down"):
        await acquire(pool, ["d"])


async def test_a_cancelled_registration_leaves_no_tunnel(world):
    world.gate = asyncio.Event()
    async with closing(world.pool()) as pool:
        asking = asyncio.get_running_loop().create_task(acquire(pool, ["a"]))
        await until(lambda: world.did)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert world.did == ["open 0", "close 0"]
        assert pool.health[0].rollouts == 0
        world.gate.set()
        assert await acquire(pool, ["b"]) == "http://line1"


async def test_closing_while_one_opens_leaves_nothing(world):
    world.gate = asyncio.Event()
    pool = world.pool()
    asking = asyncio.get_running_loop().create_task(acquire(pool, ["a"]))
    await until(lambda: world.did)
    await pool.close()
    world.gate.set()
    with pytest.raises(TunnelError):
        await asking
    assert world.did.count("close 0") >= 1
    assert not any(health.healthy for health in pool.health)


async def test_it_is_watched_until_the_watch_is_cancelled(world):
    async with closing(world.pool(watch_s=0.01)) as pool:
        await acquire(pool, ["a"])
        watching = asyncio.get_running_loop().create_task(pool.watch())
        world.lines[0].ended = "gone"
        await until(lambda: world.losses)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


# -- who registers, and who only tries to


async def test_who_asks_for_a_name_that_is_taken_takes_nothing_from_its_owner(world):
    async with closing(world.pool()) as pool:
        await acquire(pool, ["a"])
        again = await pool.acquire(1)
        again.drop()
        again.drop()
        assert pool.health[0].rollouts == 1
        world.lines[0].ended = "gone"
        await pool.look()
        assert [rollouts for rollouts, _ in world.losses] == [["a"]]


async def test_a_loss_before_the_place_is_kept_is_told_when_it_is(world):
    async with closing(world.pool()) as pool:
        hold = await pool.acquire(2)
        world.lines[0].ended = "gone"
        await pool.look()
        assert world.losses == []
        hold.keep(["a", "b"])
        ((rollouts, data),) = world.losses
        assert (rollouts, data["url"], data["reason"]) == (["a", "b"], "http://line0", "gone")
        assert not pool.of("a").healthy
        assert (pool.health[0].rollouts, pool.health[0].stranded) == (0, 2)


async def test_places_that_are_held_count_before_they_are_kept(world):
    async with closing(world.pool(elastic=True, multiplex=2)) as pool:
        holds = [await pool.acquire(1) for _ in range(3)]
        assert [hold.url for hold in holds] == ["http://line0", "http://line0", "http://line1"]
        await pool.look()
        # Held, the second is not spare.
        assert len(pool.health) == 2
        for hold in holds:
            hold.drop()
        await pool.look()
        assert len(pool.health) == 1


# -- lost, and in its place another


async def test_who_was_told_a_url_that_leads_nowhere_is_stranded_though_another_is_there(world):
    async with closing(world.pool()) as pool:
        await acquire(pool, ["a"])
        world.lines[0].ended = "gone"
        await pool.look()
        await acquire(pool, ["b"])
        lost, fine = pool.of("a"), pool.of("b")
        assert (lost.healthy, lost.url, lost.reason) == (False, "http://line0", "it was lost: gone")
        assert (fine.healthy, fine.url) == (True, "http://line1")
        world.lines[1].ended = "gone too"
        await pool.look()
        # What was lost once is not lost again.
        assert [rollouts for rollouts, _ in world.losses] == [["a"], ["b"]]
        pool.release("a")
        assert pool.health[0].stranded == 1


async def test_one_that_comes_back_at_the_same_url_serves_those_who_had_it(world):
    world.fixed = "http://fixed"
    async with closing(world.pool()) as pool:
        await acquire(pool, ["a"])
        for _ in range(2):
            world.lines[-1].ended = "gone"
            await pool.look()
        assert pool.of("a").healthy
        assert (pool.health[0].rollouts, pool.health[0].stranded) == (1, 0)
        # Each time its streams were cut, and that is told.
        assert [rollouts for rollouts, _ in world.losses] == [["a"], ["a"]]


async def test_a_lost_one_is_tried_again_while_rollouts_wait_for_it(world):
    world.fixed = "http://fixed"
    async with closing(world.pool()) as pool:
        await acquire(pool, ["a"])
        world.lines[0].ended = "gone"
        world.refusals = ["no route"] * 3
        await pool.look()
        assert pool.health[0].url is None
        await pool.look()
        assert pool.of("a").healthy
        pool.release("a")
        world.lines[-1].ended = "gone"
        await pool.look()
        await pool.look()
        # Nobody needs it now.
        assert pool.health[0].url is None


async def test_an_ended_program_is_seen_long_before_the_next_probe(world, monkeypatch):
    monkeypatch.setattr("tunnel.pool.GLANCE_S", 0.01)
    async with closing(world.pool(watch_s=3600.0)) as pool:
        await acquire(pool, ["a"])
        watching = asyncio.get_running_loop().create_task(pool.watch())
        await asyncio.sleep(0)
        assert world.probed == ["http://line0"]
        world.lines[0].ended = "gone"
        await until(lambda: world.losses)
        await until(lambda: pool.health[0].url == "http://line1")
        watching.cancel()
        await asyncio.wait([watching])


# -- closing while something goes on


async def test_closing_while_one_is_looked_at_ends_the_look(world):
    pool = world.pool()
    await acquire(pool, ["a"])
    world.slow = asyncio.Event()
    world.dead = {"http://line0": "carries nothing"}
    looking = asyncio.get_running_loop().create_task(pool.look())
    await until(lambda: len(world.probed) == 2)
    await pool.close()
    await looking
    assert world.losses == []
    assert world.did[-1] == "close 0"
    await pool.look()
    assert world.did[-1] == "close 0"


async def test_closing_between_two_tries_opens_no_other(world):
    world.refusals = ["login failed"] * 9
    pool = world.pool(pause_s=3600.0)
    asking = asyncio.get_running_loop().create_task(pool.acquire(1))
    await until(lambda: "close 0" in world.did)
    await pool.close()
    with pytest.raises(TunnelError, match="shutting down"):
        await asking
    assert world.did == ["open 0", "close 0"]


async def test_what_was_opening_is_closed_before_closing_is_over(world):
    world.gate = asyncio.Event()
    pool = world.pool(2)
    asking = [asyncio.get_running_loop().create_task(pool.acquire(1)) for _ in range(2)]
    await until(lambda: len(world.did) == 2)
    await pool.close()
    assert sorted(world.did[2:]) == ["close 0", "close 1"]
    for task in asking:
        with pytest.raises(TunnelError, match="shutting down"):
            await task


async def test_one_that_hangs_in_closing_holds_up_no_other(world, monkeypatch):
    monkeypatch.setattr("tunnel.pool.CLOSE_S", 0.05)
    world.hanging = {1}
    pool = world.pool(3)
    for name in "abc":
        await acquire(pool, [name])
    await pool.close()
    assert world.did[-3:] == ["close 2", "close 1", "close 0"]


# -- after a restart


async def test_rollouts_of_an_earlier_run_are_taken_up_where_the_url_is_the_same_and_told_where_not(world):
    world.fixed = "http://fixed"
    async with closing(world.pool()) as pool:
        await pool.resume({"a": "http://fixed", "b": "http://fixed", "c": "http://before"})
        assert (pool.of("a").healthy, pool.of("b").healthy, pool.of("c")) == (True, True, None)
        ((rollouts, data),) = world.losses
        assert (rollouts, data["url"]) == (["c"], "http://before")
        assert "started again" in data["reason"]


async def test_a_tunnel_whose_url_changes_is_not_opened_for_those_who_can_not_use_it(world):
    async with closing(world.pool(elastic=True)) as pool:
        await pool.resume({"a": "http://line0"})
        assert world.did == []
        assert [rollouts for rollouts, _ in world.losses] == [["a"]]


async def test_closing_while_taking_up_says_nothing_of_rollouts_that_were_not_lost(world):
    world.fixed = "http://fixed"
    world.gate = asyncio.Event()
    pool = world.pool()
    taking = asyncio.get_running_loop().create_task(pool.resume({"a": "http://fixed"}))
    await until(lambda: world.did)
    await pool.close()
    await taking
    assert world.losses == []


# -- what fails beside the tunnel


async def test_a_program_that_can_not_be_started_is_tried_again_and_then_told(world):
    world.refusals = [OSError(24, "Too many open files")]
    async with closing(world.pool()) as pool:
        assert await acquire(pool, ["a"]) == "http://line1"
        world.lines[1].ended = "gone"
        world.refusals = [OSError(24, "Too many open files")] * 3
        await pool.look()
        assert pool.health[0].reason == "line 4 can't be started: Too many open files"
        world.refusals = [OSError(24, "Too many open files")] * 3
        with pytest.raises(TunnelError, match="Too many open files"):
            await pool.acquire(1)


async def test_a_loss_that_can_not_be_told_is_replaced_all_the_same(world, caplog):
    def fails(rollouts, data):
        raise OSError("the store is down")

    async with closing(world.pool()) as pool:
        pool._on_lost = fails
        await acquire(pool, ["a"])
        world.lines[0].ended = "gone"
        await pool.look()
        assert pool.health[0].url == "http://line1"
        assert world.did == ["open 0", "close 0", "open 1"]
        assert "could not be told" in caplog.text


async def test_a_look_that_fails_is_not_the_last(world, monkeypatch, caplog):
    async with closing(world.pool(watch_s=0.01)) as pool:
        await acquire(pool, ["a"])
        failures = [ValueError("unforeseen")]

        async def probe(url):
            if failures:
                raise failures.pop()
            world.probed.append(url)

        monkeypatch.setattr(world, "probe", probe)
        watching = asyncio.get_running_loop().create_task(pool.watch())
        await until(lambda: not failures and len(world.probed) > 2)
        assert "looking at the tunnels failed" in caplog.text
        watching.cancel()
        await asyncio.wait([watching])
