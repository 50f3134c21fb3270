"""Graphs that grow: what is fetched of an open rollout, and that it is what all records give from scratch."""

import asyncio

import numpy as np
import pytest

from capture import elsewhere
from capture.registration import Defaults, Place
from capture.rollouts import Rollouts
from capture.store import open_store
from capture.store.base import Exchange, Record
from graph import graph
from graph.records import Call, Notice
from graph.view import graph_json
from tests.leads import LEADS


async def _place(engine: str | None) -> Place:
    return Place(model="m", tier="train", tier_reason="", logprobs_mode="raw")


@pytest.fixture
async def store(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/t.db", durability="none")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def rollouts(store) -> Rollouts:
    return Rollouts(store, place=_place, defaults=Defaults(), reach=LEADS)


async def register(rollouts: Rollouts, **body) -> None:
    await rollouts.register(body, key=None, digest="d")


async def ended(store, name: str, n: int, **more) -> None:
    given = {"n": n, "id": f"chatcmpl-{n}", "status": "complete", "arrived": 2 * n, "ended": 2 * n + 1}
    record = Record(call=Call(**given | more), exchange=Exchange(request=b'{"messages":[]}'))
    await store.finish(name, [record])


@pytest.fixture
def asked(store, monkeypatch) -> list[tuple[int, ...]]:
    """The numbers of the calls that each read of the store gave."""
    given: list[tuple[int, ...]] = []
    plain = store.calls

    async def calls(rollout, **what):
        found = await plain(rollout, **what)
        given.append(tuple(call.n for call in found))
        return found

    monkeypatch.setattr(store, "calls", calls)
    return given


def ids(n: int) -> dict:
    """A call that goes on from the one before it, exactly."""
    prompt = np.arange(2 * n + 1, dtype=np.int32)
    sampled = np.array([2 * n + 1], np.int32)
    return {"prompt_ids": prompt, "sampled_ids": sampled, "logprobs": np.zeros(1, np.float32), "delivered": True}


async def same(store, rollouts: Rollouts, name: str) -> graph.Graph:
    """The graph, which must be what all records give from scratch."""
    grown = await rollouts.graph(name)
    whole = graph.read(grown.rollout, await type(store).calls(store, name), await store.notices(name))
    assert graph_json(grown) == graph_json(whole)
    return grown


async def test_a_graph_fetches_later_calls_alone(store, rollouts: Rollouts, asked) -> None:
    await register(rollouts, id="r")
    for n in range(3):
        await ended(store, "r", n, **ids(n))
        found = await same(store, rollouts, "r")
        assert [link.parent for link in found.forest.links.values()] == [None, 0, 1][: n + 1]
    assert asked == [(0,), (1,), (2,)]
    assert await rollouts.graph("r") is found
    assert asked == [(0,), (1,), (2,)]


async def test_a_graph_sees_what_became_of_a_call_that_ran(store, rollouts: Rollouts, asked) -> None:
    await register(rollouts, id="r")
    store.begin("r", Call(n=0, status="running", arrived=0), b"{}")
    await ended(store, "r", 1, **ids(1))
    found = await same(store, rollouts, "r")
    assert [call.status for call in found.forest.calls.values()] == ["running", "complete"]
    await ended(store, "r", 0, **ids(0))
    found = await same(store, rollouts, "r")
    assert [call.status for call in found.forest.calls.values()] == ["complete", "complete"]
    assert found.forest.links[1].parent == 0
    # Only the one that ran is asked for again, once; nothing came behind it.
    assert asked == [(0, 1), (), (0,)]


async def test_a_graph_sees_a_mark_of_delivery_and_a_notice(store, rollouts: Rollouts, asked) -> None:
    await register(rollouts, id="r")
    await ended(store, "r", 0, **ids(0) | {"delivered": None})
    await ended(store, "r", 1, **ids(1) | {"delivered": False})
    assert (await same(store, rollouts, "r")).forest.delivered(1) is False
    # A retry was answered with it.
    store.deliver("r", [0, 1], delivered=True, at="2026-01-01T00:00:00.000Z")
    found = await same(store, rollouts, "r")
    assert [found.forest.delivered(n) for n in (0, 1)] == [True, True]
    store.notice("r", Notice(code="tunnel_lost", calls=(1,)))
    assert "tunnel_lost" in [one.code for one in (await same(store, rollouts, "r")).findings]
    await rollouts.reward("r", {"reward": 0.5})
    assert (await same(store, rollouts, "r")).rollout.reward == 0.5
    assert (await rollouts.graph("r")).rollout.last_call_at is None


async def test_many_calls_that_may_have_changed_are_fetched_as_a_page(store, rollouts: Rollouts, asked) -> None:
    await register(rollouts, id="r")
    await ended(store, "r", 0, **ids(0))
    for n in range(1, 12):
        await ended(store, "r", n, **ids(n) | {"delivered": None})
    await same(store, rollouts, "r")
    await ended(store, "r", 12, **ids(12))
    await same(store, rollouts, "r")
    assert asked == [tuple(range(12)), (12,), tuple(range(1, 12))]


async def test_choices_that_are_stored_behind_a_later_call_are_found(store, rollouts, asked):
    await register(rollouts, id="r")
    for n in (0, 3):
        store.begin("r", Call(n=n, status="running", arrived=n), b"{}")
    await same(store, rollouts, "r")
    asked.clear()
    for n in range(3):
        await ended(store, "r", n, arrived=0, choice=n, **ids(n))
    await same(store, rollouts, "r")
    assert asked == [(), (0, 1, 2, 3)]
    await ended(store, "r", 3, **ids(3))
    await same(store, rollouts, "r")
    assert asked[2:] == [(), (3,)], "and what is there is not asked for again"


async def test_a_number_that_stays_without_a_call_is_asked_for_no_more(store, rollouts, asked, monkeypatch):
    await register(rollouts, id="r")
    await ended(store, "r", 1, **ids(1))
    await same(store, rollouts, "r")
    await ended(store, "r", 2, **ids(2))
    await same(store, rollouts, "r")
    assert asked == [(1,), (2,), (1,)], "the page from the first number on has one row"
    monkeypatch.setattr(elsewhere, "FORGET_S", -1.0)
    await ended(store, "r", 3, **ids(3))
    await same(store, rollouts, "r")
    assert asked[3:] == [(3,)]


async def test_a_rollout_of_a_used_id_begins_anew(store, rollouts: Rollouts) -> None:
    await register(rollouts, id="r")
    await ended(store, "r", 0, **ids(0))
    await same(store, rollouts, "r")
    # Another process deletes it and registers it again.
    await store.delete("r")
    other = Rollouts(store, place=_place, defaults=Defaults(), reach=LEADS)
    await register(other, id="r")
    assert list((await same(store, rollouts, "r")).forest.calls) == []


async def test_graphs_asked_for_at_once_are_made_once(store, rollouts: Rollouts, asked) -> None:
    await register(rollouts, id="r")
    await ended(store, "r", 0, **ids(0))
    one, two = await asyncio.gather(rollouts.graph("r"), rollouts.graph("r"))
    assert one is two
    assert asked == [(0,)]


async def test_who_hangs_up_leaves_a_graph_that_can_grow(store, rollouts: Rollouts) -> None:
    await register(rollouts, id="r")
    for n in range(40):
        await ended(store, "r", n, **ids(n))
        asking = asyncio.ensure_future(rollouts.graph("r"))  # noqa: TID251 -- it is cancelled in the next line but one
        for _ in range(n % 8):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
    assert [link.parent for link in (await same(store, rollouts, "r")).forest.links.values()] == [None, *range(39)]


async def test_graphs_that_nobody_asks_for_are_forgotten(store, rollouts: Rollouts, asked) -> None:
    await register(rollouts, id="r")
    await ended(store, "r", 0, **ids(0))
    graphs = rollouts._graphs
    assert not graphs.rest(0.0)
    await rollouts.graph("r")
    assert not graphs.rest(60.0)
    async with graphs._grown["r"].lock:
        # It is being made.
        assert not graphs.rest(-1.0)
    assert graphs.rest(-1.0)
    assert not graphs._grown
    await same(store, rollouts, "r")
    assert asked == [(0,), (0,)]
