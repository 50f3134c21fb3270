"""Rollouts by the hundred: what a row says is what the graph says, and what is read for it."""

import contextlib
import json

import msgspec
import pytest

from capture import answers, clock, summaries
from capture.errors import StoreError
from capture.store.base import Entry, Exchange, Record, Registration
from capture.store.summary import Look
from graph.records import Notice
from tests.capture.store.places import with_database
from tests.capture.store.samples import entry
from tests.graph import stories
from tests.plane import control_plane

NOW = "2026-03-01T00:00:00.000Z"
"""All is asked at one time, or what is left of a deadline would differ."""


@pytest.fixture
async def plane(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: NOW)
    async with control_plane(tmp_path) as plane:
        yield plane


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def either(request, tmp_path, monkeypatch):
    """A control plane over each sort of store in turn."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    async with contextlib.AsyncExitStack() as stack:
        store = None
        if request.param == "postgres":
            place = await stack.enter_async_context(with_database(request.getfixturevalue("postgres")))
            store = place.store(now=lambda: NOW)
        yield await stack.enter_async_context(control_plane(tmp_path, store=store))


async def listed(plane, **look) -> summaries.Listed:
    return await summaries.page(plane.rollouts, plane.store, Look(**look))


def plain(row) -> dict:
    """A row as the wire has it."""
    return json.loads(answers.encode(row, packed=False))


async def rows(plane, **look) -> list[dict]:
    return [plain(row) for row in (await listed(plane, **look)).rows]


async def names(plane, **look) -> list[str]:
    return [row["id"] for row in await rows(plane, **look)]


async def from_graphs(plane) -> list[dict]:
    """What the list has to say, from each rollout's graph."""
    found = [line.id for line in (await plane.store.sheet(Look(limit=1_000))).lines]
    return [plain(summaries.row(await plane.rollouts.aside(name), now=NOW)) for name in found]


async def add(plane, name: str, **fields) -> None:
    """Add a rollout, as registered at `NOW` with an hour to live."""
    made = entry(name, **{"limits": {"deadline_s": 60.0, "max_calls": 5}} | fields)
    created = msgspec.structs.replace(made.rollout, created_at=NOW)
    await plane.store.add([msgspec.structs.replace(made, rollout=created, registration=Registration(ttl_s=3600.0))])


class Reads:
    """How often a store was asked for what a graph is made of."""

    def __init__(self, monkeypatch, store):
        self.calls = 0
        for name in ("calls", "notices", "exchange"):
            asked = getattr(store, name)

            async def counted(*args, asked=asked, **options):
                self.calls += 1
                return await asked(*args, **options)

            monkeypatch.setattr(store, name, counted)


async def test_a_row_is_what_the_graph_says_of_drawn_rollouts(either, monkeypatch):
    plane = either
    for place, (_, story) in enumerate(stories.drawn(40)):
        name, closed = f"r{place}", place % 3 > 0
        await add(plane, name, labels={"place": str(place)}, pins=story.rollout.pins)
        for call in story.calls:
            at = msgspec.structs.replace(call, started_at="2026-02-28T23:59:30.000Z")
            await plane.store.finish(name, [Record(call=at, exchange=Exchange(request=b"{}"))])
        if place % 4 == 0:
            plane.store.notice(name, Notice(code="tunnel_lost", at=NOW))
        if closed:
            await plane.store.change(name, {"state": "closed", "closed_at": NOW, "reward": place / 7})
    expected = await from_graphs(plane)
    assert await rows(plane, limit=100) == expected
    reads = Reads(monkeypatch, plane.store)
    assert await rows(plane, limit=100) == expected
    assert reads.calls == 0
    # And each is found by each of its findings, and by nothing else.
    for code in {code for row in expected for code in row["health"]["findings"]}:
        having = [row["id"] for row in expected if code in row["health"]["findings"]]
        assert await names(plane, finding=code, limit=100) == having
    assert reads.calls == 0
    sums = summaries.overview_json(await plane.store.overview(Look()))
    assert sums["calls"] == sum(row["n_calls"] for row in expected)
    assert sums["sampled_tokens"] == sum(row["n_sampled_tokens"] for row in expected)
    assert sums["drifted"] == sum(row["health"]["drift"]["drifted"] > 0 for row in expected)
    assert sum(one["n"] for one in sums["findings"]) == sum(
        n for row in expected for n in row["health"]["findings"].values()
    )
    assert sums["stale"] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda plane: plane.rollouts.reward("r", {"reward": 0.5, "force": True}),
        lambda plane: plane.call("r", 1, [1, 2, 3, 4], [5]),
        lambda plane: plane.rollouts.role("r", {"conversation": 0, "role": "probe"}),
        lambda plane: plane.rollouts.close_rollout("r", wait_s=0.0),
    ],
    ids=["reward", "call", "role", "close"],
)
async def test_a_row_follows_what_changes(plane, change):
    await add(plane, "r")
    await plane.call("r", 0, [1, 2], [3])
    before = await rows(plane)
    await change(plane)
    after = await rows(plane)
    assert after == await from_graphs(plane)
    assert after != before
    assert await rows(plane) == after


@pytest.mark.real
async def test_what_one_replica_kept_another_shows(postgres, tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: NOW)
    async with (
        with_database(postgres) as place,
        control_plane(tmp_path, store=place.store(now=lambda: NOW)) as one,
        control_plane(tmp_path, store=place.store(now=lambda: NOW)) as other,
    ):
        await add(one, "r")
        await one.call("r", 0, [1, 2], [3])
        await one.rollouts.close_rollout("r", wait_s=0.0)
        await summaries.refresh(one.rollouts, one.store, "r")
        reads = Reads(monkeypatch, other.store)
        shown = await rows(other)
        assert reads.calls == 0
        assert shown == await from_graphs(one)
        # A reward that came in there is seen here, before and after it is summarised.
        await other.rollouts.reward("r", {"reward": 0.5})
        assert (await one.store.overview(Look())).behind == ("r",)
        assert [row["reward"] for row in await rows(one)] == [0.5]
        assert (await other.store.overview(Look())).mean == 0.5


