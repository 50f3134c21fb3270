"""What the agent sees, and what is left of a call: a real client, and an engine under the test's hand."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capture import silence
from tests.engine import PROMPT, STREAM, chunk, event, running, usage_chunk, whole
from tests.faults import faulty
from tests.house import ASK, House, house

pytestmark = pytest.mark.usefixtures("tmp_path")


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


@pytest.fixture
async def home(engine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


async def events(response: aiohttp.ClientResponse, count: int) -> list[bytes]:
    """Read so many events."""
    got = []
    async with asyncio.timeout(10):
        while len(got) < count:
            got.append(await response.content.readuntil(b"\n\n"))
    return got


def seen(raw: bytes) -> Any:
    data = raw.removeprefix(b"data: ").strip()
    return data.decode() if data == b"[DONE]" else json.loads(data)


# Plain replies


async def test_a_whole_reply_passes_without_what_the_agent_did_not_ask_for(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(_read(home.chat(rollout, temperature=0.7)))
        asked = await engine.next()
        asked.answer(whole([5, 6, 7]), headers={"x-request-id": "r-9"})
    status, headers, body = reply.result()

    assert asked.body == {
        **ASK, "temperature": 0.7, "return_token_ids": True, "logprobs": True, "top_logprobs": 0,
    }  # fmt: skip
    expected = whole([5, 6, 7])
    expected["prompt_token_ids"] = None
    expected["choices"][0] |= {"token_ids": None, "logprobs": None}
    assert (status, json.loads(body), headers["x-request-id"]) == (200, expected, "r-9")
    assert list(json.loads(body)) == list(expected)
    await home.idle(rollout)

    call = await home.call(rollout, 0)
    assert (call["status"], call["delivered"], call["id"]) == ("complete", True, "chatcmpl-1")
    assert (call["prompt_ids"], call["sampled_ids"], call["logprobs"]) == (PROMPT, [5, 6, 7], [-0.5] * 3)
    assert (call["sampling"]["asked"]["temperature"], call["sampling"]["sent"]["temperature"]) == (0.7, 0.7)
    assert (call["request"], call["sent"]) == ({**ASK, "temperature": 0.7}, asked.body)
    assert call["reply"] == expected


async def test_an_agent_that_asks_for_ids_gets_them(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(_read(home.chat(rollout, return_token_ids=True, logprobs=True)))
        (await engine.next()).answer(whole([5, 6, 7]))
    assert json.loads(reply.result()[2]) == whole([5, 6, 7])


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
async def test_an_engines_error_keeps_its_status_body_and_headers(engine, home: House, status: int) -> None:
    rollout = await home.rollout()
    error = {
        "error": {"message": "This model's maximum context length is 16", "type": "BadRequestError", "code": status}
    }
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(_read(home.chat(rollout)))
        (await engine.next()).answer(error, status=status, headers={"Retry-After": "7"})
    got, headers, body = reply.result()
    assert (got, json.loads(body), headers["Retry-After"]) == (status, error, "7")
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["error"]["status"]) == ("error", status)
    assert "maximum context" in call["error"]["message"]
    graph = await home.graph(rollout)
    assert graph["calls"][0]["conversation"] is None


@pytest.mark.parametrize("status", [401, 403])
async def test_the_engines_refusal_of_our_key_is_not_the_agents_fault(engine, home: House, status: int) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(_read(home.chat(rollout)))
        (await engine.next()).answer({"error": "Unauthorized"}, status=status)
    got, _, body = reply.result()
    assert got == 502
    assert "engine" in json.loads(body)["error"]["message"]


async def test_an_aborted_whole_reply_is_retryable_and_never_a_turn(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(_read(home.chat(rollout)))
        (await engine.next()).answer(whole([5, 6], finish="abort"))
    status, headers, _ = reply.result()
    assert (status, headers["Retry-After"]) == (503, "2")
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["sampled_ids"]) == ("aborted", [5, 6])


async def test_a_whole_reply_that_breaks_off_is_an_error_and_is_recorded(engine, tmp_path: Path) -> None:
    async with faulty(engine.url) as proxy, house(f"vllm={proxy.url}", tmp_path) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(_read(home.chat(rollout)))
            asked = await engine.next()
            proxy._limits["down"] = 0
            await proxy.close()
            await asyncio.wait_for(asked.dropped.wait(), 5)
        status, _, body = reply.result()
        assert status == 502, body
        await home.idle(rollout)
        assert (await home.call(rollout, 0))["status"] in ("error", "aborted")


# Streams


async def test_a_stream_is_relayed_as_it_comes(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        asked = await engine.next()
        assert asked.body["stream_options"] == {"include_usage": True}
        asked.send(STREAM[0])
    response = opening.result()
    for sent, expected in zip(STREAM[:3], ["", "Hel", "lo"], strict=True):
        if sent is not STREAM[0]:
            asked.send(sent)
        (got,) = [seen(raw) for raw in await events(response, 1)]
        assert got["choices"][0]["delta"]["content"] == expected
        assert got["choices"][0].get("logprobs") is None
        assert got.get("prompt_token_ids") is None
    asked.send(*STREAM[3:]).end()
    rest = [seen(raw) for raw in await events(response, 2)]
    assert rest[0]["choices"][0]["finish_reason"] == "stop"
    assert rest[1] == "[DONE]"
    assert await response.content.read() == b""
    response.close()
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["delivered"], call["streamed"]) == ("complete", True, True)
    assert (call["prompt_ids"], call["sampled_ids"], call["logprobs"]) == (PROMPT, [5, 6, 7], [-0.5] * 3)
    assert call["usage"]["completion_tokens"] == 3
    assert call["reply"]["choices"][0]["message"]["content"] == "Hello"


async def test_a_silent_stream_is_kept_alive_between_events(
    engine, home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.05)
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        asked = await engine.next()
        asked.send(STREAM[0], STREAM[1][:20])
    response = opening.result()
    first, *comments = await events(response, 3)
    assert seen(first)["choices"][0]["delta"]["content"] == ""
    assert comments == [silence.KEEP_ALIVE] * 2
    asked.send(STREAM[1][20:], *STREAM[2:]).end()
    rest = [one for one in (await response.content.read()).split(b"\n\n") if one and not one.startswith(b":")]
    assert [seen(one) for one in rest][-1] == "[DONE]"
    assert len(rest) == 4
    response.close()


async def test_an_agent_that_asks_for_usage_gets_its_chunk(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout, stream_options={"include_usage": True}))
        (await engine.next()).send(*STREAM).end()
    got = [seen(raw) for raw in await events(opening.result(), 6)]
    assert got[-2]["usage"]["completion_tokens"] == 3
    opening.result().close()


async def test_the_finish_waits_for_the_record_and_nothing_else_does(engine, home: House) -> None:
    """The store's writer is stopped: every chunk but the finish arrives, and none of the finish."""
    rollout = await home.rollout()
    home.appliance.store.hold()
    try:
        async with asyncio.TaskGroup() as both:
            opening = both.create_task(_open(home, rollout))
            (await engine.next()).send(*STREAM).end()
        response = opening.result()
        early = [seen(raw) for raw in await events(response, 3)]
        assert [one["choices"][0]["delta"].get("content") for one in early] == ["", "Hel", "lo"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await response.content.readany()
    finally:
        home.appliance.store.release()
    rest = [seen(raw) for raw in await events(response, 2)]
    assert [rest[0]["choices"][0]["finish_reason"], rest[1]] == ["stop", "[DONE]"]
    response.close()


async def test_a_call_that_an_agent_saw_end_can_be_read_at_once(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        (await engine.next()).send(*STREAM).end()
    await events(opening.result(), 4)
    assert (await home.call(rollout, 0))["sampled_ids"] == [5, 6, 7]
    opening.result().close()


async def test_a_stream_that_breaks_upstream_breaks_downstream(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        asked = await engine.next()
        asked.send(*STREAM[:2])
    response = opening.result()
    await events(response, 2)
    asked.cut()
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.content.read()
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["delivered"], call["sampled_ids"]) == ("aborted", False, [5])


async def test_a_stream_that_ends_cleanly_without_a_finish_does_not_look_finished(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        (await engine.next()).send(*STREAM[:2]).end()
    response = opening.result()
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.content.read()
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["finish_reason"], call["sampled_ids"]) == ("aborted", None, [5])


async def test_an_aborted_stream_gets_no_finish_and_no_clean_end(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        (await engine.next()).send(*STREAM[:2], event(chunk(finish="abort")), event("[DONE]")).end()
    response = opening.result()
    got = b"".join(await events(response, 2))
    with pytest.raises(aiohttp.ClientPayloadError):
        got += await response.content.read()
    assert b"abort" not in got
    assert b"DONE" not in got
    await home.idle(rollout)
    assert (await home.call(rollout, 0))["status"] == "aborted"


async def test_an_abort_is_passed_on_where_the_operator_says_so(engine, tmp_path: Path) -> None:
    async with house(engine, tmp_path, relay_abort=True) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            opening = both.create_task(_open(home, rollout))
            (await engine.next()).send(*STREAM[:2], event(chunk(finish="abort")), event("[DONE]")).end()
        got = await opening.result().content.read()
        assert b'"abort"' in got
        assert got.endswith(b"[DONE]\n\n")
        await home.idle(rollout)
        assert (await home.call(rollout, 0))["status"] == "aborted"


async def test_an_error_in_a_stream_passes_as_it_is(engine, home: House) -> None:
    rollout = await home.rollout()
    error = {"error": {"message": "engine died", "type": "InternalServerError", "param": None, "code": 500}}
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        (await engine.next()).send(*STREAM[:2], event(error), event("[DONE]")).end()
    got = [seen(raw) for raw in await events(opening.result(), 4)]
    assert got[2:] == [error, "[DONE]"]
    opening.result().close()
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["error"]["message"], call["sampled_ids"]) == ("error", "engine died", [5])


async def test_the_reply_bears_the_name_that_the_agent_asked_for(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout, model="gpt-9"))
        asked = await engine.next()
        asked.send(*STREAM).end()
    assert asked.body["model"] == "tiny"
    got = [seen(raw) for raw in await events(opening.result(), 5)]
    assert {one["model"] for one in got[:-1]} == {"gpt-9"}
    opening.result().close()


async def test_each_choice_is_a_call_of_its_own(engine, home: House) -> None:
    rollout = await home.rollout()
    pieces = [
        event(chunk(role=True)), event(chunk(role=True, index=1)),
        event(chunk(5, text="a")), event(chunk(8, text="x", index=1)),
        event(chunk(6, finish="stop")), event(chunk(9, text="y", index=1)),
        event(chunk(10, finish="length", index=1)), event(usage_chunk(5)), event("[DONE]"),
    ]  # fmt: skip
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout, n=2))
        (await engine.next()).send(*pieces).end()
    await opening.result().content.read()
    await home.idle(rollout)
    first, second = await home.call(rollout, 0), await home.call(rollout, 1)
    assert (first["sampled_ids"], second["sampled_ids"]) == ([5, 6], [8, 9, 10])
    assert (first["choice"], second["choice"], first["id"]) == (0, 1, second["id"])
    assert (first["finish_reason"], second["finish_reason"]) == ("stop", "length")
    graph = await home.graph(rollout)
    assert [fork["kind"] for fork in graph["forks"]] == ["resample"]


