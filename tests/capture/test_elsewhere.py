"""One rollout in two processes over one store: numbers, limits, references and closes hold across both.

The two processes are two sets of `Calls` and `Rollouts` that know nothing of each other.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest

from capture import elsewhere, holds, rollouts
from capture.errors import ClientError, StoreError
from capture.holds import Holds
from capture.live import Live
from capture.retries import NO_CLAIM, Retried
from capture.store.base import Delta, EngineState
from capture.store.sqlite import SqliteStore
from capture.tasks import spawn
from graph.records import Call, Rollout
from tests.capture.test_calls import CHAT, HEADERS, Desk
from tests.capture.test_live import call, entry, ids
from tests.engine import PROMPT as ENGINE_PROMPT
from tests.engine import whole
from tests.processes import until as soon

PROMPT = ids(*ENGINE_PROMPT)
WHOLE = json.dumps(whole([5, 6])).encode()


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "t.db", shared=True)
    await store.open()
    yield store
    await store.close()


async def until(asked: Callable[[], Awaitable[object]]) -> None:
    """Ask until the answer is something."""
    while not await asked():  # noqa: ASYNC110 - the store has no event of this
        await asyncio.sleep(0)


class Pair:
    """A rollout, as it lives in two processes."""

    def __init__(self, one: Desk, two: Desk, here: Live, there: Live) -> None:
        self.one, self.two, self.here, self.there = one, two, here, there


@pytest.fixture
async def pair(store):
    return await paired(store)


async def paired(store, **body) -> Pair:
    one, two = Desk(store), Desk(store)
    secret = json.loads(await one.rollouts.register(body, key=None, digest="d"))["secret"]
    return Pair(one, two, await one.rollouts.admit(secret), await two.rollouts.admit(secret))


async def test_numbers_and_places_in_time_are_one_row_over_both(pair, store):
    drafts = [
        await desk.begin(live) for desk, live in [(pair.one, pair.here), (pair.two, pair.there), (pair.one, pair.here)]
    ]
    assert [(draft.n, draft.arrived) for draft in drafts] == [(0, 0), (1, 1), (2, 2)]
    for desk, draft in zip((pair.one, pair.two, pair.one), drafts, strict=True):
        draft.recorder.hang_up()
        await desk.calls.conclude(draft)
    assert sorted(call.ended for call in await store.calls(pair.here.id)) == [3, 4, 5]
    assert await store.running() == []


async def test_limits_are_exact_over_both_at_once(store):
    pair = await paired(store, limits={"max_calls": 5})
    desks = [(pair.one, pair.here), (pair.two, pair.there)] * 6
    drafts = await asyncio.gather(*(desk.arrive(live) for desk, live in desks))
    let_in = [desk.calls.reserve(draft) for (desk, _), draft in zip(desks, drafts, strict=True)]
    assert let_in.count(None) == 5
    assert {draft.n for draft, limit in zip(drafts, let_in, strict=True) if limit is None} == {0, 1, 2, 3, 4}


async def test_tokens_spent_elsewhere_count(store):
    pair = await paired(store, limits={"max_total_tokens": 10})
    await pair.one.run(pair.here, 1, 2, 3, 4, prompt=[9] * 8)
    draft = await pair.two.arrive(pair.there)
    assert pair.two.calls.reserve(draft) == "max_total_tokens"


async def test_a_deadline_counts_from_the_first_call_of_all(store):
    pair = await paired(store, limits={"deadline_s": 1})
    await store.arrive(pair.here.id, choices=1, started_at="2026-01-01T00:00:00.000Z")
    draft = await pair.two.arrive(pair.there)
    assert pair.two.calls.reserve(draft) == "deadline_s"
    assert pair.two.calls.time_limit_s(draft) == 0


async def test_stops_are_counted_over_both(store):
    pair = await paired(store, limits={"max_calls": 1})
    await pair.one.run(pair.here, 1)
    for desk, live in [(pair.one, pair.here), (pair.two, pair.there), (pair.two, pair.there)]:
        draft = await desk.arrive(live)
        kind, _ = await desk.calls.stop(draft, CHAT, "max_calls")
        assert kind == "application/json"
    with pytest.raises(ClientError) as refused:
        await pair.one.calls.stop(await pair.one.arrive(pair.here), CHAT, "max_calls")
    assert (refused.value.code, refused.value.status) == ("rollout_limit", 400)
    assert (await store.get(pair.here.id)).rollout.stopped.stops == 4


async def test_a_prompt_leans_on_a_call_made_elsewhere(pair, store):
    await pair.one.run(pair.here, 5, 6, prompt=[1, 2, 3])
    draft = await pair.two.begin(pair.there)
    assert pair.there.delta(ids(1, 2, 3, 5, 6, 7)) == Delta(holder=0, shared=5)
    draft.recorder.hang_up()
    await pair.two.calls.conclude(draft)


async def test_a_call_that_runs_elsewhere_is_read_once_it_has_ended(pair):
    running = await pair.one.begin(pair.here)
    first = await pair.two.begin(pair.there)
    assert pair.there.elsewhere.keys() == {0}
    assert pair.there.delta(ids(1, 2)) is None
    running.recorder.answered(200)
    running.recorder.whole(WHOLE, 1.0)
    await pair.one.calls.conclude(running)
    second = await pair.two.begin(pair.there)
    assert pair.there.elsewhere == {}
    assert pair.there.delta(PROMPT) == Delta(holder=0, shared=4)
    for draft in (first, second):
        draft.recorder.hang_up()
        await pair.two.calls.conclude(draft)


async def test_a_rollout_whose_calls_all_come_here_fetches_nothing(pair, store, monkeypatch):
    fetched = []
    before = store.calls

    async def calls(rollout, **asked):
        fetched.append(asked)
        return await before(rollout, **asked)

    monkeypatch.setattr(store, "calls", calls)
    for n in range(4):
        await pair.one.run(pair.here, n)
    assert fetched == []
    await pair.two.run(pair.there, 9)
    assert fetched == [{"after": -1, "limit": 4}]
    await pair.one.run(pair.here, 9)
    assert fetched[1:] == [{"after": 3, "limit": 1}]


async def test_a_reply_given_elsewhere_can_be_referred_to(pair):
    await pair.one.run(pair.here, 1, 2)
    assert await pair.two.rollouts.reply(pair.there, "chatcmpl-1") == 0
    assert await pair.two.rollouts.reply(pair.there, "chatcmpl-nowhere") is None
    assert json.loads(await pair.two.calls.stored(pair.there, "chatcmpl-1"))["id"] == "chatcmpl-1"


async def test_a_rollout_closed_elsewhere_takes_no_call(pair, store):
    await pair.one.rollouts.close_rollout(pair.here.id, wait_s=0)
    with pytest.raises(ClientError) as closed:
        await pair.two.arrive(pair.there)
    assert closed.value.status == 401
    assert await store.calls(pair.here.id) == []


async def test_one_deleted_and_registered_anew_is_another(pair, store):
    await pair.one.rollouts.delete(pair.here.id)
    again = json.loads(await pair.one.rollouts.register({"id": pair.here.id}, key=None, digest="d"))
    with pytest.raises(ClientError) as gone:
        await pair.two.arrive(pair.there)
    assert gone.value.status == 401
    assert await store.running() == []
    live = await pair.two.rollouts.admit(again["secret"])
    assert (await pair.two.run(live, 1)).status == "complete"


@pytest.mark.parametrize("how", ["closed", "deleted"])
async def test_what_is_asked_beside_calls_meets_the_close_too(pair, how):
    await pair.two.rollouts.fresh(pair.there)
    if how == "closed":
        await pair.one.rollouts.close_rollout(pair.here.id, wait_s=0)
    else:
        await pair.one.rollouts.delete(pair.here.id)
    with pytest.raises(ClientError):
        await pair.two.rollouts.fresh(pair.there)


async def test_a_close_waits_for_what_runs_elsewhere(pair, store):
    draft = await pair.two.begin(pair.there)
    closing = spawn(pair.one.rollouts.close_rollout(pair.here.id, wait_s=30), name="close")
    await until(store.sealed)
    draft.recorder.answered(200)
    draft.recorder.whole(WHOLE, 1.0)
    await pair.two.calls.conclude(draft)
    assert (await closing).rollout.state == "closed"
    assert [call.status for call in await store.calls(pair.here.id)] == ["complete"]


async def test_a_close_cuts_what_runs_elsewhere_when_its_time_is_over(pair, store, monkeypatch):
    monkeypatch.setattr(elsewhere, "HEED_EVERY_S", 0.01)
    draft = await pair.two.arrive(pair.there)
    await pair.two.calls.admit(draft, CHAT, HEADERS)

    def cut() -> None:
        draft.recorder.hang_up()
        pair.two.calls.concluding(draft, delivered=False)

    pair.two.calls.begin(draft, cut)
    heeding = spawn(pair.two.rollouts.heed(), name="heed")
    entry = await pair.one.rollouts.close_rollout(pair.here.id, wait_s=0.05)
    heeding.cancel()
    assert entry.rollout.state == "closed"
    assert [call.status for call in await store.calls(pair.here.id)] == ["aborted"]


async def test_a_close_ends_what_nobody_ends(pair, store, monkeypatch):
    monkeypatch.setattr(elsewhere, "CUT_LIMIT_S", 0.05)
    await pair.two.begin(pair.there)
    await pair.one.rollouts.close_rollout(pair.here.id, wait_s=0)
    assert [call.status for call in await store.calls(pair.here.id)] == ["aborted"]


async def test_an_idle_rollout_is_idle_in_all_processes(pair, monkeypatch):
    monkeypatch.setattr(elsewhere, "LOOK_EVERY_S", 0.01)
    draft = await pair.two.begin(pair.there)
    waiting = spawn(pair.one.rollouts.wait(pair.here.id, until="idle", idle_s=0.0, timeout_s=20), name="wait")
    assert not await pair.one.rollouts.wait(pair.here.id, until="idle", idle_s=0.0, timeout_s=0.03)
    assert not waiting.done()
    draft.recorder.hang_up()
    await pair.two.calls.conclude(draft)
    assert await waiting


async def test_a_wait_for_a_close_hears_of_one_elsewhere(pair, monkeypatch):
    monkeypatch.setattr(elsewhere, "LOOK_EVERY_S", 0.01)
    waiting = spawn(pair.one.rollouts.wait(pair.here.id, until="closed", idle_s=0.0, timeout_s=20), name="wait")
    await asyncio.sleep(0)
    await pair.two.rollouts.close_rollout(pair.here.id, wait_s=0)
    assert await waiting


async def test_a_rollout_does_not_expire_while_it_is_called_elsewhere(store, monkeypatch):
    pair = await paired(store, ttl_s=1)
    monkeypatch.setattr(rollouts, "_past", lambda entry, last_call_at: last_call_at != "new")
    pair.here.last_call_at = "2026-01-01T00:00:00.000Z"
    draft = await pair.two.begin(pair.there)
    assert not await pair.one.rollouts._expired(pair.here)
    draft.recorder.hang_up()
    await pair.two.calls.conclude(draft)
    assert await pair.one.rollouts._expired(pair.here)
    assert (await store.get(pair.here.id)).rollout.state == "closed"


async def test_an_agent_that_hangs_up_while_its_call_arrives_leaves_an_ended_call(pair, store):
    store.hold()
    arriving = spawn(pair.one.arrive(pair.here), name="arrive")
    await asyncio.sleep(0)
    arriving.cancel()
    await asyncio.wait([arriving])
    store.release()
    await until(lambda: store.calls(pair.here.id))
    (call,) = await store.calls(pair.here.id)
    assert (call.status, call.delivered) == ("aborted", False)
    assert await store.running() == []


async def test_a_call_that_could_not_be_stored_does_not_run_for_ever(pair, store, monkeypatch):
    draft = await pair.one.begin(pair.here)

    async def finish(rollout, records):
        raise StoreError("store_failed", "the disk is away")

    monkeypatch.setattr(store, "finish", finish)
    draft.recorder.hang_up()
    assert isinstance(await pair.one.calls.conclude(draft), StoreError)
    await pair.one.rollouts.tell_lost()
    assert await store.running() == []
    assert (await store.get(pair.here.id)).rollout.incomplete


async def test_a_process_forgets_a_rollout_that_others_may_serve(pair, monkeypatch):
    monkeypatch.setattr(rollouts, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(rollouts, "FORGET_AFTER_S", 0.0)
    watching = spawn(pair.one.rollouts.watch(), name="watch")
    await soon(lambda: not pair.one.rollouts._live)
    watching.cancel()
    # Who was on the way in goes on, and who comes later reads it again.
    assert (await pair.one.run(pair.here, 1)).n == 0


async def test_what_is_fetched_is_little_and_in_few_pieces(store):
    asked = []

    class Counting:
        async def running(self, rollout):
            return [(rollout, 8)]

        async def calls(self, rollout, *, after=-1, limit=None):
            asked.append((after, limit))
            return []

    live = Live(entry(), [])
    live.elsewhere = dict.fromkeys([0, 1, 2, 7, 8, 9, 10], live.idle_since)
    await elsewhere.catch_up(live, Counting())
    assert asked == [(8, 2), (6, 1), (-1, 3)], "the latest first, and nothing that runs"
    live.elsewhere = dict.fromkeys(range(0, 40, 2), live.idle_since)
    asked.clear()
    await elsewhere.catch_up(live, Counting())
    assert asked == [(n - 1, 1) for n in range(38, 22, -2)]


async def test_a_number_that_never_gets_a_call_is_asked_for_no_more(store, monkeypatch):
    monkeypatch.setattr(elsewhere, "FORGET_S", -1.0)
    pair = await paired(store)
    await store.arrive(pair.here.id, choices=1, started_at="2026-01-01T00:00:00.000Z")
    await pair.one.run(pair.here, 1)
    assert pair.here.elsewhere == {}


def test_quiet_is_counted_from_the_last_end():
    class Graph:
        rollout = Rollout(id="r", created_at="2026-01-01T00:00:00.000Z")

        class forest:  # noqa: N801 - as the graph names it
            calls: ClassVar[dict[int, Call]] = {}

    now = "2026-01-01T00:01:00.000Z"
    assert elsewhere.quiet_s(Graph, now) == 60
    Graph.forest.calls = {1: call(1, ended_ms=4000.0), 2: call(2)}
    assert elsewhere.quiet_s(Graph, now) == 55
    assert elsewhere.quiet_s(Graph, "2026-01-01T00:00:00.000Z") == 0


NAME = "vllm=http://127.0.0.1:1"


async def entered(desk: Desk, live: Live) -> tuple:
    """A call that has begun at the engine, and what gives its place back."""
    draft = await desk.begin(live)
    return draft, await desk.calls.enter(draft, draft.engines[0])


async def test_a_hold_waits_for_what_had_arrived_elsewhere_and_for_nothing_else(pair, store):
    there = pair.two.calls._holds
    running, leave = await entered(pair.two, pair.there)
    # It has its number, and is not at the engine yet.
    late = await pair.two.begin(pair.there)
    pausing = spawn(Holds(store).pause([NAME], wait_s=20), name="pause")
    await until(lambda: held(store))
    leave_late = await pair.two.calls.enter(late, late.engines[0])
    # It arrives behind the hold, and so waits.
    knows = await pair.two.begin(pair.there)
    waiting = spawn(pair.two.calls.enter(knows, knows.engines[0]), name="enter")
    assert (there.queue(NAME).held, knows.told_to_wait) == (True, True)
    for draft, done in ((running, leave), (late, leave_late)):
        assert not pausing.done()
        done()
        draft.recorder.hang_up()
        await pair.two.calls.conclude(draft)
    assert await pausing == []
    assert not waiting.done()
    assert [call.n for call in await store.calls(pair.here.id) if call.status == "running"] == []
    await Holds(store).resume([NAME])
    await there.look()
    (await waiting)()
    await store.flush()
    assert [call.n for call in await store.calls(pair.here.id) if call.status == "running"] == [knows.n]


async def test_a_hold_is_not_kept_up_by_one_that_arrived_behind_it(pair, store, monkeypatch):
    monkeypatch.setattr(holds, "BEGIN_S", 0.0)
    monkeypatch.setattr(holds, "LOOK_EVERY_S", 0.01)
    await store.set_engine(NAME, held=True)
    draft = await pair.two.begin(pair.there)
    assert await Holds(store).pause([NAME], wait_s=20) == []
    assert draft.told_to_wait


async def test_an_old_answer_lets_nobody_in(pair, store):
    there = pair.two.calls._holds
    there.queue(NAME)
    await store.set_engine(NAME, held=True, version="2")
    await there.look()
    there.obey({NAME: EngineState(version="1")}, since=0.0)
    assert (there.queue(NAME).held, there.version(NAME)) == (True, "2")
    await store.set_engine(NAME, held=False)
    await there.look()
    there.obey({NAME: EngineState(held=True)}, since=0.0)
    assert there.queue(NAME).held, "until the next look"
    await there.look()
    assert not there.queue(NAME).held


async def test_a_call_that_ends_knows_the_version_told_elsewhere(pair, store):
    await store.set_engine(NAME, version="1")
    draft, leave = await entered(pair.two, pair.there)
    await Holds(store).set_version([NAME], "2")
    draft.recorder.answered(200)
    draft.recorder.whole(WHOLE, 1.0)
    leave()
    await pair.two.calls.conclude(draft)
    (call,) = await store.calls(pair.here.id)
    assert (call.weights.start, call.weights.end) == ("1", "2")


async def held(store) -> bool:
    return any(state.held for state in (await store.engines()).values())


async def test_a_retry_of_a_call_made_elsewhere_is_found_and_takes_no_number(pair, store):
    draft = await pair.one.run(pair.here, 5, 6)
    # Its agent asks again elsewhere before anybody knows that the reply was lost, and again after that.
    new = await pair.two.calls.arrive(pair.there, CHAT, draft.body, HEADERS, said=NO_CLAIM)
    assert new.n == 1
    store.deliver(pair.here.id, [0], delivered=False, at="2026-01-01T00:00:00.000Z")
    with pytest.raises(Retried) as again:
        await pair.two.calls.arrive(pair.there, CHAT, draft.body, HEADERS, said=NO_CLAIM)
    tried = again.value.tried
    assert tried.n == 0
    assert await store.running() == [(pair.here.id, 1)]
    pair.two.calls.mark_again(pair.there, tried, delivered=True)
    other = await pair.two.calls.arrive(pair.there, CHAT, draft.body, HEADERS, said=NO_CLAIM)
    assert (await store.calls(pair.here.id))[0].delivered is True
    assert other.n == 3, "a number that was given back is nobody's"


async def test_it_is_asked_no_more_whether_a_dead_process_delivered(pair, store, monkeypatch):
    await pair.one.run(pair.here, 5)
    await pair.two.begin(pair.there)
    assert pair.there.in_doubt.keys() == {0}
    monkeypatch.setattr(elsewhere, "DOUBT_S", -1.0)
    await pair.two.begin(pair.there)
    assert pair.there.in_doubt == {}
