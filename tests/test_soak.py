"""Two minutes under 20 agents, all in one process: memory, descriptors and tasks stay where they are after warm-up.

    SOAK_S=600 python -m pytest -s tests/test_soak.py        ten minutes, by hand; -s shows the numbers

Agents stream and don't, in two dialects, hang up in the middle, and come again; their rollouts are read, closed with
their sequences, graded, deleted. What they say is drawn from a small set: the caches of what was read before are full
after the warm-up, and whatever grows then grows with the number of calls, which is what a leak is.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from capture.scripted import ScriptedEngine
from tests.house import House, house
from tests.kills import engine as scripted

SOAK_S = float(os.environ.get("SOAK_S", "120"))
AGENTS = 20
SAMPLE_S = 1.0
TEXTS = 12
TURNS = 3

# Of the samples, those that are warm-up.
WARM = 0.4
# Two minutes say no more than this of a slope: small caches (pages of the file, graphs, names) are still filling.
MOST_KIB_PER_S = 40.0
MOST_KIB_PER_S_LONG = 8.0
# A call makes and frees some thousand objects; one that stays behind per call would be some 50 a second.
MOST_OBJECTS_PER_S = 25.0


@dataclass
class Samples:
    """What was seen, one value a second."""

    at: list[float] = field(default_factory=list)
    rss_kib: list[float] = field(default_factory=list)
    objects: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)
    tasks: list[float] = field(default_factory=list)

    def take(self, at: float) -> None:
        self.at.append(at)
        status = Path("/proc/self/status").read_text()
        self.rss_kib.append(int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]))
        self.objects.append(len(gc.get_objects()))
        self.files.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
        self.tasks.append(len(asyncio.all_tasks()))

    def slope(self, values: list[float]) -> float:
        """A second, after the warm-up."""
        first = int(len(values) * WARM)
        return statistics.linear_regression(self.at[first:], values[first:]).slope

    def growth(self, values: list[float]) -> float:
        """The most of the last quarter over the most of the one behind the warm-up."""
        first, quarter = int(len(values) * WARM), max(1, len(values) // 4)
        return max(values[-quarter:]) - max(values[first : first + quarter])


class Talk:
    """20 agents that go on until the time is over."""

    def __init__(self, home: House, until: float) -> None:
        self.home = home
        self.until = until
        self.calls = 0
        self.hung_up = 0

    async def agent(self, number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < self.until:
            rollout = await self.home.rollout(labels={"agent": str(number)}, limits={"max_calls": 50})
            messages: list[dict[str, str]] = []
            for turn in range(TURNS):
                messages.append({"role": "user", "content": f"text {draw.randrange(TEXTS)} at turn {turn}"})
                kind = draw.choice(["stream", "stream", "whole", "messages", "hang up"])
                said = await getattr(self, kind.replace(" ", "_"))(rollout, messages)
                self.calls += 1
                if said is None:
                    messages.pop()
                else:
                    messages.append({"role": "assistant", "content": said})
            await self.end(rollout, draw)

    async def end(self, rollout: dict, draw: random.Random) -> None:
        where = f"/rollouts/{rollout['id']}"
        await self.home.control("GET", f"{where}/graph")
        told = await self.home.control("POST", f"{where}/close", json={"reward": 1.0, "sequences": {}, "wait_s": 5})
        assert told["rollout"]["state"] == "closed"
        if draw.random() < 0.5:
            await self.home.control("DELETE", where, status=204)

    async def stream(self, rollout: dict, messages: list) -> str:
        async with self.home.chat(rollout, messages=messages, stream=True) as answer:
            body = await answer.read()
        assert body.endswith(b"data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
        return "".join(each["delta"].get("content") or "" for event in events for each in event["choices"])

    async def whole(self, rollout: dict, messages: list) -> str:
        async with self.home.chat(rollout, messages=messages) as answer:
            return (await answer.json())["choices"][0]["message"]["content"]

    async def messages(self, rollout: dict, messages: list) -> str:
        ask = {"model": "m", "max_tokens": 400, "messages": messages}
        headers = {"x-api-key": rollout["secret"], "anthropic-version": "2023-06-01"}
        url = rollout["url"] + "/v1/messages"
        async with self.home.session.post(url, json=ask, headers=headers) as answer:
            told = await answer.json()
        return "".join(block["text"] for block in told["content"] if block["type"] == "text")

    async def hang_up(self, rollout: dict, messages: list) -> None:
        async with self.home.chat(rollout, messages=messages, stream=True) as answer:
            await answer.content.readany()
            answer.close()
        self.hung_up += 1


def trim(pad: int) -> None:
    """Have the C library give free pages back, where it knows how."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(pad)


@contextlib.asynccontextmanager
async def running():
    engine: ScriptedEngine = scripted(pace_s=0.001)
    url = await engine.start()
    try:
        yield url
    finally:
        await engine.close()


@pytest.mark.real
@pytest.mark.timeout(SOAK_S + 120)
async def test_memory_descriptors_and_tasks_stay_where_they_are(tmp_path) -> None:
    samples = Samples()
    async with running() as url, house(f"vllm={url}", tmp_path, log_level="warning") as home:
        # No limit on connections of the house's session; agents keep theirs.
        assert isinstance(home.session, aiohttp.ClientSession)
        began = time.monotonic()
        talk = Talk(home, began + SOAK_S)
        async with asyncio.TaskGroup() as group:
            agents = [group.create_task(talk.agent(number)) for number in range(AGENTS)]
            while not all(agent.done() for agent in agents):
                await asyncio.wait(agents, timeout=SAMPLE_S)
                # Of garbage that waits for its collection, and of free pages that the allocator holds, nothing is to
                # be said.
                gc.collect()
                trim(0)
                samples.take(time.monotonic() - began)
        quiet = len(asyncio.all_tasks())
    told = {
        "seconds": round(samples.at[-1]),
        "calls": talk.calls,
        "hung_up": talk.hung_up,
        "rss_mib": [
            round(samples.rss_kib[int(len(samples.at) * WARM)] / 1024, 1),
            round(samples.rss_kib[-1] / 1024, 1),
        ],
        "rss_kib_per_s": round(samples.slope(samples.rss_kib), 2),
        "objects_per_s": round(samples.slope(samples.objects), 2),
        "files": [samples.files[int(len(samples.at) * WARM)], max(samples.files)],
        "tasks": [samples.tasks[int(len(samples.at) * WARM)], max(samples.tasks), quiet],
    }
    print(json.dumps(told))
    # The load was one.
    assert talk.calls > 2 * SOAK_S, told
    assert talk.hung_up > 0, told
    assert samples.slope(samples.rss_kib) < (MOST_KIB_PER_S if SOAK_S < 500 else MOST_KIB_PER_S_LONG), told
    assert samples.slope(samples.objects) < MOST_OBJECTS_PER_S, told
    # Each agent has a connection, and its call one to the engine; what is left over grows beyond that.
    assert samples.growth(samples.files) < AGENTS, told
    assert samples.growth(samples.tasks) < AGENTS, told
    assert quiet < 4 * AGENTS, told
