"""An engine that has no model: it renders and takes ids as a vLLM does, and answers at once.

    python -m benchmarks.drift.static          prints its port, and ends with its standard input

A token is four bytes of text, so a rendering costs next to nothing, and what is measured before it is Treering's own.
It counts what it is asked, by path: `GET /counts`, which also begins anew.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from graph.records import IntArray

Json = dict[str, Any]

ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
END = 5
SAMPLED = [7, 8, END]
"""`ok`, in other ids than its text has."""


def rendered(messages: list[Json], *, closed: bool) -> list[int]:
    """Render: role, four bytes a token, end."""
    parts: list[IntArray] = []
    for message in messages:
        raw = (message.get("content") or "").encode()
        words = np.frombuffer(raw + b" " * (-len(raw) % 4), np.int32) % 100_000 + 10
        parts += [np.array([ROLES[message["role"]]], np.int32), words, np.array([END], np.int32)]
    if not closed:
        parts.append(np.array([ROLES["assistant"]], np.int32))
    ids: list[int] = np.concatenate(parts).tolist()
    return ids


class Static:
    """The engine."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def app(self) -> web.Application:
        """Return its routes."""
        app = web.Application(client_max_size=0)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._health)
        app.router.add_get("/counts", self._count)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": "static", "object": "model", "owned_by": "vllm", "max_model_len": 1_000_000}
        return web.json_response({"object": "list", "data": [card]})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _count(self, _: web.Request) -> web.Response:
        told, self._counts = self._counts, Counter()
        return web.json_response(told)

    async def _tokenize(self, request: web.Request) -> web.Response:
        self._counts["/tokenize"] += 1
        asked = msgspec.json.decode(await request.read())
        ids = rendered(asked["messages"], closed=not asked.get("add_generation_prompt", True))
        return _json({"count": len(ids), "max_model_len": 1_000_000, "tokens": ids})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self._counts["/v1/chat/completions"] += 1
        asked = msgspec.json.decode(await request.read())
        given = (asked.get("kv_transfer_params") or {}).get("prompt_token_ids")
        prompt = given or rendered(asked["messages"], closed=False)
        allowed = asked.get("allowed_token_ids")
        ids = allowed or SAMPLED
        finish = "length" if allowed else "stop"
        scores = {"content": [{"token": "t", "logprob": 0.0, "bytes": [116], "top_logprobs": []} for _ in ids]}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        head = {"id": "chatcmpl-1", "created": 1, "model": "static"}
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "ok"}
            choice = {"index": 0, "message": message, "logprobs": scores, "finish_reason": finish, "token_ids": ids}
            form = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return _json({**form, "prompt_token_ids": prompt})
        head["object"] = "chat.completion.chunk"
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        last = {"index": 0, "delta": {"content": "ok"}, "logprobs": scores, "finish_reason": finish, "token_ids": ids}
        chunks = [{**head, "choices": [role], "prompt_token_ids": prompt}, {**head, "choices": [last]}]
        chunks.append({**head, "choices": [], "usage": usage})
        body = b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)
        return web.Response(body=body + b"data: [DONE]\n\n", content_type="text/event-stream")


def _json(form: Json) -> web.Response:
    return web.Response(body=msgspec.json.encode(form), content_type="application/json")


async def serve() -> None:
    """Serve on a free port until standard input ends."""
    runner = web.AppRunner(Static().app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve())
