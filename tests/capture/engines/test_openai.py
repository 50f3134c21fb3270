"""Any OpenAI-compatible endpoint: nothing but usage is asked for, texts are recorded, and the tier says why."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from capture import rawjson
from capture.dialects.base import with_fields
from capture.dialects.chat import Chat
from capture.dialects.completions import Completions
from capture.engines.base import Adapter
from capture.engines.openai import OpenAI
from capture.errors import EngineError
from tests.engine import Exchange, event, running
from tests.house import House, house
from tests.playbook import body, data_of

adapter: Adapter = OpenAI()


def whole(text: str = "Hello", **choice: Any) -> dict[str, Any]:
    """A whole reply as OpenAI sends it."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "tiny-2026",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}, "service_tier": "default",
        "system_fingerprint": "fp_1",
    }  # fmt: skip


def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk as OpenAI sends it with `include_usage`: usage is null in all but the last."""
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny-2026",
        "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], "usage": None, **fields,
    }  # fmt: skip


CHUNKS = [
    chunk({"role": "assistant", "content": "", "refusal": None}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk({}, "stop"),
    chunk({}, choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}),
]


class Endpoint:
    """An endpoint that answers the probe by itself, and all else with the one reply that a test gave it."""

    def __init__(self) -> None:
        self.url = ""
        self.reply: bytes | list[bytes] = b""
        self.asked: list[dict[str, Any]] = []

    def answer(self, exchange: Exchange) -> bool:
        if exchange.body["messages"] == [{"role": "user", "content": "Say hi."}]:
            exchange.answer(whole())
            return True
        self.asked.append(exchange.body)
        if isinstance(self.reply, bytes):
            exchange.answer(self.reply)
        else:
            exchange.send(*self.reply).end()
        return True


@pytest.fixture
async def server() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    async with running(auto=endpoint.answer) as engine:
        endpoint.url = engine.url
        yield endpoint


@pytest.fixture
async def home(server: Endpoint, tmp_path: Path) -> AsyncIterator[House]:
    async with house(f"openai={server.url}", tmp_path) as one:
        yield one


def sent(request_body: bytes) -> dict[str, Any]:
    request = Chat().read(request_body)
    form: dict[str, Any] = json.loads(rawjson.join(with_fields(request.fields, adapter.inject(request))))
    return form


def test_nothing_but_usage_is_asked_for() -> None:
    assert sent(body(temperature=1.0)) == json.loads(body(temperature=1.0))
    assert sent(body(stream=True)) == json.loads(body(stream=True, stream_options={"include_usage": True}))
    completions = Completions().read(b'{"model":"m","prompt":"x","stream":true}')
    assert adapter.inject(completions) == {"stream_options": b'{"include_usage":true}'}


def test_messages_cannot_be_counted() -> None:
    with pytest.raises(EngineError) as caught:
        adapter.count(Chat().read(body()), model="tiny")
    assert caught.value.code == "count_unsupported"


async def test_the_tier_is_eval_with_the_reason(home: House) -> None:
    (engine,) = home.appliance.fleet.engines
    assert engine.tier == "eval"
    assert engine.tier_reason == "in a plain reply, an engine of kind openai is not asked for token ids"
    assert (await home.rollout())["tier"] == "eval"


async def test_an_endpoint_that_fails_the_probe_says_so(tmp_path: Path) -> None:
    def broken(exchange: Exchange) -> bool:
        exchange.answer({"error": {"message": "max_tokens is not supported"}}, status=400)
        return True

    async with running(auto=broken) as server, house(f"openai={server.url}", tmp_path) as home:
        (engine,) = home.appliance.fleet.engines
        assert (engine.tier, "max_tokens is not supported" in engine.tier_reason) == ("eval", True)


async def said(home: House, rollout: dict[str, Any], **asked: Any) -> bytes:
    async with home.chat(rollout, **asked) as answer:
        raw: bytes = await answer.read()
        assert answer.status == 200, raw
        return raw


async def test_a_whole_reply_passes_byte_for_byte_and_has_no_ids(home: House, server: Endpoint) -> None:
    rollout = await home.rollout()
    # The name that the agent asks for is the one that it reads.
    form = whole() | {"model": "tiny"}
    server.reply = json.dumps(form, indent=1).encode()
    # No model is replaced, so nothing is.
    assert await said(home, rollout) == server.reply
    assert set(server.asked[0]) == {"model", "messages"}
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["finish_reason"], call["reply"]) == ("complete", "stop", form)
    assert (call["n_prompt"], call["n_sampled"]) == (9, 2)
    assert not {"prompt_ids", "sampled_ids", "logprobs"} & call.keys()


@pytest.mark.parametrize("asked", [False, True])
async def test_a_stream_is_as_if_usage_had_been_asked_for_by_the_client_alone(
    home: House, server: Endpoint, asked: bool
) -> None:
    rollout = await home.rollout()
    chunks = [{**one, "model": "tiny"} for one in CHUNKS]
    server.reply = [*map(event, chunks), event("[DONE]")]
    options = {"stream_options": {"include_usage": True}} if asked else {}
    seen = data_of(await said(home, rollout, stream=True, **options))
    assert server.asked[0]["stream_options"] == {"include_usage": True}
    if asked:
        assert seen == [*chunks, "[DONE]"]
    else:
        assert seen == [*({k: v for k, v in one.items() if k != "usage"} for one in chunks[:-1]), "[DONE]"]
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["reply"]["choices"][0]["message"]["content"] == "Hello"
    assert call["usage"] == CHUNKS[-1]["usage"]


async def test_logprobs_pass_to_a_client_that_asked(home: House, server: Endpoint) -> None:
    rollout = await home.rollout()
    logprobs = {"content": [{"token": "Hello", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    server.reply = json.dumps(whole(logprobs=logprobs)).encode()
    seen = json.loads(await said(home, rollout, logprobs=True, top_logprobs=1))
    assert seen["choices"][0]["logprobs"] == logprobs
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["top_logprobs"], call.get("logprobs")) == ([logprobs["content"]], None)


async def test_a_first_chunk_without_choices_passes(home: House, server: Endpoint) -> None:
    """Azure's: what its filter says of the prompt."""
    rollout = await home.rollout()
    first = {"id": "", "object": "", "created": 0, "model": "tiny", "choices": [], "prompt_filter_results": [{"x": 1}]}
    server.reply = [event(first), *map(event, CHUNKS), event("[DONE]")]
    seen = data_of(await said(home, rollout, stream=True))
    assert seen[0] == first


async def test_reasoning_and_tool_calls_are_recorded(home: House, server: Endpoint) -> None:
    rollout = await home.rollout()
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"a": 1}'}}
    server.reply = [
        *map(event, [
            chunk({"role": "assistant", "content": None}), chunk({"reasoning_content": "Add."}),
            chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]}), chunk({}, "tool_calls"),
        ]),
        event("[DONE]"),
    ]  # fmt: skip
    await said(home, rollout, stream=True)
    await home.idle(rollout)
    found = (await home.call(rollout, 0))["reply"]["choices"][0]
    assert found["message"]["reasoning_content"] == "Add."
    assert found["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert found["finish_reason"] == "tool_calls"


async def test_a_count_is_refused_in_the_dialects_shape(home: House) -> None:
    rollout = await home.rollout()
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    url = rollout["base_url"] + "/messages/count_tokens"
    async with home.session.post(url, json=ask, headers={"x-api-key": rollout["secret"]}) as answer:
        assert answer.status == 404
        error = (await answer.json())["error"]
    assert (error["type"], "no estimates" in error["message"]) == ("not_found_error", True)
