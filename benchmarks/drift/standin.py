"""A model's part, played by a template and a tokeniser: what prompts and replies would be in ids at a perfect engine.

For templates that no engine here serves, and for what agents were recorded to send. A prompt is the template's
rendering of the request's messages, as vLLM 0.32 hands them to it: text parts joined, arguments parsed, `developer` as
`system`.
A reply's ids are what a trained model would sample: the template's own rendering of it behind the generation prompt,
up to the token that ends a turn. No engine's parser is in it, and no engine's mistakes: only the template's doing.

It answers `capture.pinning.Pinner` as an engine does, so that the very code that pins is what is measured.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.drift.templates import Renderings, Template, array
from capture.errors import EngineError
from capture.pinning.fallback import Fallback
from capture.pinning.parents import Parents
from capture.pinning.pinner import Pin, Pinner, Recorded
from capture.pinning.wire import shape
from capture.trial.scenarios import Ask, Script
from graph.messages import from_chat
from graph.records import Call, IntArray, Notice

Json = dict[str, Any]


class RefusedError(Exception):
    """The template refuses the messages."""


def as_rendered(message: Json) -> Json:
    """Return a message as vLLM 0.32 hands it to a template."""
    found = dict(message)
    if found.get("role") == "developer":
        found["role"] = "system"
    content = found.get("content")
    if isinstance(content, list):
        if all(part.get("type") == "text" for part in content):
            found["content"] = "\n".join(part["text"] for part in content)
        else:
            found["content"] = [{"type": "image"} if part["type"] == "image_url" else part for part in content]
    elif content is None:
        found["content"] = ""
    thought = found.pop("reasoning", None)
    if thought and not found.get("reasoning_content"):
        found["reasoning_content"] = thought
    return found


class StandIn:
    """An engine in name only, of one template."""

    def __init__(self, renderings: Renderings, template: Template) -> None:
        self.renderings = renderings
        self.template = template

    def prompt(self, messages: Sequence[Json], *, tools: Any, arguments: Any, closed: bool = False) -> IntArray | None:
        """Render messages to ids, None where the template refuses."""
        asked = {"messages": [as_rendered(one) for one in messages], "tools": tools, "arguments": arguments}
        return array(self.renderings.one(self.template, **asked, closed=closed))

    def sampled(self, asked: Ask) -> IntArray:
        """Return the ids by which a model would say what it is to say. Raises `RefusedError`."""
        text = self._said(asked)
        end = self.template.end_for(asked.says, [{"role": "tool" if asked.says.get("tool_calls") else "user"}])
        text = text[: text.rindex(end)] if end and end in text else text
        kind = "apart" if asked.respelt else "encode"
        words: list[int] = self.renderings.one(self.template, **{kind: text})
        if asked.cut:
            return np.array(words[: max(1, len(words) // 2)], np.int32)
        return np.array([*words, *self.renderings.one(self.template, encode=end)], np.int32)

    def _said(self, asked: Ask) -> str:
        """Return what is behind the generation prompt in the rendering of the reply. Raises `RefusedError`."""
        messages, says = [as_rendered(one) for one in asked.messages], as_rendered(asked.says)
        spelt = [call["function"]["arguments"] for call in says.get("tool_calls", ())]
        for raw in (True, False):
            common = {"tools": asked.tools, "arguments": asked.arguments, "text": True, "raw": raw}
            before, after = self.renderings.ask(
                self.template,
                [{**common, "messages": messages}, {**common, "messages": [*messages, says], "closed": True}],
            )
            # A template that reads arguments as JSON alone either breaks on text or quotes it.
            if after is not None and before is not None and all(one in after for one in spelt):
                break
        if before is None or after is None:
            raise RefusedError
        text = after[_common(before, after) :]
        # Put around a last reply without thinking by the template, and said by no model.
        return text if says.get("reasoning_content") else re.sub(r"^<think>\s*</think>\s*", "", text)

    async def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer as the engine that `Pinner` asks."""
        asked = json.loads(body)
        arguments = asked.get("chat_template_kwargs")
        if path == "/tokenize":
            closed = not asked["add_generation_prompt"]
            tokens = self.prompt(asked["messages"], tools=asked.get("tools"), arguments=arguments, closed=closed)
            return (400, b"{}") if tokens is None else (200, msgspec.json.encode({"tokens": tokens.tolist()}))
        if path != "/v1/chat/completions":
            raise EngineError("engine_unreachable", path)
        given = (asked.get("kv_transfer_params") or {}).get("prompt_token_ids")
        found = None if given else self.prompt(asked["messages"], tools=None, arguments=arguments)
        ids = given or ([] if found is None else found.tolist())
        form = msgspec.json.encode({"choices": [], "prompt_token_ids": ids})
        return 200, b"data: " + form + b"\n\n" if asked.get("stream") else form


