"""SIGTERM in the middle of everything: it stops accepting, lets streams end in their time, writes all down, exits 0."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from capture.store.check import check
from tests import engine as engines
from tests.engine import Engine, Exchange, chunk, event, usage_chunk, whole
from tests.served import Served

LIMIT_S = 3.0
WITHIN_S = 30.0


class Scene:
    """A process, an engine under the test's hand, and hands for agents and trainers."""

    def __init__(self, served: Served, engine: Engine, session: aiohttp.ClientSession) -> None:
        self.served = served
        self.engine = engine
        self.session = session

    async def rollout(self, **body: Any) -> dict[str, Any]:
        return await self.control("POST", "/rollouts", json=body, status=201)

    async def control(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        url = self.served.control_url + path
        async with self.session.request(method, url, headers=self.served.headers, **options) as answer:
            body = await answer.read()
            assert answer.status == status, (answer.status, body[:500])
        return json.loads(body) if body else None

    async def chat(self, rollout: dict[str, Any], *, stream: bool, text: str = "hi") -> tuple[int, bytes]:
        """An agent's call: status and body; the body ends with `<cut>` where the connection broke."""
        headers = {"Authorization": f"Bearer {rollout['secret']}"}
        body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}]}
        url = self.served.data_url + "/v1/chat/completions"
        got = b""
        async with self.session.post(url, json=body, headers=headers) as answer:
            try:
                async for data in answer.content.iter_any():
                    got += data
            except aiohttp.ClientPayloadError:
                got += b"<cut>"
            return answer.status, got

    async def begun(self) -> Exchange:
        """The next call at the engine, of which a token has been sent."""
        exchange = await self.engine.next()
        if exchange.body.get("stream"):
            exchange.send(event(chunk(role=True)), event(chunk(5, text="He")))
        return exchange

    async def refused(self, url: str) -> bool:
        """Whether nobody accepts at an address any more."""
        try:
            async with aiohttp.ClientSession() as fresh, fresh.get(url):
                return False
        except aiohttp.ClientConnectionError:
            return True


def finish(exchange: Exchange) -> None:
    if exchange.body.get("stream"):
        exchange.send(event(chunk(6, text="y", finish="stop")), event(usage_chunk(2)), event("[DONE]")).end()
    else:
        exchange.answer(whole([5, 6]))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with engines.running() as engine:
        yield engine


