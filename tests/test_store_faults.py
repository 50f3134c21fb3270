"""A store that fails under a running appliance: full, read-only, damaged, newer; and a clock that goes back.

What must hold each time: an agent gets its answer, or an error if the operator chose so; what could not be stored is
named for ever; what was stored stays; and the appliance says what is wrong, in `/ready` and in the errors of new calls.
"""

import asyncio
import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest

from capture import cli, clock
from capture.store import query
from capture.store.base import FORMAT_VERSION
from capture.store.check import check
from tests import disk as disks
from tests import engine as engines
from tests.engine import STREAM, Engine, chunk, event, usage_chunk, whole
from tests.house import House, house

# Random letters, which do not compress: no room that a full disk may have left takes it.
BULK = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=900_000))


def finished(got: bytes) -> bool:
    """Whether an agent can take what it got for a finished reply."""
    return b'"finish_reason":"stop"' in got.replace(b" ", b"")


@pytest.fixture
async def engine():
    async with engines.running() as engine:
        yield engine


@pytest.fixture
def disk(tmp_path: Path):
    with disks.small_disk(tmp_path) as disk:
        yield disk


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


async def asked(home: House, rollout: dict[str, Any], **body: Any) -> tuple[int, bytes, dict[str, str]]:
    """An agent's request: status, what came of the body, headers."""
    async with home.chat(rollout, **body) as answer:
        got = b""
        try:
            async for data in answer.content.iter_any():
                got += data
        except aiohttp.ClientPayloadError:
            got += b"<cut>"
        return answer.status, got, dict(answer.headers)


async def answered(engine: Engine, home: House, rollout: dict[str, Any], *, reply: Any = None, **body: Any) -> Any:
    """The same, and the engine answers."""
    async with asyncio.TaskGroup() as both:
        asking = both.create_task(asked(home, rollout, **body))
        exchange = await engine.next()
        if body.get("stream"):
            exchange.send(*STREAM).end()
        else:
            exchange.answer(whole([5, 6]) if reply is None else reply)
    return asking.result()


async def ready(home: House) -> dict[str, Any]:
    async with home.session.get(home.appliance.control_url + "/ready") as answer:
        told = await answer.json()
        assert (answer.status == 200) is told["ready"]
        return told


def codes(graph: dict[str, Any]) -> dict[str, list[int]]:
    return {finding["code"]: finding["calls"] for finding in graph["findings"]}


async def stopped(engine: Engine, home: House, rollout: dict[str, Any]) -> None:
    """New calls are stopped, in the agent's dialect, and told when to come again; and a balancer is told too."""
    status, got, headers = await asked(home, rollout, messages=said("three"))
    assert (status, json.loads(got)["error"]["code"]) == (507, "store_full")
    assert int(headers["Retry-After"]) > 0
    assert engine.calls.empty()
    told = await ready(home)
    assert (told["ready"], told["store"]["ok"]) == (False, False)
    assert "the disk is full" in told["store"]["reason"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_disk_costs_no_agent_its_answer_and_no_ended_call_its_record(engine, disk, stream) -> None:
    async with house(engine, disk.folder) as home:
        rollout = await home.rollout()
        assert (await answered(engine, home, rollout, messages=said("one")))[0] == 200
        await home.idle(rollout)

        await disk.fill(home.appliance.store)
        reply = "Hello" if stream else "lost"
        status, got, _ = await answered(
            engine, home, rollout, messages=said(BULK), stream=stream, reply=whole([7], text=reply)
        )
        assert (status, finished(got)) == (200, True)
        if disk.real:
            # Not a byte is left, and that is known now. (A limit on pages leaves room within them, and small writes go
            # on: new calls are taken, and what doesn't fit is named like this one.)
            await stopped(engine, home, rollout)
        # Reads go on, and say at once that something is missing.
        assert (await home.control("GET", f"/rollouts/{rollout['id']}"))["incomplete"] is True

        await disk.free(home.appliance.store)
        assert (await ready(home))["ready"] is True
        status, _, _ = await answered(engine, home, rollout, messages=said(BULK, reply, "more"))
        assert status == 200
        await home.idle(rollout)
        before = await home.graph(rollout)
    # The mark outlives the process.
    async with house(engine, disk.folder) as home:
        graph = await home.graph(rollout)
    assert graph == before
    assert graph["rollout"]["incomplete"] is True
    assert [(call["n"], call["status"], call["link"]) for call in graph["calls"]] == [
        (0, "complete", "root"), (2, "complete", "root"),
    ]  # fmt: skip
    assert codes(graph)["capture_incomplete"] == [1]
    assert codes(graph)["parent_lost"] == [2]
    assert check(disk.folder / "treering.db").faults == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_operator_chose_so_no_agent_sees_the_end_of_what_is_not_stored(engine, disk, stream) -> None:
    async with house(engine, disk.folder, on_store_failure="refuse") as home:
        rollout = await home.rollout()
        await disk.fill(home.appliance.store)
        status, got, _ = await answered(engine, home, rollout, messages=said(BULK), stream=stream)
        assert not finished(got)
        if stream:
            assert (status, got.endswith(b"<cut>")) == (200, True)
        else:
            assert (status, json.loads(got)["error"]["code"]) == (507, "store_full")
        await disk.free(home.appliance.store)
        assert (await ready(home))["ready"] is True
        graph = await home.graph(rollout)
        assert graph["rollout"]["incomplete"] is True
        assert codes(graph)["capture_incomplete"] == [0]


async def test_calls_that_run_when_the_disk_fills_are_each_stored_or_named(engine, disk) -> None:
    """Some fit into what is left and some do not; there is no third kind."""
    n = 24
    async with house(engine, disk.folder) as home:
        rollouts = [await home.rollout() for _ in range(n)]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(asked(home, rollout, messages=said(BULK[: 12_000 * at + 1]), stream=True))
                for at, rollout in enumerate(rollouts)
            ]
            exchanges = [await engine.next() for _ in rollouts]
            for exchange in exchanges:
                exchange.send(event(chunk(role=True)), event(chunk(5, text="He")))
            await disk.fill(home.appliance.store)
            for exchange in exchanges:
                exchange.send(event(chunk(6, text="y", finish="stop")), event(usage_chunk(2)), event("[DONE]")).end()
        assert [(status, finished(got)) for status, got, _ in (task.result() for task in tasks)] == [(200, True)] * n
        await disk.free(home.appliance.store)
        assert (await ready(home))["ready"] is True
        for rollout in rollouts:
            await home.idle(rollout)
            graph = await home.graph(rollout)
            kept = [call["n"] for call in graph["calls"] if call["status"] == "complete"]
            named = codes(graph).get("capture_incomplete", [])
            assert sorted(kept + named) == [0], graph
            assert graph["rollout"]["incomplete"] is bool(named)
    assert check(disk.folder / "treering.db").faults == ()


