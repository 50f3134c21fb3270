"""Pins a call's prompt: finds its parent, asks the engine for renderings, and says what the prompt is to be.

Rule 1: nothing is pinned on a guess. Whatever doesn't hold is a `Fallback` with its name, and the call goes the plain
way, as if there were no pinning.
Rule 2: an engine is trusted after a look at its start (`look`), and again whenever it may be another: it renders as its
chat route does, and it takes ids as a prompt, streamed and not.
Rule 3: a rendering is waited for within its time. An agent's call never waits longer for its pin than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from capture.errors import EngineError
from capture.pinning.fallback import Fallback
from capture.pinning.parents import Parent, Parents
from capture.pinning.plan import Closings, Ended, Json, Rendering, odd, plan
from capture.pinning.wire import WIRES, Wire, shape
from graph.records import IntArray, Message
from graph.tokens import lcp

RENDER_S = 30.0
"""Limit of all renderings of one call; a full one of 10,000 tokens takes 40 ms on two cores."""

Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Sends a JSON body to a path of the engine; returns status and body. Raises `EngineError`."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A recorded call, as far as another goes on from it."""

    # Its prompt and sampled ids, and how many of them were sampled.
    ids: IntArray
    n_sampled: int
    finish_reason: str | None
    # As vLLM says it; `UNKNOWN` where the record has no word of it.
    stop_reason: Any
    # Of the request that the engine got.
    shape: str
    stops: bool
    engine: str | None
    weights: str | None
    # Ids of the reply's tool calls, in order.
    tool_ids: tuple[str | None, ...] = ()


_ODD = (
    "continue_final_message", "add_generation_prompt", "truncate_prompt_tokens", "echo", "kv_transfer_params",
    "input_ids",
)  # fmt: skip

UNKNOWN = object()
"""A stop reason of which the record says nothing."""

Load = Callable[[int], Awaitable["Recorded | None"]]
"""Returns a recorded call by its number, None where it has no ids or is gone."""


