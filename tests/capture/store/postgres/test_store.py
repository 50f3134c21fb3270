"""Two processes, as far as the database knows, over one database: they agree on everything, at any time."""

import asyncio
import contextlib
import json

import pytest

from capture.errors import ClientError, StoreError
from capture.store.base import Delta, EngineState, Query, Spent, Spool
from capture.store.postgres import PostgresStore
from graph.records import Notice
from tests.capture.store.places import DatabasePlace, count, with_database
from tests.capture.store.samples import NOW, as_json, call, ended, entry, ids, listed, plain, request

BODY = request("hello")
AT_ONCE = 32


@contextlib.asynccontextmanager
async def stores(database, *, n=2, **options):
    """Several stores over one database, open."""
    made = [database.store(**options) for _ in range(n)]
    try:
        for store in made:
            await store.open()
        yield made
    finally:
        for store in made:
            await store.close()


def done(n, arrived, *, delta=None, **fields):
    return ended(call(n, BODY), BODY, delta=delta, **{"arrived": arrived, "ended": None} | fields)


# -- numbers, order and limits, at once


async def test_arrivals_at_once_are_numbered_without_a_gap_and_without_a_double(database):
    async with stores(database) as both:
        await both[0].add([entry("r")])
        arrivals = await asyncio.gather(
            *(both[at % 2].arrive("r", choices=1, started_at=NOW) for at in range(2 * AT_ONCE))
        )
    assert sorted(each.n for each in arrivals) == list(range(2 * AT_ONCE))
    assert sorted(each.arrived for each in arrivals) == list(range(2 * AT_ONCE))
    # Each counted those that were there when it came, and itself.
    assert sorted(each.spent.running for each in arrivals) == list(range(1, 2 * AT_ONCE + 1))
    for each in arrivals:
        assert each.spent.running == each.n + 1


async def test_no_more_are_let_in_than_a_limit_allows_however_many_come_at_once(database):
    limit = 10
    async with stores(database) as both:
        await both[0].add([entry("r", limits={"max_calls": limit})])
        admitted = []

        async def one_call(store):
            at = await store.arrive("r", choices=1, started_at=NOW)
            if at.spent.sampled + at.spent.running > limit:
                await store.finish("r", [done(at.n, at.arrived, status="stopped")])
                return
            admitted.append(at.n)
            await store.finish("r", [done(at.n, at.arrived, prompt_ids=ids(1, 2), sampled_ids=ids(3))])

        for _ in range(3):
            await asyncio.gather(*(one_call(both[at % 2]) for at in range(AT_ONCE)))
        last = await both[1].arrive("r", choices=1, started_at=NOW)
        stored = await both[0].calls("r")
    assert len(admitted) == limit
    assert last.spent == Spent(sampled=limit, running=1, new_tokens=3 * limit, first_call_at=NOW)
    assert len(stored) == 3 * AT_ONCE
    assert sum(each.status == "complete" for each in stored) == limit


async def test_a_child_that_arrives_after_its_parents_end_comes_after_it(database):
    """32 chains of calls, each call in another process than its parent, all in one rollout."""
    async with stores(database) as both:
        await both[0].add([entry("r")])
        parents = {}

        async def chain(first):
            parent = None
            for turn in range(6):
                store = both[(first + turn) % 2]
                at = await store.arrive("r", choices=1, started_at=NOW)
                parents[at.n] = parent
                store.begin("r", call(at.n, BODY, arrived=at.arrived), BODY)
                await store.finish("r", [done(at.n, at.arrived)])
                parent = at.n

        await asyncio.gather(*(chain(first) for first in range(AT_ONCE)))
        found = {each.n: each for each in await both[1].calls("r")}
    moments = [moment for each in found.values() for moment in (each.arrived, each.ended)]
    assert sorted(moments) == list(range(2 * 6 * AT_ONCE))
    for n, parent in parents.items():
        assert found[n].arrived < found[n].ended
        if parent is not None:
            assert found[n].arrived > found[parent].ended


