"""A chat reply to an Anthropic message, whole or event by event.

Rules
1. An event of the engine's gives its events at once: a block opens with its first piece, and closes when another
   opens or the reply ends. Blocks come one after the other, as the API has them.
2. A tool call's pieces wait only while an earlier call's arguments are unfinished JSON, or while the call has no name.
3. The last two events come when usage has; without usage at the end, and then with zeros, for the API knows no null.
   After an error nothing comes that a client could take for an end.

Seen with vLLM 0.32; the events and their order as anthropic 2.14 reads them. Unlike vLLM's own Messages route, a reply
without content has none, as the API's has, and not an empty text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from capture import rawjson, sse
from capture.dialects.express import Terse
from capture.dialects.messages_blocks import Prose, ToolUse, signature
from capture.dialects.messages_error import error_body, error_of

_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""The engine's finish reasons by the API's stop reasons; another one passes as it is."""

_PROSE = (("reasoning", "thinking"), ("reasoning_content", "thinking"), ("content", "text"), ("refusal", "text"))
"""A delta's fields in the order that they are shown in, and the blocks that they make."""


def message_of(completion: Any) -> dict[str, Any]:
    """Return the message of a whole chat completion. Raises ValueError where it is none."""
    if not isinstance(completion, dict):
        raise ValueError("the reply is no object")
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    said = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(said, dict):
        raise ValueError("the reply has no message")
    blocks: list[dict[str, Any]] = []
    reply = Reply()
    for name, kind in _PROSE:
        if (text := said.get(name)) and isinstance(text, str) and not (kind == "thinking" and blocks):
            blocks.append(Prose(kind, text).whole())
    calls = said.get("tool_calls")
    for part in calls if isinstance(calls, list) else ():
        if isinstance(part, dict):
            call = ToolUse(reply.id, len(blocks))
            call.take(part)
            blocks.append(call.whole())
            reply.complete = call.object() is not None
    reply.take(completion)
    reply.finish(choice)
    return reply.message(blocks)


class Reply:
    """What is said of a message beside its content."""

    def __init__(self) -> None:
        self.id = ""
        self.model = ""
        self.usage: dict[str, int] | None = None
        # Whether the last tool call's arguments are complete; None without a call.
        self.complete: bool | None = None
        self.finished = False
        self._reason: str | None = None
        self._stop: str | None = None

    def take(self, chunk: Mapping[str, Any]) -> None:
        """Take the id, model and usage of a completion or a chunk; what is missing stays as it was."""
        for name in ("id", "model"):
            if isinstance(value := chunk.get(name), str) and value:
                setattr(self, name, value)
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage_of(usage)

    def finish(self, choice: Mapping[str, Any]) -> None:
        """Take a choice's finish and stop reasons."""
        reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        if isinstance(reason, str):
            self.finished, self._reason = True, reason
        # vLLM's name for the string that matched; a number is an end token.
        if isinstance(stop, str):
            self._stop = stop

    def ending(self) -> dict[str, Any]:
        """Return `stop_reason` and `stop_sequence`, both None while nothing has finished."""
        if self._reason is None:
            return {"stop_reason": None, "stop_sequence": None}
        if self._reason in ("stop", "tool_calls"):
            # A forced call finishes with `stop`; one that a stop string cut short must not be run.
            if self._stop is not None and not self.complete:
                return {"stop_reason": "stop_sequence", "stop_sequence": self._stop}
            if self.complete is not None:
                return {"stop_reason": "tool_use", "stop_sequence": None}
        return {"stop_reason": _STOPS.get(self._reason, self._reason), "stop_sequence": None}

    def message(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the message of these blocks."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": blocks,
            **self.ending(),
            "usage": self.usage or dict(_NO_USAGE),
        }


_NO_USAGE = {"input_tokens": 0, "output_tokens": 0}


