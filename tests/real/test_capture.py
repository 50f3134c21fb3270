"""A real vLLM behind the appliance: what is recorded is what the engine produced, to the token."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.house import House, house
from tests.real.engine_vllm import Vllm

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FORCED = {
    # A random model calls no tool by itself; a grammar makes it, and the engine's parser reads it as ever.
    "structured_outputs": {
        "regex": r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Paris|Rome|Oslo)"\}\}\n</tool_call>'
    },
    "tool_choice": "auto",
}
BASE = {
    "model": "tiny", "tools": [TOOL], "temperature": 1.0, "max_tokens": 48,
    "chat_template_kwargs": {"enable_thinking": False},
}  # fmt: skip


@pytest.fixture
async def home(vllm: Vllm, tmp_path: Path):
    async with house(f"vllm={vllm.base_url}", tmp_path, engine_wait=5.0) as one:
        yield one


async def direct(home: House, vllm: Vllm, body: dict[str, Any]) -> dict[str, Any]:
    ask = {**body, "stream": False, "return_token_ids": True, "logprobs": True, "top_logprobs": 0}
    async with home.session.post(vllm.base_url + "/v1/chat/completions", json=ask) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def through(home: House, rollout: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Send a request through the appliance; return the message as the agent puts it together."""
    async with home.chat(rollout, **body) as answer:
        assert answer.status == 200, await answer.text()
        if not body.get("stream"):
            return (await answer.json())["choices"][0]["message"]
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        calls: dict[int, dict[str, Any]] = {}
        for line in (await answer.read()).splitlines():
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                message["content"] += choice["delta"].get("content") or ""
                for part in choice["delta"].get("tool_calls") or ():
                    call = calls.setdefault(part["index"], {"type": "function", "function": {"arguments": ""}})
                    call["id"] = part.get("id") or call.get("id")
                    call["function"]["name"] = part["function"].get("name") or call["function"].get("name")
                    call["function"]["arguments"] += part["function"].get("arguments") or ""
        return {**message, **({"tool_calls": list(calls.values())} if calls else {})}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_tool_conversation_is_recorded_to_the_token(vllm: Vllm, home: House, stream: bool) -> None:
    assert (home.appliance.engine.tier, home.appliance.engine.logprobs_mode) == ("train", "processed")
    rollout = await home.rollout()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris, and then in Rome?"}]
    expected = []
    for turn in range(4):
        body = {**BASE, "messages": messages, "seed": 11 + turn, "stream": stream}
        body = {**body, **FORCED} if turn < 2 else body
        expected.append(await direct(home, vllm, body))
        reply = await through(home, rollout, body)
        messages = [*messages, {name: value for name, value in reply.items() if value is not None}]
        if calls := reply.get("tool_calls"):
            assert turn < 2
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"sky": "grey"}'})
        else:
            messages.append({"role": "user", "content": f"And tomorrow, {turn}?"})
    await home.idle(rollout)

    for n, form in enumerate(expected):
        call, choice = await home.call(rollout, n), form["choices"][0]
        assert call["prompt_ids"] == form["prompt_token_ids"]
        assert call["sampled_ids"] == choice["token_ids"]
        assert call["logprobs"] == [one["logprob"] for one in choice["logprobs"]["content"]]
        assert (call["status"], call["finish_reason"]) == ("complete", choice["finish_reason"])
        assert call["usage"]["completion_tokens"] == len(call["sampled_ids"])
    graph = await home.graph(rollout)
    assert [call["parent"] for call in graph["calls"]] == [None, 0, 1, 2]
    assert [conversation["role"] for conversation in graph["conversations"]] == ["main"]
    assert graph["rollout"]["n_tool_calls"] == 2

    closed = await home.control(
        "POST", f"/rollouts/{rollout['id']}/close", json={"sequences": {"constrained": "train"}}
    )
    rows = closed["sequences"]["sequences"]
    trained = [[] for _ in expected]
    for row in rows:
        for span in row["spans"]:
            ids = row["input_ids"][span["start"] : span["end"]]
            if all(row["loss_mask"][span["start"] : span["end"]]):
                trained[span["call"]] += ids
    assert trained == [form["choices"][0]["token_ids"] for form in expected]


async def test_concurrent_agents_are_told_apart(vllm: Vllm, home: House) -> None:
    rollouts = [await home.rollout() for _ in range(3)]
    bodies = [
        {"messages": [{"role": "user", "content": f"Number {i}"}], "seed": i, "temperature": 1.0, "max_tokens": 16}
        for i in range(3)
    ]
    async with asyncio.TaskGroup() as all_:
        for rollout, body in zip(rollouts, bodies, strict=True):
            all_.create_task(through(home, rollout, {**body, "stream": True}))
    for rollout, body in zip(rollouts, bodies, strict=True):
        await home.idle(rollout)
        (call,) = (await home.graph(rollout))["calls"]
        form = await direct(home, vllm, {"model": "tiny", **body})
        whole = await home.call(rollout, call["n"])
        assert whole["prompt_ids"] == form["prompt_token_ids"]
        assert len(whole["sampled_ids"]) == len(whole["logprobs"]) == whole["usage"]["completion_tokens"]


async def test_a_hang_up_stops_the_engines_work(vllm: Vllm, home: House) -> None:
    rollout = await home.rollout()
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 8000, "stream": True, "min_tokens": 8000}
    async with home.chat(rollout, **body) as answer:
        for _ in range(20):
            await answer.content.readuntil(b"\n\n")
        answer.close()
    # What is left to sample would take it most of a minute. Not asked without pause: a look costs vLLM's server more
    # than a token does, and one that falls behind its engine sees no hang-up at all (seen on 0.32).
    async with asyncio.timeout(40):
        while await running(home, vllm):  # noqa: ASYNC110  the engine's state is another program's
            await asyncio.sleep(0.2)
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["delivered"]) == ("aborted", False)
    assert 10 <= len(call["sampled_ids"]) == len(call["logprobs"]) < 8000


async def running(home: House, vllm: Vllm) -> float:
    async with home.session.get(vllm.base_url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))
