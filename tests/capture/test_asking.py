"""The engine's side of a call: asked once, or until one takes it, and let go however it ends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from capture.recorder import Recorder
from tests import tongues
from tests.engine import STREAM, running, whole
from tests.house import House, house
from tests.wire import wired


async def ended(home: House, rollout: dict[str, Any], *statuses: str) -> list[Any]:
    """The rollout's calls, once nothing runs; these must be their statuses, and no place may be taken."""
    async with asyncio.timeout(10):
        await home.appliance.rollouts.drained()
    calls = (await home.graph(rollout))["calls"]
    assert [call["status"] for call in calls] == list(statuses)
    for engine in home.appliance.fleet.engines:
        assert (home.appliance.holds.queue(engine.name).inside, engine.in_flight) == ([], 0)
    return [await home.call(rollout, n) for n in range(len(calls))]


@pytest.mark.parametrize("stream", tongues.STREAMED)
@pytest.mark.parametrize("status", [400, 422, 500])
async def test_an_error_that_breaks_off_is_the_engines_and_is_recorded(
    tmp_path: Path, status: int, stream: bool
) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"error": ')
        assert request.transport is not None
        request.transport.close()
        return response

    async with wired(breaks) as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        got, raw = await tongues.told(home.chat(rollout, stream=stream))
        assert (got, json.loads(raw)["error"]["code"]) == (502, "engine_cut")
        (call,) = await ended(home, rollout, "error")
        assert call["error"]["blame"] in ("engine", "client")


@pytest.mark.parametrize("stream", tongues.STREAMED)
async def test_one_that_is_down_is_passed_over_before_the_first_byte(tmp_path: Path, stream: bool) -> None:
    async with running() as one, running() as other, house(one, tmp_path, also=(f"vllm={other.url}",)) as home:
        rollout = await home.rollout()
        first = home.appliance.fleet.order(rollout["id"], model=None)[0]
        dead, alive = (one, other) if first.url == one.url else (other, one)
        await dead.close()
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(tongues.told(home.chat(rollout, stream=stream)))
            asked = await alive.next()
            asked.send(*STREAM).end() if stream else asked.answer(whole([5, 6, 7]))
        assert reply.result()[0] == 200
        (call,) = await ended(home, rollout, "complete")
        assert call["engine"] == f"vllm={alive.url}"


@pytest.mark.parametrize("stream", tongues.STREAMED)
async def test_whatever_fails_here_the_call_ends(tmp_path: Path, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of our own costs the call, and leaves nothing behind that runs."""

    def fails(self: Recorder, status: int) -> None:
        raise RuntimeError(f"no {status} was ever seen")

    async with running() as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(tongues.told(home.chat(rollout, stream=stream)))
            asked = await engine.next()
            monkeypatch.setattr(Recorder, "answered", fails)
            asked.send(*STREAM).end() if stream else asked.answer(whole([5]))
        status, raw = reply.result()
        assert (status, json.loads(raw)["error"]["code"]) == (500, "internal")
        monkeypatch.undo()
        (call,) = await ended(home, rollout, "error")
        assert call["error"]["blame"] == "treering"
