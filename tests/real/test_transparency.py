"""To the agent, the appliance is the engine: the same requests to a real vLLM, direct and through it."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.house import House, house
from tests.real.engine_vllm import Vllm
from tests.real.wire_requests import REQUESTS, WireRequest, body_for
from tests.real.wire_shape import Exchange, differences, events

# What capture asks for on its own; an agent that doesn't, gets none of it.
ASKED = ("return_token_ids", "logprobs", "top_logprobs")

# Answered by the appliance itself, in the same dialect: see tests/capture/test_app.py.
OWN_ANSWERS = {
    "51-badmodel": "any model is served by the rollout's",
    "52-malformed": "a body that is no JSON never reaches the engine",
    "52-nomsg": "nor does one without messages",
}

# A difference that is left, and why.
ALLOWED = {
    # Without usage asked for, vLLM puts the fingerprint on each choice's last chunk; with it (capture always asks), on
    # the chunk with usage alone. It is put back on the last choice's, which is held; the others' have left by then.
    "05-n2-stream": {"reasoning+length system_fingerprint: engine string; treering absent|string"},
}

CHATS = [
    request
    for request in REQUESTS
    if request.path == "/v1/chat/completions" and request.name not in OWN_ANSWERS and request.api_key is None
]


def unasked(body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if name not in ASKED}


@pytest.fixture
async def home(vllm: Vllm, tmp_path: Path):
    async with house(f"vllm={vllm.base_url}", tmp_path) as one:
        yield one


async def send(home: House, url: str, request: WireRequest, body: Any, headers: dict[str, str]) -> Exchange:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **request.headers, **headers}
    async with home.session.post(url + request.path, data=data, headers=headers) as answer:
        return Exchange(status=answer.status, content_type=answer.headers["Content-Type"], body=await answer.read())


def told(exchange: Exchange) -> dict[int, dict[str, Any]]:
    """What a reply says, by choice: texts joined, calls assembled, ids and logprobs where they were asked for."""
    choices: dict[int, dict[str, Any]] = {}
    for _, form in events(exchange):
        for choice in (form or {}).get("choices", ()):
            said = choices.setdefault(choice["index"], {"ids": [], "logprobs": [], "prompt": None})
            delta = choice.get("delta") or choice.get("message") or {}
            for name in ("content", "reasoning"):
                said[name] = said.get(name, "") + (delta.get(name) or "")
            for call in delta.get("tool_calls") or ():
                calls = said.setdefault("calls", {}).setdefault(call.get("index", len(said.get("calls", {}))), "")
                said["calls"][call.get("index", 0)] = calls + json.dumps(call.get("function", {}).get("arguments"))
            said["ids"] += choice.get("token_ids") or []
            said["logprobs"] += [one["logprob"] for one in (choice.get("logprobs") or {}).get("content") or ()]
            said["prompt"] = said["prompt"] or form.get("prompt_token_ids")
            said["finish"] = choice.get("finish_reason") or said.get("finish")
    return choices


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "unasked"])
@pytest.mark.parametrize("request_", CHATS, ids=[request.name for request in CHATS])
async def test_the_agent_sees_what_the_engine_would_have_sent(
    vllm: Vllm, home: House, request_: WireRequest, asks: bool
) -> None:
    rollout = await home.rollout(allow=["request_id", "x-request-id"])
    body = body_for(request_, "vllm")
    body = body if asks else unasked(body)
    direct = await send(home, vllm.base_url, request_, body, {})
    headers = {"Authorization": f"Bearer {rollout['secret']}"}
    proxied = await send(home, rollout["url"], request_, body, headers)
    assert set(differences(direct, proxied, names=("engine", "treering"))) == ALLOWED.get(request_.name, set())
    if direct.status == 200 and (not isinstance(body, dict) or body.get("seed") is not None):
        assert told(proxied) == told(direct)
    if not asks and direct.status == 200:
        assert b'token_ids":[' not in proxied.body.replace(b" ", b"")


async def test_headers_of_the_engine_pass(vllm: Vllm, home: House) -> None:
    rollout = await home.rollout()
    ask = {"model": vllm.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    async with home.session.post(vllm.base_url + "/v1/chat/completions", json=ask) as direct:
        await direct.read()
    async with home.chat(rollout, **ask) as proxied:
        await proxied.read()
    framing = {"Date", "Content-Length", "Transfer-Encoding", "Connection"}
    assert names(proxied) - framing == names(direct) - framing


def names(answer: aiohttp.ClientResponse) -> set[str]:
    return {name.title() for name in answer.headers}
