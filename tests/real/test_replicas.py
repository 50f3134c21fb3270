"""Two replicas over one PostgreSQL, behind the HAProxy that docs/scale.md shows: one appliance, whatever is killed.

HAProxy runs the very text of the page.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests import haproxy
from tests.engine import STREAM, Engine, running, whole
from tests.replicas import Replica, replica

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


class Site:
    """Both replicas, and the balancer's two addresses."""

    def __init__(self, one: Replica, two: Replica, agents: str, trainers: str) -> None:
        self.one, self.two = one, two
        self.agents, self.trainers = agents, trainers

    async def control(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        """Ask the control plane through the balancer."""
        url = self.trainers + path
        async with self.one.http.request(method, url, headers=self.one.headers, **options) as answer:
            body = await answer.read()
            assert answer.status == status, (answer.status, body[:500])
        return json.loads(body) if body else None

    def chat(self, rollout: dict[str, Any], **body: Any) -> Any:
        """Send an agent's chat request through the balancer."""
        return self.one.chat(rollout, url=self.agents, **body)

    @property
    def both(self) -> tuple[Replica, Replica]:
        return self.one, self.two


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running() as one:
        yield one


@contextlib.asynccontextmanager
async def site(folder: Path, store: str, *words: str) -> AsyncIterator[Site]:
    """Two replicas behind the balancer."""
    if reason := haproxy.missing():
        pytest.skip(reason)
    given = ("--store", store, *words)
    async with replica(folder / "one", *given) as one, replica(folder / "two", *given) as two:
        agents, trainers = haproxy.free_port(), haproxy.free_port()
        config = haproxy.filled(
            haproxy.documented(),
            {
                ":8400": f"127.0.0.1:{agents}",
                ":8401": f"127.0.0.1:{trainers}",
                "10.0.0.1:8400": one.data_url.removeprefix("http://"),
                "10.0.0.2:8400": two.data_url.removeprefix("http://"),
                "10.0.0.1:8401": one.control_url.removeprefix("http://"),
                "10.0.0.2:8401": two.control_url.removeprefix("http://"),
            },
        )
        async with haproxy.running(folder / "haproxy", config, ports=(agents, trainers)):
            yield Site(one, two, f"http://127.0.0.1:{agents}", f"http://127.0.0.1:{trainers}")


async def begun(here: Site, asking: Any, engine: Engine) -> tuple[aiohttp.ClientResponse, Any]:
    """A stream whose agent has seen its first token, and the engine's hand on it."""
    task = asyncio.get_running_loop().create_task(asking.__aenter__())
    exchange = await engine.next()
    exchange.send(*STREAM[:2])
    answer = await task
    here.one.opened.append(answer)
    seen = b""
    while b"Hel" not in seen:
        seen += await answer.content.readany()
    return answer, exchange


async def test_the_documented_balancer_carries_everything(tmp_path, postgres, engine):
    """Either control plane, any key in any place, streams as they come, a hang-up as it happens."""
    async with site(tmp_path, await postgres.database(), "--engine", f"vllm={engine.url}") as here:
        nonces = []
        for url in (here.one.data_url, here.two.data_url, here.agents):
            async with here.one.http.get(url + "/healthz") as answer:
                nonces.append((await answer.json())["nonce"])
        assert len(set(nonces)) == 1, "they are one appliance, so a tunnel to any of them may lead through the balancer"
        rollout = await here.control("POST", "/rollouts", json={"limits": {"max_calls": 6}}, status=201)
        secret = rollout["secret"]
        ways = [
            ("/v1/chat/completions", {"Authorization": f"Bearer {secret}"}),
            ("/v1/chat/completions", {"api-key": secret}),
            ("/v1/messages", {"x-api-key": secret}),
            ("/v1beta/models/tiny:generateContent", {"x-goog-api-key": secret}),
            (f"/v1/chat/completions?key={secret}", {}),
            (f"/r/{secret}/v1/chat/completions", {}),
        ]
        bodies = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
        chat = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        for n, (path, headers) in enumerate(ways):
            body = bodies if "generateContent" in path else chat
            asked = asyncio.get_running_loop().create_task(
                here.one.http.post(here.agents + path, json=body, headers=headers).__aenter__()
            )

            (await engine.next()).answer(whole([5, 6], reply_id=f"chatcmpl-{n}"))
            async with await asked as answer:
                assert answer.status == 200, (path, await answer.text())
        # The seventh is one too many, whichever replica it reaches.
        for one in here.both:
            async with one.chat(rollout) as answer:
                assert "limit" in await answer.text()
        graph = await here.control("GET", f"/rollouts/{rollout['id']}/graph")
        assert [(call["n"], call["status"]) for call in graph["calls"]] == [
            *((n, "complete") for n in range(6)), (6, "stopped"), (7, "stopped"),
        ]  # fmt: skip
        # A stream comes as it is sent, and a hang-up reaches the engine.
        other = await here.control("POST", "/rollouts", json={}, status=201)
        answer, exchange = await begun(here, here.chat(other, stream=True), engine)
        answer.close()
        async with asyncio.timeout(2):
            await exchange.dropped.wait()
        # So it does while nothing has come yet.
        asking = asyncio.get_running_loop().create_task(here.chat(other).__aenter__())
        exchange = await engine.next()
        asking.cancel()
        async with asyncio.timeout(2):
            await exchange.dropped.wait()


async def queued(one: Replica, n: int) -> None:
    """Wait until so many calls wait for their engine there."""
    async with asyncio.timeout(20):
        while (await one.control("GET", "/engines"))["engines"][0]["queued"] < n:  # noqa: ASYNC110 - it sends no event
            await asyncio.sleep(0.02)


async def test_pauses_and_closes_hold_on_both(tmp_path, postgres, engine):
    async with site(tmp_path, await postgres.database(), "--engine", f"vllm={engine.url}") as here:
        rollout = await here.control("POST", "/rollouts", json={}, status=201)
        name = (await here.one.control("GET", "/engines"))["engines"][0]["name"]
        answer, exchange = await begun(here, here.two.chat(rollout, stream=True), engine)
        refused = await here.one.control("POST", "/engine/pause", json={"wait_s": 0}, status=409)
        assert refused["error"]["code"]
        exchange.send(*STREAM[2:]).end()
        await answer.read()
        await here.one.control("POST", "/engine/pause", json={"wait_s": 20})
        await here.one.control("POST", "/engine/weights", json={"version": "step-2"})
        held = [asyncio.get_running_loop().create_task(one.chat(rollout).__aenter__()) for one in here.both]
        for one in here.both:
            await queued(one, 1)
        assert engine.calls.empty()
        await here.two.control("POST", "/engine/resume", json={})

        for n in range(2):
            (await engine.next()).answer(whole([5], reply_id=f"chatcmpl-held-{n}"))
        for task in held:
            async with await task as answer:
                assert answer.status == 200
        calls = (await here.two.graph(rollout))["calls"]
        assert [call["weights"]["start"] for call in calls] == [None, "step-2", "step-2"]
        assert {call["engine"] for call in calls} == {name}
        # A call that the other one runs is waited for, and cut in the end.
        answer, exchange = await begun(here, here.two.chat(rollout, stream=True), engine)
        closed = await here.one.control("POST", f"/rollouts/{rollout['id']}/close", json={"wait_s": 0.2})
        assert closed["rollout"]["state"] == "closed"
        assert exchange.dropped.is_set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
        for one in here.both:
            async with one.chat(rollout) as answer:
                assert answer.status == 401
        assert (await here.two.graph(rollout))["calls"][-1]["status"] == "aborted"


async def test_a_replica_killed_in_the_middle_of_it_loses_nothing(tmp_path, postgres):
    """Agents talk through the balancer and try again after a break; one replica is killed -9, and comes back.

    Each replica has two workers, which die with it.
    """
    turns, agents = 8, 12
    async with site(tmp_path, await postgres.database(), "--engine", "scripted", "--workers", "2") as here:
        rollouts = [
            await here.control("POST", "/rollouts", json={"limits": {"max_calls": 3 * turns}}, status=201)
            for _ in range(agents)
        ]
        # Each agent has one call at a time, so at most one is lost with the replica.
        ended: dict[str, set[str]] = {rollout["id"]: set() for rollout in rollouts}
        said = asyncio.Event()

        async def agent(rollout: dict[str, Any]) -> int:
            breaks = 0
            messages = [{"role": "user", "content": "Begin."}]
            while len(messages) < 2 * turns:
                try:
                    async with here.chat(rollout, messages=messages, stream=True) as answer:
                        if answer.status != 200:
                            raise aiohttp.ClientPayloadError(f"{answer.status} {await answer.text()}")
                        text, reply, done = await _read(answer)
                except (aiohttp.ClientError, ConnectionError, TimeoutError):
                    breaks += 1
                    assert breaks < 60, "a replica is there all the time"
                    await asyncio.sleep(0.1)
                    continue
                if done:
                    ended[rollout["id"]].add(reply)
                    said.set()
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Go on {breaks}."}]
            return breaks

        talking = [asyncio.get_running_loop().create_task(agent(rollout)) for rollout in rollouts]
        await said.wait()
        await here.two.kill()
        await asyncio.sleep(1.0)
        await here.two.start()
        breaks = await asyncio.gather(*talking)
        assert sum(breaks) > 0, "it was killed in the middle of something"
        for rollout in rollouts:
            for one in here.both:
                graph = await one.graph(rollout)
                calls = graph["calls"]
                # A call whose process died before it began has a number, and nothing else.
                numbers = [call["n"] for call in calls]
                assert numbers == sorted(set(numbers))
                assert numbers[-1] < len(numbers) + 1
                complete = {call["id"] for call in calls if call["status"] == "complete"}
                assert ended[rollout["id"]] <= complete
                assert {call["status"] for call in calls} <= {"complete", "aborted"}


async def _read(answer: aiohttp.ClientResponse) -> tuple[str, str, bool]:
    """A stream's text, its id, and whether its finish was seen."""
    text, reply, done = "", "", False
    async for line in answer.content:
        if not line.startswith(b"data: {"):
            continue
        told = json.loads(line[6:])
        reply = told["id"]
        for choice in told["choices"]:
            text += choice["delta"].get("content") or ""
            done = done or choice["finish_reason"] is not None
    return text, reply, done
