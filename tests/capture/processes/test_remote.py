"""A worker's store is a store: whatever order of writes, read back over a channel as it was written."""

import asyncio

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from capture.errors import ClientError, StoreError
from capture.store.base import Delta, EngineState, Query, Spool, State, Telling
from graph.records import Notice
from tests.capture.processes.pairs import PairedStore
from tests.capture.store.samples import NOW, call, ended, entry, ids, listed, logprobs, plain, request
from tests.capture.store.test_model import StoreMachine


class RemoteMachine(StoreMachine):
    """The store's own machine, with a channel between the hand and the file."""

    def open(self) -> None:
        self.store = PairedStore(self.place.path, durability="none")
        self.loop.run(self.store.open())


def test_any_order_of_writes_reads_back_over_a_channel_as_the_model_says():
    run_state_machine_as_test(RemoteMachine, settings=settings(max_examples=15, stateful_step_count=30, deadline=None))


@pytest.fixture
async def store(tmp_path):
    paired = PairedStore(tmp_path / "t.db")
    await paired.open()
    await paired.add([entry("r")])
    yield paired
    await paired.close()


async def test_calls_get_their_numbers_and_what_is_spent(store):
    one = await store.arrive("r", choices=2, started_at=NOW)
    two = await store.arrive("r", choices=1, started_at=NOW)
    assert [(one.n, one.arrived), (two.n, two.arrived)] == [(0, 0), (2, 1)]
    assert (two.spent.running, two.spent.sampled, two.spent.first_call_at) == (2, 0, NOW)
    assert two.entry.secret == b"agent of r"
    assert await store.running("r") == [("r", 0), ("r", 2)]
    assert store.desk.running == {("r", 0), ("r", 2)}


