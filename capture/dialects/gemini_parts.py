"""One candidate of a Gemini reply, put together from a chat reply's pieces.

Rules
1. Texts and thoughts are shown as they come; thoughts only to a client that asked for them.
2. A function call is shown as one part, when its arguments are complete and something follows it, or the reply ends:
   the API's stable form has no pieces of arguments. Calls keep their order.
3. The thought so far is sealed (`gemini_signature`) into the next call, or, without one, into the last text.
4. Arguments that are no JSON object are not lost: `args` is then `{"__unparsed_arguments": text}`. Nothing is `{}`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from capture import rawjson
from capture.dialects.gemini_signature import sign
from capture.dialects.messages_content import UNPARSED

Part = dict[str, Any]

_FINISHES = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "function_call": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
}
"""The engine's finish reasons by the API's; another one is `OTHER`, and told in `finishMessage`."""

_PROSE = (("reasoning", True), ("reasoning_content", True), ("content", False), ("refusal", False))
"""A message's or delta's fields in the order that they are shown in, and whether they are thoughts."""


class _Call:
    """A tool call, as far as it has come."""

    def __init__(self, place: str) -> None:
        self.id: str | None = None
        self._name = ""
        self._pieces: list[str] = []
        self._place = place

    def take(self, part: Mapping[str, Any]) -> None:
        if (id_ := part.get("id")) and isinstance(id_, str):
            self.id = self.id or id_
        function = part.get("function")
        if not isinstance(function, dict):
            return
        name, arguments = function.get("name"), function.get("arguments")
        # Some engines say the name again with each piece.
        if isinstance(name, str) and name != self._name:
            self._name += name
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if isinstance(arguments, str) and arguments:
            self._pieces.append(arguments)

    def complete(self) -> bool:
        """Say if the arguments are an object; no more of them can come then."""
        return bool(self._pieces) and isinstance(self._parsed(), dict)

    def part(self) -> Part:
        """Return the call as far as it has come; an agent needs an id to answer, so one without gets one."""
        value = self._parsed() if self._pieces else None
        if value is None:
            value = {}
        args = value if isinstance(value, dict) else {UNPARSED: "".join(self._pieces)}
        if self.id is None:
            made = hashlib.blake2b(self._place.encode("utf-8", "replace"), digest_size=12)
            self.id = f"call_{made.hexdigest()}"
        return {"functionCall": {"id": self.id, "name": self._name, "args": args}}

    def _parsed(self) -> Any:
        text = "".join(self._pieces)
        try:
            return rawjson.loads(text.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None if not text.strip() else text


class _Shown:
    """A part that was shown, a text's own in pieces."""

    def __init__(self, part: Part) -> None:
        self.pieces = [part["text"]] if "text" in part else []
        self._fields = part

    def joins(self, part: Part) -> bool:
        """Take a part of the same text, if this is one that may go on; say if it was taken."""
        fields = self._fields
        if "text" not in part or "text" not in fields or "thoughtSignature" in fields:
            return False
        if fields.get("thought") != part.get("thought"):
            return False
        self.pieces.append(part["text"])
        if "thoughtSignature" in part:
            self._fields = fields | part
        return True

    def whole(self) -> Part:
        return self._fields | {"text": "".join(self.pieces)} if "text" in self._fields else self._fields


