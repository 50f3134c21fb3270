"""A call's passage through every fault, at each byte, on either side of Treering.

What is promised, whatever breaks and wherever:
1. What an agent gets is a prefix of what it would have got, and it ends cleanly only if all of it came.
2. If an agent saw the reply's end, the record is complete, id by id.
3. Every call is recorded as what it was; nothing of it runs on, and its place at the engine is free again.
"""

import asyncio
import contextlib
import gc
import json
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from capture import passage
from tests import tongues
from tests.engine import STREAM, Engine, Exchange, _answer_probe, chunk, event, running, whole
from tests.faults import FaultProxy, faulty
from tests.house import ASK, House, house
from tests.wire import wired

IDS = [5, 6, 7]


SHORT = [
    event('{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2]}'),
    event(
        '{"id":"c","choices":[{"index":0,"delta":{"content":"Hello"},"token_ids":[5,6],"logprobs":{"content":'
        '[{"token":"a","logprob":-1},{"token":"b","logprob":-1}]}}]}'
    ),
    event(
        '{"id":"c","choices":[{"index":0,"delta":{},"token_ids":[7],"logprobs":{"content":'
        '[{"token":"c","logprob":-1}]},"finish_reason":"stop"}]}'
    ),
    event('{"id":"c","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}'),
    event("[DONE]"),
]
"""A stream with few bytes, all of which are tried."""


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


def answer(exchange: Exchange) -> bool:
    """Answer at once, in the mode that was asked for."""
    if not _answer_probe(exchange):
        if exchange.body.get("user") == "short":
            exchange.send(*SHORT).end()
        elif exchange.body.get("stream"):
            exchange.send(*STREAM).end()
        else:
            exchange.answer(whole(IDS, text="Hello"))
    return True


class Got(NamedTuple):
    """What an agent got: 0 for no status, and whether it ended cleanly."""

    status: int
    body: bytes
    clean: bool


async def got(context: Any) -> Got:
    """Ask, and take whatever comes."""
    body = b""
    try:
        async with context as response:
            try:
                async for piece in response.content.iter_any():
                    body += piece
            except aiohttp.ClientError:
                return Got(response.status, body, clean=False)
            return Got(response.status, body, clean=True)
    except aiohttp.ClientError:
        return Got(0, b"", clean=False)


async def settled(home: House) -> None:
    """Wait until nothing runs, and all is recorded."""
    async with asyncio.timeout(10):
        await home.appliance.rollouts.drained()
    await home.appliance.store.flush()


def saw_end(name: str, got: Got, *, stream: bool) -> bool:
    """Say whether an agent could take a reply as finished."""
    marks = {
        "chat": b'"finish_reason":"stop"', "messages": b"message_delta", "responses": b"response.completed",
        "gemini": b'"finishReason"',
    }  # fmt: skip
    spaces = got.body.replace(b'": ', b'":')
    return got.status == 200 and (marks[name] in spaces if stream else got.clean)


async def check(home: House, rollout: Any, seen: dict[int, Got], full: Got, *, name: str, stream: bool) -> set[str]:
    """Hold calls, by their numbers, to the promises; return the statuses."""
    await settled(home)
    calls = {call.n: call for call in await home.appliance.store.calls(rollout["id"])}
    # The first one was measured.
    assert calls.keys() - {0} == seen.keys()
    for n, one in seen.items():
        call = calls[n]
        ids = [] if call.sampled_ids is None else call.sampled_ids.tolist()
        if one.status == 200:
            assert full.body.startswith(one.body)
        if one.status == 200 and one.clean:
            assert one.body == full.body
        if saw_end(name, one, stream=stream):
            assert (call.status, ids) == ("complete", IDS)
        assert IDS[: len(ids)] == ids
        assert call.status != "complete" or ids == IDS
    queue = home.appliance.holds.queue(home.appliance.engine.name)
    assert (queue.inside, home.appliance.engine.in_flight) == ([], 0)
    return {calls[n].status for n in seen}


async def measured(proxy: FaultProxy, ask: Any) -> tuple[Got, int]:
    """A call without a fault, and how many bytes came down for it."""
    size = 10**6
    proxy.arm(down_after=size)
    full = await got(ask())
    left = proxy._armed["down"]
    return full, size - left


