"""Events over HTTP: what a reader gets, how it goes on, and what a slow one costs."""

import asyncio
import contextlib
import json

import pytest

from capture import events
from capture.events import NAMES, Tide, form, render
from capture.sse import Decoder
from capture.store.base import Event, Telling
from graph.findings import TABLE
from graph.records import Notice
from tests.house import house

NOW = "2026-01-01T00:00:00.000Z"


class Reader:
    """A stream of events, read as they come."""

    def __init__(self, answer):
        self.answer = answer
        self.decoder = Decoder()
        self.came = []
        self.ids = []

    async def next(self):
        """The next event, with its id."""
        while not self.came:
            data = await asyncio.wait_for(self.answer.content.readany(), 10)
            assert data, "the stream has ended"
            self.came += [event for event in self.decoder.feed(data) if event.data]
            self.ids += [line[4:].decode() for line in data.splitlines() if line.startswith(b"id: ")]
        event = self.came.pop(0)
        return event.name, json.loads(event.data)

    async def until(self, name):
        """The events up to one of that name."""
        found = [await self.next()]
        while found[-1][0] != name:
            found.append(await self.next())
        return found


@contextlib.asynccontextmanager
async def reading(home, path="/events", status=200, **headers):
    headers = {"Authorization": f"Bearer {home.appliance.admin_key}", **headers}
    async with home.session.get(home.appliance.control_url + path, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        yield Reader(answer)


@pytest.fixture
async def home(tmp_path):
    async with house("scripted", tmp_path) as home:
        yield home


async def called(home, rollout):
    async with home.chat(rollout, stream=True) as answer:
        await answer.read()


async def test_a_rollouts_life_as_it_happens(home):
    async with reading(home) as reader:
        rollout = await home.rollout(id="r", group="g")
        await called(home, rollout)
        await home.control("PUT", "/rollouts/r/reward", json={"reward": 1.0})
        await home.control("POST", "/rollouts/r/close", json={})
        found = await reader.until("finding")
        await home.control("DELETE", "/rollouts/r", status=204)
        assert (await reader.until("rollout.deleted"))[-1][1]["rollout"] == "r"
    names = [name for name, _ in found if name != "call.begun"]
    assert names == ["rollout.registered", "call.ended", "rollout.graded", "rollout.closed", "finding"]
    by_name = dict(found)
    assert by_name["rollout.registered"]["group"] == "g"
    assert by_name["call.ended"]["call"] == 0
    assert by_name["call.ended"]["status"] == "complete"
    assert by_name["call.ended"]["n_sampled"] > 0
    assert by_name["rollout.graded"]["reward"] == 1.0
    assert by_name["finding"]["level"] == TABLE[by_name["finding"]["code"]].level


async def test_who_comes_back_misses_nothing(home):
    first = await home.rollout(id="a")
    async with reading(home, "/events?after=0") as reader:
        assert (await reader.next())[1]["rollout"] == "a"
        last = reader.ids[-1]
    await called(home, first)
    await home.rollout(id="b")
    async with reading(home, **{"Last-Event-ID": last}) as reader:
        found = await reader.until("rollout.registered")
    assert [data["rollout"] for _, data in found][-1] == "b"
    assert "call.ended" in [name for name, _ in found]
    async with reading(home, f"/events?after={last}") as reader:
        assert await reader.until("rollout.registered") == found


async def test_one_rollouts_events_alone(home):
    for name in ("a", "b"):
        await called(home, await home.rollout(id=name))
    async with reading(home, "/rollouts/b/events?after=0") as reader:
        await home.control("DELETE", "/rollouts/a", status=204)
        await home.control("DELETE", "/rollouts/b", status=204)
        found = await reader.until("rollout.deleted")
        assert {data["rollout"] for _, data in found} == {"b"}
        # Nothing more will come of it.
        assert await reader.answer.content.read() == b""


async def test_a_rollout_that_never_was_is_not_waited_for(home):
    error = (await home.control("GET", "/rollouts/none/events?after=0", status=404))["error"]
    assert error["code"] == "rollout_not_found"
    await home.rollout(id="was")
    await home.control("DELETE", "/rollouts/was", status=204)
    async with reading(home, "/rollouts/was/events?after=0") as reader:
        # Whoever had not come so far is told its end, and whoever has is not kept waiting.
        await reader.until("rollout.deleted")
        last = reader.ids[-1]
    await home.control("GET", f"/rollouts/was/events?after={last}", status=404)


async def test_without_an_id_it_begins_now_and_says_where_that_is(home):
    await home.rollout(id="before")
    async with reading(home) as reader:
        await home.rollout(id="after")
        assert (await reader.next())[1]["rollout"] == "after"
        start = reader.ids[0]
    async with reading(home, **{"Last-Event-ID": start}) as reader:
        assert (await reader.next())[1]["rollout"] == "after"


async def test_what_is_wrong_is_an_answer(home):
    store = home.appliance.store
    await store.tell([Telling(at=NOW, name="engine"), Telling(at=NOW, name="engine"), Telling(at=NOW, name="engine")])
    first = (await store.events("0"))[0].id
    while await store.drop_events("2026-01-02T00:00:00.000Z"):
        pass
    for status, code, path in (
        (410, "events_gone", f"/events?after={first}"),
        (410, "events_gone", "/events?after=999999"),
        (400, "bad_cursor", "/events?after=x"),
        (404, "rollout_not_found", "/rollouts/none/events"),
        (422, "invalid_query", "/events?since=0"),
    ):
        error = (await home.control("GET", path, status=status))["error"]
        assert error["code"] == code
    both = await home.control("GET", "/events?after=0", status=422, headers={"Last-Event-ID": "1"})
    assert both["error"]["code"] == "invalid_query"


async def test_a_reader_that_sleeps_holds_a_page_and_holds_up_nobody(home, monkeypatch):
    monkeypatch.setattr(events, "STUCK_S", 0.2)
    store = home.appliance.store
    large = {"reason": "x" * 20_000}
    async with reading(home, "/events?after=0"):
        # More than any buffer between takes.
        for _ in range(10):
            await store.tell([Telling(at=NOW, name="engine", data=large)] * 100)
        async with reading(home, "/events?after=0") as awake:
            for _ in range(1_000):
                await awake.next()
        async with asyncio.timeout(20):
            while home.appliance.tide.readers:
                await store.newest_event()


async def test_readers_are_counted(home, monkeypatch):
    monkeypatch.setattr(events, "MOST_READERS", 1)
    async with reading(home):
        error = (await home.control("GET", "/events", status=503))["error"]
        assert error["code"] == "too_many_readers"


async def test_a_quiet_stream_says_how_far_it_is(home, monkeypatch):
    monkeypatch.setattr(events, "QUIET_S", 0.01)
    await home.rollout(id="r")
    async with reading(home, "/rollouts/r/events?after=0") as reader:
        await reader.next()
        # Of other rollouts nothing is told, but where they have got to.
        await home.rollout(id="other")
        newest = await home.appliance.store.newest_event()
        seen = b""
        while f"id: {newest}\n\n".encode() not in seen:
            seen += await asyncio.wait_for(reader.answer.content.readany(), 10)
        assert b"data:" not in seen


async def test_a_stop_ends_streams_at_once(tmp_path):
    async with house("scripted", tmp_path, shutdown_timeout=20.0) as home:
        manager = reading(home)
        reader = await manager.__aenter__()
        async with asyncio.timeout(10):
            await home.appliance.close()
            assert await reader.answer.content.read() is not None
        await manager.__aexit__(None, None, None)


async def test_nothing_is_looked_for_without_a_reader():
    class Counting:
        looked = 0

        async def newest_event(self):
            self.looked += 1
            return str(self.looked)

    store = Counting()
    tide = Tide(store)
    async with tide.reader():
        assert await tide.beyond("") == "1"
        assert await tide.beyond("1") == "2"
    task = tide._looking
    await task
    looked = store.looked
    assert looked <= 3
    assert not tide.readers


def test_every_name_that_is_told_is_in_the_table():
    names = {one.name for one in NAMES}
    assert {"rollout.registered", "rollout.deleted", "call.begun", "call.ended", "finding", "engine", "tunnel"} < names
    assert all(f"`{name}`" in render() for name in names)


def test_a_notices_finding_has_its_level_and_its_meaning():
    notice = Notice(code="tunnel_lost", at=NOW)
    told = form(Event(id="1", at=NOW, name="finding", rollout="r", data={"code": notice.code, "calls": [], "data": {}}))
    row = TABLE["tunnel_lost"]
    assert (told["level"], told["message"]) == (row.level, row.means)
