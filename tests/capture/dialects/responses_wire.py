"""What tests of the Responses dialect write down: requests, chat chunks, and the events that a client gets."""

from __future__ import annotations

import json
from typing import Any

from capture import sse
from capture.dialects.base import Request
from capture.dialects.responses import Responses
from capture.dialects.responses_events import ResponsesTranslator

dialect = Responses()

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 5,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "patch", "description": "Patch files."}
NAMESPACE = {"type": "namespace", "name": "agents", "description": "Others.", "tools": [{**FUNCTION, "name": "spawn"}]}


def ask(**fields: Any) -> bytes:
    """A request's body: a short input, and what a test adds."""
    return json.dumps({"model": "m", "input": "hi", **fields}).encode()


def read(**fields: Any) -> Request:
    return dialect.read(ask(**fields))


def chat(**fields: Any) -> dict[str, Any]:
    """The chat request that a request becomes."""
    return {name: json.loads(raw) for name, raw in read(**fields).fields.items()}


def messages(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    """The chat messages that items become."""
    found = chat(input=list(items), **fields)["messages"]
    assert isinstance(found, list)
    return found


def translator(**fields: Any) -> ResponsesTranslator:
    made = dialect.translator(read(**fields))
    assert isinstance(made, ResponsesTranslator)
    return made


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One chat chunk: with a choice if there is a delta, without one for usage."""
    logprobs = more.pop("logprobs", None)
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return json.dumps({**head, "choices": [] if delta is None else [choice], **more}).encode()


def whole(message: dict[str, Any], finish: str = "stop", **more: Any) -> bytes:
    """A whole chat completion."""
    logprobs = more.pop("logprobs", None)
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": USAGE, **more}).encode()


def call(index: int, **function: Any) -> dict[str, Any]:
    """A delta with a piece of a tool call."""
    id_ = function.pop("id", None)
    piece = {"index": index, **({"id": id_, "type": "function"} if id_ else {}), "function": function}
    return {"tool_calls": [piece]}


def events(out: bytes) -> list[dict[str, Any]]:
    """The data of events, checked against their names."""
    found = []
    for event in sse.Decoder().feed(out):
        assert event.data is not None
        data = json.loads(event.data)
        assert data["type"] == event.name
        found.append(data)
    return found


def told(out: bytes) -> list[str]:
    """Events in short: their names without `response.`, with the text that they bring."""
    short = []
    for event in events(out):
        text = next((event[name] for name in ("delta", "text", "arguments", "input") if name in event), None)
        name = event["type"].removeprefix("response.")
        short.append(name if text is None else f"{name} {text}")
    return short
