"""Events and numbers of several processes: what any of them does is told by each, once, and is added up."""

import asyncio
import json
import os
import signal
import sys

import pytest

from capture.tasks import spawn
from tests.capture.test_metrics import samples
from tests.processes import descendants, until
from tests.replicas import Replica, replica

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are counted by ps")


async def events(one: Replica, until_: str, after: str = "0") -> list[dict]:
    """The events of a replica's own stream up to one of that name."""
    found: list[dict] = []
    async with (
        asyncio.timeout(30),
        one.http.get(f"{one.control_url}/events?after={after}", headers=one.headers) as answer,
    ):
        assert answer.status == 200
        block: dict[str, str] = {}
        async for line in answer.content:
            name, colon, value = line.decode().rstrip("\n").partition(": ")
            if colon:
                block[name] = value
            elif "data" in block:
                found.append({"event": block["event"], "id": block["id"], **json.loads(block["data"])})
                # As known when it is read, which is not at one time.
                found[-1].pop("delivered", None)
                block = {}
                if found[-1]["event"] == until_:
                    return found
    raise AssertionError("the stream ended")


async def numbers(one: Replica) -> dict:
    async with one.http.get(one.control_url + "/metrics", headers=one.headers) as answer:
        return samples(await answer.text())


def total(found: dict, name: str) -> float:
    return sum(value for (sample, *_), value in found.items() if sample == name)


async def until_it_is(one: Replica, name: str, wanted: float) -> dict:
    """The numbers, once one of them is so large; workers send theirs every second."""
    async with asyncio.timeout(40):
        while total(found := await numbers(one), name) < wanted:  # noqa: ASYNC110 - no event of the other process comes here
            await asyncio.sleep(0.1)
        return found


async def test_workers_are_told_of_and_added_up_and_one_that_dies_takes_nothing_along(tmp_path):
    words = ("--workers", "2", "--store", f"sqlite:///{tmp_path}/t.db")
    async with replica(tmp_path / "one", "--engine", "scripted", *words) as one:
        rollout = await one.rollout(id="r")

        async def call() -> None:
            # A connection each, so that both workers serve some.
            async with one.chat(rollout) as answer:
                await answer.read()

        await asyncio.gather(*(call() for _ in range(12)))
        found = await until_it_is(one, "treering_calls_total", 12)
        assert total(found, "treering_calls_total") == 12
        assert total(found, "treering_workers") == 2
        # Workers observe; the supervisor, which serves no agent, shows.
        assert total(found, "treering_call_seconds_count") == 12
        for pid in descendants(one.pid, "capture.processes.worker"):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: one.said.count("another is started") >= 2)
        assert total(await numbers(one), "treering_calls_total") == 12
        await until_it_is(one, "treering_workers", 2)
        await call()
        await until_it_is(one, "treering_calls_total", 13)
        await one.control("POST", "/rollouts/r/close", json={})
        told = await events(one, "finding")
        ended = [each["call"] for each in told if each["event"] == "call.ended"]
        assert sorted(ended) == list(range(13))
        assert told[0]["event"] == "rollout.registered"
        assert len({each["id"] for each in told}) == len(told)


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_each_replica_tells_what_both_do_in_one_order(tmp_path, postgres):
    url = await postgres.database()
    given = ("--engine", "scripted", "--store", url)
    async with replica(tmp_path / "one", *given) as one, replica(tmp_path / "two", *given) as two:
        rollout = await one.rollout(id="r")
        await asyncio.gather(*(_called(each, rollout) for each in (one, two) * 6))
        await two.control("POST", "/rollouts/r/close", json={})
        await one.control("DELETE", "/rollouts/r", status=204)
        await one.rollout(id="last")
        of_one, of_two = await asyncio.gather(*(events(each, "rollout.registered") for each in (one, two)))
        # What was of the deleted rollout went with it, at both.
        assert [each["event"] for each in of_one] == ["rollout.deleted", "rollout.registered"]
        assert of_one == of_two
        rollout = await two.rollout(id="s")
        start = of_one[-1]["id"]
        reading = [spawn(events(each, "rollout.closed", start), name="read events") for each in (one, two)]
        await asyncio.gather(*(_called(each, rollout) for each in (one, two) * 8))
        await two.control("POST", "/rollouts/s/close", json={})
        of_one, of_two = await asyncio.gather(*reading)
        assert of_one == of_two
        assert sorted(each["call"] for each in of_one if each["event"] == "call.ended") == list(range(16))
        counted = [total(await numbers(each), "treering_calls_total") for each in (one, two)]
        assert counted == [14.0, 14.0]
    await postgres.drop(url)


async def _called(one: Replica, rollout: dict) -> None:
    async with one.chat(rollout) as answer:
        await answer.read()
        assert answer.status == 200
