"""One conversation in every dialect: what an agent sends, where, and what shows its tokens in the reply. Pure.

The messages are the same in all of them (`corpus.split_prompt`), and so are the tools; only the form differs, as each
dialect's own client would send it. Completions has no messages: its prompt is their text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from benchmarks.corpus import TOOLS, Corpus, split_prompt
from benchmarks.wire import FIRST_TOKEN

Spoken = tuple[str, str]
"""A message: role and text."""


class Speech(msgspec.Struct, frozen=True, kw_only=True):
    """How one dialect is spoken."""

    name: str
    # The request's target: of a whole reply, and of a stream.
    target: str
    streaming: str
    # The body of a request for these messages.
    body: Callable[[list[Spoken]], dict[str, Any]]
    # What its request for a stream has besides.
    stream: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"stream": True})
    # Stands once in a stream for each token that the agent has been sent.
    token: bytes
    # Events of the engine's that bring no token and come before the first.
    ahead: int = 1
    # The text of a whole reply; of one event's data, "" where it has none.
    whole: Callable[[Any], str]
    piece: Callable[[Any], str]

    def request(self, corpus: Corpus, start: int, n_prompt: int, *, streamed: bool) -> bytes:
        """Return the body of the call whose prompt is that span of the corpus."""
        spoken = [(role, corpus.text(a, b)) for role, a, b in split_prompt(start, n_prompt)]
        return msgspec.json.encode(self.body(spoken) | (dict(self.stream) if streamed else {}))

    def said(self, body: bytes, *, streamed: bool) -> str:
        """Return the text of a reply."""
        if not streamed:
            return self.whole(msgspec.json.decode(body))
        lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: {")]
        return "".join(self.piece(msgspec.json.decode(line)) for line in lines)


def _functions() -> list[dict[str, Any]]:
    return [tool["function"] for tool in TOOLS]


_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def _chat(spoken: list[Spoken]) -> dict[str, Any]:
    messages = [{"role": role, "content": text} for role, text in spoken]
    return {"model": "bench", "max_tokens": 4096, "temperature": 1.0, "messages": messages, "tools": TOOLS}


def _completions(spoken: list[Spoken]) -> dict[str, Any]:
    prompt = "".join(text for _, text in spoken)
    return {"model": "bench", "max_tokens": 4096, "temperature": 1.0, "prompt": prompt}


def _responses(spoken: list[Spoken]) -> dict[str, Any]:
    kinds = {"user": "input_text", "assistant": "output_text"}
    items = [
        {"type": "message", "role": role, "content": [{"type": kinds[role], "text": text}]} for role, text in spoken[1:]
    ]
    return {
        "model": "bench",
        "max_output_tokens": 4096,
        "temperature": 1.0,
        "instructions": spoken[0][1],
        "input": items,
        "tools": [{"type": "function", **function} for function in _functions()],
        "store": False,
    }


def _messages(spoken: list[Spoken]) -> dict[str, Any]:
    tools = [
        {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
        for each in _functions()
    ]
    return {
        "model": "bench",
        "max_tokens": 4096,
        "temperature": 1.0,
        "system": [{"type": "text", "text": spoken[0][1]}],
        "messages": [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in spoken[1:]],
        "tools": tools,
    }


def _gemini(spoken: list[Spoken]) -> dict[str, Any]:
    roles = {"user": "user", "assistant": "model"}
    declared = [
        {"name": each["name"], "description": each["description"], "parametersJsonSchema": each["parameters"]}
        for each in _functions()
    ]
    return {
        "systemInstruction": {"role": "user", "parts": [{"text": spoken[0][1]}]},
        "contents": [{"role": roles[role], "parts": [{"text": text}]} for role, text in spoken[1:]],
        "tools": [{"functionDeclarations": declared}],
        "generationConfig": {"maxOutputTokens": 4096, "temperature": 1.0},
    }


def _parts(reply: Any) -> str:
    return "".join(
        part.get("text", "")
        for candidate in reply.get("candidates", ())
        for part in candidate.get("content", {}).get("parts", ())
    )


SPEECHES = (
    Speech(
        name="chat",
        target="/v1/chat/completions",
        streaming="/v1/chat/completions",
        body=_chat,
        stream=_USAGE,
        token=FIRST_TOKEN,
        whole=lambda reply: reply["choices"][0]["message"]["content"],
        piece=lambda chunk: "".join(choice["delta"].get("content") or "" for choice in chunk["choices"]),
    ),
    Speech(
        name="completions",
        target="/v1/completions",
        streaming="/v1/completions",
        body=_completions,
        stream=_USAGE,
        token=b'"text":',
        ahead=0,
        whole=lambda reply: reply["choices"][0]["text"],
        piece=lambda chunk: "".join(choice["text"] for choice in chunk["choices"]),
    ),
    Speech(
        name="responses",
        target="/v1/responses",
        streaming="/v1/responses",
        body=_responses,
        token=b"event: response.output_text.delta\n",
        whole=lambda reply: reply["output"][0]["content"][0]["text"],
        piece=lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    Speech(
        name="messages",
        target="/v1/messages",
        streaming="/v1/messages",
        body=_messages,
        token=b'"type":"text_delta"',
        whole=lambda reply: reply["content"][0]["text"],
        piece=lambda event: event["delta"]["text"] if event["type"] == "content_block_delta" else "",
    ),
    Speech(
        name="gemini",
        target="/v1beta/models/bench:generateContent",
        streaming="/v1beta/models/bench:streamGenerateContent?alt=sse",
        body=_gemini,
        # The path says it.
        stream={},
        token=b'"text":',
        whole=_parts,
        piece=_parts,
    ),
)