async def test_a_store_that_becomes_read_only_is_said_and_forgotten_when_it_is_not(engine, tmp_path) -> None:
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        store: Any = home.appliance.store
        found: list[apsw.Connection] = []
        await store._writer.run(found.append)
        found[0].execute("PRAGMA query_only = ON")
        assert (await answered(engine, home, rollout))[0] == 200
        status, got, _ = await asked(home, rollout)
        assert (status, json.loads(got)["error"]["code"]) == (503, "store_failed")
        assert "can't be written" in (await ready(home))["store"]["reason"]
        with pytest.raises(AssertionError, match="store_failed"):
            await home.rollout()
        found[0].execute("PRAGMA query_only = OFF")
        assert (await ready(home))["ready"] is True
        assert (await answered(engine, home, rollout))[0] == 200
        await home.idle(rollout)
        assert codes(await home.graph(rollout))["capture_incomplete"] == [0]


def test_a_read_only_folder_ends_the_start_with_its_exit_code(tmp_path, capsys) -> None:
    folder = tmp_path / "fixed"
    folder.mkdir()
    with disks.read_only(folder) as is_so:
        assert is_so
        words = ["serve", "--engine", "scripted", "--store", f"sqlite:///{folder}/t.db"]
        assert cli.main([*words, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]) == 4
    assert "is its folder there, and writable?" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


async def one_call(folder: Path) -> None:
    async with engines.running() as engine, house(engine, folder) as home:
        rollout = await home.rollout()
        await answered(engine, home, rollout)
        await home.idle(rollout)


@pytest.mark.parametrize("kind", ["newer", "no database", "cut", "damaged"])
def test_a_file_that_cannot_be_used_ends_the_start_and_is_left_as_it_is(tmp_path, kind, capsys) -> None:
    asyncio.run(one_call(tmp_path))
    path = tmp_path / "treering.db"
    db = apsw.Connection(str(path))
    page = db.pragma("page_size")
    root = query.value(db, "SELECT rootpage FROM sqlite_schema WHERE name = 'call_running'")
    if kind == "newer":
        db.pragma("user_version", FORMAT_VERSION + 1)
    db.close()
    if kind == "no database":
        path.write_bytes(b"notes of mine\n" * 1_000)
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[: 3 * page])
    elif kind == "damaged":
        with path.open("r+b") as file:
            file.seek((root - 1) * page)
            file.write(b"\xff" * page)
    before = path.read_bytes()
    words = ["serve", "--engine", "scripted", "--store", f"sqlite:///{path}"]
    assert cli.main([*words, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]) == 4
    said = capsys.readouterr().err
    assert ("newer Treering" in said) is (kind == "newer")
    assert str(path) in said
    assert path.read_bytes() == before


