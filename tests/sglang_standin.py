"""A stand-in for SGLang's server: its wire, with what it refuses, and no model behind it.

Not SGLang and not the scripted engine: written from SGLang 0.5.23's own source (`srt/entrypoints/openai`), which could
not be run here. What it holds to:

- Whole replies: `return_prompt_token_ids`, `return_token_ids` and `return_meta_info` add their fields to each choice;
  `metadata.weight_version` is always there. With `stream` each of the three is 400, with SGLang's own sentence.
- Both modes: `return_input_ids_in_sglext` and `return_output_ids_in_sglext`; streamed, one chunk without choices comes
  behind the finish and before usage. After an abort with an error it has no ids.
- Streams: the role in a chunk of its own, finishes of all choices after all texts. Logprobs hang on the first chunk
  that a step brings; a step without text has a chunk for them only if the server has a parser; else they are lost.
- A key whose value is not asked for is left out, but `logprobs`, which is null.
- `/tokenize` renders messages as for a chat completion; closed, with `add_generation_prompt: false`. `input_ids` of a
  chat request are its prompt, and templating is skipped. `/detokenize` leaves special tokens out unless told not to.

A token is one character (id 1000 + its code point), so a reply that comes back is tokenised as it was sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from aiohttp import web

ROLES = {"system": 10, "user": 11, "assistant": 12, "tool": 13}
END = 2
MODEL = "tiny"


class Say(NamedTuple):
    """What one choice says, and how it ends."""

    text: str = "Hi."
    reasoning: str = ""
    # Name and arguments (JSON text) of each call.
    calls: tuple[tuple[str, str], ...] = ()
    # "stop", "length" or "abort"; "error" is an abort that SGLang gives a status: an error in the stream, or 500.
    finish: str = "stop"
    # Tokens that one step of a stream brings.
    per_step: int = 1
    # Awaited before the last step.
    until: asyncio.Event | None = None

    def pieces(self) -> list[tuple[str, str, str]]:
        """Each token: what it is part of ("reasoning", "text", "call", "end"), its text, what a parser makes of it."""
        found = [("reasoning", char, char) for char in self.reasoning]
        found += [("text", char, char) for char in self.text]
        for name, arguments in self.calls:
            raw = json.dumps({"name": name, "arguments": json.loads(arguments)})
            found += [("call", char, "") for char in raw[:-1]] + [("call", raw[-1], json.dumps([name, arguments]))]
        return found + ([("end", "</s>", "")] if self.finish == "stop" else [])

    def ids(self) -> list[int]:
        return [END if part == "end" else 1000 + ord(text) for part, text, _ in self.pieces()]

    def logprobs(self) -> list[float]:
        return [-0.25 - 0.125 * (at % 7) for at in range(len(self.pieces()))]


def render(messages: list[dict[str, Any]], *, closed: bool = False) -> list[int]:
    """The prompt's ids, by a template of its own: role, text, end; it shows no thinking."""
    ids: list[int] = []
    for message in messages:
        text = message.get("content") or ""
        text += "".join(json.dumps(call["function"]) for call in message.get("tool_calls") or ())
        ids += [ROLES[message["role"]], *(1000 + ord(char) for char in text), END]
    return ids if closed else [*ids, ROLES["assistant"]]


def spell(ids: list[int], special: dict[int, str]) -> str:
    """The text of ids; those of roles and ends have one only if they are asked for."""
    return "".join(chr(one - 1000) if one >= 1000 else special.get(one, "") for one in ids)


