"""One choice of a streamed chat reply, put together again from its deltas.

Rules
- Text that comes in pieces is joined, under whatever name it has (`content`, `reasoning`, `reasoning_content`,
  `refusal`): an agent must find it where it would have found it in a whole reply.
- Tool calls are told apart by `index`; a new id on an index that is in use starts a new call. Engines have put two
  parallel calls on index 0, and joined they would be `{…}{…}`.
- A field that is not known is kept, the last value of it. Nothing is repaired: arguments stay the text that came.
"""

from __future__ import annotations

from typing import Any

from capture import rawjson


class Assembly:
    """The message of one choice, as far as it has come."""

    def __init__(self) -> None:
        self._role: str | None = None
        self._pieces: dict[str, list[str]] = {}
        self._other: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        # Where the call that an index stands for is in `_calls`.
        self._at: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Assembly {', '.join(self._pieces) or 'no text'}, {len(self._calls)} tool calls>"

    @property
    def empty(self) -> bool:
        """True while neither text nor a tool call came; a role alone is nothing yet."""
        return not self._calls and not any(any(pieces) for pieces in self._pieces.values())

    def add(self, delta: dict[str, Any]) -> bool:
        """Take the next delta and say if it brought text or part of a tool call."""
        brought = False
        for name, value in delta.items():
            if name == "role":
                self._role = value if isinstance(value, str) else self._role
            elif name == "tool_calls" and isinstance(value, list):
                for part in value:
                    if isinstance(part, dict):
                        self._add_call(part)
                        brought = True
            elif isinstance(value, str):
                self.pieces(name).append(value)
                brought = brought or value != ""
            elif value is not None:
                self._other[name] = value
        return brought

    def add_text(self, name: str, text: str) -> None:
        """Take the next delta where it is a piece of text, and no role, by its name."""
        self.pieces(name).append(text)

    def pieces(self, name: str) -> list[str]:
        """Return where the pieces of a text are kept, by its name."""
        return self._pieces.setdefault(name, [])

    def message(self) -> dict[str, Any]:
        """Return the message as a whole reply would have held it."""
        texts = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        # A stream's first chunk says `"content": ""` whatever follows; a whole reply has null beside thought or tools.
        content = texts.pop("content", "")
        alone = not self._calls and not any(texts.values())
        message: dict[str, Any] = {"role": self._role or "assistant", "content": content if content or alone else None}
        message |= texts
        message |= self._other
        if self._calls:
            message["tool_calls"] = self._calls
        whole = rawjson.mended(message)
        assert isinstance(whole, dict)
        return whole

    def _add_call(self, part: dict[str, Any]) -> None:
        call = self._call(part.get("index"), part.get("id"))
        if isinstance(part.get("type"), str):
            call["type"] = part["type"]
        function = part.get("function")
        if not isinstance(function, dict):
            return
        for name in ("name", "arguments"):
            piece = function.get(name)
            # Some engines say the name again with each piece.
            if isinstance(piece, str) and not (name == "name" and call["function"]["name"] == piece):
                call["function"][name] += piece

    def _call(self, index: Any, id_: Any) -> dict[str, Any]:
        """Return the call that a piece belongs to, started if need be."""
        key = index if isinstance(index, int) else len(self._calls) - (0 if id_ else 1)
        at = self._at.get(key)
        if at is not None:
            call = self._calls[at]
            if not id_ or call["id"] in (None, id_):
                call["id"] = call["id"] or id_ or None
                return call
        self._at[key] = len(self._calls)
        call = {"id": id_ or None, "type": "function", "function": {"name": "", "arguments": ""}}
        self._calls.append(call)
        return call