async def test_a_seal_stops_both(database):
    async with stores(database) as both:
        await both[0].add([entry("r")])

        begun = asyncio.Event()

        async def arrive_until_refused(store):
            taken = []
            while (at := await store.arrive("r", choices=1, started_at=NOW)) is not None:
                taken.append(at.n)
                begun.set()
            return taken

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(arrive_until_refused(store)) for store in both for _ in range(4)]
            await begun.wait()
            await both[0].seal("r")
            # From here on nothing may arrive, in either.
            sealed = await both[1].running("r")
        taken = sorted(n for task in tasks for n in task.result())
        assert taken == [n for _, n in sealed]
        assert await both[1].sealed() == {"r": False}


async def test_when_a_hold_is_committed_every_arrival_that_missed_it_runs(database):
    async with stores(database) as both:
        await both[0].add([entry("r")])
        missed: set[int] = set()
        begun = asyncio.Event()

        async def arrive_until_held(store):
            while True:
                at = await store.arrive("r", choices=1, started_at=NOW)
                if at.engines.get("e", EngineState()).held:
                    return
                missed.add(at.n)
                if len(missed) == 10:
                    begun.set()

        async with asyncio.TaskGroup() as group:
            for store in both:
                for _ in range(4):
                    group.create_task(arrive_until_held(store))
            await begun.wait()
            await both[0].set_engine("e", held=True)
            running = {n for _, n in await both[1].running(engine="e")}
        assert missed <= running


async def test_stops_are_counted_once_each(database):
    async with stores(database) as both:
        await both[0].add([entry("r")])
        counted = await asyncio.gather(*(both[at % 2].stop("r", at, "max_calls") for at in range(AT_ONCE)))
        found = (await both[1].get("r")).rollout.stopped
    assert sorted(each.stops for each in counted) == list(range(1, AT_ONCE + 1))
    assert found.stops == AT_ONCE
    assert len({each.at_call for each in counted}) == 1


# -- one rollout, two writers


async def test_what_one_has_committed_the_other_reads_and_goes_on_from(database):
    async with stores(database) as (one, other):
        await one.add([entry("r")])
        first = done(0, 0, prompt_ids=ids(1, 2, 3), sampled_ids=ids(4), reply=b'{"a":"%s"}' % (b"z" * 500))
        await one.finish("r", [first])
        delta = Delta(holder=0, shared=4)
        await other.finish("r", [done(1, 2, prompt_ids=ids(1, 2, 3, 4, 5), sampled_ids=ids(6), delta=delta)])
        one.notice("r", Notice(code="x"))
        await one.flush()
        other.deliver("r", [0], delivered=True, at=NOW)
        await other.flush()
        for store in (one, other):
            assert [listed(each.prompt_ids) for each in await store.calls("r")] == [[1, 2, 3], [1, 2, 3, 4, 5]]
            assert [each.delivered for each in await store.calls("r")] == [True, None]
            assert [notice.code for notice in await store.notices("r")] == ["x"]
            assert as_json(await store.exchange("r", 0))["reply"] == as_json(first.exchange)["reply"]
        # Equal content is there once.
        assert (await count(database))["chain"] == 1


async def test_writes_of_both_about_the_same_content_at_once_are_all_there(database):
    """The same long messages and tools, in many rollouts at once: one content, and no deadlock."""
    tools = ["tool " * 100] * 3
    async with stores(database) as both:
        names = [f"r{at}" for at in range(8)]
        await both[0].add([entry(name) for name in names])

        async def grow(store, name, first):
            said = ["system " * 100]
            for turn in range(5):
                said.append(f"turn {turn} " * 50)
                body = request(*said, tools=tools)
                await store.finish(name, [ended(call(first + turn, body), body, reply=b'["%s"]' % (b"z" * 300))])

        await asyncio.gather(*(grow(both[at % 2], name, 10 * at) for at in range(4) for name in names))
        for name in names:
            for each in await both[1].calls(name):
                assert len(each.messages) == each.n % 10 + 2
                sent = json.loads((await both[0].exchange(name, each.n)).request)
                assert sent["tools"] == tools
        rows = await count(database)
    # Seven messages and texts of a kind (system, five turns, tools, the reply), a chain of six for each rollout.
    assert (rows["content"], rows["chain"], rows["call"]) == (8, 6 * 8, 4 * 5 * 8)


