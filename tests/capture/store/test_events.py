"""Events: written with what they tell of, kept in order, dropped from the oldest on."""

import asyncio

import pytest

from capture.errors import ClientError
from capture.store.base import Telling
from capture.tasks import spawn
from graph.records import Notice
from tests.capture.store.samples import NOW, call, ended, entry, ids, request

BODY = request("hi")


async def names(store, after="0", **rest):
    return [(one.name, one.rollout, one.call) for one in await store.events(after, **rest)]


async def code_of(asked):
    with pytest.raises(ClientError) as caught:
        await asked
    return caught.value.status, caught.value.code


async def test_each_change_says_so_once(store):
    await store.add([entry("r", group="g", labels={"split": "train"})])
    store.begin("r", call(0, BODY), BODY)
    await store.flush()
    await store.finish("r", [ended(call(0, BODY), BODY, prompt_ids=ids(1, 2), sampled_ids=ids(3), ended_ms=9.5)])
    store.deliver("r", [0], delivered=True, at=NOW)
    store.notice("r", Notice(code="tunnel_lost", at=NOW, calls=(0,), data={"url": "u"}))
    await store.change("r", {"reward": 0.5})
    await store.change("r", {"reward_details": {"why": "\ud800"}})
    await store.change("r", {"incomplete": True})
    await store.change("r", {"state": "closed"})
    await store.change("r", {"state": "open"})
    found = await store.events("0")
    assert [(one.name, one.call) for one in found] == [
        ("rollout.registered", None),
        ("call.begun", 0),
        ("call.ended", 0),
        ("finding", None),
        ("rollout.graded", None),
        ("rollout.graded", None),
        ("rollout.closed", None),
        ("rollout.opened", None),
    ]
    assert {one.rollout for one in found} == {"r"}
    registered, begun, over, finding, graded = found[:5]
    assert registered.data == {"group": "g", "labels": {"split": "train"}, "model": None, "tier": "train"}
    assert "status" not in begun.data
    wanted = {"status": "complete", "n_prompt": 2, "n_sampled": 1, "delivered": True, "ended_ms": 9.5}
    assert wanted.items() <= over.data.items()
    assert finding.data == {"code": "tunnel_lost", "calls": [0], "data": {"url": "u"}}
    assert graded.data == {"reward": 0.5}


async def test_a_call_that_ends_at_once_has_its_end_alone(store):
    await store.add([entry("r")])
    store.begin("r", call(0, BODY), BODY)
    await store.finish("r", [ended(call(0, BODY), BODY)])
    assert await names(store) == [("rollout.registered", "r", None), ("call.ended", "r", 0)]


async def test_reading_goes_on_behind_an_event_of_one_rollout_or_of_all(store):
    await store.add([entry("a"), entry("b")])
    for name in ("a", "b", "a"):
        store.notice(name, Notice(code="expired", at=NOW))
    await store.flush()
    first, second, *rest = await store.events("0")
    assert [one.rollout for one in (first, second)] == ["a", "b"]
    assert await store.events(second.id) == rest
    assert await store.events(first.id, limit=2) == [second, rest[0]]
    assert await names(store, second.id, rollout="b") == [("finding", "b", None)]
    assert await store.newest_event() == rest[-1].id
    assert await store.events(rest[-1].id) == []


async def test_what_a_rollout_leaves_is_that_it_was_deleted(store):
    await store.add([entry("r")])
    await store.tell([Telling(at=NOW, name="finding", rollout="r", data={"code": "drift"})])
    await store.delete("r")
    await store.tell([Telling(at=NOW, name="finding", rollout="r", data={"code": "drift"})])
    assert await names(store) == [("rollout.deleted", "r", None)]
    # A later one of that name begins anew.
    await store.add([entry("r")])
    assert await names(store, rollout="r") == [("rollout.deleted", "r", None), ("rollout.registered", "r", None)]


async def test_what_is_of_no_rollout_is_told(store):
    await store.tell([Telling(at=NOW, name="engine", data={"engine": "vllm=http://e", "healthy": False})])
    (one,) = await store.events("0")
    assert (one.at, one.name, one.rollout, one.call) == (NOW, "engine", None, None)
    assert one.data == {"engine": "vllm=http://e", "healthy": False}


async def test_who_asks_for_what_was_dropped_is_told_so(store):
    old, new = "2026-01-01T00:00:00.000Z", "2026-01-03T00:00:00.000Z"
    await store.tell([Telling(at=old, name="engine"), Telling(at=old, name="engine"), Telling(at=new, name="engine")])
    first, second, third = await store.events("0")
    while await store.drop_events("2026-01-02T00:00:00.000Z"):
        pass
    assert await code_of(store.events(first.id)) == (410, "events_gone")
    # Behind the last that was dropped nothing is missing; and from the oldest on whoever wants.
    assert await store.events(second.id) == [third]
    assert await store.events("0") == [third]
    # The newest stays, however old, so that no id is given twice.
    while await store.drop_events("2027-01-01T00:00:00.000Z"):
        pass
    last = await store.newest_event()
    await store.tell([Telling(at=new, name="engine")])
    assert len(await store.events(last)) == 1


async def test_an_id_of_elsewhere_is_refused(store):
    await store.tell([Telling(at=NOW, name="engine")])
    newest = await store.newest_event()
    ahead = ".".join(str(int(part) + 10**6) for part in newest.split("."))
    assert await code_of(store.events(ahead)) == (410, "events_gone")
    for wrong in ("", "-1", "1e3", "x", "1.", "9" * 40, "\u0663"):
        assert await code_of(store.events(wrong)) == (400, "bad_cursor")


@pytest.mark.real
async def test_what_commits_late_is_not_passed_by(database):
    """Two transactions: the one that wrote first commits last."""
    from capture.store.postgres.driver import asyncpg

    store = database.store()
    await store.open()
    slow = await asyncpg.connect(database.url, server_settings={"search_path": "treering"})
    late = slow.transaction()
    await late.start()
    await slow.execute("INSERT INTO event (name) VALUES ('late')")
    await store.tell([Telling(at=NOW, name="soon")])
    assert await names(store) == []
    assert await store.newest_event() == "0"
    await late.commit()
    assert [name for name, _, _ in await names(store)] == ["late", "soon"]
    await slow.close()
    await store.close()


@pytest.mark.real
async def test_what_is_told_of_a_rollout_while_another_process_deletes_it_is_left_out(database):
    from capture.store.postgres.driver import asyncpg

    store = database.store()
    await store.open()
    await store.add([entry("r"), entry("s")])
    slow = await asyncpg.connect(database.url, server_settings={"search_path": "treering"})
    deleting = slow.transaction()
    await deleting.start()
    await slow.execute("DELETE FROM rollout WHERE id = 'r'")
    told = [Telling(at=NOW, name="finding", rollout=name, data={"code": "drift"}) for name in "rs"]
    telling = spawn(store.tell(told), name="tell")
    async with asyncio.timeout(20):
        # Until it stands in the other's way, or is through.
        while not telling.done() and not await slow.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            pass
        await deleting.commit()
        await telling
    assert [name for name, of, _ in await names(store) if of == "r"] == ["rollout.deleted"]
    assert ("finding", "s", None) in await names(store)
    await slow.close()
    await store.close()