def usage_of(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the API's usage for the engine's: input tokens are those that no cache held or was filled with."""
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    read, made = _count(details.get("cached_tokens")), _count(details.get("created_cache_tokens"))
    prompt = _count(usage.get("prompt_tokens")) or 0
    out = {
        "input_tokens": max(0, prompt - (read or 0) - (made or 0)),
        "output_tokens": _count(usage.get("completion_tokens")) or 0,
    }
    if made is not None:
        out["cache_creation_input_tokens"] = made
    if read is not None:
        out["cache_read_input_tokens"] = read
    return out


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class MessagesTranslator:
    """Turns one chat reply into an Anthropic message; see `capture.dialects.base.Translator`."""

    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self) -> None:
        self._reply = Reply()
        self._blocks: list[Prose | ToolUse] = []
        # How many blocks have been closed; the one at this place is open, those behind it wait.
        self._closed = 0
        # The calls by the engine's index.
        self._calls: dict[int, ToolUse] = {}
        self._started = False
        # The last event was sent, or an error was: nothing more is owed.
        self._over = False
        self._whole: bytes | None = None
        # What the last event said last, by the engine's name for it; and how more of it is told, once that is asked.
        self._said: tuple[str, Prose] | None = None
        self._terse: Terse | None = None

    def __repr__(self) -> str:
        state = "over" if self._over else "finished" if self._reply.finished else "open" if self._started else "new"
        return f"<MessagesTranslator {state} blocks={len(self._blocks)} closed={self._closed}>"

    def whole(self, body: bytes) -> bytes:
        """Return the message for a whole chat completion."""
        self._whole = _encoded(rawjson.mended(message_of(rawjson.loads(body))))
        return self._whole

    def event(self, data: bytes) -> bytes:
        """Return the events for one chat event's data."""
        self._said = self._terse = None
        if data.strip() == b"[DONE]":
            return self.end()
        chunk = rawjson.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("a chunk is no object")
        if chunk.get("error") or chunk.get("object") == "error":
            self._over = True
            status, message = error_of(chunk)
            return sse.encode(error_body(status or 500, message), "error")
        if self._over:
            return b""
        out: list[bytes] = []
        self._reply.take(chunk)
        if not self._started:
            self._started = True
            out.append(_event("message_start", message=self._start()))
        choices = chunk.get("choices")
        said = None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                said = self._choice(choice, out)
        if self._reply.finished and not choices and self._reply.usage is not None:
            out.append(self.end())
        self._said = said
        return b"".join(out)

    def maybe_tell(self, field: bytes, text: bytes, said: str) -> bytes | None:
        """Return the event of a piece of plain text; None, and nothing is changed, where `event` is to make it."""
        if self._terse is None:
            if self._said is None or self._over or self._blocks[self._closed :] != [self._said[1]]:
                return None
            name, block = self._said
            before, _, behind = _delta(self._closed, f"{block.kind}_delta", block.kind, "").rpartition(b'""')
            self._terse = Terse(name.encode(), before + b'"', b'"' + behind, (block.pieces,))
        return self._terse.maybe_tell(field, text, said)

    def end(self) -> bytes:
        """Return the last two events, once, if the reply has finished."""
        if self._over or not self._reply.finished:
            return b""
        self._over = True
        self._said = self._terse = None
        out: list[bytes] = []
        self._close(out)
        out.append(_event("message_delta", delta=self._reply.ending(), usage=self._reply.usage or dict(_NO_USAGE)))
        return b"".join([*out, _event("message_stop")])

    def failed(self, status: int, body: bytes) -> bytes:
        """Return the API's error body for the engine's, with its message kept."""
        try:
            said = rawjson.loads(body)
        except ValueError:
            said = body.decode("utf-8", "replace")
        return error_body(status, error_of(said)[1])

    def reply(self) -> bytes | None:
        """Return the message as the client got it, None when nothing came."""
        if self._whole is not None or not self._started:
            return self._whole
        return _encoded(rawjson.mended(self._reply.message([block.whole() for block in self._blocks])))

    def _start(self) -> dict[str, Any]:
        # The prompt's count comes with the usage, at the end: the API's own clients take the last one said.
        return self._reply.message([]) | {"stop_reason": None, "stop_sequence": None}

    def _choice(self, choice: Mapping[str, Any], out: list[bytes]) -> tuple[str, Prose] | None:
        """Take a choice; return the name of the text that it brought last, and its block."""
        delta = choice.get("delta")
        said = None
        if isinstance(delta, dict):
            thought = False
            for name, kind in _PROSE:
                text = delta.get(name)
                # An engine may say its thinking under both names.
                if text and isinstance(text, str) and not (thought and kind == "thinking"):
                    said = name, self._say(kind, text, out)
                    thought = thought or kind == "thinking"
            calls = delta.get("tool_calls")
            for part in calls if isinstance(calls, list) else ():
                if isinstance(part, dict):
                    self._call(part)
                    self._advance(out)
        self._reply.finish(choice)
        if self._reply.finished:
            self._close(out)
        return said

    def _say(self, kind: str, text: str, out: list[bytes]) -> Prose:
        block = self._blocks[-1] if self._blocks else None
        if not isinstance(block, Prose) or block.kind != kind or self._closed == len(self._blocks):
            self._close(out)
            block = Prose(kind)
            self._blocks.append(block)
            out.append(_event("content_block_start", index=self._closed, content_block=block.opening()))
        block.pieces.append(text)
        out.append(_delta(self._closed, f"{kind}_delta", kind, text))
        return block

    def _call(self, part: dict[str, Any]) -> None:
        """Take a piece of a tool call. Pieces are told apart by index; a new id on one in use starts another call."""
        index, id_ = part.get("index"), part.get("id")
        key = index if isinstance(index, int) else len(self._calls) - (0 if id_ else 1)
        call = self._calls.get(key)
        if call is None or (id_ and call.id not in (None, id_)):
            call = ToolUse(self._reply.id, len(self._blocks))
            self._calls[key] = call
            self._blocks.append(call)
        elif call in self._blocks[: self._closed]:
            raise ValueError("a piece of a tool call came after what followed it")
        call.take(part)

    def _advance(self, out: list[bytes]) -> None:
        """Send what can be sent of the open block and of those that wait behind it."""
        while True:
            block = self._blocks[self._closed]
            last = self._closed == len(self._blocks) - 1
            waits = isinstance(block, ToolUse) and not (self._open(block, out) and block.object() is not None)
            if last or waits:
                return
            self._shut(block, out)

    def _open(self, call: ToolUse, out: list[bytes]) -> bool:
        """Send what can be sent of a call; say if it has been opened."""
        if not call.opened:
            if not call.name:
                return False
            call.opened = True
            out.append(_event("content_block_start", index=self._closed, content_block=call.opening()))
        if text := call.pending():
            out.append(_delta(self._closed, "input_json_delta", "partial_json", text))
        return True

    def _close(self, out: list[bytes]) -> None:
        """Close all blocks, in order."""
        while self._closed < len(self._blocks):
            self._shut(self._blocks[self._closed], out)

    def _shut(self, block: Prose | ToolUse, out: list[bytes]) -> None:
        if isinstance(block, ToolUse):
            if not self._open(block, out):
                # Nameless to its end: the agent is to say what it thinks of it.
                block.opened = True
                out.append(_event("content_block_start", index=self._closed, content_block=block.opening()))
                self._open(block, out)
            if rest := block.rest():
                out.append(_delta(self._closed, "input_json_delta", "partial_json", rest))
            self._reply.complete = block.object() is not None
        elif block.kind == "thinking":
            out.append(_delta(self._closed, "signature_delta", "signature", signature("".join(block.pieces))))
        out.append(_event("content_block_stop", index=self._closed))
        self._closed += 1


def _delta(index: int, kind: str, name: str, value: str) -> bytes:
    return _event("content_block_delta", index=index, delta={"type": kind, name: value})


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encoded({"type": kind, **fields}) + b"\n\n"


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Half a surrogate pair, whose other half comes with the next piece: as an escape it passes.
        return json.dumps(value, separators=(",", ":")).encode()
