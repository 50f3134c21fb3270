"""The blocks of an Anthropic message, put together from a chat reply's pieces.

Rules
1. A thinking block's signature is a digest of its text: the same text has the same one, whoever asks and when, so that
   an echo can be recognised. It is no secret and proves nothing.
2. A tool call's arguments are sent as they come from where they begin as an object. Others are held to the call's end,
   since an agent can't read them as `input`, and are not lost: `input` is then `{"__unparsed_arguments": text}`.
   Nothing, and null, are `{}`. Arguments that begin as an object and break later have been sent as they came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from capture import rawjson
from capture.dialects.messages_content import UNPARSED


def signature(text: str) -> str:
    """Return the signature of a thinking block: 32 hex digits, as long as vLLM's own."""
    raw = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=16, key=b"treering thinking").hexdigest()


class Prose:
    """A block of text or of thinking."""

    def __init__(self, kind: str, text: str = "") -> None:
        self.kind = kind
        self.pieces = [text] if text else []

    def opening(self) -> dict[str, Any]:
        """Return the block as it opens."""
        return {"type": "text", "text": ""} if self.kind == "text" else _thinking("", "")

    def whole(self) -> dict[str, Any]:
        """Return the block as far as it has come."""
        text = "".join(self.pieces)
        return {"type": "text", "text": text} if self.kind == "text" else _thinking(text, signature(text))


def _thinking(text: str, signed: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signed}


class ToolUse:
    """A block of a tool call."""

    def __init__(self, reply_id: str, at: int) -> None:
        self.id: str | None = None
        self.name = ""
        self.opened = False
        self._place = f"{reply_id}/{at}"
        self._pieces: list[str] = []
        # How many of them have been sent, or will never be.
        self._sent = 0

    def take(self, part: Mapping[str, Any]) -> None:
        """Take a piece of the call, or the whole of it."""
        if (id_ := part.get("id")) and isinstance(id_, str):
            self.id = self.id or id_
        function = part.get("function")
        if not isinstance(function, dict):
            return
        name, arguments = function.get("name"), function.get("arguments")
        # Some engines say the name again with each piece.
        if isinstance(name, str) and name != self.name:
            self.name += name
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if isinstance(arguments, str) and arguments:
            self._pieces.append(arguments)

    def opening(self) -> dict[str, Any]:
        """Return the block as it opens; an agent needs an id to answer, so a call without one gets one."""
        if self.id is None:
            self.id = f"toolu_{hashlib.blake2b(self._place.encode('utf-8', 'replace'), digest_size=12).hexdigest()}"
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def pending(self) -> str:
        """Return what of the arguments can be sent now and was not."""
        if self._sent == 0:
            head = "".join(self._pieces).lstrip()
            if not head.startswith("{"):
                return ""
            self._pieces = ["".join(self._pieces)]
        out = "".join(self._pieces[self._sent :])
        self._sent = len(self._pieces)
        return out

    def rest(self) -> str:
        """Return what is to be sent at the call's end: arguments that did not begin as an object."""
        if self._sent or not (given := self.input()):
            return ""
        return json.dumps(given)

    def object(self) -> dict[str, Any] | None:
        """Return the arguments parsed, None where they are no JSON object yet."""
        text = "".join(self._pieces)
        if not text.strip():
            return {}
        try:
            value = rawjson.loads(text.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None
        return {} if value is None else value if isinstance(value, dict) else None

    def input(self) -> dict[str, Any]:
        """Return the block's input."""
        value = self.object()
        return {UNPARSED: "".join(self._pieces)} if value is None else value

    def whole(self) -> dict[str, Any]:
        """Return the block as far as it has come."""
        return self.opening() | {"input": self.input()}