class SglangStandIn:
    """The server. `says` are the replies to come, a list of choices each; without any it says "Hi."."""

    def __init__(self, *, parser: bool = True) -> None:
        """With `parser` it has been started with `--tool-call-parser` and `--reasoning-parser`."""
        self.url = ""
        self.parser = parser
        self.says: list[list[Say]] = []
        # Bodies of the chat requests, in their order.
        self.asked: list[dict[str, Any]] = []
        # Spans of `weight_versions`, where the weights changed under a request.
        self.spans: list[dict[str, Any]] | None = None
        self.version = "default"
        # Fields that it refuses by name, as an older one would.
        self.refused: set[str] = set()
        # As an older one: it knows no `input_ids`.
        self.ignores = False
        self.dropped = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._n = 0

    async def start(self) -> None:
        app = web.Application(client_max_size=0)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "sglang", "root": MODEL, "parent": None,
                "max_model_len": 4096}  # fmt: skip
        return web.json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (body.get("prompt") is None) == (body.get("messages") is None):
            return web.json_response(_error("Exactly one of 'prompt' or 'messages' must be provided."), status=400)
        if body.get("prompt") is not None:
            ids = [1000 + ord(char) for char in body["prompt"]]
        else:
            ids = render(body["messages"], closed=body.get("add_generation_prompt") is False)
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 4096})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        # Left out unless asked for, as its own default has it.
        special = {} if body.get("skip_special_tokens", True) else {END: "<end>"}
        return web.json_response({"text": spell(body["tokens"], special)})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if fault := self._fault(body):
            return web.json_response(_error(fault), status=400)
        self.asked.append(body)
        says = self.says.pop(0) if self.says else [Say()] * body.get("n", 1)
        self._n += 1
        call = _Call(body, says, parser=self.parser, n=self._n, ignores=self.ignores)
        if body.get("stream"):
            return await self._stream(request, call)
        if says[0].finish == "error":
            return web.json_response(_error("Out of memory.", "InternalServerError", 500), status=500)
        return web.json_response(call.whole(self._weights()))

    def _weights(self) -> dict[str, Any]:
        return {"weight_version": self.version} | ({} if self.spans is None else {"weight_versions": self.spans})

    def _fault(self, body: dict[str, Any]) -> str | None:
        if not isinstance(body.get("messages"), list):
            return "1 validation error: messages: Field required"
        if not isinstance(body.get("logprobs", False), bool):
            return "1 validation error: logprobs: Input should be a valid boolean"
        for name in sorted(self.refused & body.keys()):
            return f"1 validation error: {name}: Extra inputs are not permitted"
        if body.get("stream"):
            for name, where in (
                ("return_prompt_token_ids", ""),
                ("return_token_ids", " on /v1/chat/completions"),
                ("return_meta_info", ""),
            ):
                if body.get(name):
                    please = f"Please set stream=false when using {name}=true."
                    return f"{name} is not supported with streaming{where}. {please}"
        return None

    async def _stream(self, request: web.Request, call: _Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            for event in call.events():
                if isinstance(event, asyncio.Event):
                    await event.wait()
                else:
                    await response.write(b"data: " + event + b"\n\n")
            await response.write_eof()
        except (asyncio.CancelledError, ConnectionError):
            self.dropped.set()
            raise
        return response

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        """Completions, the one route with ids in the choices of both modes; never more than a chunk or two."""
        body = await request.json()
        say = Say(text="Hi.")
        prompt = [1000 + ord(char) for char in body["prompt"]]
        scores = {
            "text_offset": [-1] * len(say.ids()), "token_logprobs": say.logprobs(),
            "tokens": [text for _, text, _ in say.pieces()], "top_logprobs": [None] * len(say.ids()),
        }  # fmt: skip
        choice: dict[str, Any] = {
            "index": 0, "text": say.text, "logprobs": scores if body.get("logprobs") is not None else None,
            "finish_reason": "stop", "matched_stop": END,
        }  # fmt: skip
        if body.get("return_token_ids"):
            choice |= {"token_ids": say.ids(), "prompt_token_ids": prompt}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
        usage = _usage(len(prompt), [say])
        if not body.get("stream"):
            return web.json_response({**head, "choices": [choice], "usage": usage})
        chunks = [{**head, "choices": [choice]}]
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**head, "choices": [], "usage": usage})
        stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
        return web.Response(body=stream, headers={"Content-Type": "text/event-stream"})


