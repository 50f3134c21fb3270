"""Many at once against the real process: 1,000 streams open together, and more connections than it may have files."""

import asyncio
import json
import resource
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capture.store.check import check
from tests import engine as engines
from tests.engine import Engine, chunk, event, usage_chunk
from tests.served import Served

STREAMS = 1_000
WITHIN_S = 60.0
FILES = 80


@pytest.fixture
async def engine():
    async with engines.running() as engine:
        yield engine


@pytest.fixture
async def session():
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=WITHIN_S)) as session:
        yield session


async def register(served: Served, session: aiohttp.ClientSession, n: int) -> list[dict[str, Any]]:
    async with session.post(served.control_url + "/rollouts", json={"n": n}, headers=served.headers) as answer:
        assert answer.status == 201, await answer.text()
        made = await answer.json()
    return made["rollouts"] if n > 1 else [made]


def ask(n: int, *, stream: bool = True) -> dict[str, Any]:
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": f"agent {n}"}]}


async def told(served: Served, session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(served.control_url + path, headers=served.headers) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def files_of(served: Served) -> int:
    return sum(1 for _ in Path(f"/proc/{served.pid}/fd").iterdir())


def peak_mib(served: Served) -> float:
    status = Path(f"/proc/{served.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def rest(n: int) -> tuple[bytes, ...]:
    """The end of agent n's reply: two ids that are its own."""
    return event(chunk(n, text="b")), event(chunk(n + 1, finish="stop")), event(usage_chunk(3)), event("[DONE]")


async def test_a_thousand_streams_are_open_at_one_time_and_each_is_kept(engine: Engine, session, tmp_path) -> None:
    served = Served(tmp_path, "--engine", f"vllm={engine.url}", "--log-level", "warning")
    await served.start()
    rollouts = await register(served, session, STREAMS)
    began = asyncio.Event()
    begun = 0

    async def agent(n: int) -> tuple[bytes, bytes]:
        nonlocal begun
        headers = {"Authorization": f"Bearer {rollouts[n]['secret']}"}
        async with session.post(served.data_url + "/v1/chat/completions", json=ask(n), headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            first = await answer.content.readuntil(b"\n\n")
            begun += 1
            if begun == STREAMS:
                began.set()
            return first, await answer.content.read()

    try:
        async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
            agents = [group.create_task(agent(n)) for n in range(STREAMS)]
            exchanges = {}
            for _ in range(STREAMS):
                exchange = await engine.next()
                n = int(exchange.body["messages"][0]["content"].split()[1])
                exchanges[n] = exchange.send(event(chunk(role=True)), event(chunk(1, text="a")))
            # All of them hold the beginning of their reply, and not one has its end.
            await began.wait()
            for n, exchange in exchanges.items():
                exchange.send(*rest(n)).end()
        for task in agents:
            assert task.result()[1].endswith(b"data: [DONE]\n\n")
        for n, rollout in enumerate(rollouts):
            calls = (await told(served, session, f"/rollouts/{rollout['id']}/calls?ids=1"))["calls"]
            assert [(call["status"], call["sampled_ids"]) for call in calls] == [("complete", [1, n, n + 1])]
        # A stream costs what it holds, some tens of KiB.
        assert peak_mib(served) < 500
        served.signal(signal.SIGTERM)
        assert await served.ended() == 0
    finally:
        await served.close()
    report = check(tmp_path / "treering.db")
    assert (report.faults, report.calls) == ((), STREAMS)


async def test_more_connections_than_it_may_have_files_cost_nothing_that_was_seen_to_end(
    engine: Engine, session, tmp_path
) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))

    served = Served(tmp_path, "--engine", f"vllm={engine.url}", "--log-level", "error", before=few)
    await served.start()
    assert files_of(served) < FILES
    rollouts = await register(served, session, FILES * 2)

    async def agent(n: int) -> str:
        """What came of a call: the end of it, an error with its status, or a broken connection."""
        headers = {"Authorization": f"Bearer {rollouts[n]['secret']}"}
        try:
            async with session.post(served.data_url + "/v1/chat/completions", json=ask(n), headers=headers) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return "broken"
        if answer.status != 200:
            assert json.loads(body)["error"]["code"]
            return str(answer.status)
        return "ended" if b'"finish_reason": "stop"' in body or b'"finish_reason":"stop"' in body else "broken"

    async def reply() -> None:
        while True:
            exchange = await engine.next()
            n = int(exchange.body["messages"][0]["content"].split()[1])
            exchange.send(event(chunk(role=True)), event(chunk(1, text="a")), *rest(n)).end()

    try:
        async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
            replying = group.create_task(reply())
            agents = [group.create_task(agent(n)) for n in range(len(rollouts))]
            await asyncio.wait(agents)
            replying.cancel()
        came = [task.result() for task in agents]
        assert set(came) <= {"ended", "broken", "502", "503"}, came
        assert came.count("ended") > 0
        assert set(came) != {"ended"}, "the limit was not met: the test shows nothing"
        # It has not died of it, and has all that was seen to end.
        for n, rollout in enumerate(rollouts):
            if came[n] == "ended":
                calls = (await told(served, session, f"/rollouts/{rollout['id']}/calls?ids=1"))["calls"]
                assert [(call["status"], call["sampled_ids"]) for call in calls] == [("complete", [1, n, n + 1])]
        ready = await told(served, session, "/ready")
        assert ready["ready"] is True
    finally:
        await session.close()
        await served.close()
    assert check(tmp_path / "treering.db").faults == ()
