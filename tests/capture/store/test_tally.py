"""What several processes have to agree on, of any store: numbers, order, what is spent, seals, holds."""

import pytest

from capture.store.base import Delta, EngineState, Spent, Spool, new_tokens
from graph.records import Stop
from tests.capture.store.places import opened
from tests.capture.store.samples import NOW, call, ended, entry, ids, listed, request

BODY = request("hello")
LATER = "2026-01-01T00:00:01.000Z"


async def arrive(store, name="r", *, choices=1, started_at=NOW):
    arrival = await store.arrive(name, choices=choices, started_at=started_at)
    assert arrival is not None
    return arrival


def done(n, arrived, *, delta=None, **fields):
    """The record of a call as a shared store gets it: its end is the store's to give."""
    return ended(call(n, BODY), BODY, delta=delta, **{"arrived": arrived, "ended": None} | fields)


# -- numbers and order


async def test_a_call_gets_its_number_and_its_place_and_all_that_counts(store):
    given = entry("r", limits={"max_calls": 3})
    await store.add([given])
    first = await arrive(store)
    assert (first.n, first.arrived, first.engines) == (0, 0, {})
    assert first.spent == Spent(sampled=0, running=1, new_tokens=0, first_call_at=NOW)
    assert first.entry.rollout.limits == {"max_calls": 3}
    assert first.entry.rollout.first_call_at == NOW
    second = await arrive(store, choices=3, started_at=LATER)
    assert (second.n, second.arrived) == (1, 1)
    assert second.spent == Spent(sampled=0, running=2, new_tokens=0, first_call_at=NOW)
    third = await arrive(store, choices=0)
    # A request that can't be read has one number all the same.
    assert (third.n, third.arrived, third.spent.running) == (4, 2, 3)
    rollout = (await store.get("r")).rollout
    assert (rollout.first_call_at, rollout.last_call_at) == (NOW, LATER)


async def test_an_end_is_after_all_that_was_and_before_all_that_comes(store):
    await store.add([entry("r")])
    parent, sibling = await arrive(store), await arrive(store)
    await store.finish("r", [done(parent.n, parent.arrived)])
    child = await arrive(store)
    await store.finish("r", [done(sibling.n, sibling.arrived)])
    found = {each.n: (each.arrived, each.ended) for each in await store.calls("r")}
    assert found == {0: (0, 2), 1: (1, 4)}
    assert child.arrived == 3


async def test_all_choices_of_a_call_end_at_one_moment(store):
    await store.add([entry("r")])
    at = await arrive(store, choices=2)
    await store.finish("r", [done(at.n, at.arrived), done(at.n + 1, at.arrived, choice=1)])
    assert [each.ended for each in await store.calls("r")] == [1, 1]
    assert (await arrive(store)).n == 2


async def test_numbers_go_on_behind_calls_that_were_numbered_elsewhere(store):
    await store.add([entry("r")])
    await store.finish("r", [ended(call(5, BODY, arrived=20), BODY)])
    at = await arrive(store)
    assert (at.n, at.arrived) == (6, 22)


async def test_numbers_go_on_after_the_process_is_gone(place):
    store = await opened(place)
    await store.add([entry("r")])
    await store.finish("r", [done(0, (await arrive(store)).arrived)])
    await arrive(store)
    await store.close()
    store = await opened(place)
    at = await arrive(store)
    # The second had its number and nothing else: it leaves a gap, and runs no more.
    assert (at.n, at.arrived, at.spent.running, at.spent.sampled) == (2, 3, 1, 1)
    assert store.recovered == ()
    await store.close()


# -- what is spent


async def test_what_is_spent_is_what_ended_sampled(store):
    await store.add([entry("r")])
    for status in ("complete", "error", "stopped", "aborted"):
        at = await arrive(store)
        await store.finish("r", [done(at.n, at.arrived, status=status, prompt_ids=ids(1, 2), sampled_ids=ids(3))])
    assert (await arrive(store)).spent == Spent(sampled=2, running=1, new_tokens=12, first_call_at=NOW)


async def test_tokens_that_a_prompt_shares_are_spent_once(store):
    await store.add([entry("r")])
    await arrive(store)
    await store.finish("r", [done(0, 0, prompt_ids=ids(1, 2, 3), sampled_ids=ids(4))])
    await arrive(store)
    delta = Delta(holder=0, shared=4)
    await store.finish("r", [done(1, 2, prompt_ids=ids(1, 2, 3, 4, 5, 6), sampled_ids=ids(7), delta=delta)])
    assert (await arrive(store)).spent.new_tokens == 4 + 3