class Candidate:
    """One candidate, fed with messages or deltas, read for the parts to show."""

    def __init__(self, index: int, reply_id: str, *, thoughts: bool) -> None:
        """With `thoughts` they are shown."""
        self.index = index
        self.finish: str | None = None
        self._shows_thoughts = thoughts
        self._place = f"{reply_id}/{index}"
        # All that was shown; of texts that follow each other the pieces, to be joined once.
        self._shown: list[_Shown] = []
        # The thought that no signature holds yet.
        self._unsealed: list[str] = []
        # The name of the text that the last delta said last, and whether it is a thought.
        self._said: tuple[str, bool] | None = None
        # Calls that were not shown yet, and all of them by the engine's index.
        self._waiting: list[_Call] = []
        self._calls: dict[int, _Call] = {}
        # The engine's logprob entries: of all, and of what the next chunk shows.
        self._entries: list[dict[str, Any]] = []
        self._told = 0

    def __repr__(self) -> str:
        return f"<Candidate {self.index} {self.finish} parts={len(self._shown)} waiting={len(self._waiting)}>"

    def take(self, said: Mapping[str, Any]) -> list[Part]:
        """Take a message or a delta; return the parts to show now."""
        parts: list[Part] = []
        thought = False
        self._said = None
        for name, thinks in _PROSE:
            text = said.get(name)
            # An engine may say its thinking under both names.
            if not text or not isinstance(text, str) or (thinks and thought):
                continue
            thought = thought or thinks
            self._said = name, thinks
            parts += self._ready()
            if thinks:
                self._unsealed.append(text)
            if not thinks or self._shows_thoughts:
                parts.append({"text": text} | ({"thought": True} if thinks else {}))
        calls = said.get("tool_calls")
        for piece in calls if isinstance(calls, list) else ():
            if isinstance(piece, dict):
                parts += self._call(piece)
        self._show(parts)
        return parts

    def maybe_more(self) -> tuple[str, Part | None, tuple[list[str], ...]] | None:
        """Return how more of the text that was said last would be told, None where none was, or something waits.

        That is: the delta's field, the candidate as it is shown with an empty text (None where a thought is not shown),
        and the lists that keep the text's pieces.
        """
        if self._said is None or self._waiting or self._told < len(self._entries):
            return None
        name, thinks = self._said
        if thinks and not self._shows_thoughts:
            return name, None, (self._unsealed,)
        kept = self._shown[-1].pieces
        part = {"text": ""} | ({"thought": True} if thinks else {})
        return name, self.shown([part]), (kept, self._unsealed) if thinks else (kept,)

    def end(self, choice: Mapping[str, Any]) -> None:
        """Take a choice's finish, if it has one."""
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish = reason

    def score(self, choice: Mapping[str, Any]) -> None:
        """Take a choice's logprobs."""
        logprobs = choice.get("logprobs")
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        self._entries += [entry for entry in content or () if isinstance(entry, dict)] if content else []

    def rest(self) -> list[Part]:
        """Return the parts that are shown with the finish: calls that waited, or a text that holds the signature."""
        parts = [self._sealed(call.part()) for call in self._waiting]
        self._waiting = []
        if not parts:
            # Empty, as the API's own last chunk has it: its SDKs drop a turn that has a content without parts.
            parts = [self._sealed({"text": ""})]
        self._show(parts)
        return parts

    def shown(self, parts: list[Part]) -> dict[str, Any]:
        """Return a chunk's candidate of these parts, with the logprobs of what came since the last one."""
        out: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": self.index}
        if self._told < len(self._entries):
            out["logprobsResult"] = _logprobs(self._entries[self._told :])
            self._told = len(self._entries)
        return out

    def ending(self) -> dict[str, Any]:
        """Return the fields that come with the finish; none while there is no finish."""
        if self.finish is None:
            return {}
        out: dict[str, Any] = {"finishReason": _FINISHES.get(self.finish, "OTHER")}
        if self.finish not in _FINISHES:
            out["finishMessage"] = self.finish
        scores = [value for entry in self._entries if isinstance(value := entry.get("logprob"), int | float)]
        if scores:
            out["avgLogprobs"] = sum(scores) / len(scores)
        return out

    def whole(self) -> dict[str, Any]:
        """Return the candidate of a whole reply, as far as it has come."""
        parts = [part for part in (shown.whole() for shown in self._shown) if part != {"text": ""}] or [{"text": ""}]
        out: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, **self.ending(), "index": self.index}
        if self._entries:
            out["logprobsResult"] = _logprobs(self._entries)
        return out

    def _call(self, piece: dict[str, Any]) -> list[Part]:
        """Take a piece of a tool call. Pieces are told apart by index; a new id on one in use starts another call."""
        index, id_ = piece.get("index"), piece.get("id")
        key = index if isinstance(index, int) else len(self._calls) - (0 if id_ else 1)
        call = self._calls.get(key)
        parts: list[Part] = []
        if call is None or (id_ and call.id not in (None, id_)):
            parts = self._ready()
            call = _Call(f"{self._place}/{len(self._calls)}/{len(self._shown)}")
            self._calls[key] = call
            self._waiting.append(call)
        elif call not in self._waiting:
            function = piece.get("function")
            if isinstance(function, dict) and isinstance(more := function.get("arguments"), str) and more.strip():
                raise ValueError("a piece of a function call came after what followed it")
            return []
        call.take(piece)
        return parts

    def _ready(self) -> list[Part]:
        """Return the calls that something follows and that are complete, up to the first that is not."""
        parts: list[Part] = []
        while self._waiting and self._waiting[0].complete():
            parts.append(self._sealed(self._waiting.pop(0).part()))
        return parts

    def _sealed(self, part: Part) -> Part:
        if not self._unsealed:
            return part
        thought, self._unsealed = "".join(self._unsealed), []
        return part | {"thoughtSignature": sign(thought)}

    def _show(self, parts: list[Part]) -> None:
        for part in parts:
            if not (self._shown and self._shown[-1].joins(part)):
                self._shown.append(_Shown(part))


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"chosenCandidates": [_scored(entry) for entry in entries]}
    tops = [entry.get("top_logprobs") for entry in entries]
    if any(tops):
        out["topCandidates"] = [
            {"candidates": [_scored(each) for each in (top or ()) if isinstance(each, dict)]} for top in tops
        ]
    return out


def _scored(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": entry.get("token"), "logProbability": entry.get("logprob")}
