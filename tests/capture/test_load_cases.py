"""Large, long and many: faults of size and time that users of such systems have met."""

import asyncio
import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from capture import admission
from tests.engine import STREAM, chunk, event, whole
from tests.house import ASK, House, house
from tests.playbook import case
from tests.wire import WireEngine, wired

MIB = 2**20


class Sink(WireEngine):
    """An engine that compares a body with what it should begin with, piece by piece, and keeps no copy."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = b""
        self.matched = 0
        self.rest = b""

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if not self.wanted:
            return await super()._chat(request)
        self.matched, self.rest = 0, b""
        async for piece in request.content.iter_any():
            left = len(self.wanted) - self.matched
            if self.wanted.startswith(piece[:left], self.matched):
                self.matched += len(piece[:left])
                self.rest += piece[left:]
        return web.json_response(whole([5]))


class Pulse:
    """How long the event loop was held up at most, in ms, by what this process does: other processes don't count."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def __aenter__(self) -> "Pulse":
        self._loop = asyncio.get_running_loop()
        self._last = self._now()
        self._beat()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._beat()
        self._timer.cancel()

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), time.process_time()

    def _beat(self) -> None:
        now = self._now()
        passed, worked = (after - before for after, before in zip(now, self._last, strict=True))
        self.longest_ms = max(self.longest_ms, min(passed, worked) * 1000)
        self._last = now
        self._timer = self._loop.call_later(0.005, self._beat)


async def pieces(body: bytes):
    for at in range(0, len(body), 2**18):
        yield body[at : at + 2**18]


@pytest.mark.parametrize("mib", case(83)["generate"]["N"])
async def test_case_83_a_large_request_passes_whole_and_holds_up_nobody(tmp_path: Path, mib: float) -> None:
    expected = case(83)["expected"]
    size = int(mib * MIB)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * (size // 4)}}
    content = [{"type": "text", "text": "word " * (size // 5)}, picture]
    asked = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
    body = json.dumps(asked, separators=(",", ":")).encode()
    engine = Sink()
    await engine.start()
    try:
        async with house(engine, tmp_path) as home:
            rollout = await home.rollout()
            engine.wanted = body.removesuffix(b"}")
            headers = {"Authorization": f"Bearer {rollout['secret']}", "Content-Type": "application/json"}
            # What thousands of other tests left is collected here, and not in the middle: with millions of objects it
            # takes half a second.
            gc.collect()
            async with Pulse() as pulse:
                url = rollout["base_url"] + "/chat/completions"
                async with home.session.post(url, data=pieces(body), headers=headers) as answer:
                    assert answer.status == expected["status"]
            assert (engine.matched == len(engine.wanted)) == expected["upstream_body_equals"]
            added = json.loads(b"{" + engine.rest.removeprefix(b","))
            assert added == {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
            assert pulse.longest_ms < expected["event_loop_blocked_ms_max"]
    finally:
        await engine.close()


async def test_an_agent_that_leaves_while_its_large_request_is_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent, but the call has its number: it is recorded, and holds no place."""
    begun, go_on = threading.Event(), threading.Event()
    admit = admission.admit

    def slowly(*args: Any, **rest: Any) -> admission.Admitted:
        begun.set()
        assert go_on.wait(10)
        return admit(*args, **rest)

    monkeypatch.setattr(admission, "admit", slowly)
    async with wired() as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        body = json.dumps({**ASK, "user": "x" * MIB}).encode()
        headers = {"Authorization": f"Bearer {rollout['secret']}"}
        asking = home.session.post(rollout["base_url"] + "/chat/completions", data=pieces(body), headers=headers)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asking
        assert begun.is_set()
        live = next(iter(home.appliance.rollouts._live.values()))
        await home.idle(rollout)
        go_on.set()
        call = await home.call(rollout, 0)
        assert (call["status"], call["delivered"], call["error"]["blame"]) == ("aborted", False, "client")
        assert (engine.seen, live.running) == ([], {})


async def test_case_84_no_limit_is_on_the_whole_of_a_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the case's times: a stream of 0.5 s, and a head after 0.5 s, where the library's default is 0.2 s."""
    expected = case(84)["expected"]
    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.2, sock_connect=0.2))

    async def slow(request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            await asyncio.sleep(0.5)
            return web.json_response(whole([5]))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in STREAM[:-1]:
            await response.write(piece)
            await asyncio.sleep(0.1)
        await response.write(STREAM[-1])
        return response

    async with wired(slow) as engine, house(engine, tmp_path) as home:
        session = home.appliance.engine._session
        assert session is not None
        assert session.timeout.total == expected["session_timeout_total"]
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            streamed = both.create_task(read(home, rollout, stream=True))
            plain = both.create_task(read(home, rollout))
        got = [streamed.result().endswith(b"data: [DONE]\n\n"), json.loads(plain.result())["id"] == "chatcmpl-1"]
        assert got == [expected["both_succeed"]] * 2
        # The patch bites: a session without a limit of its own is cut.
        async with aiohttp.ClientSession() as bare:
            with pytest.raises(TimeoutError):
                await bare.post(engine.url + "/v1/chat/completions", json={**ASK, "n": 1})


async def read(home: House, rollout: dict, **body) -> bytes:
    async with home.chat(rollout, **body) as answer:
        assert answer.status == 200
        return await answer.read()


async def test_case_85_all_calls_are_at_the_engine_at_once(tmp_path: Path) -> None:
    found = case(85)
    count = found["generate"]["concurrent_streams"]
    open_now = most = 0
    all_here = asyncio.Event()

    async def holds(request: web.Request) -> web.StreamResponse:
        nonlocal open_now, most
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(chunk(role=True)))
        open_now += 1
        most = max(most, open_now)
        if open_now == count:
            all_here.set()
        async with asyncio.timeout(20):
            await all_here.wait()
        await response.write(b"".join(STREAM[1:]))
        open_now -= 1
        return response

    async with wired(holds) as engine, house(engine, tmp_path) as home:
        rollouts = [await home.rollout() for _ in range(10)]
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            agents = House(home.appliance, session)
            async with asyncio.TaskGroup() as all_:
                replies = [all_.create_task(read(agents, rollouts[i % 10], stream=True)) for i in range(count)]
        assert most == found["expected"]["max_simultaneous_at_engine"]
        assert {reply.result()[-14:] for reply in replies} == {b"data: [DONE]\n\n"}
        assert sum([len((await home.graph(rollout))["calls"]) for rollout in rollouts]) == count
