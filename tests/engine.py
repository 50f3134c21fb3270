"""An engine under a test's hand: it sends exactly the bytes that it is told to, when it is told to.

For what the scripted engine can't show: an event at a time, a cut at a byte, and whether the connection was dropped.
Its wire is vLLM's (see tests/fixtures/vllm_wire); each reply is a list of steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from capture.round_trip import FIRST

PROMPT = [151644, 872, 198, 151645]


def chunk(
    *ids: int,
    text: str | None = None,
    role: bool = False,
    finish: str | None = None,
    index: int = 0,
    logprobs: bool = True,
    prompt: list[int] | None = None,
) -> dict[str, Any]:
    """A chunk of a streamed chat completion as vLLM 0.32 sends it with `return_token_ids` and `logprobs`."""
    delta: dict[str, Any] = {"role": "assistant", "content": ""} if role else {}
    if text is not None:
        delta["content"] = text
    scores = [{"token": "t", "logprob": -0.5, "bytes": [116], "top_logprobs": []} for _ in ids]
    choice: dict[str, Any] = {
        "index": index,
        "delta": delta,
        "logprobs": {"content": scores} if ids and logprobs else None,
        "finish_reason": finish,
    }
    if not role:
        choice["token_ids"] = list(ids)
    if finish is not None:
        choice["stop_reason"] = None
    made = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice]}
    if role:
        made["prompt_token_ids"] = PROMPT if prompt is None else prompt
    return made


def usage_chunk(sampled: int, prompt: int = len(PROMPT)) -> dict[str, Any]:
    """The chunk with usage that `stream_options.include_usage` brings."""
    usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [],
        "usage": usage,
    }  # fmt: skip


def event(form: dict[str, Any] | str) -> bytes:
    """An event on the wire."""
    return b"data: " + (form if isinstance(form, str) else json.dumps(form)).encode() + b"\n\n"


def whole(
    ids: list[int],
    *,
    text: str = "Hi",
    finish: str = "stop",
    prompt: list[int] | None = None,
    reply_id: str = "chatcmpl-1",
) -> dict[str, Any]:
    """A whole chat completion as vLLM 0.32 sends it with `return_token_ids` and `logprobs`."""
    scores = [{"token": "t", "logprob": -0.5, "bytes": [116], "top_logprobs": []} for _ in ids]
    prompt = PROMPT if prompt is None else prompt
    message = {
        "role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "reasoning": None,
    }  # fmt: skip
    return {
        "id": reply_id, "object": "chat.completion", "created": 1, "model": "tiny",
        "choices": [
            {
                "index": 0, "message": message, "logprobs": {"content": scores}, "finish_reason": finish,
                "stop_reason": None, "token_ids": ids, "routed_experts": None,
            }
        ],
        "service_tier": None, "system_fingerprint": "f",
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)},
        "prompt_logprobs": None, "prompt_token_ids": prompt, "kv_transfer_params": None,
    }  # fmt: skip


STREAM = [event(chunk(role=True)), event(chunk(5, text="Hel")), event(chunk(6, text="lo")),
          event(chunk(7, finish="stop")), event(usage_chunk(3)), event("[DONE]")]  # fmt: skip
"""A short streamed reply: three sampled ids."""


class Exchange:
    """One request that the engine got, and the hand that answers it."""

    def __init__(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        self.body = body
        self.headers = headers
        # Set when the client dropped the connection before the answer was through.
        self.dropped = asyncio.Event()
        self._steps: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, *pieces: bytes) -> Exchange:
        """Send bytes of a stream."""
        for piece in pieces:
            self._steps.put_nowait(piece)
        return self

    def end(self) -> None:
        """End the stream as HTTP wants it."""
        self._steps.put_nowait(None)

    def cut(self) -> None:
        """Close the connection without an end."""
        self._steps.put_nowait("cut")

    def answer(self, form: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Answer whole."""
        self._steps.put_nowait(("whole", form, status, headers or {}))

    async def _play(self, request: web.Request) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            while True:
                step = await self._steps.get()
                if isinstance(step, tuple):
                    _, form, status, headers = step
                    body = form if isinstance(form, bytes) else json.dumps(form).encode()
                    headers = {"Content-Type": "application/json", **headers}
                    return web.Response(body=body, status=status, headers=headers)
                if response is None:
                    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
                    await response.prepare(request)
                if step is None:
                    await response.write_eof()
                    return response
                if step == "cut":
                    assert request.transport is not None
                    request.transport.close()
                    return response
                await response.write(step)
        except (asyncio.CancelledError, ConnectionError):
            self.dropped.set()
            raise


class Engine:
    """A small server with vLLM's routes, whose chat completions a test answers by hand.

    The two probes at start and the one for the logprob mode are answered by themselves.
    """

    def __init__(self, *, auto: Callable[[Exchange], bool] | None = None) -> None:
        self.url = ""
        self.calls: asyncio.Queue[Exchange] = asyncio.Queue()
        self.requests: list[Exchange] = []
        self._auto = auto or _answer_probe
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=0)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def next(self) -> Exchange:
        """The next request that a test must answer."""
        async with asyncio.timeout(10):
            return await self.calls.get()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        exchange = Exchange(await request.json(), dict(request.headers))
        if not self._auto(exchange):
            self.requests.append(exchange)
            self.calls.put_nowait(exchange)
        return await exchange._play(request)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 4096}]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": [1, 2], "asked": await request.json()})


def _answer_probe(exchange: Exchange) -> bool:
    # The probe's, and the doctor's two turns.
    if exchange.body["messages"][0] not in [{"role": "user", "content": text} for text in ("Say hi.", FIRST)]:
        return False
    if allowed := exchange.body.get("allowed_token_ids"):
        form = whole(allowed, finish="length")
        form["choices"][0]["logprobs"]["content"][0]["logprob"] = 0.0
        exchange.answer(form)
    elif exchange.body.get("stream"):
        exchange.send(*STREAM).end()
    else:
        exchange.answer(whole([5, 6, 7]))
    return True


@contextlib.asynccontextmanager
async def running(**options: Any):
    """An engine that runs for a block."""
    engine = Engine(**options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