# Silence


async def test_a_comment_breaks_a_long_silence_at_an_event_border(
    engine, home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.05)
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        asked = await engine.next()
        asked.send(STREAM[0], STREAM[1][:20])
    response = opening.result()
    got = await events(response, 3)
    assert got[1:] == [silence.KEEP_ALIVE] * 2
    asked.send(STREAM[1][20:], *STREAM[2:]).end()
    rest = await response.content.read()
    spoken = [seen(raw + b"\n\n") for raw in rest.split(b"\n\n") if raw.startswith(b"data: ")]
    assert [one["choices"][0]["delta"].get("content") for one in spoken[:2]] == ["Hel", "lo"]
    assert spoken[-1] == "[DONE]"


async def test_geminis_clients_bear_no_comments(engine, home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.02)
    rollout = await home.rollout()
    url = f"{rollout['url']}/v1beta/models/m:streamGenerateContent?alt=sse"
    body = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}
    async with asyncio.TaskGroup() as both:
        task = both.create_task(_read(home.session.post(url, json=body, headers={"x-goog-api-key": rollout["secret"]})))
        asked = await engine.next()
        asked.send(STREAM[0])
        await asyncio.sleep(0.2)
        asked.send(*STREAM[1:]).end()
    status, _, text = task.result()
    assert status == 200
    assert b"keep-alive" not in text
    assert text.count(b"data: ") >= 2