async def test_a_request_for_several_choices_is_one_call_with_one_prompt(store):
    await store.add([entry("r")])
    at = await arrive(store, choices=2)
    first = done(at.n, at.arrived, prompt_ids=ids(1, 2, 3), sampled_ids=ids(4))
    other = done(at.n + 1, at.arrived, choice=1, prompt_ids=ids(1, 2, 3), sampled_ids=ids(5, 6))
    await store.finish("r", [first, other])
    spent = (await arrive(store)).spent
    assert (spent.sampled, spent.new_tokens) == (1, 3 + 1 + 2)


async def test_where_the_engine_gave_no_ids_its_usage_counts_what_was_sampled(store):
    await store.add([entry("r")])
    at = await arrive(store)
    await store.finish("r", [done(at.n, at.arrived, usage_prompt=100, usage_sampled=7)])
    assert (await arrive(store)).spent.new_tokens == 7


async def test_a_call_that_is_stored_again_counts_once(store):
    await store.add([entry("r")])
    at = await arrive(store)
    store.begin("r", call(at.n, BODY), BODY)
    store.spool("r", at.n, Spool(prompt_ids=ids(1, 2), sampled_ids=ids(3), logprobs=None))
    await store.flush()
    await store.abort([("r", at.n)])
    assert (await arrive(store)).spent == Spent(sampled=1, running=1, new_tokens=3, first_call_at=NOW)
    # It was alive after all.
    await store.finish("r", [done(at.n, at.arrived, prompt_ids=ids(1, 2), sampled_ids=ids(3, 4, 5))])
    assert (await arrive(store)).spent == Spent(sampled=1, running=2, new_tokens=5, first_call_at=NOW)
    await store.finish("r", [done(at.n, at.arrived, status="error")])
    assert (await arrive(store)).spent == Spent(sampled=0, running=3, new_tokens=0, first_call_at=NOW)


@pytest.mark.parametrize(
    ("fields", "delta", "expected"),
    [
        ({}, None, 0),
        ({"prompt_ids": ids(1, 2)}, None, 2),
        ({"prompt_ids": ids(1, 2), "sampled_ids": ids()}, None, 2),
        ({"prompt_ids": ids(1, 2), "sampled_ids": ids(3)}, Delta(holder=0, shared=2), 1),
        ({"prompt_ids": ids(1, 2), "sampled_ids": ids(3), "choice": 1}, None, 1),
        ({"usage_sampled": 4, "usage_prompt": 9}, None, 4),
    ],
)
def test_what_a_call_adds(fields, delta, expected):
    assert new_tokens(call(0, BODY, **fields), delta) == expected


# -- seals


async def test_none_arrives_at_what_is_sealed_closed_or_gone(store):
    await store.add([entry(name) for name in ("open", "sealed", "closed")])
    await store.seal("sealed")
    await store.change("closed", {"state": "closed"})
    for name, taken in (("open", True), ("sealed", False), ("closed", False), ("gone", False)):
        assert (await store.arrive(name, choices=1, started_at=NOW) is not None) == taken
    assert await store.running() == [("open", 0)]
    # A refusal leaves no trace.
    assert (await store.get("sealed")).rollout.first_call_at is None


async def test_a_seal_is_seen_until_the_rollout_is_closed(store):
    await store.add([entry("a"), entry("b"), entry("c")])
    await store.seal("a")
    await store.seal("b", cut=True)
    assert await store.sealed() == {"a": False, "b": True}
    await store.seal("a", cut=True)
    await store.seal("b")
    assert await store.sealed() == {"a": True, "b": True}
    await store.change("a", {"state": "closed"})
    assert await store.sealed() == {"b": True}
    await store.change("a", {"state": "open"})
    assert await store.sealed() == {"b": True}
    assert (await arrive(store, "a")).n == 0
    await store.seal("gone")


# -- what runs


