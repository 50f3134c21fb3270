"""A stand-in for llama.cpp's server: its wire, with what it refuses, and no model behind it.

Written from its source (`tools/server`), which could not be run here. What it holds to:

- Each entry of the logprobs has the token's `id`. A stream has no chunk for a token without text: the end token's.
- `logprobs` with `tools` and `stream` is 400, and so is `top_logprobs` without `logprobs`.
- `/apply-template` renders a request, `/tokenize` makes ids of text. `timings` stand on the last chunk.

A token is one character (id 1000 + its code point).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

BOS, END = 1, 2


class LlamacppStandIn:
    """The server; it says `text` to all, and ends by itself or, with `cut`, by length."""

    def __init__(self, *, cut: bool = False) -> None:
        self.url = ""
        self.text = "Hi."
        self.cut = cut
        self.asked: list[dict[str, Any]] = []
        # Answers of the two side routes, where they go wrong: status and body.
        self.template: tuple[int, bytes] | None = None
        self.tokens: tuple[int, bytes] | None = None
        # Tokens of prompt that usage counts beyond those there are.
        self.extra = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=0)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/apply-template", self._apply_template)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def ids(self) -> list[int]:
        return [1000 + ord(char) for char in self.text] + ([] if self.cut else [END])

    def scores(self) -> list[float]:
        return [-0.25 - 0.125 * (at % 7) for at in range(len(self.ids()))]

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "llamacpp"}]}
        )

    async def _apply_template(self, request: web.Request) -> web.Response:
        if self.template is not None:
            return web.Response(status=self.template[0], body=self.template[1])
        return web.json_response({"prompt": _render(await request.json())})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.tokens is not None:
            return web.Response(status=self.tokens[0], body=self.tokens[1])
        body = await request.json()
        assert body["parse_special"] is True
        return web.json_response({"tokens": tokenise(body["content"], special=body.get("add_special", False))})

    async def _detokenize(self, request: web.Request) -> web.Response:
        ids = (await request.json())["tokens"]
        return web.json_response({"content": "".join("<s>" if one == BOS else chr(one - 1000) for one in ids)})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        streamed = body.get("stream", False)
        if body.get("logprobs") and body.get("tools") and streamed:
            return _refusal("logprobs is not supported with tools + stream")
        if not body.get("logprobs") and body.get("top_logprobs") is not None:
            return _refusal("top_logprobs requires logprobs to be set to true")
        self.asked.append(body)
        top = body.get("top_logprobs", 20) if body.get("logprobs") else 0
        prompt = len(tokenise(_render(body), special=True)) + self.extra
        sampled = len(self.ids())
        usage = {"completion_tokens": sampled, "prompt_tokens": prompt, "total_tokens": prompt + sampled}
        head = {"created": 1, "id": "chatcmpl-1", "model": body["model"], "system_fingerprint": "b1"}
        finish = "length" if self.cut else "stop"
        if streamed:
            usage_asked = (body.get("stream_options") or {}).get("include_usage")
            return self._stream(head, finish, top, usage if usage_asked else None)
        choice: dict[str, Any] = {
            "finish_reason": finish, "index": 0, "message": {"role": "assistant", "content": self.text},
        }  # fmt: skip
        if top:
            choice["logprobs"] = {"content": [self._entry(at, top) for at in range(sampled)]}
        form = {"choices": [choice], **head, "object": "chat.completion", "usage": usage, "timings": {"prompt_n": 1}}
        return web.json_response(form)

    def _stream(self, head: dict[str, Any], finish: str, top: int, usage: dict[str, Any] | None) -> web.Response:
        head = {**head, "object": "chat.completion.chunk"}

        def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
            return {"choices": [{"finish_reason": finish, "index": 0, "delta": delta, **fields}], **head}

        chunks = [chunk({"role": "assistant", "content": None})]
        for at, char in enumerate(self.text):
            logprobs = {"logprobs": {"content": [self._entry(at, top)]}} if top else {}
            chunks.append(chunk({"content": char}, **logprobs))
        chunks.append(chunk({}, finish))
        if usage is not None:
            chunks.append({"choices": [], **head, "usage": usage})
        chunks[-1]["timings"] = {"prompt_n": 1}
        stream = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks) + b"data: [DONE]\n\n"
        return web.Response(body=stream, headers={"Content-Type": "text/event-stream"})

    def _entry(self, at: int, top: int) -> dict[str, Any]:
        id_, text = self.ids()[at], self.text[at : at + 1]
        entry = {"id": id_, "token": text, "bytes": list(text.encode()), "logprob": self.scores()[at]}
        return {**entry, "top_logprobs": [entry] * top}


def tokenise(text: str, *, special: bool) -> list[int]:
    return [BOS] * special + [1000 + ord(char) for char in text]


def _render(body: dict[str, Any]) -> str:
    said = "".join(f"<{one['role']}>{one.get('content') or ''}" for one in body["messages"])
    return f"{len(body.get('tools') or ())}{said}<assistant>"


def _refusal(message: str) -> web.Response:
    error = {"code": 400, "message": message, "type": "invalid_request_error"}
    return web.json_response({"error": error}, status=400)


@contextlib.asynccontextmanager
async def llamacpp(**options: Any) -> AsyncIterator[LlamacppStandIn]:
    """A stand-in that runs for a block."""
    server = LlamacppStandIn(**options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