class _Call:
    """One request and what is said to it."""

    def __init__(self, body: dict[str, Any], says: list[Say], *, parser: bool, n: int, ignores: bool = False) -> None:
        self._body = body
        self._says = says
        self._parser = parser
        self._id = f"{n:032x}"
        given = None if ignores else body.get("input_ids")
        self._prompt = given or render(body["messages"])

    def _matched(self, say: Say) -> int | None:
        return END if say.finish == "stop" and not say.calls else None

    def _finish(self, say: Say) -> str:
        return "tool_calls" if say.calls and say.finish == "stop" else say.finish

    def whole(self, weights: dict[str, Any]) -> dict[str, Any]:
        form: dict[str, Any] = {
            "id": self._id, "object": "chat.completion", "created": 1, "model": self._body["model"],
            "choices": [self._choice(at, say, weights) for at, say in enumerate(self._says)],
            "usage": _usage(len(self._prompt), self._says), "metadata": weights,
        }  # fmt: skip
        ext = self._ext()
        return form | ({"sglext": ext} if ext else {})

    def _choice(self, at: int, say: Say, weights: dict[str, Any]) -> dict[str, Any]:
        calls = [
            {"id": f"call_{at}{k}", "index": k, "type": "function", "function": {"name": name, "arguments": arguments}}
            for k, (name, arguments) in enumerate(say.calls)
        ]
        texts = [text for _, text, _ in say.pieces()]
        pairs = [list(each) for each in zip(say.logprobs(), say.ids(), texts, strict=True)]
        message = {
            "role": "assistant", "content": say.text, "reasoning_content": say.reasoning or None,
            "tool_calls": calls or None,
        }  # fmt: skip
        choice: dict[str, Any] = {
            "index": at, "message": message,
            "logprobs": {"content": self._entries(say, 0, len(pairs))} if self._body.get("logprobs") else None,
            "finish_reason": self._finish(say), "matched_stop": self._matched(say),
        }  # fmt: skip
        if self._body.get("return_prompt_token_ids") or self._body.get("return_token_ids"):
            choice["prompt_token_ids"] = self._prompt
        if self._body.get("return_token_ids"):
            choice["response_token_ids"] = say.ids()
        if self._body.get("return_meta_info"):
            meta = {
                "id": self._id, "finish_reason": {"type": say.finish, "matched": END},
                "prompt_tokens": len(self._prompt), **weights, "completion_tokens": len(pairs), "cached_tokens": 0,
            }  # fmt: skip
            if self._body.get("logprobs"):
                meta["output_token_logprobs"] = pairs
            if self._body.get("return_routed_experts"):
                meta["routed_experts"] = "AAAA"
            choice["meta_info"] = meta
        return choice

    def _ext(self, *, ids: bool = True) -> dict[str, Any]:
        ext: dict[str, Any] = {}
        if self._body.get("return_routed_experts") and not self._body.get("return_meta_info"):
            ext["routed_experts"] = "AAAA"
        if self._body.get("return_input_ids_in_sglext") and ids:
            ext["input_ids"] = self._prompt
        if self._body.get("return_output_ids_in_sglext") and ids:
            ext["output_ids"] = [say.ids() for say in self._says]
        return ext

    def _entries(self, say: Say, start: int, end: int) -> list[dict[str, Any]]:
        found = []
        for (_, text, _), score in list(zip(say.pieces(), say.logprobs(), strict=True))[start:end]:
            entry = {"token": text, "bytes": list(text.encode()), "logprob": score}
            found.append({**entry, "top_logprobs": [entry] * (self._body.get("top_logprobs") or 0)})
        return found

    def events(self) -> Iterator[bytes | asyncio.Event]:
        """The stream's data, in order; an event is to be awaited."""
        steps = [self._steps(at, say) for at, say in enumerate(self._says)]
        broken = False
        while steps and not broken:
            for each in list(steps):
                try:
                    made = next(each, None)
                except _BrokenError:
                    broken = True
                    yield _dump({"error": _error("Out of memory.", "INTERNAL_SERVER_ERROR", 500)})
                    break
                if made is None:
                    steps.remove(each)
                else:
                    yield from made
        for at, say in enumerate(self._says):
            if say.finish != "error":
                yield self._chunk(at, {}, finish_reason=self._finish(say), matched_stop=self._matched(say))
        head = {"id": self._id, "object": "chat.completion.chunk", "created": 1, "model": self._body["model"]}
        if ext := self._ext(ids=not broken):
            yield _dump({**head, "choices": [], "usage": None, "sglext": ext})
        if (self._body.get("stream_options") or {}).get("include_usage"):
            yield _dump({**head, "choices": [], "usage": _usage(len(self._prompt), self._says)})
        yield b"[DONE]"

    def _steps(self, at: int, say: Say) -> Iterator[list[bytes | asyncio.Event]]:
        pieces = say.pieces()
        for start in range(0, len(pieces), say.per_step):
            made: list[bytes | asyncio.Event] = []
            end = min(start + say.per_step, len(pieces))
            if say.until is not None and end == len(pieces):
                made.append(say.until)
            if start == 0:
                made.append(self._chunk(at, {"role": "assistant", "content": ""}))
            logprobs = {"content": self._entries(say, start, end)} if self._body.get("logprobs") else None
            step = pieces[start:end]
            for kind, name in (("reasoning", "reasoning_content"), ("text", "content")):
                text = "".join(shown for part, _, shown in step if part == kind)
                if text:
                    made.append(self._chunk(at, {name: text}, logprobs=logprobs))
                    logprobs = None
            for made_of in (shown for part, _, shown in step if part == "call" and shown):
                name, arguments = json.loads(made_of)
                k = [call for call, _ in say.calls].index(name)
                made.append(self._call_chunk(at, {"id": f"call_{at}{k}", "index": k, "type": "function",
                                                  "function": {"name": name, "arguments": ""}}))  # fmt: skip
                made.append(self._call_chunk(at, {"id": None, "index": k, "type": "function",
                                                  "function": {"name": None, "arguments": arguments}}))  # fmt: skip
            if logprobs is not None and self._parser:
                made.append(self._chunk(at, {}, logprobs=logprobs))
            yield made
        if say.finish == "error":
            raise _BrokenError

    def _chunk(self, at: int, delta: dict[str, Any], **fields: Any) -> bytes:
        choice = {
            "index": at, "delta": {"reasoning_content": None, **delta}, "logprobs": None, "finish_reason": None,
            "matched_stop": None, **fields,
        }  # fmt: skip
        head = {"id": self._id, "object": "chat.completion.chunk", "created": 1, "model": self._body["model"]}
        return _dump({**head, "choices": [choice]})

    def _call_chunk(self, at: int, call: dict[str, Any]) -> bytes:
        delta = {"role": None, "content": None, "reasoning_content": None, "tool_calls": [call]}
        choice = {"index": at, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}
        head = {"id": self._id, "object": "chat.completion.chunk", "created": 1, "model": self._body["model"]}
        return _dump({**head, "choices": [choice], "usage": None})


class _BrokenError(Exception):
    """The engine broke a reply off."""


def _dump(form: dict[str, Any]) -> bytes:
    return json.dumps(form, separators=(",", ":")).encode()


def _error(message: str, kind: str = "BadRequestError", code: int = 400) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def _usage(prompt: int, says: list[Say]) -> dict[str, Any]:
    sampled = sum(len(say.ids()) for say in says)
    return {
        "prompt_tokens": prompt, "total_tokens": prompt + sampled, "completion_tokens": sampled,
        "prompt_tokens_details": None, "reasoning_tokens": 0,
    }  # fmt: skip


@contextlib.asynccontextmanager
async def sglang(**options: Any) -> AsyncIterator[SglangStandIn]:
    """A stand-in that runs for a block."""
    server = SglangStandIn(**options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
