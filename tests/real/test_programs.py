"""The real programs start, answer, and leave nothing behind: what tests of more than that may build on."""

import os
import signal
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.real import agent_opencode

QUESTION = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4, "temperature": 0}


async def test_the_engine_answers_with_its_ids(vllm):
    body = {"model": vllm.model, "return_token_ids": True, "logprobs": True, **QUESTION}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{vllm.base_url}/v1/chat/completions", json=body) as reply,
    ):
        found = await reply.json()
    (choice,) = found["choices"]
    assert reply.status == 200
    assert found["prompt_token_ids"][:2] == [151644, 872], "Qwen3's own <|im_start|>user"
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 4


async def test_the_engine_is_in_processed_mode(vllm):
    """With one allowed token, the sampling distribution gives it a logprob of 0."""
    body = {"model": vllm.model, "logprobs": True, "allowed_token_ids": [1234], **QUESTION}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{vllm.base_url}/v1/chat/completions", json=body) as reply,
    ):
        found = await reply.json()
    assert {entry["logprob"] for entry in found["choices"][0]["logprobs"]["content"]} == {0.0}


class Endpoint:
    """A chat endpoint that keeps the bodies that it was asked and answers each with one word."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.keys.add(request.headers["authorization"])
        head = '"id":"c","object":"chat.completion.chunk","created":1,"model":"test-model"'
        chunks = [
            f'{{{head},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"Hello"}}}}]}}',
            f'{{{head},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}',
            "[DONE]",
        ]
        text = "".join(f"data: {chunk}\n\n" for chunk in chunks)
        return web.Response(text=text, content_type="text/event-stream")


@pytest.fixture
async def endpoint():
    double = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", double.answer)
    async with TestServer(app) as server:
        double.url = str(server.make_url("/v1"))
        yield double


async def test_opencode_makes_a_title_call_beside_its_loop(opencode, endpoint):
    agent = await opencode(base_url=endpoint.url, api_key="sk-test")
    reply = await agent.message(await agent.session(), "Say hi.")
    assert [part["text"] for part in reply["parts"] if part["type"] == "text"] == ["Hello"]
    assert sorted("tools" in body for body in endpoint.bodies) == [False, True]
    assert endpoint.keys == {"Bearer sk-test"}
    assert all(body["stream"] for body in endpoint.bodies)


@pytest.mark.usefixtures("opencode")
async def test_opencode_runs_one_prompt_to_its_end(endpoint, tmp_path):
    code, output = await agent_opencode.run_once(tmp_path / "home", "Say hi.", base_url=endpoint.url, api_key="sk-test")
    assert code == 0
    assert "Hello" in output


@pytest.mark.usefixtures("opencode")
async def test_opencode_is_gone_after_its_context(endpoint, tmp_path):
    async with agent_opencode.running(tmp_path / "home", base_url=endpoint.url, api_key="sk-test") as agent:
        pass
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(agent.url)
    with pytest.raises(ProcessLookupError):
        os.killpg(agent.pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word for it is Linux's")
def test_a_program_does_not_outlive_whoever_started_it():
    script = (
        "import os, subprocess; from tests.real.orphans import end_with_parent\n"
        "subprocess.Popen(['sleep', '600'], preexec_fn=end_with_parent, start_new_session=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    # Both hold the pipe, so that it ends, and `run` with it, when neither is left.
    done = subprocess.run([sys.executable, "-c", script], cwd=agent_opencode.ROOT, capture_output=True, timeout=30)
    assert done.returncode == -signal.SIGKILL
