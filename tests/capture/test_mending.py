"""A store that is down is tried until it is back, and the marks of lost calls come first."""

import asyncio
import random

import pytest

from capture import mending
from capture.errors import StoreError
from capture.live import Live
from capture.registration import Defaults, Place
from capture.rollouts import Rollouts
from tests.capture.store.samples import call as call_of
from tests.capture.store.samples import ended, entry, open_at, request
from tests.leads import LEADS

# Random letters, which do not compress: no room that a full file has left takes them.
BULK = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=400_000))


async def nowhere(engine: str | None) -> Place:
    raise AssertionError(engine)


class Down:
    """The store's file takes no byte more, until `up`."""

    def __init__(self, store):
        self.store = store

    async def __aenter__(self):
        await self.store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1"))
        with pytest.raises(StoreError):
            await self.finish(7)
        return self

    async def finish(self, n: int) -> None:
        body = request(BULK)
        await self.store.finish("r", [ended(call_of(n, body), body)])

    async def up(self) -> None:
        await self.store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1073741823"))

    async def __aexit__(self, *error):
        await self.up()


@pytest.fixture
async def store(tmp_path):
    store = open_at(tmp_path / "t.db")
    await store.open()
    await store.add([entry("r"), entry("s")])
    yield store
    await store.close()


@pytest.fixture
def rollouts(store):
    return Rollouts(store, place=nowhere, defaults=Defaults(), reach=LEADS)


async def live(store, name: str) -> Live:
    found = await store.get(name)
    assert found is not None
    return Live(found, [])


async def test_all_is_well_and_nothing_is_asked(store, rollouts):
    groups = store.groups
    assert await mending.mend(store, rollouts) is None
    assert store.groups == groups
    assert await mending.usable(store, rollouts) is None


async def test_why_it_is_down_and_then_the_marks_first(store, rollouts):
    async with Down(store) as down:
        rollouts.lost(await live(store, "r"), 7)
        rollouts.lost(await live(store, "s"), 1)
        rollouts.lost(await live(store, "r"), 8)
        assert "the disk is full" in (await mending.mend(store, rollouts) or "")
        assert "the disk is full" in (await mending.usable(store, rollouts) or "")
        assert rollouts.owed
        await down.up()
        assert await mending.usable(store, rollouts) is None
    assert not rollouts.owed
    for name, numbers in (("r", (7, 8)), ("s", (1,))):
        assert (await store.get(name)).rollout.incomplete
        (notice,) = await store.notices(name)
        assert (notice.code, notice.calls) == ("capture_incomplete", numbers)


async def test_several_who_mend_at_once_tell_each_mark_once(store, rollouts):
    async with Down(store) as down:
        for n in range(3):
            rollouts.lost(await live(store, "r"), n)
        rollouts.lost(await live(store, "s"), 0)
        await down.up()
        assert await asyncio.gather(*(mending.mend(store, rollouts) for _ in range(8))) == [None] * 8
    assert [notice.calls for notice in await store.notices("r")] == [(0, 1, 2)]
    assert [notice.calls for notice in await store.notices("s")] == [(0,)]


async def test_the_marks_come_without_anybody_asking(store, rollouts, monkeypatch):
    told, tell = asyncio.Event(), rollouts.tell_lost

    async def telling():
        await tell()
        told.set()

    monkeypatch.setattr(rollouts, "tell_lost", telling)
    monkeypatch.setattr(mending, "MEND_EVERY_S", 0.001)
    async with Down(store) as down:
        rollouts.lost(await live(store, "r"), 7)
        await down.up()
        watch = asyncio.get_running_loop().create_task(mending.watch(store, rollouts))
        async with asyncio.timeout(10):
            await told.wait()
        watch.cancel()
    assert (store.failure, rollouts.owed) == (None, False)


async def test_a_rollout_that_was_deleted_is_owed_nothing(store, rollouts):
    rollouts.lost(await live(store, "r"), 0)
    await store.delete("r")
    assert await mending.mend(store, rollouts) is None
    assert not rollouts.owed


async def test_a_store_that_hangs_is_not_waited_for_for_ever(store, rollouts, monkeypatch):
    monkeypatch.setattr(mending, "MEND_S", 0.01)
    rollouts.lost(await live(store, "r"), 0)
    store.hold()
    assert "took no write" in (await mending.usable(store, rollouts) or "")
    store.release()
    assert await mending.mend(store, rollouts) is None


async def test_a_store_that_cannot_be_read_is_not_usable(store, rollouts):
    await store.close()
    assert "is closed" in (await mending.usable(store, rollouts) or "")
