"""How an engine is asked to render messages to ids, and how it is handed ids as a prompt.

vLLM 0.32: `POST /tokenize` renders messages, tools and template arguments as the chat route does, with two exceptions
that are mended here: it has no `reasoning_effort` (the chat route makes template arguments of it), and it leaves a
reply's `reasoning_content` out where the chat route renders it (both render `reasoning`). With `--enable-scale-out`,
`POST /v1/chat/completions/render` takes a whole chat request and is exact. Ids go into `kv_transfer_params` of an
ordinary chat request: templating is then skipped, while parsers, grammar, streaming and logprobs stay.

SGLang 0.5.23 (`srt/entrypoints/openai`): `POST /tokenize` takes messages too. Without `add_generation_prompt` it
renders them as for a chat completion, reasoning effort and all; with false, closed, where the template is Jinja. Ids go
into `input_ids` of a chat request, which skips templating; the ids that it had come back with the choice of a whole
reply, and in a chunk behind the finish of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from capture.rawjson import join
from graph.records import IntArray

Json = dict[str, Any]

_SHAPE = ("tools", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort")
"""Fields of a chat request that its rendering depends on, beside the messages."""


class Wire(Protocol):
    """One engine's way."""

    # Where renderings are asked for.
    path: str

    def body(self, fields: Mapping[str, bytes], messages: Sequence[Json], *, closed: bool) -> bytes:
        """Return the body that asks for a rendering of messages, under a chat request's other fields (raw JSON)."""

    def ids(self, body: bytes) -> IntArray:
        """Read the answer. Raises ValueError for one that can't be read."""

    def pin(self, ids: IntArray) -> dict[str, bytes]:
        """Return the fields (raw JSON) by which a chat request is given its prompt."""

    def asks(self, *, streamed: bool) -> dict[str, bytes]:
        """Return the fields (raw JSON) by which a chat reply says what prompt it had."""

    def echo(self, form: bytes) -> list[int] | None:
        """Read the prompt's ids of a whole reply, or of one event's data; None where it has none.

        Raises msgspec.DecodeError.
        """


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _TokenIds(msgspec.Struct):
    token_ids: list[int]


def _array(ids: list[int]) -> IntArray:
    return np.array(ids, np.int32)


class _Echo(msgspec.Struct):
    prompt_token_ids: list[int] | None = None


class _Ext(msgspec.Struct):
    input_ids: list[int] | None = None


class _SglangEcho(msgspec.Struct):
    choices: list[_Echo] = []
    sglext: _Ext | None = None


class _Vllm:
    """What both of vLLM's ways have in common."""

    def pin(self, ids: IntArray) -> dict[str, bytes]:
        """Return `kv_transfer_params`."""
        return {"kv_transfer_params": msgspec.json.encode({"prompt_token_ids": ids.tolist()})}

    def asks(self, *, streamed: bool) -> dict[str, bytes]:
        """Ask for `return_token_ids`, which serves whole replies and streams."""
        return {"return_token_ids": b"true", "stream": b"true" if streamed else b"false"}

    def echo(self, form: bytes) -> list[int] | None:
        """Read `prompt_token_ids`: of a whole reply, or of a stream's first chunk."""
        return msgspec.json.decode(form, type=_Echo).prompt_token_ids


class Tokenize(_Vllm):
    """A stock vLLM."""

    path = "/tokenize"

    def body(self, fields: Mapping[str, bytes], messages: Sequence[Json], *, closed: bool) -> bytes:
        """Return `/tokenize`'s body."""
        asked = {name: fields[name] for name in ("model", *_SHAPE) if name in fields}
        if (effort := asked.pop("reasoning_effort", b"null")) != b"null":
            asked["chat_template_kwargs"] = _with_effort(asked.get("chat_template_kwargs", b"null"), effort)
        asked["messages"] = msgspec.json.encode([_named(message) for message in messages])
        asked["add_generation_prompt"] = b"false" if closed else b"true"
        return join(asked)

    def ids(self, body: bytes) -> IntArray:
        """Read `tokens`."""
        return _array(msgspec.json.decode(body, type=_Tokens).tokens)