async def test_a_rollout_that_one_deletes_while_the_other_writes_leaves_nothing_half(database):
    """What is shared with another rollout stays whole; what only the deleted one had goes."""
    shared = request("shared " * 100)
    async with stores(database) as (one, other):
        await one.add([entry("stays")])
        for turn in range(10):
            name = f"goes{turn}"
            await one.add([entry(name)])
            await asyncio.gather(
                one.delete(name),
                *(other.finish(name, [ended(call(n, shared), shared)]) for n in range(3)),
                other.finish("stays", [ended(call(turn, shared), shared)]),
            )
            assert await other.calls(name) == []
        assert [each.messages[0].text[:6] for each in await other.calls("stays")] == ["shared"] * 10
        assert await one.delete("stays")
        rows = await count(database)
    own = ("rollout", "label", "call", "exchange", "spool", "running", "notice", "chain", "use", "content")
    assert {table: rows[table] for table in own} == dict.fromkeys(own, 0)


async def test_a_list_that_is_followed_misses_none_that_close_at_once(database):
    async with stores(database, n=3) as made:
        names = [f"r{at}" for at in range(60)]
        await made[0].add([entry(name) for name in names])
        seen: list[str] = []

        async def follow():
            after = None
            while len(seen) < len(names):
                page = await made[2].page(Query(order="closed", after=after))
                seen.extend(found.rollout.id for found in page.entries)
                after = page.next

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(follow())
            for at, name in enumerate(names):
                group.create_task(made[at % 2].change(name, {"state": "closed"}))
    assert sorted(seen) == sorted(names)


async def test_of_equal_registrations_at_once_one_is_added(database):
    async with stores(database) as both:

        async def register(at):
            try:
                await both[at % 2].add([entry("a")], key="key digest", answer=b"%d" % at)
            except ClientError as error:
                return error.code
            return at

        outcomes = await asyncio.gather(*(register(at) for at in range(10)))
        (winner,) = [each for each in outcomes if isinstance(each, int)]
        assert outcomes.count("idempotency_key_raced") == 9
        assert await both[0].answered("key", "digest") == b"%d" % winner
        with pytest.raises(ClientError, match="is there already"):
            await both[1].add([entry("a")])


async def test_reads_of_one_while_the_other_writes_are_of_one_moment(database):
    async with stores(database) as (one, other):
        await one.add([entry("r")])
        reading = True

        async def write():
            nonlocal reading
            for n in range(40):
                delta = Delta(holder=n - 1, shared=n) if n else None
                body = request(*(f"text {at}" for at in range(n + 1)))
                made = call(n, body, prompt_ids=ids(*range(n + 1)), sampled_ids=ids(n + 1))
                await one.finish("r", [ended(made, body, delta=delta)])
            reading = False

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            while reading:
                for n, each in enumerate(await other.calls("r")):
                    assert (each.n, len(each.messages), listed(each.prompt_ids)) == (n, n + 1, list(range(n + 1)))
        assert await other.notices("r") == []


# -- what text can hold