@pytest.fixture
async def scene(engine: Engine, tmp_path) -> AsyncIterator[Scene]:
    # Two at the engine at one time, so that a third waits in the line.
    words = ("--engine", f"vllm={engine.url}", "--shutdown-timeout", str(LIMIT_S), "--max-in-flight", "2")
    served = Served(tmp_path, *words, "--log-level", "warning")
    await served.start()
    timeout = aiohttp.ClientTimeout(total=WITHIN_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Scene(served, engine, session)
    finally:
        await served.close()


async def stored(scene: Scene) -> dict[str, list[tuple[str, list[int] | None]]]:
    """Start it again, and return each rollout's calls: status and sampled ids."""
    await scene.served.start()
    out = {}
    for rollout in (await scene.control("GET", "/rollouts"))["rollouts"]:
        calls = (await scene.control("GET", f"/rollouts/{rollout['id']}/calls?ids=1"))["calls"]
        out[rollout["id"]] = [(call["status"], call.get("sampled_ids")) for call in calls]
    return out


async def stopping(scene: Scene) -> None:
    """Send the signal, and return when both doors are shut."""
    scene.served.signal(signal.SIGTERM)
    async with asyncio.timeout(WITHIN_S):
        for url in (scene.served.data_url + "/healthz", scene.served.control_url + "/health"):
            while not await scene.refused(url):
                pass


async def test_in_the_middle_of_everything(scene: Scene, tmp_path) -> None:
    """Two calls run (a stream and a plain one), one waits in the line, a rollout is being closed, one exported."""
    streamed, plain, queued, closing = [await scene.rollout(id=name) for name in ("s", "p", "q", "c")]
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(scene.chat(streamed, stream=True))
        whole_ = group.create_task(scene.chat(plain, stream=False))
        running = [await scene.begun(), await scene.begun()]
        waiting = group.create_task(scene.chat(queued, stream=True))
        close = group.create_task(scene.control("POST", f"/rollouts/{closing['id']}/close", json={"wait_s": 20}))
        export = group.create_task(scene.control("GET", f"/rollouts/{streamed['id']}/sequences?open=1"))
        register = group.create_task(scene.rollout(id="late"))
        await asyncio.wait([register, close, export])
        await stopping(scene)
        assert scene.served.pid is not None, "it must wait for what runs"
        for exchange in running:
            finish(exchange)
        third = await scene.begun()
        finish(third)
    assert await scene.served.ended(WITHIN_S) == 0
    for status, got in (stream.result(), whole_.result(), waiting.result()):
        assert (status, b"<cut>" in got, b"stop" in got) == (200, False, True), got
    assert close.result()["rollout"]["state"] == "closed"
    assert await stored(scene) == {
        "s": [("complete", [5, 6])], "p": [("complete", [5, 6])], "q": [("complete", [5, 6])], "c": [], "late": [],
    }  # fmt: skip
    assert (await scene.control("GET", "/rollouts/c"))["state"] == "closed"
    assert check(tmp_path / "treering.db").faults == ()


async def test_what_does_not_end_in_its_time_is_cut_and_kept_as_far_as_it_came(scene: Scene, tmp_path) -> None:
    endless, silent = [await scene.rollout(id=name) for name in ("endless", "silent")]
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(scene.chat(endless, stream=True))
        first = await scene.begun()
        plain = group.create_task(_broken(scene.chat(silent, stream=False)))
        second = await scene.begun()
        began = loop.time()
        scene.served.signal(signal.SIGTERM)
        # The engine is let go of both, not left to sample for nobody.
        async with asyncio.timeout(WITHIN_S):
            await first.dropped.wait()
            await second.dropped.wait()
    assert await scene.served.ended(WITHIN_S) == 0
    assert LIMIT_S * 0.9 < loop.time() - began < LIMIT_S + 10
    status, got = stream.result()
    assert (status, got.endswith(b"<cut>"), b"He" in got) == (200, True, True)
    assert plain.result()
    assert await stored(scene) == {"endless": [("aborted", [5])], "silent": [("aborted", None)]}
    assert check(tmp_path / "treering.db").faults == ()


async def _broken(work: Any) -> bool:
    try:
        status, _ = await work
    except aiohttp.ClientError:
        return True
    return status >= 500


async def test_with_nothing_to_wait_for_it_ends_at_once(scene: Scene) -> None:
    """Idle connections, of agents that run tools and of pools, hold nothing up."""
    rollout = await scene.rollout()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(scene.chat(rollout, stream=True))
        finish(await scene.begun())
    assert call.result()[0] == 200
    began = asyncio.get_running_loop().time()
    scene.served.signal(signal.SIGTERM)
    assert await scene.served.ended(WITHIN_S) == 0
    assert asyncio.get_running_loop().time() - began < LIMIT_S


async def test_who_only_waits_for_news_is_told_that_there_are_none(scene: Scene) -> None:
    """A trainer that always waits for a rollout's close would make every stop take the whole of its time."""
    rollout = await scene.rollout()
    async with asyncio.TaskGroup() as group:
        url = f"{scene.served.control_url}/rollouts/{rollout['id']}?wait=closed&timeout_s=25"
        waiting = group.create_task(_status(scene.session.get(url, headers=scene.served.headers)))
        # Its request is being served when the next one is answered.
        await scene.control("GET", "/health")
        began = asyncio.get_running_loop().time()
        scene.served.signal(signal.SIGTERM)
        assert await scene.served.ended(WITHIN_S) == 0
        assert asyncio.get_running_loop().time() - began < LIMIT_S
    assert waiting.result() in (204, None)


async def _status(context: Any) -> int | None:
    try:
        async with context as answer:
            return answer.status
    except aiohttp.ClientError:
        return None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 128 + 2)])
async def test_a_second_signal_ends_it_at_once_and_loses_nothing_that_ended(
    scene: Scene, tmp_path, number, code
) -> None:
    done, endless = [await scene.rollout(id=name) for name in ("done", "endless")]
    async with asyncio.TaskGroup() as group:
        answered = group.create_task(scene.chat(done, stream=True))
        finish(await scene.begun())
    assert answered.result()[0] == 200
    async with asyncio.TaskGroup() as group:
        group.create_task(_broken(scene.chat(endless, stream=True)))
        await scene.begun()
        # A start rides with the next commit; who reads waits for that.
        (call,) = (await scene.control("GET", "/rollouts/endless/calls"))["calls"]
        assert call["status"] == "running"
        await stopping(scene)
        scene.served.signal(number)
        assert await scene.served.ended(WITHIN_S) == code
    kept = await stored(scene)
    assert kept["done"] == [("complete", [5, 6])]
    assert [status for status, _ in kept["endless"]] == ["aborted"]
    assert check(tmp_path / "treering.db").faults == ()