class ScaleOut(_Vllm):
    """A vLLM that was started with `--enable-scale-out`."""

    path = "/v1/chat/completions/render"

    def body(self, fields: Mapping[str, bytes], messages: Sequence[Json], *, closed: bool) -> bytes:
        """Return the chat request itself, with these messages."""
        asked = {name: fields[name] for name in ("model", *_SHAPE) if name in fields}
        asked["messages"] = msgspec.json.encode(messages)
        asked["add_generation_prompt"] = b"false" if closed else b"true"
        return join(asked)

    def ids(self, body: bytes) -> IntArray:
        """Read `token_ids`."""
        return _array(msgspec.json.decode(body, type=_TokenIds).token_ids)


class Sglang:
    """An SGLang."""

    path = "/tokenize"

    def body(self, fields: Mapping[str, bytes], messages: Sequence[Json], *, closed: bool) -> bytes:
        """Return `/tokenize`'s body: a chat request's fields, without a word of the generation prompt unless closed."""
        asked = {name: fields[name] for name in ("model", *_SHAPE, "tool_choice") if name in fields}
        asked["messages"] = msgspec.json.encode(messages)
        if closed:
            asked["add_generation_prompt"] = b"false"
        return join(asked)

    def ids(self, body: bytes) -> IntArray:
        """Read `tokens`."""
        return _array(msgspec.json.decode(body, type=_Tokens).tokens)

    def pin(self, ids: IntArray) -> dict[str, bytes]:
        """Return `input_ids`."""
        return {"input_ids": msgspec.json.encode(ids.tolist())}

    def asks(self, *, streamed: bool) -> dict[str, bytes]:
        """Ask for `return_prompt_token_ids`, which a stream is refused with, or for the ids in `sglext`."""
        if streamed:
            return {"return_input_ids_in_sglext": b"true", "stream": b"true"}
        return {"return_prompt_token_ids": b"true", "stream": b"false"}

    def echo(self, form: bytes) -> list[int] | None:
        """Read the first choice's `prompt_token_ids`, or `sglext.input_ids`."""
        read = msgspec.json.decode(form, type=_SglangEcho)
        if read.sglext is not None and read.sglext.input_ids:
            return read.sglext.input_ids
        return read.choices[0].prompt_token_ids if read.choices else None


WIRES: dict[str, tuple[Wire, ...]] = {
    "vllm": (ScaleOut(), Tokenize()),
    "scripted": (ScaleOut(), Tokenize()),
    "sglang": (Sglang(),),
}
"""Ways of pinning by kind of engine, the one that is tried first in front."""


def shape(fields: Mapping[str, bytes]) -> str:
    """Return what a chat request's rendering depends on beside its messages, in canonical form.

    A forced tool or none at all changes what some templates show of the tools; which reply is wanted does not.
    """
    kept: dict[str, Any] = {
        name: msgspec.json.decode(fields[name])
        for name in ("model", *_SHAPE)
        if fields.get(name, b"null") not in (b"null", b"[]", b"{}")
    }
    choice = msgspec.json.decode(fields.get("tool_choice", b"null"))
    if isinstance(choice, dict) or choice == "none":
        kept["tool_choice"] = choice
    return msgspec.json.encode(kept, order="deterministic").decode()


def _with_effort(given: bytes, effort: bytes) -> bytes:
    """Return template arguments as vLLM's chat route makes them of `reasoning_effort`."""
    arguments = msgspec.json.decode(given) or {}
    wanted = msgspec.json.decode(effort)
    return msgspec.json.encode({"enable_thinking": wanted != "none", "reasoning_effort": wanted, **arguments})


def _named(message: Json) -> Json:
    if message.get("role") != "assistant" or "reasoning_content" not in message:
        return message
    named = {name: value for name, value in message.items() if name != "reasoning_content"}
    named.setdefault("reasoning", message["reasoning_content"])
    return named
