"""Open rollouts that nobody asks for leave memory, and nothing that an agent or a trainer sees tells of it."""

import asyncio
import functools
from pathlib import Path

import pytest

from capture import rollouts
from capture.live import Live
from tests.house import House, house

ASK = {"model": "m", "temperature": 0.0, "max_tokens": 8}


@pytest.fixture(autouse=True)
def _looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "LOOK_EVERY_S", 0.001)


async def slept(home: House, rollout: dict) -> Live:
    """Return a rollout as it lies in memory, once it sleeps."""
    live: Live = home.appliance.rollouts._live[rollout["id"]]
    async with asyncio.timeout(10):
        while not live.asleep:  # noqa: ASYNC110  it is looked at by a loop, which tells nobody
            await asyncio.sleep(0)
    return live


async def say(home: House, rollout: dict, messages: list, **more) -> dict:
    """Ask with one more message, and note the reply behind it."""
    messages.append({"role": "user", "content": f"Step {len(messages)}."})
    async with home.chat(rollout, messages=messages, **{**ASK, **more}) as answer:
        assert answer.status == 200
        body = await answer.json()
    messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
    return body


@pytest.mark.parametrize("tokens", ["engine", "pinned"])
async def test_a_rollout_that_slept_between_all_calls_is_as_one_that_never_did(tmp_path: Path, tokens: str) -> None:
    async with house("scripted", tmp_path, sleep_after=0.0) as home:
        made = {}
        for name in ("slept", "stayed"):
            rollout = await home.rollout(id=name, tokens=tokens, limits={"max_prompt_tokens": 4000})
            messages: list = [{"role": "system", "content": "Be brief."}]
            for _ in range(5):
                await say(home, rollout, messages)
                if name == "slept":
                    live = await slept(home, rollout)
                    assert len(live.trie) == 0
            await home.idle(rollout)
            graph = await home.graph(rollout)
            made[name] = [
                [call[field] for field in ("n", "status", "link", "parent", "n_prompt", "n_sampled", "pinned")]
                for call in graph["calls"]
            ]
            made[name].append(graph["findings"])
        assert made["slept"] == made["stayed"]
        wanted = "exact" if tokens == "pinned" else "drift"
        assert [row[2] for row in made["slept"][:-1]] == ["root", *[wanted] * 4]


async def test_limits_retries_and_idle_time_outlast_it(tmp_path: Path) -> None:
    async with house("scripted", tmp_path, sleep_after=0.0) as home:
        rollout = await home.rollout(id="r", limits={"max_calls": 2})
        messages: list = []
        await say(home, rollout, messages)
        await slept(home, rollout)

        async def keyed() -> str:
            headers = {"Authorization": f"Bearer {rollout['secret']}", "Idempotency-Key": "k1"}
            ask = {**ASK, "messages": [{"role": "user", "content": "Keyed."}]}
            url = rollout["base_url"] + "/chat/completions"
            async with home.session.post(url, json=ask, headers=headers) as answer:
                return (await answer.json())["id"]

        first = await keyed()
        live = await slept(home, rollout)
        since = live.idle_since
        assert await keyed() == first
        assert (await slept(home, rollout)).idle_since == since
        # Waiting for idleness doesn't wake it, and counts from its last call.
        await home.control("GET", "/rollouts/r?wait=idle&idle_s=0&timeout_s=1")
        assert live.asleep
        body = await say(home, rollout, messages)
        assert "max_calls" in body["choices"][0]["message"]["content"]
        graph = await home.graph(rollout)
        assert [call["status"] for call in graph["calls"]] == ["complete", "complete", "stopped"]


async def test_many_that_come_at_once_wake_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house("scripted", tmp_path, sleep_after=0.0) as home:
        rollout = await home.rollout(id="r")
        await say(home, rollout, [])
        live = await slept(home, rollout)
        # From here on it stays awake.
        monkeypatch.setattr(home.appliance.rollouts, "_sleep_after_s", 1000.0)
        reads = []
        calls = home.appliance.store.calls

        @functools.wraps(calls)
        async def counted(name: str, **more):
            reads.append(name)
            return await calls(name, **more)

        monkeypatch.setattr(home.appliance.store, "calls", counted)
        async with asyncio.TaskGroup() as group:
            for n in range(8):
                group.create_task(say(home, rollout, [{"role": "system", "content": f"Agent {n}."}]))
        assert reads == ["r"]
        assert len(live.trie) == 9


async def test_a_slow_body_keeps_its_rollout_awake(tmp_path: Path) -> None:
    async with house("scripted", tmp_path, sleep_after=0.0) as home:
        rollout = await home.rollout(id="r")
        await say(home, rollout, [])
        live = await slept(home, rollout)
        host, port = rollout["url"].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "Slow."}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body[:20])
        async with asyncio.timeout(10):
            while not live.is_visited:  # noqa: ASYNC110  the head has no other sign of having come
                await asyncio.sleep(0)
            for _ in range(200):
                await asyncio.sleep(0.0001)
            assert not live.asleep
            writer.write(body[20:])
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await slept(home, rollout)
        assert [call["status"] for call in (await home.graph(rollout))["calls"]] == ["complete"] * 2
