"""The engine as an HTTP server: sockets, pace and failures. What is said lies in the pure modules beside this one."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from capture.scripted import wire
from capture.scripted.model import MAX_MODEL_LEN, VERSION, ScriptedModel
from capture.scripted.request import ChatRequest, RequestError, check_model, decode_json, invalid
from capture.scripted.rules import Failure, Reply, Rules
from capture.scripted.sampler import LogprobsMode

# Larger than any body that a context of this length can fill.
_MAX_BODY_BYTES = 256 * 1024 * 1024

# How long a request that runs when the engine is closed may take to see that its task is cancelled.
_CLOSE_S = 0.2

_ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

_KINDS = {404: "NotFoundError", 401: "AuthenticationError", 429: "RateLimitError", 503: "ServiceUnavailableError"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedEngine:
    """An engine that says what its rules say, over vLLM's wire.

    `max_model_len` is in tokens, `pace_s` in seconds per token. `noncanonical` overrides the rules' own probability.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        model: str = "scripted",
        max_model_len: int = MAX_MODEL_LEN,
        pace_s: float = 0.0,
        logprobs_mode: LogprobsMode = "processed",
        api_key: str | None = None,
        seed: int = 0,
        noncanonical: float | None = None,
    ) -> None:
        """Prepare the engine; nothing listens until `start`."""
        self.model = ScriptedModel(
            rules or Rules(),
            name=model,
            max_model_len=max_model_len,
            mode=logprobs_mode,
            seed=seed,
            noncanonical=noncanonical,
        )
        # Chat requests being answered, answered in full, and left by their client before the end.
        self.running = 0
        self.served = 0
        self.left = 0
        self._pace_s = pace_s
        self._api_key = api_key
        self._runner: web.AppRunner | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._hung = asyncio.Event()

    def __repr__(self) -> str:
        return f"ScriptedEngine({self.model!r}, {self.running} running)"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, on a free port for 0, and give the base URL. Raises OSError where the port is taken."""
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/chat/completions/batch", self._batch)
        app.router.add_get("/v1/models", self._models, allow_head=False)
        app.router.add_get("/health", self._health, allow_head=False)
        app.router.add_get("/version", self._version, allow_head=False)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        # A hang-up cancels the handler at once, as vLLM drops the request; aiohttp's default lets it run on.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSE_S)
        await runner.setup()
        self._runner = runner
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            await self.close()
            raise
        bound = runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{shown}:{bound[1]}"

    async def idle(self) -> None:
        """Wait until no chat request runs: what a client has left is dropped by then, and counted in `left`."""
        await self._idle.wait()

    async def hung(self) -> None:
        """Wait until the script has let a chat request hang, with all that it was to send before written."""
        await self._hung.wait()

    async def close(self) -> None:
        """Stop listening and drop what runs. May be called twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn refusals, unknown routes and other methods into vLLM's bodies, and ask for the key under /v1."""
        if self._api_key is not None and request.path.startswith("/v1"):
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode()):
                return _json({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except RequestError as refusal:
            return _json(refusal.body, status=refusal.status)
        except web.HTTPNotFound:
            return _json({"detail": "Not Found"}, status=404)
        except web.HTTPMethodNotAllowed as error:
            return _json({"detail": "Method Not Allowed"}, status=405, headers={"Allow": error.headers["Allow"]})

    # Side routes

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def _models(self, _request: web.Request) -> web.Response:
        created = int(time.time())
        permission = {
            "id": f"modelperm-{wire.hex_id(self.model.name, 0)}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self.model.name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self.model.name,
            "parent": None,
            "max_model_len": self.model.max_model_len,
            "permission": [permission],
        }
        return _json({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        data = decode_json(await request.read(), request.headers.get("Content-Type", ""))
        check_model(data.get("model"), self.model.name)
        if "messages" in data:
            # The chat request's own checks, with what only a chat needs left out.
            asked = self.model.parse({key: data[key] for key in _TOKENIZE_KEYS if key in data})
            tokens = self.model.prompt(asked).ids
        elif isinstance(data.get("prompt"), str):
            tokens = self.model.tokeniser.encode(data["prompt"])
        else:
            raise invalid("missing", "body.prompt", "Field required", data)
        strings = [self.model.tokeniser.decode([token]) for token in tokens] if data.get("return_token_strs") else None
        return _json(
            {"count": len(tokens), "max_model_len": self.model.max_model_len, "tokens": tokens, "token_strs": strings}
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        data = decode_json(await request.read(), request.headers.get("Content-Type", ""))
        check_model(data.get("model"), self.model.name)
        tokens = data.get("tokens")
        if not isinstance(tokens, list):
            raise invalid("list_type", "body.tokens", "Input should be a valid list", tokens)
        for n, token in enumerate(tokens):
            if type(token) is not int:
                raise invalid("int_type", f"body.tokens.{n}", "Input should be a valid integer", token)
            if token < 0:
                message = "Input should be greater than or equal to 0"
                raise invalid("greater_than_equal", f"body.tokens.{n}", message, token)
        # An id beyond the vocabulary has no text.
        known = [token for token in tokens if token < self.model.tokeniser.size]
        return _json({"prompt": self.model.tokeniser.decode(known)})

    # Chat

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        self._idle.clear()
        try:
            data = decode_json(await request.read(), request.headers.get("Content-Type", ""))
            asked = self.model.parse(data)
            response = await self._answer(request, asked)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left += 1
            raise
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()
        self.served += 1
        return response

    async def _answer(self, request: web.Request, asked: ChatRequest) -> web.StreamResponse:
        prompt = self.model.prompt(asked)
        self.model.fits(prompt)
        reply = self.model.reply(asked)
        failure = reply.failure or Failure()
        if failure.status is not None:
            return _refuse(failure)
        if failure.hang and not asked.stream:
            await self._hang()
        given_id = request.headers.get("X-Request-Id")
        writer = self.model.write(asked, prompt, reply, created=int(time.time()), given_id=given_id)
        if asked.stream:
            return await self._stream(request, writer, reply, failure)
        return await self._whole(request, writer, reply, failure)

    async def _whole(
        self, request: web.Request, writer: wire.Writer, reply: Reply, failure: Failure
    ) -> web.StreamResponse:
        await self._wait(writer.longest, reply)
        if failure.error_event_after_tokens is not None:
            return _json(wire.error(_ENGINE_DEAD), status=500)
        if failure.hang_after_tokens is not None:
            await self._hang()
        body = msgspec.json.encode(writer.body())
        if failure.cut_after_tokens is not None:
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            return _cut(request, response)
        return web.Response(body=body, content_type="application/json")

    async def _stream(
        self, request: web.Request, writer: wire.Writer, reply: Reply, failure: Failure
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            return await self._write(request, response, writer, reply, failure)
        except ConnectionError:
            # The client left: nobody is there to be told, and it is nobody's fault.
            return response

    async def _write(
        self,
        request: web.Request,
        response: web.StreamResponse,
        writer: wire.Writer,
        reply: Reply,
        failure: Failure,
    ) -> web.StreamResponse:
        await response.prepare(request)
        if failure.hang:
            await self._hang()
        for chunk in writer.opening():
            await response.write(_event(chunk))
        most = failure.after_tokens if failure.abort_after_tokens is None else None
        out = 0
        per_chunk = reply.tokens_per_chunk if most is None else min(reply.tokens_per_chunk, max(most, 1))
        for step in writer.steps(per_chunk):
            if most is not None and step.tokens > most:
                break
            # One token's time for each position; the choices of a position come together.
            await self._wait(max(step.tokens - out, 0), reply)
            out = max(out, step.tokens)
            if step.chunk is not None:
                await response.write(_event(step.chunk))
        if failure.hang_after_tokens is not None:
            await self._hang()
        if failure.cut_after_tokens is not None:
            return _cut(request, response)
        if failure.error_event_after_tokens is not None:
            await response.write(_event(wire.error(_ENGINE_DEAD)))
        else:
            for chunk in writer.closing():
                await response.write(_event(chunk))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _hang(self) -> None:
        self._hung.set()
        await _for_ever()

    async def _wait(self, tokens: int, reply: Reply) -> None:
        # At pace 0 this still lets other requests run, and a hang-up be seen.
        await asyncio.sleep(tokens * (self._pace_s if reply.pace_s is None else reply.pace_s))

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        """Answer several conversations in one reply, each a choice; not streamed."""
        data = decode_json(await request.read(), request.headers.get("Content-Type", ""))
        conversations = data.get("messages")
        if not isinstance(conversations, list):
            raise invalid("list_type", "body.messages", "Input should be a valid list", conversations)
        for n, messages in enumerate(conversations):
            if not isinstance(messages, list):
                raise invalid("list_type", f"body.messages.{n}", "Input should be a valid list", messages)
        bodies = []
        for messages in conversations:
            asked = self.model.parse({**data, "messages": messages, "stream": False, "n": 1})
            prompt = self.model.prompt(asked)
            self.model.fits(prompt)
            reply = self.model.reply(asked)
            given_id = request.headers.get("X-Request-Id")
            bodies.append(self.model.write(asked, prompt, reply, created=int(time.time()), given_id=given_id).body())
        return _json(wire.joined(bodies))


_TOKENIZE_KEYS = (
    "messages",
    "model",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)


def _json(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    encoded = msgspec.json.encode(body)
    return web.Response(body=encoded, status=status, headers=headers, content_type="application/json")


def _event(body: Any) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _refuse(failure: Failure) -> web.Response:
    status = failure.status or 500
    kind = _KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    headers = {} if failure.retry_after is None else {"Retry-After": str(failure.retry_after)}
    message = failure.message if failure.message is not None else "The script says so."
    return _json(wire.error(message, status=status, kind=kind), status=status, headers=headers)


def _cut(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Close the connection behind what was written, without the end that HTTP asks for."""
    if request.transport is not None:
        request.transport.close()
    return response


async def _for_ever() -> None:
    """Wait until the client goes away, which cancels this."""
    await asyncio.Event().wait()
