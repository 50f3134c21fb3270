"""Each dialect as an agent speaks it, whole and streamed: what it asks, and what it reads of a reply.

For tests of what must hold in all of them alike.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import aiohttp

from tests.house import House
from tests.playbook import data_of

NAMES = ("chat", "completions", "responses", "messages", "gemini")
STREAMED = (False, True)


class Said(NamedTuple):
    """A reply as an agent understands it: its text, its tool calls' names, how it ended, its id."""

    text: str
    tools: list[str]
    end: str | None
    id: str


def path(name: str, *, stream: bool) -> str:
    """The dialect's path."""
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return {
        "chat": "/v1/chat/completions",
        "completions": "/v1/completions",
        "responses": "/v1/responses",
        "messages": "/v1/messages",
        "gemini": f"/v1beta/models/tiny:{verb}",
    }[name]


def body(name: str, text: str = "Hello", *, stream: bool, **more: Any) -> dict[str, Any]:
    """A request with one user message."""
    streamed = {"stream": True} if stream and name != "gemini" else {}
    turn = {"role": "user", "content": text}
    asked: dict[str, Any] = {
        "chat": {"model": "tiny", "messages": [turn]},
        "completions": {"model": "tiny", "prompt": text},
        "responses": {"model": "tiny", "input": text},
        "messages": {"model": "tiny", "max_tokens": 64, "messages": [turn]},
        "gemini": {"contents": [{"role": "user", "parts": [{"text": text}]}]},
    }[name]
    return {**asked, **streamed, **more}


def read(name: str, raw: bytes, *, stream: bool) -> Said:
    """Read a whole body as an agent would."""
    return _streams[name](data_of(raw)) if stream else _wholes[name](json.loads(raw))


def ask(
    home: House, rollout: dict[str, Any], name: str, *, stream: bool, headers: dict[str, str] | None = None, **more: Any
) -> Any:
    """Send a request: an async context manager that gives the response."""
    given = {"Authorization": f"Bearer {rollout['secret']}", **(headers or {})}
    url = rollout["url"] + path(name, stream=stream)
    return home.session.post(url, json=body(name, stream=stream, **more), headers=given)


async def told(context: Any) -> tuple[int, bytes]:
    """Status and whole body of a response."""
    async with context as response:
        return response.status, await response.read()


async def cut(context: Any) -> bytes:
    """What came of a response that broke off."""
    got = b""
    async with context as response:
        try:
            async for piece in response.content.iter_any():
                got += piece
        except aiohttp.ClientError:
            return got
    raise AssertionError(f"it ended cleanly: {got!r}")


def _chat(form: Any) -> Said:
    (choice,) = form["choices"]
    said = choice["message"]
    tools = [call["function"]["name"] for call in said.get("tool_calls") or []]
    return Said(said["content"] or "", tools, choice["finish_reason"], form["id"])


def _chat_stream(events: list[Any]) -> Said:
    assert events[-1] == "[DONE]"
    chunks = [event for event in events[:-1] if event["choices"]]
    choices = [chunk["choices"][0] for chunk in chunks]
    tools = [
        call["function"]["name"]
        for choice in choices
        for call in choice["delta"].get("tool_calls") or []
        if call["function"].get("name")
    ]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    (end,) = {choice["finish_reason"] for choice in choices} - {None}
    (id_,) = {chunk["id"] for chunk in chunks}
    return Said(text, tools, end, id_)


def _completions(form: Any) -> Said:
    (choice,) = form["choices"]
    return Said(choice["text"], [], choice["finish_reason"], form["id"])


def _completions_stream(events: list[Any]) -> Said:
    assert events[-1] == "[DONE]"
    chunks = [event for event in events[:-1] if event["choices"]]
    (end,) = {chunk["choices"][0]["finish_reason"] for chunk in chunks} - {None}
    return Said("".join(chunk["choices"][0]["text"] for chunk in chunks), [], end, chunks[0]["id"])


def _responses(form: Any) -> Said:
    text = "".join(part["text"] for item in form["output"] if item["type"] == "message" for part in item["content"])
    tools = [item["name"] for item in form["output"] if item["type"] == "function_call"]
    return Said(text, tools, form["status"], form["id"])


def _responses_stream(events: list[Any]) -> Said:
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    said = _responses(events[-1]["response"])
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert deltas == said.text
    return said


def _messages(form: Any) -> Said:
    text = "".join(block["text"] for block in form["content"] if block["type"] == "text")
    tools = [block["name"] for block in form["content"] if block["type"] == "tool_use"]
    return Said(text, tools, form["stop_reason"], form["id"])


def _messages_stream(events: list[Any]) -> Said:
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    text = "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")
    opened = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    (end,) = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
    tools = [block["name"] for block in opened if block["type"] == "tool_use"]
    return Said(text, tools, end, events[0]["message"]["id"])


def _gemini(form: Any) -> Said:
    return _gemini_stream([form])


def _gemini_stream(chunks: list[Any]) -> Said:
    parts = [
        part
        for chunk in chunks
        for candidate in chunk["candidates"]
        for part in candidate.get("content", {}).get("parts", [])
    ]
    text = "".join(part.get("text", "") for part in parts if not part.get("thought"))
    tools = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
    ends = [one.get("finishReason") for chunk in chunks for one in chunk["candidates"]]
    (end,) = {end for end in ends if end}
    return Said(text, tools, end, chunks[-1]["responseId"])


_wholes = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "messages": _messages,
    "gemini": _gemini,
}
_streams = {
    "chat": _chat_stream,
    "completions": _completions_stream,
    "responses": _responses_stream,
    "messages": _messages_stream,
    "gemini": _gemini_stream,
}

NORMAL_END = {
    "chat": "stop",
    "completions": "stop",
    "responses": "completed",
    "messages": "end_turn",
    "gemini": "STOP",
}
"""How a reply without a tool call ends."""