# Hang-ups


async def test_a_hang_up_in_a_stream_drops_the_engines_request_within_a_second(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        asked = await engine.next()
        asked.send(*STREAM[:3])
    await events(opening.result(), 3)
    gone = time.monotonic()
    opening.result().close()
    async with asyncio.timeout(5):
        await asked.dropped.wait()
    assert time.monotonic() - gone < 1.0
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["delivered"], call["sampled_ids"]) == ("aborted", False, [5, 6])


async def test_a_hang_up_before_a_whole_reply_drops_the_engines_request_within_a_second(engine, home: House) -> None:
    rollout = await home.rollout()
    host, port = rollout["url"].removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(ASK).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rollout['secret']}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    asked = await engine.next()
    gone = time.monotonic()
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(5):
        await asked.dropped.wait()
    assert time.monotonic() - gone < 1.0
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["delivered"]) == ("aborted", False)
    assert "sampled_ids" not in call


async def test_a_reply_whose_agent_left_while_it_was_recorded_is_complete_and_undelivered(engine, home: House) -> None:
    rollout = await home.rollout()
    home.appliance.store.hold()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        asked = await engine.next()
        asked.send(*STREAM).end()
    response = opening.result()
    await events(response, 3)
    live = next(iter(home.appliance.rollouts._live.values()))
    response.close()
    home.appliance.store.release()
    async with asyncio.timeout(5):
        while live.running:
            await live.changed.wait()
    await home.idle(rollout)
    graph = await home.graph(rollout)
    assert (graph["calls"][0]["status"], graph["calls"][0]["delivered"]) == ("undelivered", False)
    assert (await home.call(rollout, 0))["sampled_ids"] == [5, 6, 7]


