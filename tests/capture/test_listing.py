"""The list and the sums over HTTP."""

import asyncio
import json

import aiohttp
import msgspec
import pytest

from capture import answers, clock, summaries
from capture.tasks import spawn
from tests.plane import KEY, control_plane

NOW = "2026-03-01T00:00:00.000Z"


@pytest.fixture
async def plane(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: NOW)
    async with control_plane(tmp_path) as plane:
        yield plane


async def add(plane, name, **fields):
    await plane.rollouts.register({"id": name, **fields}, key=None, digest=name)


async def from_graphs(plane, *names):
    """The rows that the list has to have, from each rollout's graph."""
    graphs = [await plane.rollouts.aside(name) for name in names]
    return [json.loads(answers.encode(summaries.row(graph, now=NOW), packed=False)) for graph in graphs]


@pytest.fixture
async def ask(plane):
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:

        async def ask(path, **headers):
            async with session.get(plane.url + path, headers=headers) as answer:
                body = await answer.read()
                if answer.content_type == answers.MSGPACK:
                    return answer.status, msgspec.msgpack.decode(body)
                return answer.status, json.loads(body)

        yield ask


async def test_the_list_and_the_sums(plane, ask):
    await add(plane, "a", group="g", labels={"split": "train"})
    await add(plane, "b", group="g", labels={"split": "test"})
    await plane.call("a", 0, [1, 2], [3])
    await plane.rollouts.close_rollout("a", wait_s=0.0)
    await plane.rollouts.reward("a", {"reward": 1.0})
    expected = await from_graphs(plane, "a", "b")
    assert await ask("/rollouts") == (200, {"rollouts": expected, "next": None})
    assert (await ask("/rollouts", Accept=answers.MSGPACK))[1]["rollouts"] == expected
    assert await ask("/rollouts?order=-created&limit=1") == (200, {"rollouts": expected[1:], "next": "-c2"})
    assert await ask("/rollouts?q=TRAIN&label=split:train&state=closed&trouble=0") == (
        200, {"rollouts": expected[:1], "next": None},
    )  # fmt: skip
    status, sums = await ask("/overview?group=g")
    assert status == 200
    assert set(sums) == {
        "rollouts", "open", "closed", "running", "no_calls", "incomplete", "stopped", "graded", "ungraded",
        "drifted", "trouble",
        "findings", "reward", "calls", "sampled_tokens", "groups", "labels", "stale", "as_of",
    }  # fmt: skip
    assert (sums["rollouts"], sums["open"], sums["closed"], sums["calls"], sums["sampled_tokens"]) == (2, 1, 1, 1, 1)
    assert sums["reward"] == {"n": 1, "mean": 1.0, "min": 1.0, "max": 1.0}
    assert sums["labels"] == [{"name": "split", "values": ["test", "train"]}]
    assert [group["group"] for group in sums["groups"]] == ["g"]
    assert {one["severity"] for one in sums["findings"]} <= {"info", "warn", "error"}
    assert sums["as_of"] == NOW


async def test_a_row_says_what_was_asked_and_within_which_limits(plane, ask):
    await add(plane, "a", task={"text": "Make the\ntests pass.", "private": {"answer": "42"}}, limits={"max_calls": 7})
    await add(plane, "b")
    rows = (await ask("/rollouts"))[1]["rollouts"]
    assert [(row["task"], row["limits"]) for row in rows] == [("Make the tests pass.", {"max_calls": 7}), (None, {})]
    # Who knows of a rollout no more than that finds it by it.
    assert [row["id"] for row in (await ask("/rollouts?q=the%20TESTS"))[1]["rollouts"]] == ["a"]


async def test_a_few_that_are_behind_are_read_before_the_sums(plane, ask):
    await add(plane, "a")
    await plane.call("a", 0, [1, 2], [3])
    sums = (await ask("/overview"))[1]
    assert (sums["stale"], sums["calls"]) == (0, 1)


async def test_what_is_behind_is_read_behind_the_sums(plane, ask, monkeypatch):
    monkeypatch.setattr(summaries, "MOST_FIRST", 0)
    await add(plane, "a")
    assert (await ask("/overview"))[1]["stale"] == 1
    async with asyncio.timeout(30):
        reading = spawn(plane.lookout.read(), name="examine")
        await plane.lookout.examined()
        reading.cancel()
    assert (await ask("/overview"))[1]["stale"] == 0


@pytest.mark.parametrize(
    "query",
    ["finding=none", "trouble=yes", "q=", "order=-closed", "order=newest", "state=idle", "finding=drift&finding=x"],
)
async def test_a_query_that_cannot_be_taken(ask, query):
    status, said = await ask(f"/rollouts?{query}")
    assert (status, said["error"]["code"]) == (422, "invalid_query")


@pytest.mark.parametrize("query", ["order=created", "limit=5", "after=cr1"])
async def test_sums_have_no_pages(ask, query):
    assert (await ask(f"/overview?{query}"))[0] == 422