async def test_text_that_postgresql_cannot_hold_comes_back_all_the_same(database):
    odd = "nul \x00 half \ud800 quote ' \\ \" ünï"
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": odd}], odd: odd * 100}).encode()
    given = entry("r", group=odd, labels={odd: odd}, task=odd)
    async with stores(database, n=1) as (store,):
        await store.add([given])
        assert await store.get("r") == given
        assert len((await store.page(Query(group=odd, labels={odd: odd}))).entries) == 1
        assert (await store.page(Query(group="nul"))).entries == ()
        record = ended(
            call(0, body, hints={"x": odd}, sampling_asked={"stop": [odd]}),
            body,
            reply=b'{"raw\x00nul": "not even JSON',
            undecoded=b"\xff\x00",
            error={"blame": "engine", "status": 500, "message": odd},
        )
        await store.finish("r", [record])
        store.notice("r", Notice(code="x", data={"said": odd}))
        (found,) = await store.calls("r")
        assert plain(found) == plain(record.call)
        assert as_json(await store.exchange("r", 0)) == as_json(record.exchange)
        assert (await store.notices("r"))[0].data == {"said": odd}
        assert (await store.change("r", {"labels": {"l": odd}})).rollout.labels == {"l": odd}


async def test_long_labels_and_groups_are_no_trouble(database):
    long = "g" * 100_000
    async with stores(database, n=1) as (store,):
        await store.add([entry("r", group=long, labels={long: long})])
        assert len((await store.page(Query(group=long, labels={long: long}))).entries) == 1


# -- what is promised and not kept


async def test_a_finish_that_failed_leaves_nothing_running(database, monkeypatch):
    async with stores(database, n=1) as (store,):
        await store.add([entry("r")])
        at = await store.arrive("r", choices=1, started_at=NOW)
        store.begin("r", call(at.n, BODY), BODY)
        store.spool("r", at.n, Spool(prompt_ids=ids(1), sampled_ids=ids(2), logprobs=None))
        await store.flush()
        with pytest.raises(StoreError, match="failed"):
            # A record that can't be written: a bug, and no fault of the store's.
            await store.finish("r", [done(at.n, at.arrived, choice=2**40)])
        assert store.failure is None
        await store._ask(store._bury)
        assert await store.running() == []
        (found,) = await store.calls("r")
        assert (found.status, listed(found.sampled_ids)) == ("aborted", [2])


async def test_a_write_with_a_bug_takes_no_other_of_its_group_with_it(database):
    async with stores(database, n=1) as (store,):
        await store.add([entry("r")])
        store.hold()
        async with asyncio.TaskGroup() as group:
            records = [done(n, n, choice=2**40 if n == 1 else 0) for n in range(3)]
            tasks = [group.create_task(_code(store.finish("r", [record]))) for record in records]
            await asyncio.sleep(0)
            store.release()
        assert [task.result() for task in tasks] == [None, "store_failed", None]
        assert [each.n for each in await store.calls("r")] == [0, 2]


async def _code(work):
    try:
        await work
    except StoreError as error:
        return error.code
    return None


@pytest.mark.parametrize(("durability", "expected"), [("process", "local"), ("power", "on"), ("none", "off")])
async def test_durability_is_what_a_commit_waits_for(database, durability, expected):
    async with stores(database, n=1, durability=durability) as (store,):
        found = await store._writer.run(lambda db: db.fetchval("SHOW synchronous_commit"))
        assert found == expected
        assert await store._ask(lambda db: db.fetchval("SHOW synchronous_commit")) == expected


async def test_all_of_one_database_are_one_appliance_and_others_are_others(database, postgres):
    async with stores(database) as (one, other):
        assert one.identity == other.identity
        assert one.identity is not None
    async with with_database(postgres) as elsewhere, stores(elsewhere) as (third, _):
        assert third.identity not in (None, one.identity)


async def test_a_cluster_that_does_not_say_who_it_is_serves_all_the_same(postgres):
    # Empty, so that the schema is its user's own.
    database = DatabasePlace(await postgres.database())
    await database.sql("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    await database.sql("CREATE ROLE plain LOGIN PASSWORD 'plain'")
    await database.sql(f'GRANT ALL ON DATABASE "{database.url.rpartition("/")[2]}" TO plain')
    try:
        _, _, where = database.url.rpartition("@")
        store = PostgresStore(f"postgresql://plain:plain@{where}")
        await store.open()
        assert store.identity is None
        await store.close()
    finally:
        await database.sql("DROP OWNED BY plain CASCADE")
        await database.sql("DROP ROLE plain")
        await postgres.drop(database.url)
