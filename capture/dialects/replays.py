"""A reply that is on record as the stream that says the same: for a retry that asks for a stream.

Rules
1. The stream has every event that a live one has around its deltas, in the same order and with the same fields and ids;
   what came in many deltas comes in one. So a client assembles from it exactly the reply on record.
2. Nothing is added and nothing is made anew: ids of items, blocks and calls are those of the record.
3. A reply with an end alone is replayed, so every stream here ends as its dialect has it.

The events are those of the dialects' own translators (`responses_events`, `messages_reply`, `gemini_reply`) and, for
Chat and Completions, of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from capture import rawjson, sse
from capture.dialects.base import Request

EVENTS = "text/event-stream; charset=utf-8"


def stream(dialect: str, request: Request, reply: bytes) -> tuple[str, bytes]:
    """Return content type and body of the stream that says a whole reply, as `request` wants it.

    Raises ValueError for a reply that is none of the dialect's.
    """
    whole = rawjson.loads(reply)
    if not isinstance(whole, dict):
        raise ValueError("the reply is no object")
    if dialect == "gemini":
        return _gemini(request, reply)
    return EVENTS, b"".join(_BY_DIALECT[dialect](request, whole))


def _chat(request: Request, whole: dict[str, Any]) -> Iterator[bytes]:
    head = {**_but(whole, "choices", "usage", "prompt_token_ids"), "object": "chat.completion.chunk"}
    choices = [choice for choice in whole.get("choices") or () if isinstance(choice, dict)]
    prompt = {"prompt_token_ids": whole["prompt_token_ids"]} if "prompt_token_ids" in whole else {}
    for choice in choices:
        opening = {"role": "assistant", "content": ""}
        yield _data({**head, "choices": [_part(choice, delta=opening, finish_reason=None)], **prompt})
    for choice in choices:
        said = choice.get("message") or {}
        delta = {name: value for name, value in said.items() if name != "role" and value not in (None, [])}
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **_but(call, "index")} for i, call in enumerate(calls)]
        drawn = {name: choice[name] for name in ("logprobs", "token_ids") if choice.get(name) is not None}
        if delta or drawn:
            yield _data({**head, "choices": [{**_part(choice, delta=delta, finish_reason=None), **drawn}]})
    for choice in choices:
        beside = _but(choice, "index", "message", "logprobs", "token_ids")
        yield _data({**head, "choices": [{**_part(choice, delta={}, finish_reason=None), **beside}]})
    yield from _end(request, head, whole)


def _completions(request: Request, whole: dict[str, Any]) -> Iterator[bytes]:
    head = _but(whole, "choices", "usage")
    for choice in whole.get("choices") or ():
        yield _data({**head, "choices": [choice]})
    yield from _end(request, head, whole)


def _part(choice: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"index": choice.get("index", 0), "logprobs": None, **more}


def _end(request: Request, head: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[bytes]:
    if request.asked.usage and whole.get("usage") is not None:
        yield _data({**head, "choices": [], "usage": whole["usage"]})
    yield sse.encode(b"[DONE]")


def _messages(_request: Request, whole: dict[str, Any]) -> Iterator[bytes]:
    opening = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    opening["usage"] = {"input_tokens": 0, "output_tokens": 0}
    yield _named("message_start", message=opening)
    for index, block in enumerate(whole.get("content") or ()):
        kind = block.get("type")
        start, deltas = _opened(kind, block)
        yield _named("content_block_start", index=index, content_block=start)
        for delta in deltas:
            yield _named("content_block_delta", index=index, delta=delta)
        yield _named("content_block_stop", index=index)
    ending = {name: whole.get(name) for name in ("stop_reason", "stop_sequence")}
    yield _named("message_delta", delta=ending, usage=whole.get("usage"))
    yield _named("message_stop")


def _opened(kind: Any, block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block as it opens, and the deltas that make it whole."""
    if kind == "text":
        text = block.get("text")
        return {**block, "text": ""}, [{"type": "text_delta", "text": text}] if text else []
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block.get("thinking", "")}]
        deltas += [{"type": "signature_delta", "signature": block.get("signature", "")}]
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind == "tool_use":
        text = msgspec.json.encode(block.get("input")).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    # A block that no delta can make comes whole with its start.
    return dict(block), []


def _responses(_request: Request, whole: dict[str, Any]) -> Iterator[bytes]:
    status = whole.get("status")
    begun = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None, "error": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(whole.get("output") or ()):
        at = {"item_id": item.get("id"), "output_index": index}
        # As it begins: what its deltas bring is still missing.
        empty = {name: type(item[name])() for name in ("content", "arguments", "input") if name in item}
        opening = {**item, **empty, "status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": index, "item": opening})
        events += _item_events(item, at)
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{status}", "response": whole})
    for number, event in enumerate(events):
        yield _named(event.pop("type"), sequence_number=number, **event)


def _item_events(item: Mapping[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = item.get("type")
    if kind == "function_call":
        text = item.get("arguments", "")
        if text:
            yield {"type": "response.function_call_arguments.delta", **at, "delta": text}
        yield {
            "type": "response.function_call_arguments.done",
            **at,
            "name": item.get("name"),
            "arguments": text,
        }
    elif kind == "custom_tool_call":
        text = item.get("input", "")
        if text:
            yield {"type": "response.custom_tool_call_input.delta", **at, "delta": text}
        yield {"type": "response.custom_tool_call_input.done", **at, "input": text}
    else:
        for index, part in enumerate(item.get("content") or ()):
            yield from _part_events(part, {**at, "content_index": index})


def _part_events(part: Mapping[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = part.get("type")
    name = "refusal" if kind == "refusal" else "text"
    text = part.get(name, "")
    empty: dict[str, Any] = {**part, name: ""}
    told: dict[str, Any] = {}
    if "logprobs" in part:
        empty["logprobs"], told = [], {"logprobs": part["logprobs"]}
    yield {"type": "response.content_part.added", **at, "part": empty}
    if text:
        yield {"type": f"response.{kind}.delta", **at, "delta": text, **told}
    yield {"type": f"response.{kind}.done", **at, name: text, **told}
    yield {"type": "response.content_part.done", **at, "part": part}


def _gemini(request: Request, reply: bytes) -> tuple[str, bytes]:
    """Return a stream of one chunk: all parts, the finish and the usage may stand in one."""
    if getattr(request.original, "sse", True):
        return "text/event-stream", sse.encode(reply)
    return "application/json", b"[" + reply + b"]"


_BY_DIALECT: dict[str, Callable[[Request, dict[str, Any]], Iterator[bytes]]] = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "messages": _messages,
}


def _but(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _data(form: Mapping[str, Any]) -> bytes:
    return sse.encode(msgspec.json.encode(form))


def _named(kind: str, **fields: Any) -> bytes:
    return sse.encode(msgspec.json.encode({"type": kind, **fields}), kind)