class Pin(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A prompt to be given to the engine in place of its own rendering."""

    parent: int
    ids: IntArray
    # Tokens of the parent's that plain serving would have rendered anew, and otherwise.
    kept: int
    # The engine's own rendering.
    plain: IntArray
    # What to set in the chat request, raw JSON.
    fields: dict[str, bytes] = {}


class Pinner:
    """Pins prompts at one engine."""

    def __init__(
        self, ask: Ask, *, model: str | None, wires: Sequence[Wire] = WIRES["vllm"], limit_s: float = RENDER_S
    ) -> None:
        """`model` is the name that the engine serves, for the look at it; `wires` the ways in which it may be asked."""
        self._ask = ask
        self._wires = wires
        self._model = model
        self._limit_s = limit_s
        self._wire: Wire | None = None
        self._closings = Closings()
        # Why nothing is pinned here, by name, and as a sentence; None while the engine does all that is needed.
        self.off: str | None = "no-render"
        self.reason = "it has not been looked at yet"

    def __repr__(self) -> str:
        return f"<Pinner {self.off or 'on'}: {self.reason}>"

    async def look(self) -> None:
        """Find out whether this engine can be pinned at, and how; never raises."""
        self._closings = Closings()
        self._wire, self.off, self.reason = None, "no-render", "it renders no messages to ids"
        for wire in self._wires:
            try:
                async with asyncio.timeout(self._limit_s):
                    if await self._can(wire):
                        self._wire, self.off = wire, None
                        self.reason = f"it renders at {wire.path} and takes ids"
                        return
            except (EngineError, TimeoutError) as error:
                self.reason = f"it does not render at {wire.path}: {error or 'no answer in time'}"

    async def _can(self, wire: Wire) -> bool:
        fields = self._fields()
        said = [{"role": "user", "content": "u"}]
        rendered = await self._rendered(wire, fields, Rendering(messages=said))
        if rendered is None:
            return False
        asked = {**fields, "messages": msgspec.json.encode(said), "max_tokens": b"1"}
        if not np.array_equal(rendered, await self._prompt(wire, {**asked, **wire.asks(streamed=False)})):
            self.reason = f"its {wire.path} renders otherwise than its chat route"
            return False
        # Ids that the engine would never have rendered for this message.
        other = np.concatenate([rendered, rendered[-1:], rendered])
        for streamed in (False, True):
            echo = await self._prompt(wire, {**asked, **wire.pin(other), **wire.asks(streamed=streamed)})
            if not np.array_equal(echo, other):
                self.off, self.reason = "engine-ignores-ids", "it does not take ids as a chat's prompt"
                return False
        return True

    async def pin(
        self,
        fields: Mapping[str, bytes],
        messages: Sequence[Message],
        parents: Parents,
        load: Load,
        *,
        engine: str,
        weights: str | None,
    ) -> Pin:
        """Return the prompt of a call. Raises `Fallback`.

        `fields` are the chat request's, raw, as the engine is to get it; `messages` the same in canonical form.
        """
        if self.off is not None or self._wire is None:
            raise Fallback(self.off or "no-render")
        said: list[Json] = msgspec.json.decode(fields["messages"])
        loose = {name: msgspec.json.decode(fields[name]) for name in _ODD if name in fields}
        if (why := odd(loose, said)) is not None:
            raise Fallback(why)
        if len(said) != len(messages):
            # The canonical form has split or dropped one: places would not agree.
            raise Fallback("no-parent")
        wanted = shape(fields)
        parent, found = await self._parent(messages, parents, load, wanted)
        # Without a version that was told, an engine's own word of the parent's is no sign of a change.
        if found.engine != engine or (weights is not None and found.weights != weights):
            raise Fallback("other-engine")
        if found.stops and found.stop_reason is not None:
            raise Fallback("stop-string")
        ended = Ended(
            sampled=found.ids[len(found.ids) - found.n_sampled :],
            finish_reason=found.finish_reason,
            stop_reason=None if found.stop_reason is UNKNOWN else found.stop_reason,
        )
        steps = plan(said, parent.place, ended, closings=self._closings, shape=wanted)
        got: list[IntArray | None] | None = None
        try:
            async with asyncio.timeout(self._limit_s):
                while True:
                    try:
                        asked = steps.send(got)  # type: ignore[arg-type]  # a generator begins with None
                    except StopIteration as stop:
                        tail = stop.value
                        break
                    got = await self._all(fields, asked)
        except (TimeoutError, EngineError) as error:
            raise Fallback("no-render") from error
        ids = np.concatenate([found.ids, tail.ids])
        return Pin(
            parent=parent.n,
            ids=ids,
            fields=self._wire.pin(ids),
            kept=len(found.ids) - lcp(found.ids, tail.plain),
            plain=tail.plain,
        )

    async def _parent(
        self, messages: Sequence[Message], parents: Parents, load: Load, wanted: str
    ) -> tuple[Parent, Recorded]:
        """Return whom a request goes on from: of equal ones that whose tool calls it names, else the latest."""
        best: tuple[Parent, Recorded] | None = None
        for parent in parents.candidates(messages):
            if best is not None and parent.place != best[0].place:
                break
            found = await load(parent.n)
            if found is None or found.shape != wanted:
                continue
            named = tuple(call.id for call in messages[parent.place].tool_calls)
            if not named or named == found.tool_ids:
                return parent, found
            best = best or (parent, found)
        if best is None:
            raise Fallback("no-parent")
        return best

    async def _all(self, fields: Mapping[str, bytes], asked: Sequence[Rendering]) -> list[IntArray | None]:
        assert self._wire is not None
        wire = self._wire
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._quietly(wire, fields, one)) for one in asked]
        results = [task.result() for task in tasks]
        for result in results:
            if isinstance(result, EngineError):
                raise result
        return [result for result in results if not isinstance(result, EngineError)]

    async def _quietly(
        self, wire: Wire, fields: Mapping[str, bytes], asked: Rendering
    ) -> IntArray | EngineError | None:
        # Handed back, not raised: a group would wrap it, and cancel the others in the middle of their answers.
        try:
            return await self._rendered(wire, fields, asked)
        except EngineError as error:
            return error

    async def _rendered(self, wire: Wire, fields: Mapping[str, bytes], asked: Rendering) -> IntArray | None:
        """Return a rendering's ids, None where the template refuses the messages. Raises `EngineError`."""
        status, body = await self._ask(wire.path, wire.body(fields, asked.messages, closed=asked.closed))
        if status in (400, 422):
            return None
        if status >= 300:
            raise EngineError("engine_unreachable", f"it answered {status} at {wire.path}")
        try:
            return wire.ids(body)
        except (msgspec.DecodeError, ValueError) as error:
            raise EngineError("engine_garbled", f"its answer at {wire.path} can't be read") from error

    def _fields(self) -> dict[str, bytes]:
        return {} if self._model is None else {"model": msgspec.json.encode(self._model)}

    async def _prompt(self, wire: Wire, fields: Mapping[str, bytes]) -> IntArray:
        """Return the prompt that a chat call says it had; empty where it says none."""
        body = b"{" + b",".join(msgspec.json.encode(name) + b":" + value for name, value in fields.items()) + b"}"
        status, answer = await self._ask("/v1/chat/completions", body)
        if status >= 300:
            return np.empty(0, np.int32)
        for line in answer.split(b"\n") if answer.startswith(b"data:") else [b"data:" + answer]:
            text = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and text.startswith(b"{"):
                try:
                    ids = wire.echo(text)
                except msgspec.DecodeError:
                    continue
                if ids:
                    return np.array(ids, np.int32)
        return np.empty(0, np.int32)