@pytest.mark.parametrize(
    ("way", "step"), [("close", 1), ("reset", 3), ("half_close", 3), (None, 3)], ids=["close", "reset", "half", "mess"]
)
async def test_a_stream_cut_at_every_byte_on_its_way_from_the_engine(tmp_path: Path, way: Any, step: int) -> None:
    garbage = b"\xff\x00garbage" if way is None else b""
    async with (
        running(auto=answer) as engine,
        faulty(engine.url) as proxy,
        house(f"vllm={proxy.url}", tmp_path, durability="none") as home,
    ):
        rollout = await home.rollout()

        full, size = await measured(proxy, lambda: home.chat(rollout, stream=True, user="short"))
        seen = {}
        for n, at in enumerate(range(0, size + 1, step), start=1):
            proxy.arm(down_after=at, way=way, garbage=garbage)
            # Of different bodies: none is a retry of another.
            seen[n] = await got(home.chat(rollout, stream=True, user="short", seed=n))
            proxy.release()
        statuses = await check(home, rollout, seen, full, name="chat", stream=True)
        assert "complete" in statuses
        assert statuses & {"aborted", "error"}
        if way == "close":
            # Before its first byte a call is tried again, and nobody is the wiser.
            assert seen[1] == full


@pytest.mark.parametrize("name", ["responses", "messages", "gemini"])
async def test_a_translated_stream_cut_on_its_way_from_the_engine(tmp_path: Path, name: str) -> None:
    async with (
        running(auto=answer) as engine,
        faulty(engine.url) as proxy,
        house(f"vllm={proxy.url}", tmp_path, durability="none") as home,
    ):
        rollout = await home.rollout()

        full, size = await measured(proxy, lambda: tongues.ask(home, rollout, name, stream=True))
        seen = {}
        for n, at in enumerate(range(1, size + 1, 11), start=1):
            proxy.arm(down_after=at)
            seen[n] = await got(tongues.ask(home, rollout, name, stream=True, text=f"Hello {n}"))
        await check(home, rollout, seen, full, name=name, stream=True)


async def test_a_whole_reply_cut_at_every_byte_on_its_way_from_the_engine(tmp_path: Path) -> None:
    async with (
        running(auto=answer) as engine,
        faulty(engine.url) as proxy,
        house(f"vllm={proxy.url}", tmp_path, durability="none") as home,
    ):
        rollout = await home.rollout()

        full, size = await measured(proxy, lambda: home.chat(rollout))
        seen = {}
        for n, at in enumerate(range(0, size + 1, 3), start=1):
            proxy.arm(down_after=at)
            seen[n] = await got(home.chat(rollout, seed=n))
        # All or nothing: a whole reply that broke is an error, and never a turn.
        assert await check(home, rollout, seen, full, name="chat", stream=False) == {"complete", "aborted", "error"}
        assert {one.status for one in seen.values()} == {200, 502}


async def test_a_stream_cut_at_every_byte_on_its_way_to_the_agent(tmp_path: Path) -> None:
    async with (
        running(auto=answer) as engine,
        house(engine, tmp_path, durability="none") as home,
        faulty(home.appliance.data_url) as proxy,
    ):
        rollout = await home.rollout()
        rollout["base_url"] = proxy.url + "/v1"
        full, size = await measured(proxy, lambda: home.chat(rollout, stream=True))
        seen = {}
        for n, at in enumerate(range(0, size + 1, 3), start=1):
            proxy.arm(down_after=at, way="reset" if at % 2 else "close")
            seen[n] = await got(home.chat(rollout, stream=True, seed=n))
        await check(home, rollout, seen, full, name="chat", stream=True)


async def test_a_request_cut_at_every_byte_is_no_call(tmp_path: Path) -> None:
    async with (
        running(auto=answer) as engine,
        house(engine, tmp_path, durability="none") as home,
        faulty(home.appliance.data_url) as proxy,
    ):
        rollout = await home.rollout()
        body = json.dumps(ASK).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
        sent = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        port = int(proxy.url.rsplit(":", 1)[1])
        for at in range(0, len(sent), 2):
            proxy.arm(up_after=at)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            with contextlib.suppress(ConnectionError):
                assert b" 200 " not in await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await settled(home)
        assert (await home.graph(rollout))["calls"] == []
        assert engine.requests == []


