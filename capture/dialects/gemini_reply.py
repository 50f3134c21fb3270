"""A chat reply to a Gemini reply, whole or chunk by chunk.

Rules
1. A chunk of the engine's that shows something gives a chunk at once; what is shown, and when, `gemini_parts` says.
2. The last chunk has every candidate's finish, what waited for it, and the usage; it comes when usage has, else at the
   end. Without a finish there is none.
3. An error object goes into a stream as the API's own servers put it there: bare, with no `data:` before it.
   google-genai's clients know it by that; as an event they would take it for a chunk without content, and the stream's
   end for a good one. After it nothing comes.
4. Without `alt=sse` a stream is one JSON list, sent piece by piece, and closed only by a proper end.

The fields are those of google-genai 3.6; chunks as google-genai 1.30 for JavaScript and gemini-cli 0.61 read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from capture import rawjson, sse
from capture.dialects.express import Terse
from capture.dialects.gemini_error import error_body
from capture.dialects.gemini_parts import Candidate
from capture.dialects.messages_error import error_of


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How a client asked to get its reply."""

    # A stream of server-sent events, else one JSON list.
    sse: bool = True
    # Thoughts are shown.
    thoughts: bool = False


class GeminiTranslator:
    """Turns one chat reply into Gemini's; see `capture.dialects.base.Translator`."""

    def __init__(self, form: Form) -> None:
        self.stream_type = "text/event-stream" if form.sse else "application/json"
        self._form = form
        self._candidates: dict[int, Candidate] = {}
        self._head: dict[str, Any] = {}
        self._usage: dict[str, int] | None = None
        # Chunks sent; all of them are elements of the list, where it is one.
        self._sent = 0
        # The last chunk was sent, or an error was: nothing more is owed.
        self._over = False
        self._came = False
        # Whose text came last; and how more of it is told, once that is asked.
        self._last: Candidate | None = None
        self._terse: Terse | None = None

    def __repr__(self) -> str:
        state = "over" if self._over else "open" if self._came else "new"
        return f"<GeminiTranslator {state} sent={self._sent} {list(self._candidates.values())}>"

    def whole(self, body: bytes) -> bytes:
        """Return the reply for a whole chat completion."""
        completion = rawjson.loads(body)
        if not isinstance(completion, dict):
            raise ValueError("the reply is no object")
        choices = completion.get("choices")
        if not isinstance(choices, list) or not choices:
            raise ValueError("the reply has no choices")
        self._take(completion)
        for choice in choices:
            said = choice.get("message") if isinstance(choice, dict) else None
            if not isinstance(said, dict):
                raise ValueError("a choice has no message")
            candidate = self._candidate(choice)
            candidate.score(choice)
            candidate.take(said)
            candidate.end(choice)
            candidate.rest()
        reply = self.reply()
        assert reply is not None
        return reply

    def event(self, data: bytes) -> bytes:
        """Return the chunk for one chat event's data, often none."""
        self._last = self._terse = None
        if data.strip() == b"[DONE]":
            return self.end()
        chunk = rawjson.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("a chunk is no object")
        if chunk.get("error") or chunk.get("object") == "error":
            self._over = True
            status, message = error_of(chunk)
            return self._raw(error_body(status or 500, message))
        if self._over:
            return b""
        self._take(chunk)
        choices = chunk.get("choices")
        shown: list[dict[str, Any]] = []
        last = None
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            last = candidate = self._candidate(choice)
            candidate.score(choice)
            delta = choice.get("delta")
            if isinstance(delta, dict) and (parts := candidate.take(delta)):
                shown.append(candidate.shown(parts))
            candidate.end(choice)
        out = self._chunk(self._reply(shown)) if shown else b""
        if not choices and self._usage is not None:
            return out + self.end()
        self._last = last
        return out

    def maybe_tell(self, field: bytes, text: bytes, said: str) -> bytes | None:
        """Return the chunk of a piece of plain text; None, and nothing is changed, where `event` is to make it."""
        if self._terse is None:
            more = None if self._last is None or self._over else self._last.maybe_more()
            if more is None:
                return None
            self._terse = self._as_terse(*more)
        told = self._terse.maybe_tell(field, text, said)
        if told:
            self._sent += not self._form.sse
        return told

    def end(self) -> bytes:
        """Return the last chunk, once, if anything has finished."""
        done = [self._candidates[index] for index in sorted(self._candidates)]
        if self._over or not any(candidate.finish for candidate in done):
            return b""
        self._over = True
        self._last = self._terse = None
        shown = [candidate.shown(candidate.rest()) | candidate.ending() for candidate in done]
        return self._chunk(self._reply(shown, usage=True)) + (b"" if self._form.sse else b"]")

    def failed(self, status: int, body: bytes) -> bytes:
        """Return the API's error body for the engine's, with its message kept."""
        try:
            said = rawjson.loads(body)
        except ValueError:
            said = body.decode("utf-8", "replace")
        return error_body(status, error_of(said)[1])

    def reply(self) -> bytes | None:
        """Return the reply as the client got it, None when nothing came."""
        if not self._came:
            return None
        candidates = [self._candidates[index].whole() for index in sorted(self._candidates)]
        return _encoded(rawjson.mended(self._reply(candidates, usage=True)))

    def _as_terse(self, name: str, shown: dict[str, Any] | None, pieces: tuple[list[str], ...]) -> Terse:
        """Return how more of a candidate's text is told; see `Candidate.maybe_more`."""
        if shown is None:
            return Terse(name.encode(), b"", b"", pieces, hidden=True)
        before, _, behind = _encoded(self._reply([shown])).partition(b'"text":""')
        # What came before was told, so this is not the first element of a list.
        head, tail = (b"data: ", b"\n\n") if self._form.sse else (b",\r\n", b"")
        return Terse(name.encode(), head + before + b'"text":"', b'"' + behind + tail, pieces)

    def _take(self, said: Mapping[str, Any]) -> None:
        """Take the id, model and usage of a completion or a chunk; what is missing stays as it was."""
        self._came = True
        for name, ours in (("model", "modelVersion"), ("id", "responseId")):
            if isinstance(value := said.get(name), str) and value:
                self._head[ours] = value
        if isinstance(usage := said.get("usage"), dict):
            self._usage = usage_of(usage)

    def _candidate(self, choice: Mapping[str, Any]) -> Candidate:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        if index not in self._candidates:
            reply_id = self._head.get("responseId", "")
            self._candidates[index] = Candidate(index, reply_id, thoughts=self._form.thoughts)
        return self._candidates[index]

    def _reply(self, candidates: list[dict[str, Any]], *, usage: bool = False) -> dict[str, Any]:
        told = {"usageMetadata": self._usage} if usage and self._usage is not None else {}
        return {"candidates": candidates, **told, **self._head}

    def _chunk(self, reply: dict[str, Any]) -> bytes:
        data = _encoded(reply)
        return sse.encode(data) if self._form.sse else self._raw(data)

    def _raw(self, data: bytes) -> bytes:
        self._sent += 1
        if self._form.sse:
            return data + b"\n\n"
        return (b"[" if self._sent == 1 else b",\r\n") + data


def usage_of(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the API's usage for the engine's: thoughts are counted apart where the engine counts them."""
    prompt, sampled = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    thoughts = _detail(usage.get("completion_tokens_details"), "reasoning_tokens")
    cached = _detail(usage.get("prompt_tokens_details"), "cached_tokens")
    total = _count(usage.get("total_tokens"))
    out = {"promptTokenCount": prompt or 0, "candidatesTokenCount": max(0, (sampled or 0) - (thoughts or 0))}
    if thoughts is not None:
        out["thoughtsTokenCount"] = thoughts
    if cached is not None:
        out["cachedContentTokenCount"] = cached
    return out | {"totalTokenCount": (prompt or 0) + (sampled or 0) if total is None else total}


def _detail(details: Any, name: str) -> int | None:
    return _count(details.get(name)) if isinstance(details, dict) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Half a surrogate pair, whose other half comes with the next piece: as an escape it passes.
        return json.dumps(value, separators=(",", ":")).encode()
