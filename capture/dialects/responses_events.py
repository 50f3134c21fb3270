"""A chat reply as a response of the Responses dialect: whole, or event by event as it comes.

Rules
1. `response.created` and `response.in_progress` go out with the engine's first chunk; then each delta becomes its
   events at once (`responses_output`). The finish ends the last item; the reply's own end (`response.completed`,
   `.incomplete` or `.failed`) waits for the usage, or for the end of the stream.
2. A stream without a finish gets no end: the client must see that it broke.
3. An error in the stream is an `error` event at once, and a `response.failed` in place of the end. Nothing of the reply
   follows an error.
4. `sequence_number` counts every event from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from capture import rawjson
from capture.dialects import responses_shape as shape
from capture.dialects.express import Terse
from capture.dialects.responses_logprobs import entries_of, entries_of_text
from capture.dialects.responses_output import Event, Output
from capture.dialects.responses_tables import FINISHES
from capture.dialects.responses_tools import Tools


class Original(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request its reply needs."""

    # Raw JSON by field, as the response repeats it.
    repeated: dict[str, bytes]
    tools: Tools
    # Whether the client asked for logprobs.
    logprobs: bool = False


class ResponsesTranslator:
    """Translates one reply."""

    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self, original: Original) -> None:
        self._original = original
        self._sequence = 0
        # Of the first chunk; None until it came.
        self._head: dict[str, Any] | None = None
        self._output = Output("", original.tools)
        self._finish: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._over = False
        self._whole: bytes | None = None
        # How more of the text that came last is told, without its number; None until that is asked, and whether it may.
        self._terse: Terse | None = None
        self._may_be_terse = False

    def __repr__(self) -> str:
        return f"<ResponsesTranslator {self._status()[0]} {self._output}>"

    def whole(self, body: bytes) -> bytes:
        """Return the response for a whole chat completion. Raises `ValueError` for a body that is none."""
        reply = _object(body)
        choices = reply.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise ValueError("the reply has no message")
        self._begin(reply)
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            # A whole reply's calls stand in order, without an index.
            numbered = [{**call, "index": i} for i, call in enumerate(calls) if isinstance(call, dict)]
            message = {**message, "tool_calls": numbered}
        entries = entries_of_text(choice.get("logprobs"), message) if self._original.logprobs else []
        self._output.add(message, entries)
        self._take_finish(choice.get("finish_reason") or "stop")
        self._take_usage(reply)
        self._over = True
        self._whole = self._response()
        return self._whole

    def event(self, data: bytes) -> bytes:
        """Return the events for one chat event's data. Raises `ValueError` for data that is none."""
        self._terse, self._may_be_terse = None, False
        text = data.strip()
        if not text or self._over:
            return b""
        if text == b"[DONE]":
            return self.end()
        chunk = _object(text)
        if chunk.get("error") is not None:
            return self._take_error(chunk)
        if self._error is not None:
            return b""
        begun = self._encoded(self._begin(chunk))
        events: list[Event] = []
        self._take_usage(chunk)
        choices = chunk.get("choices")
        heard = False
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                events += self._take_choice(choice)
                heard = isinstance(choice.get("delta"), dict)
        out = begun + self._encoded(events)
        if self._finish is not None and not choices and self._usage is not None:
            out += self.end()
        self._may_be_terse = heard and not self._over and self._finish is None
        return out

    def maybe_tell(self, field: bytes, text: bytes, said: str) -> bytes | None:
        """Return the event of a piece of plain text; None, and nothing is changed, where `event` is to make it."""
        if self._terse is None:
            more = self._output.maybe_more() if self._may_be_terse else None
            if more is None:
                return None
            name, event, pieces = more
            before, _, behind = _as_sent(event | {"sequence_number": 0}).rpartition(b'"delta":""')
            self._terse = Terse(name.encode(), before + b'"delta":"', b'"' + behind.removesuffix(_NUMBERED), (pieces,))
        told = self._terse.maybe_tell(field, text, said)
        if told is None:
            return None
        self._sequence += 1
        return b"%b%d}\n\n" % (told, self._sequence - 1)

    def end(self) -> bytes:
        """Return the reply's last event, if it has one and it hasn't gone out."""
        if self._over or (self._finish is None and self._error is None):
            return b""
        self._over = True
        self._terse, self._may_be_terse = None, False
        if self._head is None:
            # An error before the first chunk: there is no response that could have failed.
            return b""
        return self._encoded([{"type": f"response.{self._status()[0]}"}], carry=True)

    def failed(self, status: int, body: bytes) -> bytes:
        """Return the error body for the engine's: its message verbatim, `param` by this dialect's names."""
        return msgspec.json.encode({"error": shape.error_of(status, body)})

    def reply(self) -> bytes | None:
        """Return the response as far as it has come; None before it began."""
        if self._whole is not None:
            return self._whole
        return None if self._head is None else self._response()

    def _begin(self, chunk: Mapping[str, Any]) -> list[Event]:
        if self._head is not None:
            return []
        self._head = {name: chunk.get(name) for name in ("id", "created", "model")}
        id_ = self._head["id"]
        self._output = Output(id_ if isinstance(id_, str) else "", self._original.tools)
        return [{"type": "response.created"}, {"type": "response.in_progress"}]

    def _take_choice(self, choice: Mapping[str, Any]) -> list[Event]:
        delta = choice.get("delta")
        events: list[Event] = []
        if isinstance(delta, dict) and self._finish is None:
            entries = entries_of(choice.get("logprobs")) if self._original.logprobs else []
            events += self._output.add(delta, entries)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and self._finish is None:
            events += self._take_finish(finish)
        return events

    def _take_finish(self, finish: str) -> list[Event]:
        self._finish = finish
        status = self._status()[0]
        return self._output.close("completed" if status == "completed" else "incomplete")

    def _take_usage(self, chunk: Mapping[str, Any]) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = usage

    def _take_error(self, chunk: Mapping[str, Any]) -> bytes:
        if self._error is not None:
            return b""
        self._error = shape.told(chunk)
        told = {name: self._error[name] for name in ("code", "message", "param")}
        return self._encoded([{"type": "error", **told}])

    def _status(self) -> tuple[str, str | None]:
        """Return the reply's status, and why it is no better."""
        if self._error is not None:
            return "failed", str(self._error["message"])
        if self._finish is None:
            return "in_progress", None
        return FINISHES.get(self._finish, ("completed", None))

    def _response(self) -> bytes:
        assert self._head is not None
        status, why = self._status()
        error = None
        if status == "failed":
            code = self._error["code"] if self._error is not None else None
            error = {"code": code or "server_error", "message": why}
        return shape.response(
            reply_id=self._output.reply_id,
            created=self._head["created"],
            model=self._head["model"],
            status=status,
            output=self._output.items(),
            repeated=self._original.repeated,
            usage=self._usage if status != "in_progress" else None,
            reason=why if status == "incomplete" else None,
            error=error,
        )

    def _encoded(self, events: list[Event], *, carry: bool = False) -> bytes:
        """Return events as they go out, counted; those of the reply itself carry it as it stands."""
        out = []
        for event in events:
            kind = event["type"]
            event["sequence_number"] = self._sequence
            self._sequence += 1
            if carry or kind in ("response.created", "response.in_progress"):
                event["response"] = msgspec.Raw(self._response())
            out.append(_as_sent(event))
        return b"".join(out)


def _as_sent(event: Event) -> bytes:
    # As `sse.encode` has it; JSON is one line.
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


_NUMBERED = b"0}\n\n"
"""What an event with the number 0 ends with."""


def _object(data: bytes) -> dict[str, Any]:
    """Return a JSON object, decoded and mended. Raises `ValueError` for what is none."""
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            value = rawjson.mended(rawjson.loads(data))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON object: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value