async def test_an_agent_that_resets_its_connection_is_noticed(engine, home: House) -> None:
    rollout = await home.rollout()
    async with faulty(home.appliance.data_url, down_after=400, way="reset") as proxy:
        task = asyncio.ensure_future(_open(home, {**rollout, "base_url": proxy.url + "/v1"}))  # noqa: TID251  a client that is meant to fail
        asked = await engine.next()
        asked.send(*STREAM[:2])
        async with asyncio.timeout(5):
            await asked.dropped.wait()
        await asyncio.wait([task])
        if task.exception() is None:
            task.result().close()
    await home.idle(rollout)
    assert (await home.call(rollout, 0))["status"] == "aborted"


async def test_a_rollout_that_is_closed_cuts_what_still_runs(engine, home: House) -> None:
    rollout = await home.rollout()
    async with asyncio.TaskGroup() as both:
        opening = both.create_task(_open(home, rollout))
        asked = await engine.next()
        asked.send(*STREAM[:3])
    await events(opening.result(), 3)
    await home.control("POST", f"/rollouts/{rollout['id']}/close", json={"wait_s": 0})
    async with asyncio.timeout(5):
        await asked.dropped.wait()
    with pytest.raises(aiohttp.ClientError):
        await opening.result().content.read()
    call = await home.call(rollout, 0)
    assert (call["status"], call["sampled_ids"]) == ("aborted", [5, 6])


# What can't be recorded


async def test_a_reply_that_cannot_be_decoded_still_reaches_the_agent(engine, home: House) -> None:
    rollout = await home.rollout()
    broken = json.dumps(whole([5, 6])).replace("-0.5", "NaN", 1).replace("Hi", "\\ud800").encode()
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(_read(home.chat(rollout)))
        (await engine.next()).answer(broken)
    status, _, body = reply.result()
    assert status == 200
    assert b"\\ud800" in body
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["sampled_ids"] == [5, 6]
    (found,) = [one for one in (await home.graph(rollout))["findings"] if one["code"] == "unreadable_body"]
    assert found["calls"] == [0]
    assert found["data"]["missing"]


async def test_a_request_that_msgspec_would_refuse_reaches_the_engine_as_it_is(engine, home: House) -> None:
    rollout = await home.rollout()
    messages = b'[{"role": "user", "content": "\\ud800"}]'
    body = b'{"model": "tiny", "messages": ' + messages + b', "x": NaN, "big": 123456789012345678901}'
    headers = {"Authorization": f"Bearer {rollout['secret']}", "Content-Type": "application/json"}
    url = rollout["base_url"] + "/chat/completions"
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(_read(home.session.post(url, data=body, headers=headers)))
        asked = await engine.next()
        asked.answer(whole([5]))
    assert reply.result()[0] == 200
    assert asked.body["messages"][0]["content"] == "\ud800"
    assert asked.body["big"] == 123456789012345678901


async def test_no_socket_is_left_to_the_engine(engine, home: House) -> None:
    rollout = await home.rollout()
    for _ in range(3):
        async with asyncio.TaskGroup() as both:
            opening = both.create_task(_open(home, rollout))
            asked = await engine.next()
            asked.send(*STREAM[:2])
        await events(opening.result(), 2)
        opening.result().close()
        async with asyncio.timeout(5):
            await asked.dropped.wait()
    await home.idle(rollout)
    assert home.appliance.rollouts._live[rollout["id"]].running == {}


async def _read(context: Any) -> tuple[int, Any, bytes]:
    async with context as response:
        return response.status, response.headers, await response.read()


async def _open(home: House, rollout: dict[str, Any], **body: Any) -> aiohttp.ClientResponse:
    response = await home.chat(rollout, stream=True, **body)
    home.opened.append(response)
    assert response.status == 200, await response.text()
    return response