async def test_a_page_of_two_hundred_of_ten_thousand_reads_no_calls(plane, monkeypatch):
    made = [
        Entry(
            rollout=msgspec.structs.replace(entry(f"r{at:05}").rollout, state="closed", group=f"g{at % 64}"),
            registration=Registration(), secret=b"a%d" % at, tools_secret=b"t%d" % at,
        )
        for at in range(10_000)
    ]  # fmt: skip
    await plane.store.add(made)
    await summaries.refresh(plane.rollouts, plane.store, "r00000")
    (line,) = (await plane.store.sheet(Look(limit=1))).lines
    graph = await plane.rollouts.aside("r00000")
    kept = summaries.summary(made[0], graph, summaries.row(graph, now=NOW))
    assert kept.row == line.row
    await plane.store.summarise([(one, kept) for one in made])
    reads = Reads(monkeypatch, plane.store)
    entries, get = 0, plane.store.get

    async def counted(name):
        nonlocal entries
        entries += 1
        return await get(name)

    monkeypatch.setattr(plane.store, "get", counted)
    seen, after = 0, None
    for _ in range(3):
        page = await listed(plane, order="-created", limit=200, after=after)
        seen, after = seen + len(page.rows), page.next
    sums = await plane.store.overview(Look())
    assert (seen, sums.rollouts, sums.no_calls, sums.stale) == (600, 10_000, 10_000, 0)
    assert (reads.calls, entries) == (0, 0)


async def test_a_page_reads_so_many_graphs_and_then_ends(plane, monkeypatch):
    monkeypatch.setattr(summaries, "MOST_READ", 2)
    for name in "abcde":
        await add(plane, name)
    await summaries.refresh(plane.rollouts, plane.store, "b")
    first = await listed(plane)
    assert [plain(row)["id"] for row in first.rows] == list("abc")
    second = await listed(plane, after=first.next)
    assert [plain(row)["id"] for row in second.rows] == list("de")
    assert second.next is None
    assert await names(plane) == list("abcde")


async def test_one_that_is_behind_is_shown_where_its_graph_says_so(plane):
    for name in ("a", "b", "c", "d"):
        await add(plane, name, group="g")
        await plane.rollouts.close_rollout(name, wait_s=0.0)
    await plane.call("b", 0, [1], [2])
    await plane.call("d", 0, [1], [2])
    # None was summarised: a store that was written by an older version.
    assert await names(plane, finding="no_calls", limit=1) == ["a"]
    assert await names(plane, finding="no_calls") == ["a", "c"]
    assert await names(plane, finding="no_calls", trouble=True, order="-created", limit=2) == ["c", "a"]
    assert await names(plane, text="D") == ["d"]
    assert await names(plane, order="closed", finding="no_calls") == ["a", "c"]
    await plane.rollouts.reward("b", {"reward": 0.0})
    await add(plane, "e")
    assert (await names(plane, graded=True), await names(plane, graded=False)) == (["b"], ["a", "c", "d"])


async def test_what_a_tail_gives_when_nothing_is_new(plane):
    await add(plane, "a")
    await plane.rollouts.close_rollout("a", wait_s=0.0)
    page = await listed(plane, order="closed")
    again = await listed(plane, order="closed", after=page.next)
    assert (again.rows, again.next) == ((), page.next)


async def test_an_open_rollout_s_clock_goes_on(plane, monkeypatch):
    await add(plane, "r")
    await plane.call("r", 0, [1, 2], [3], started_at=NOW)
    assert (await rows(plane))[0]["budget_left"]["deadline_s"] == 60
    monkeypatch.setattr(clock, "now", lambda: "2026-03-01T00:00:12.500Z")
    reads = Reads(monkeypatch, plane.store)
    assert (await rows(plane))[0]["budget_left"]["deadline_s"] == 47.5
    assert reads.calls == 0
    # Past its time it is closed by who looks, as when it is shown alone.
    monkeypatch.setattr(clock, "now", lambda: "2026-03-01T01:00:00.500Z")
    (row,) = await rows(plane)
    assert (row["state"], row["budget_left"]["deadline_s"]) == ("closed", 0)
    assert "expired" in row["health"]["findings"]


async def test_a_lost_call_is_said_and_not_kept(plane):
    await add(plane, "r")
    live = await plane.rollouts._load("r")
    plane.rollouts.lost(live, 3)
    for _ in range(2):
        (row,) = await rows(plane)
        assert row["incomplete"]
        assert row["health"]["findings"]["capture_incomplete"] == 1
    await plane.rollouts.tell_lost()
    await summaries.refresh(plane.rollouts, plane.store, "r")
    assert (await plane.store.overview(Look())).incomplete == 1


async def test_a_store_that_takes_no_writes_is_listed_all_the_same(plane, monkeypatch):
    await add(plane, "r")

    async def full(made):
        raise StoreError("store_full", "the disk is full")

    monkeypatch.setattr(plane.store, "summarise", full)
    assert await names(plane) == ["r"]


async def test_one_that_was_deleted_since_the_page_was_read_is_left_out(plane, monkeypatch):
    for name in "abc":
        await add(plane, name)
    seen = plane.rollouts.seen

    async def gone(name, **options):
        if name == "b":
            await plane.store.delete("b")
        return await seen(name, **options)

    monkeypatch.setattr(plane.rollouts, "seen", gone)
    assert await names(plane) == ["a", "c"]