async def test_a_call_runs_from_its_arrival_to_its_end(store):
    await store.add([entry("a"), entry("b")])
    for name in ("a", "a", "b"):
        await arrive(store, name)
    assert await store.running() == [("a", 0), ("a", 1), ("b", 0)]
    assert await store.running("a") == [("a", 0), ("a", 1)]
    store.begin("a", call(1, BODY, engine="one"), BODY)
    store.begin("b", call(0, BODY, engine="two"), BODY)
    assert await store.running() == [("a", 0), ("a", 1), ("b", 0)]
    # One that has not begun may yet go to any engine.
    assert await store.running(engine="one") == [("a", 0), ("a", 1)]
    assert await store.running(engine="two") == [("a", 0), ("b", 0)]
    assert await store.running("b", engine="one") == []
    await store.finish("a", [done(1, 1)])
    await store.finish("a", [done(0, 0, status="error")])
    assert await store.running() == [("b", 0)]
    await store.delete("b")
    assert await store.running() == []


async def test_a_call_that_begins_without_an_arrival_runs_too(store):
    await store.add([entry("a")])
    store.begin("a", call(0, BODY, engine="one"), BODY)
    assert await store.running(engine="one") == [("a", 0)]
    await store.finish("a", [ended(call(0, BODY), BODY)])
    assert await store.running() == []


async def test_calls_are_ended_for_a_process_that_cannot(store):
    await store.add([entry("a")])
    for _ in range(3):
        await arrive(store, "a")
    store.begin("a", call(0, BODY, arrived=0), BODY)
    store.begin("a", call(1, BODY, arrived=1), BODY)
    store.spool("a", 0, Spool(prompt_ids=ids(1), sampled_ids=ids(2, 3), logprobs=None))
    await store.finish("a", [done(1, 1, sampled_ids=ids(9))])
    await store.abort([("a", 0), ("a", 1), ("a", 2), ("a", 7), ("gone", 0)])
    cut, whole = await store.calls("a")
    assert (cut.status, cut.ended, listed(cut.sampled_ids)) == ("aborted", 4, [2, 3])
    assert (whole.status, whole.ended, listed(whole.sampled_ids)) == ("complete", 3, [9])
    assert (await store.exchange("a", 0)).error["blame"] == "treering"
    assert await store.running() == []
    version = (await store.get("a")).version
    await store.abort([("a", 0)])
    assert (await store.get("a")).version == version
    assert (await arrive(store, "a")).spent.sampled == 2


# -- stops


async def test_stops_are_counted_and_the_first_is_remembered(store):
    await store.add([entry("a")])
    assert await store.stop("a", 3, "max_calls") == Stop(limit="max_calls", at_call=3, stops=1)
    assert await store.stop("a", 5, "max_total_tokens") == Stop(limit="max_total_tokens", at_call=3, stops=2)
    found = await store.get("a")
    assert found.rollout.stopped == Stop(limit="max_total_tokens", at_call=3, stops=2)
    assert found.version == 2
    assert await store.stop("gone", 1, "max_calls") == Stop(limit="max_calls", at_call=1, stops=1)


# -- engines


async def test_what_was_said_of_an_engine_reaches_every_arrival(store):
    await store.add([entry("a")])
    assert await store.engines() == {}
    await store.set_engine("one", held=True)
    await store.set_engine("two", version="v1")
    assert await store.engines() == {"one": EngineState(held=True), "two": EngineState(version="v1")}
    await store.set_engine("one", version="v2")
    await store.set_engine("two", held=False)
    await store.set_engine("one")
    expected = {"one": EngineState(held=True, version="v2"), "two": EngineState(version="v1")}
    assert await store.engines() == expected
    assert (await arrive(store, "a")).engines == expected
    await store.set_engine("one", held=False)
    assert (await store.engines())["one"] == EngineState(version="v2")


async def test_what_was_said_of_an_engine_outlives_the_process(place):
    store = await opened(place)
    await store.set_engine("one", held=True, version="v1")
    await store.close()
    store = await opened(place)
    assert await store.engines() == {"one": EngineState(held=True, version="v1")}
    await store.close()


async def test_a_call_that_its_process_numbered_is_seen_by_the_next_arrival_at_once(store):
    await store.add([entry("r"), entry("s")])
    for n in range(4):
        store.begin("r", call(2 * n, BODY, status="running", arrived=2 * n), BODY)
        found = await store.arrive("r", choices=1, started_at=NOW)
        assert (found.n, found.arrived) == (2 * n + 1, 2 * n + 1)
        store.begin("r", call(found.n, BODY, status="running", arrived=found.arrived), BODY)
    assert (await store.arrive("s", choices=1, started_at=NOW)).n == 0