async def test_a_stream_in_pieces_of_one_byte_is_the_same(tmp_path: Path) -> None:
    async with (
        running(auto=answer) as engine,
        faulty(engine.url, piece=1) as slow,
        faulty(engine.url) as quick,
        house(f"vllm={slow.url}", tmp_path) as home,
    ):
        rollout = await home.rollout()
        seen = await got(home.chat(rollout, stream=True))
        (tmp_path / "other").mkdir()
        async with house(f"vllm={quick.url}", tmp_path / "other") as other:
            assert seen == await got(other.chat(await other.rollout(), stream=True))


# Engines that are not what they should be


async def test_an_engine_that_says_nothing_is_waited_for_and_its_stream_kept_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.silence.SILENCE_S", 0.05)
    async with (
        running(auto=answer) as engine,
        faulty(engine.url) as proxy,
        house(f"vllm={proxy.url}", tmp_path) as home,
    ):
        rollout = await home.rollout()
        full, size = await measured(proxy, lambda: home.chat(rollout, stream=True))
        # Half-open from within the second event on: the connection stands, and no byte comes.
        proxy.arm(down_after=size - 400, way="stall")
        async with home.chat(rollout, stream=True) as response:
            raw = b""
            async with asyncio.timeout(10):
                while raw.count(b": keep-alive\n\n") < 3:
                    raw += await response.content.readany()
                proxy.release()
                raw += await response.content.read()
        assert raw.replace(b": keep-alive\n\n", b"") == full.body


async def test_garbage_for_an_answer_is_the_engines_fault(tmp_path: Path) -> None:
    async def garbage(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"\x16\x03\x01\x02\x00not http at all\r\n\r\n")
        request.transport.close()
        return web.Response()

    async with wired(garbage) as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        for n, stream in enumerate(tongues.STREAMED):
            seen = await got(home.chat(rollout, stream=stream))
            assert (seen.status, json.loads(seen.body)["error"]["code"]) == (502, "engine_unreachable")
            await settled(home)
            call = await home.call(rollout, n)
            assert (call["status"], call["error"]["blame"]) == ("error", "engine")


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b'{"choices": 7}', b"[]"])
async def test_a_body_that_is_no_reply_passes_and_is_no_turn(tmp_path: Path, body: bytes) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async with wired(odd) as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        seen = await got(home.chat(rollout))
        assert (seen.status, seen.body) == (200, body)
        await settled(home)
        graph = await home.graph(rollout)
        assert [call["status"] for call in graph["calls"]] == ["aborted"]
        assert (await home.control("GET", f"/rollouts/{rollout['id']}/sequences?open=1"))["n_rows"] == 0


async def test_another_engine_on_the_port_serves_no_rollout_that_began_before(tmp_path: Path) -> None:
    async with running(auto=answer) as engine:
        port = int(engine.url.rsplit(":", 1)[1])
        async with house(engine, tmp_path) as home:
            rollout = await home.rollout()
            assert (await got(home.chat(rollout))).status == 200
            await engine.close()
            assert (await got(home.chat(rollout, seed=1))).status == 502
            other = _Other(auto=answer)
            await other.start(port)
            try:
                seen = await got(home.chat(rollout, seed=2))
                assert (seen.status, json.loads(seen.body)["error"]["code"]) == (409, "engine_changed")
                assert other.requests == []
            finally:
                await other.close()


class _Other(Engine):
    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "another", "max_model_len": 4096}]})


async def test_an_engine_that_comes_back_as_itself_goes_on_and_a_finding_says_so(tmp_path: Path) -> None:
    async with running(auto=answer) as engine:
        port = int(engine.url.rsplit(":", 1)[1])
        async with house(engine, tmp_path) as home:
            rollout = await home.rollout()
            assert (await got(home.chat(rollout))).status == 200
            await engine.close()
            assert (await got(home.chat(rollout, seed=1))).status == 502
            await engine.start(port)
            assert (await got(home.chat(rollout, seed=2))).status == 200
            graph = await home.graph(rollout)
            assert [call["status"] for call in graph["calls"]] == ["complete", "error", "complete"]
            (found,) = [found for found in graph["findings"] if found["code"] == "engine_changed"]
            assert (found["calls"], found["data"]["why"]) == ([2], "it had been away")


async def test_a_call_that_has_begun_never_moves_to_another_engine(tmp_path: Path) -> None:
    async with running() as one, running() as other, house(one, tmp_path, also=(f"vllm={other.url}",)) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(got(home.chat(rollout, stream=True)))
            asked = both.create_task(one.next()), both.create_task(other.next())
            (done,), pending = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            done.result().send(*STREAM[:2]).cut()
        assert (reply.result().status, reply.result().clean) == (200, False)
        assert one.calls.empty()
        assert other.calls.empty()