async def test_an_end_is_numbered_by_the_store_and_returns_when_it_is_committed(store):
    arrival = await store.arrive("r", choices=1, started_at=NOW)
    body = request("hi")
    begun = call(arrival.n, body, arrived=arrival.arrived)
    store.begin("r", begun, body)
    store.behind.hold()
    ending = asyncio.get_running_loop().create_task(
        store.finish("r", [ended(begun, body, ended=None, prompt_ids=ids(1, 2), sampled_ids=ids(3))])
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(ending)
    store.behind.release()
    await ending
    (found,) = await store.calls("r")
    assert (found.status, found.arrived, found.ended, listed(found.sampled_ids)) == ("complete", 0, 1, [3])
    assert store.desk.running == set()


async def test_a_sealed_rollout_takes_no_call_and_says_whether_to_cut(store):
    await store.seal("r")
    assert await store.sealed() == {"r": False}
    assert await store.arrive("r", choices=1, started_at=NOW) is None
    await store.seal("r", cut=True)
    assert await store.sealed() == {"r": True}


async def test_a_state_passes_and_so_does_its_refusal(store):
    assert await store.state("r") == State()
    kept = await store.set_state("r", b"[1]", at=NOW, owner=b"tools of r", expected=frozenset({0, 1}))
    assert kept == State(version=1, body=b"[1]", changed_at=NOW) == await store.state("r")
    with pytest.raises(ClientError, match="has changed") as refused:
        await store.set_state("r", b"2", at=NOW, expected=frozenset({0}))
    assert (refused.value.code, refused.value.status) == ("state_changed", 412)
    assert await store.set_state("r", b"2", at=NOW, owner=b"other") is None
    assert await store.state("gone") is None


async def test_stops_holds_and_versions_pass(store):
    assert (await store.stop("r", 4, "max_calls")).stops == 1
    assert (await store.stop("r", 5, "max_calls")).at_call == 4
    await store.set_engine("vllm=http://e", held=True, version="7")
    held = {"vllm=http://e": EngineState(held=True, version="7")}
    assert await store.engines() == held
    assert (await store.arrive("r", choices=1, started_at=NOW)).engines == held


async def test_values_that_fit_no_message_pack_pass_all_the_same(store):
    body = request("hi", seed=10**30)
    odd = call(0, body, sampling_asked={"seed": 10**30, "temperature": float("nan")}, hints={"x": "\ud800"})
    done = ended(odd, body, sampled_ids=ids(), logprobs=logprobs(float("nan")), error={"blame": "engine"})
    await store.finish("r", [done])
    (found,) = await store.calls("r")
    assert found.sampling_asked["seed"] == 10**30
    assert np.isnan(found.sampling_asked["temperature"])
    assert found.hints == {"x": "\ud800"}
    assert plain(found)["logprobs"] == plain(done.call)["logprobs"]
    assert (await store.exchange("r", 0)).error == {"blame": "engine"}


async def test_choices_share_their_exchange_and_lean_on_what_they_name(store):
    body = request("hi")
    first = ended(call(0, body), body, prompt_ids=ids(1, 2, 3), sampled_ids=ids(4))
    await store.finish("r", [first])
    both = [
        ended(call(n, body, choice=n - 1), body, prompt_ids=ids(1, 2, 3, 4, 5), sampled_ids=ids(n),
              delta=Delta(holder=0, shared=4))
        for n in (1, 2)
    ]  # fmt: skip
    await store.finish("r", both)
    assert [listed(found.prompt_ids) for found in await store.calls("r", after=0)] == [[1, 2, 3, 4, 5]] * 2


async def test_what_nobody_awaits_is_there_after_a_flush(store):
    body = request("hi")
    store.begin("r", call(0, body), body)
    store.spool("r", 0, Spool(prompt_ids=ids(1), sampled_ids=ids(2), logprobs=logprobs(-0.5)))
    store.notice("r", Notice(code="x", data={"n": 10**25}))
    store.deliver("r", [0], delivered=True, at=NOW)
    await store.flush()
    (found,) = await store.behind.calls("r")
    assert (found.status, found.delivered, listed(found.sampled_ids)) == ("running", True, [2])
    assert [notice.data for notice in await store.notices("r")] == [{"n": 10**25}]


async def test_calls_of_a_process_that_is_gone_are_ended(store):
    arrival = await store.arrive("r", choices=1, started_at=NOW)
    body = request("hi")
    store.begin("r", call(arrival.n, body), body)
    await store.abort([("r", arrival.n)])
    assert await store.running() == []
    assert [found.status for found in await store.calls("r")] == ["aborted"]


async def test_errors_come_back_as_they_are(store):
    with pytest.raises(ClientError) as taken:
        await store.add([entry("r")])
    assert (taken.value.code, taken.value.status, taken.value.param) == ("id_taken", 409, "id")
    with pytest.raises(ClientError) as bad:
        await store.page(Query(after="x"))
    assert bad.value.status == 400
    with pytest.raises(StoreError):
        await store.change("r", {"id": "other"})


async def test_without_its_supervisor_it_is_a_store_that_failed(store):
    store.told = None
    assert store.failure is None
    store.far.close()
    with pytest.raises(StoreError):
        await store.get("r")
    assert "gone" in store.failure
    with pytest.raises(StoreError):
        store.notice("r", Notice(code="x"))


async def test_what_happened_is_told_over_a_channel_as_the_store_tells_it(store):
    await store.tell([Telling(at=NOW, name="engine", data={"engine": "e", "healthy": False})])
    registered, told = await store.events("0")
    assert (registered.name, registered.rollout) == ("rollout.registered", "r")
    assert (told.name, told.data) == ("engine", {"engine": "e", "healthy": False})
    assert await store.events(registered.id, limit=5) == [told]
    assert await store.events("0", rollout="r") == [registered]
    assert await store.newest_event() == told.id
    with pytest.raises(ClientError) as caught:
        await store.events("999")
    assert caught.value.status == 410
    assert await store.drop_events("2020-01-01T00:00:00.000Z") is False