async def test_a_file_that_is_damaged_while_it_is_used_takes_no_answer_and_hides_nothing(engine, tmp_path) -> None:
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        for n in range(5):
            await answered(engine, home, rollout, messages=said(f"turn {n}", *["long " * 500] * 2))
        await home.idle(rollout)
        store: Any = home.appliance.store
        await store._writer.run(lambda db: db.execute("UPDATE counter SET value = value"))
        await asyncio.to_thread(_spoil, tmp_path / "treering.db")
        fresh = await asked_of(home.control("POST", "/rollouts", json={}, status=201))
        ended, refused = [], []
        for n in range(5, 8):
            async with asyncio.TaskGroup() as both:
                asking = both.create_task(asked(home, rollout, messages=said(f"turn {n}")))
                waiting = both.create_task(engine.next())
                await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    waiting.result().answer(whole([5, 6]))
                else:
                    await asking
                    waiting.cancel()
            (ended if asking.result()[0] == 200 else refused).append(asking.result())
        # An agent gets its reply, or is told that the store is down; nobody hangs, and nothing is a 502.
        assert all(status == 503 for status, _, _ in refused), refused
        assert fresh in (201, 503)
        told = await ready(home)
        assert told["store"]["ok"] is False, (told, ended)
        assert (await home.control("GET", f"/rollouts/{rollout['id']}/graph", status=503))["error"]["code"] == (
            "store_failed"
        )
    assert cli.main(["doctor", "--store", f"sqlite:///{tmp_path}/treering.db"]) == 4


async def asked_of(work: Any) -> int:
    try:
        await work
    except AssertionError as error:
        return int(error.args[0][0])
    return 201


async def test_a_file_that_is_moved_away_while_it_is_used_is_missed_at_once(engine, tmp_path) -> None:
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        assert (await answered(engine, home, rollout))[0] == 200
        assert (await ready(home))["ready"] is True
        path = tmp_path / "treering.db"
        path.rename(tmp_path / "elsewhere.db")
        told = await ready(home)
        assert (told["ready"], "was moved or removed" in told["store"]["reason"]) == (False, True)
        status, got, _ = await asked(home, rollout)
        assert (status, json.loads(got)["error"]["code"]) == (503, "store_failed")
        # Another file in its place is not the one.
        path.write_bytes(b"")
        assert (await ready(home))["ready"] is False
        (tmp_path / "elsewhere.db").rename(path)
        assert (await ready(home))["ready"] is True
        assert (await answered(engine, home, rollout))[0] == 200
    assert check(tmp_path / "treering.db").calls == 2


def _spoil(path: Path) -> None:
    """Zero every page but the first, in the file and in what the process has read of it."""
    db = apsw.Connection(str(path))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    page = db.pragma("page_size")
    size = path.stat().st_size
    db.close()
    with path.open("r+b") as file:
        file.seek(page)
        file.write(b"\xff" * (size - page))


async def test_a_clock_that_goes_back_changes_no_order_and_loses_nothing(engine, tmp_path, monkeypatch) -> None:
    now = clock.now
    back = timedelta(0)
    monkeypatch.setattr(clock, "now", lambda: clock.text(clock.parse(now()) - back))
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        turns = ["one"]
        for n in range(4):
            await answered(
                engine, home, rollout, messages=said(*turns),
                reply=whole([5, 6], text=f"reply {n}", prompt=[1, *[2] * n * 4], reply_id=f"chatcmpl-{n}"),
            )  # fmt: skip
            turns += [f"reply {n}", f"turn {n}"]
            back += timedelta(hours=7)
        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [call["n"] for call in graph["calls"]] == [0, 1, 2, 3]
        assert [call["parent"] for call in graph["calls"]] == [None, 0, 1, 2]
        # Durations are by another clock, which cannot go back.
        assert all(call["ended_ms"] >= 0 for call in graph["calls"])
        closed = await home.control("POST", f"/rollouts/{rollout['id']}/close", json={})
        assert closed["rollout"]["state"] == "closed"
        # What closed first stands first, whatever its time says.
        second = await home.rollout()
        back += timedelta(days=400)
        await home.control("POST", f"/rollouts/{second['id']}/close", json={})
        listed = await home.control("GET", "/rollouts?order=closed")
        assert [each["id"] for each in listed["rollouts"]] == [rollout["id"], second["id"]]
    async with house(engine, tmp_path) as home:
        again = await home.graph(rollout)
        assert [call["parent"] for call in again["calls"]] == [None, 0, 1, 2]
    assert check(tmp_path / "treering.db").faults == ()