# Readers and engines that are slow


async def test_a_reader_that_takes_nothing_slows_its_own_engine_and_nobody_else(tmp_path: Path) -> None:
    """Of a stream without end little is taken in, and other calls are served meanwhile."""
    sent = 0
    piece = event(chunk(5, text="x" * 2**16))
    begun, gone = asyncio.Event(), asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        if not (await request.json()).get("stream"):
            return web.json_response(whole(IDS))
        begun.set()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM[0])
        try:
            while True:
                await response.write(piece)
                sent += len(piece)
        finally:
            gone.set()

    async with wired(endless) as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        host, port = rollout["url"].removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=2**10)
        body = json.dumps({**ASK, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        before = -1
        async with asyncio.timeout(30):
            # The stream is call 0: others come behind it.
            await begun.wait()
            while sent != before or not sent:
                before = sent
                # Others are served all the while, as quickly as ever.
                for _ in range(20):
                    assert (await got(home.chat(rollout, seed=1))).status == 200
        # Four sockets' buffers and what two programs read ahead; not the stream.
        assert sent < 32 * 2**20
        writer.transport.abort()
        async with asyncio.timeout(5):
            await gone.wait()
        await settled(home)
        assert (await home.call(rollout, 0))["status"] == "aborted"


async def test_a_slow_engine_holds_up_nobody_else(tmp_path: Path) -> None:
    async with running() as slow, house(slow, tmp_path) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            waiting = both.create_task(got(home.chat(rollout)))
            held = await slow.next()
            start = time.monotonic()
            for n in range(5):
                reply = both.create_task(got(home.chat(rollout, seed=n)))
                (await slow.next()).answer(whole(IDS))
                assert (await reply).status == 200
            assert time.monotonic() - start < 10
            held.answer(whole(IDS))
        assert waiting.result().status == 200


def test_what_follows_a_finish_is_bounded() -> None:
    assert passage.TAIL_LIMIT_S <= 2


@pytest.mark.parametrize("stream", tongues.STREAMED)
async def test_a_call_that_has_ended_leaves_nothing_to_the_collector(tmp_path: Path, stream: bool) -> None:
    """A request may have megabytes, and the collector comes round when it will."""
    async with running() as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        live = await home.appliance.rollouts.admit(rollout["secret"])
        gc.collect()
        gc.disable()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(got(home.chat(rollout, stream=stream)))
                exchange = await engine.next()
                (tried,) = live.tries._running.values()
                kept = weakref.ref(tried.draft)
                del tried
                exchange.send(*STREAM).end() if stream else exchange.answer(whole(IDS))
            await settled(home)
            async with asyncio.timeout(10):
                while kept() is not None:  # noqa: ASYNC110  the last of its frames ends unseen
                    await asyncio.sleep(0)
        finally:
            gc.enable()


# Behind the finish


async def test_a_stream_that_never_ends_behind_its_finish_is_ended(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage, "TAIL_LIMIT_S", 0.05)
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(got(home.chat(rollout, stream=True)))
            asked = await engine.next()
            asked.send(*STREAM[:4])
            async with asyncio.timeout(10):
                await asked.dropped.wait()
        assert saw_end("chat", reply.result(), stream=True)
        await settled(home)
        call = await home.call(rollout, 0)
        assert (call["status"], call["delivered"], call["sampled_ids"], call["usage"]) == ("complete", True, IDS, None)


async def test_an_end_that_went_out_was_delivered_although_what_follows_broke(engine: Any, tmp_path: Path) -> None:
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(got(home.chat(rollout, stream=True)))
            (await engine.next()).send(*STREAM[:4]).cut()
        assert saw_end("chat", reply.result(), stream=True)
        assert not reply.result().clean
        await settled(home)
        call = await home.call(rollout, 0)
        assert (call["status"], call["delivered"], call["sampled_ids"]) == ("complete", True, IDS)
        assert [delivery["complete"] for delivery in call["deliveries"]] == [True]
        # So the same again is a new sample.
        async with asyncio.TaskGroup() as both:
            both.create_task(got(home.chat(rollout, stream=True)))
            (await engine.next()).send(*STREAM).end()
