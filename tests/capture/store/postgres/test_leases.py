"""Who is alive: processes that die are found, and what they ran is ended, once."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from capture.store.base import Spool
from capture.store.postgres import leases
from capture.store.postgres.leases import Self, is_gone, me
from tests.capture.store.places import opened
from tests.capture.store.samples import NOW, as_json, call, ended, entry, ids, listed, request

BODY = request("hello")
ROOT = Path(__file__).resolve().parents[4]

# Opens a store, runs some calls of `r` half way, says so, and waits to be killed.
PROCESS = """
import asyncio, sys
from capture.store import open_store
from capture.store.base import Spool
from tests.capture.store.samples import NOW, call, ids, request

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    body = request("hello")
    for n in range(3):
        at = await store.arrive("r", choices=1, started_at=NOW)
        assert at.n == n
    store.begin("r", call(0, body, arrived=0), body)
    store.begin("r", call(1, body, arrived=1), body)
    store.spool("r", 1, Spool(prompt_ids=ids(1, 2), sampled_ids=ids(3), logprobs=None))
    await store.flush()
    print(store._lease.mine.name, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def killed(url: str) -> str:
    """Let a process run calls and kill it; return its name."""
    with subprocess.Popen([sys.executable, "-c", PROCESS, url], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    return name


async def aborted(store):
    bare, spooled = await store.calls("r")
    assert [bare.status, spooled.status] == ["aborted", "aborted"]
    assert sorted([bare.ended, spooled.ended]) == [3, 4]
    assert bare.sampled_ids is None
    assert [listed(spooled.prompt_ids), listed(spooled.sampled_ids)] == [[1, 2], [3]]
    assert as_json(await store.exchange("r", 0))["error"]["blame"] == "treering"
    assert await store.running() == []


async def test_the_next_start_on_the_machine_ends_what_a_dead_process_ran(database):
    store = await opened(database)
    await store.add([entry("r")])
    await store.close()
    name = killed(database.url)
    assert [found for (found,) in await database.sql("SELECT name FROM process")] == [name]
    store = await opened(database)
    assert store.recovered == (("r", 0), ("r", 1))
    await aborted(store)
    # The third had arrived and no more: it is nothing but a gap in the numbers.
    at = await store.arrive("r", choices=1, started_at=NOW)
    assert (at.n, at.arrived, at.spent.running, at.spent.sampled, at.spent.new_tokens) == (3, 5, 1, 2, 3)
    assert len(await database.sql("SELECT name FROM process")) == 1
    await store.close()


async def test_a_survivor_ends_it_without_being_asked(database, monkeypatch):
    store = await opened(database, beat_s=0.01)
    await store.add([entry("r")])
    killed(database.url)
    seen, bury = asyncio.Event(), store._bury

    async def look(db):
        await bury(db)
        if store.recovered:
            seen.set()

    monkeypatch.setattr(store, "_bury", look)
    async with asyncio.timeout(30):
        await seen.wait()
    assert store.recovered == (("r", 0), ("r", 1))
    await aborted(store)
    await store.close()


async def test_of_several_survivors_one_ends_it(database):
    first = await opened(database)
    await first.add([entry("r")])
    others = [database.store() for _ in range(4)]
    killed(database.url)
    await asyncio.gather(*(store.open() for store in others))
    assert sum(len(store.recovered) for store in others) == 2
    await aborted(first)
    assert (await first.arrive("r", choices=1, started_at=NOW)).spent.sampled == 2
    for store in (first, *others):
        await store.close()


async def test_one_that_is_late_is_dead_when_we_were_in_touch_all_the_time(database):
    """Another machine's process: all that is known of it is when it was last heard of."""
    store = await opened(database, lease_s=3600.0, beat_s=3600.0)
    await store.add([entry("r")])
    at = await store.arrive("r", choices=1, started_at=NOW)
    store.begin("r", call(at.n, BODY), BODY)
    await store.flush()
    await database.sql("UPDATE running SET process = 'elsewhere'")
    await database.sql(
        "INSERT INTO process VALUES ('elsewhere', 'other machine', 1, '1', now() - interval '2 hours') RETURNING 1"
    )
    # We have just come: everybody may be late.
    assert await store._ask(store._lease.dead) == []
    store._lease._since -= 3601
    assert await store._ask(store._lease.dead) == ["elsewhere"]
    await store._ask(store._bury)
    assert store.recovered == (("r", 0),)
    assert [name for (name,) in await database.sql("SELECT name FROM process")] == [store._lease.mine.name]
    await store.close()


async def test_whoever_was_out_of_touch_judges_nobody_for_a_while(database):
    store = await opened(database, lease_s=1.0, beat_s=3600.0)
    lease = store._lease
    lease._since -= 100
    await store._ask(lease.beat)
    assert lease._since < lease._last - 50
    # No beat for longer than half a lease: it begins anew.
    lease._last -= 0.6
    await store._ask(lease.beat)
    assert lease._since == lease._last
    await store.close()


async def test_calls_of_a_process_that_nobody_knows_are_ended(database):
    store = await opened(database, lease_s=3600.0, beat_s=3600.0)
    await store.add([entry("r")])
    at = await store.arrive("r", choices=1, started_at=NOW)
    store.begin("r", call(at.n, BODY), BODY)
    await store.flush()
    await database.sql("UPDATE running SET process = 'gone without a trace'")
    assert await store._ask(store._lease.dead) == []
    store._lease._since -= 3601
    assert await store._ask(store._lease.dead) == ["gone without a trace"]
    await store.close()


async def test_one_that_was_thought_dead_is_alive_with_its_next_arrival_and_keeps_its_end(database):
    one, other = await opened(database), await opened(database)
    await one.add([entry("r")])
    at = await one.arrive("r", choices=1, started_at=NOW)
    one.begin("r", call(at.n, BODY), BODY)
    await one.flush()
    name = one._lease.mine.name

    async def bury(db):
        async with db.transaction():
            return await leases.recover(db, name)

    assert await other._ask(bury) == [("r", 0)]
    assert await other._ask(bury) == []
    assert [each.status for each in await other.calls("r")] == ["aborted"]
    next_one = await one.arrive("r", choices=1, started_at=NOW)
    assert {found for (found,) in await database.sql("SELECT name FROM process")} == {name, other._lease.mine.name}
    await one.finish("r", [ended(call(at.n, BODY), BODY, ended=None, sampled_ids=ids(1))])
    (found,) = await other.calls("r")
    assert (found.status, found.ended, listed(found.sampled_ids)) == ("complete", next_one.arrived + 1, [1])
    await one.close()
    await other.close()


async def test_what_a_close_left_running_is_ended_by_the_next(database):
    one, other = await opened(database), await opened(database)
    await one.add([entry("r")])
    one.begin("r", call(0, BODY), BODY)
    one.spool("r", 0, Spool(prompt_ids=None, sampled_ids=ids(7), logprobs=None))
    await one.close()
    assert [each.status for each in await other.calls("r")] == ["running"]
    await other._ask(other._bury)
    assert other.recovered == (("r", 0),)
    assert [each.status for each in await other.calls("r")] == ["aborted"]
    await other.close()
    assert await database.sql("SELECT name FROM process") == []


# -- a process, as another on its machine sees it


def test_a_process_is_there_and_then_gone():
    mine = me()
    assert not is_gone(mine, mine)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        other = Self(name="other", machine=mine.machine, pid=process.pid, started=leases._started(process.pid))
        assert other.started is not None
        assert not is_gone(other, mine)
        process.kill()
        # Dead, though nobody has asked for its end yet.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(other, mine)
    assert is_gone(other, mine)


@pytest.mark.parametrize("changed", [{"machine": "other"}, {"machine": None}, {"started": None}])
def test_of_a_process_elsewhere_nothing_can_be_told(changed):
    mine = me()
    gone = Self(name="other", machine=mine.machine, pid=2**22 - 1, started="1")
    assert is_gone(gone, mine)
    assert not is_gone(msgspec.structs.replace(gone, **changed), mine)


def test_a_number_that_was_given_again_is_another_process():
    mine = me()
    assert is_gone(Self(name="other", machine=mine.machine, pid=mine.pid, started="1"), mine)


def test_no_two_have_one_name():
    assert me().name != me().name