def _common(a: str, b: str) -> int:
    """Return the length of the common beginning of two texts."""
    most = min(len(a), len(b))
    return next((place for place in range(most) if a[place] != b[place]), most)


class Had(msgspec.Struct, kw_only=True):
    """A rollout that was had: its calls, and what was said about them."""

    calls: list[Call] = []
    notices: list[Notice] = []
    # The requests, by call.
    asks: list[Ask] = []


class Recorder:
    """Has conversations with a stand-in, pinned or not, and keeps them as records."""

    def __init__(self, engine: StandIn, *, pinned: bool) -> None:
        self._engine = engine
        self._pinner = Pinner(engine.ask, model=None) if pinned else None
        self._parents = Parents()
        self._recorded: dict[int, Recorded] = {}
        self.had = Had()

    async def play(self, script: Script) -> Had:
        """Play a script to its end. Raises `RefusedError`."""
        if self._pinner is not None:
            await self._pinner.look()
        try:
            asked = next(script)
            while True:
                asked = script.send(await self.call(asked))
        except StopIteration:
            return self.had

    async def call(self, asked: Ask) -> Json:
        """Have one call; return the reply's message. Raises `RefusedError`."""
        engine, had = self._engine, self.had
        fields = {"messages": msgspec.json.encode(asked.messages)}
        if asked.tools:
            fields["tools"] = msgspec.json.encode(asked.tools)
        if asked.arguments:
            fields["chat_template_kwargs"] = msgspec.json.encode(asked.arguments)
        n = len(had.calls)
        messages = tuple(map(from_chat, asked.messages))
        pin: Pin | None = None
        if self._pinner is not None:
            try:
                pin = await self._pinner.pin(fields, messages, self._parents, self._load, engine="e", weights=None)
            except Fallback as why:
                if why.reason != "first-turn":
                    had.notices.append(Notice(code="pin_fallback", calls=(n,), data={"reason": why.reason}))
        plain = engine.prompt(asked.messages, tools=asked.tools, arguments=asked.arguments)
        if plain is None:
            raise RefusedError
        prompt = plain if pin is None else pin.ids
        sampled = engine.sampled(asked)
        reply = dict(asked.says)
        if asked.cut:
            reply["content"] = reply["content"][: len(reply["content"]) // 2]
        finish = "length" if asked.cut else "tool_calls" if reply.get("tool_calls") else "stop"
        call = Call(
            n=n,
            id=f"chatcmpl-{n}",
            status="complete",
            delivered=True,
            arrived=2 * n,
            ended=2 * n + 1,
            finish_reason=finish,
            messages=messages,
            tools=hashlib.sha256(fields["tools"]).hexdigest() if asked.tools else None,
            reply=from_chat(reply),
            prompt_ids=prompt,
            sampled_ids=sampled,
            logprobs=np.full(len(sampled), -0.5, np.float32),
            pinned=None if pin is None else pin.kept,
        )
        had.calls.append(call)
        had.asks.append(asked)
        self._parents.add(call)
        self._recorded[n] = Recorded(
            ids=np.concatenate([prompt, sampled]),
            n_sampled=len(sampled),
            finish_reason=finish,
            stop_reason=None,
            shape=shape(fields),
            stops=False,
            engine="e",
            weights=None,
            tool_ids=tuple(tool.id for tool in call.reply.tool_calls) if call.reply else (),
        )
        return reply

    async def _load(self, n: int) -> Recorded | None:
        return self._recorded.get(n)
