"""Items of the Responses dialect as chat messages.

Rules
1. What one reply said is one assistant message: its reasoning, its text, its calls. The ids that `responses_output`
   gives its items name the reply, so echoed items find together again, even with results between them.
2. Where ids don't tell, order does: reasoning begins a message; text begins one if there is text already; a call joins
   the message before it, unless a result stands between.
3. Text stays text, arguments stay the string that came. Nothing is merged across replies.
4. What can't be told to an engine is in `responses_tables`; an item or part that is neither here nor there is refused.

Signatures and encrypted reasoning are the client's to keep: the engine never made any and can't read them. A foreign
reasoning item without its text is read by its summary, as vLLM does; one without either says nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from capture.dialects.responses_refusals import list_at, maybe_text_in, object_at, text_in, unsupported, wrong
from capture.dialects.responses_tables import CALLS, LEFT_OUT_ITEMS, OUTPUTS
from capture.dialects.responses_tools import Tools, as_arguments

_ROLES = ("user", "system", "developer", "assistant")
_ITEM_ID = re.compile(r"(?:rs|msg|fc|ctc)_(.+)_[0-9]+")

Content = str | list[dict[str, Any]]
Kind = Literal["reasoning", "text", "call"]


def item_id(prefix: str, reply_id: str, n: int) -> str:
    """Return the id of the `n`-th item of a reply."""
    return f"{prefix}_{reply_id}_{n}"


def reply_of(id_: Any) -> str | None:
    """Return the id of the reply that an item of ours belongs to; None for any other id."""
    match = _ITEM_ID.fullmatch(id_) if isinstance(id_, str) else None
    return match.group(1) if match else None


def as_items(given: Any, where: str) -> list[Any]:
    """Return a request's input as a list of items. Raises `ClientError` naming it."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if isinstance(given, list):
        return given
    raise wrong(where, "a string or a list of items")


class ChatMessages:
    """Chat messages, put together from items in order."""

    def __init__(self, tools: Tools) -> None:
        self.chat: list[dict[str, Any]] = []
        self.repairs: list[str] = []
        self._tools = tools
        # The assistant message that further items may join, and the reply that it is known to be from.
        self._turn: dict[str, Any] | None = None
        self._reply: str | None = None
        # A result came behind it.
        self._answered = False

    def __repr__(self) -> str:
        return f"<ChatMessages {', '.join(message['role'] for message in self.chat) or 'none'}>"

    def say(self, role: str, content: Content) -> None:
        """Add a message that no reply said."""
        self._turn = None
        self.chat.append({"role": role, "content": content})

    def add(self, item: Any, where: str) -> None:
        """Add an item. Raises `ClientError` naming the part of it that can't be translated."""
        item = object_at(item, where)
        kind = maybe_text_in(item, "type", where)
        if kind == "message" or (kind is None and "role" in item):
            self._add_message(item, where)
        elif kind == "reasoning":
            self._add_reasoning(item, where)
        elif kind == "function_call":
            self._add_call(item, where, text_in(item, "name", where), text_in(item, "arguments", where))
        elif kind == "custom_tool_call":
            self._add_call(item, where, text_in(item, "name", where), as_arguments(text_in(item, "input", where)))
        elif kind in CALLS:
            name, field = CALLS[kind]
            self._add_call(item, where, name, json.dumps(object_at(item.get(field), f"{where}.{field}")))
        elif kind in OUTPUTS:
            self._add_output(item, where)
        elif kind in LEFT_OUT_ITEMS:
            self.repairs.append(f"item_left_out:{kind}")
        else:
            said = "without a type" if kind is None else f"of the type '{kind}'"
            raise unsupported(f"{where}.type", f"Items {said} can't be told to the engine.")

    def _add_message(self, item: Mapping[str, Any], where: str) -> None:
        role = text_in(item, "role", where)
        if role not in _ROLES:
            raise wrong(f"{where}.role", "one of " + ", ".join(_ROLES))
        content = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.say(role, content)
            return
        turn = self._joins("text", item)
        held = turn["content"]
        turn["content"] = content if held in (None, "") else _both(held, content)

    def _add_reasoning(self, item: Mapping[str, Any], where: str) -> None:
        text = _thought(item, where)
        maybe_text_in(item, "encrypted_content", where)
        if text:
            turn = self._joins("reasoning", item)
            turn["reasoning"] = turn.get("reasoning", "") + text

    def _add_call(self, item: Mapping[str, Any], where: str, name: str, arguments: str) -> None:
        flat = self._tools.flat(name, maybe_text_in(item, "namespace", where))
        call = {
            "id": text_in(item, "call_id", where),
            "type": "function",
            "function": {"name": flat, "arguments": arguments},
        }
        turn = self._joins("call", item)
        turn.setdefault("tool_calls", []).append(call)
        if turn["content"] == "":
            turn["content"] = None

    def _add_output(self, item: Mapping[str, Any], where: str) -> None:
        # OpenAI's own type of a local shell's output has the call's id as its own.
        key = "id" if item.get("type") == "local_shell_call_output" and item.get("call_id") is None else "call_id"
        call_id = text_in(item, key, where)
        output = item.get("output")
        content: Content
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            content = _content(output, f"{where}.output")
        else:
            content = output if isinstance(output, str) else json.dumps(output)
        self.chat.append({"role": "tool", "tool_call_id": call_id, "content": content})
        self._answered = True

    def _joins(self, kind: Kind, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return the assistant message that an item belongs to, begun if need be."""
        turn, reply = self._turn, reply_of(item.get("id"))
        if turn is not None:
            if reply is not None and self._reply is not None:
                same = reply == self._reply
            else:
                begins = kind == "reasoning" or (kind == "text" and turn["content"] not in (None, ""))
                same = not (self._answered or begins)
            if same:
                self._reply = self._reply or reply
                return turn
        turn = {"role": "assistant", "content": ""}
        self.chat.append(turn)
        self._turn, self._reply, self._answered = turn, reply, False
        return turn


def says_nothing(item: Mapping[str, Any]) -> bool:
    """Say if a reasoning item has no text, so that it is as if it weren't there. Raises `ClientError`."""
    return not _thought(item, "input")


def _thought(item: Mapping[str, Any], where: str) -> str:
    return _texts(item.get("content"), f"{where}.content") or _texts(item.get("summary"), f"{where}.summary")


def _content(value: Any, where: str) -> Content:
    """Return content for a chat message: one text as a string, anything more as parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(where, "a string or a list of parts")
    parts = [_part(part, f"{where}[{i}]") for i, part in enumerate(value)]
    if not parts:
        return ""
    if len(parts) == 1 and parts[0]["type"] == "text":
        text = parts[0]["text"]
        assert isinstance(text, str)
        return text
    return parts


def _part(value: Any, where: str) -> dict[str, Any]:
    part = object_at(value, where)
    kind = text_in(part, "type", where)
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text_in(part, "text", where)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": text_in(part, "refusal", where)}
    if kind == "input_image":
        _refuse_file_id(part, where)
        image = {"url": text_in(part, "image_url", where)}
        detail = maybe_text_in(part, "detail", where)
        return {"type": "image_url", "image_url": image if detail is None else {**image, "detail": detail}}
    if kind == "input_audio":
        audio = object_at(part.get("input_audio"), f"{where}.input_audio")
        named = {name: text_in(audio, name, f"{where}.input_audio") for name in ("data", "format")}
        return {"type": "input_audio", "input_audio": named}
    if kind == "input_file":
        _refuse_file_id(part, where)
        if part.get("file_url") is not None:
            raise unsupported(f"{where}.file_url", "The engine can't fetch a file.", hint="Send it as file_data.")
        file = {"file_data": text_in(part, "file_data", where)}
        name = maybe_text_in(part, "filename", where)
        return {"type": "file", "file": file if name is None else {**file, "filename": name}}
    raise unsupported(f"{where}.type", f"Parts of the type '{kind}' can't be told to the engine.")


def _refuse_file_id(part: Mapping[str, Any], where: str) -> None:
    if part.get("file_id") is not None:
        raise unsupported(f"{where}.file_id", "No files are kept here.", hint="Send the data itself.")


def _texts(value: Any, where: str) -> str:
    """Return the text of reasoning's parts, as one."""
    if value is None:
        return ""
    return "".join(
        text_in(object_at(part, f"{where}[{i}]"), "text", f"{where}[{i}]")
        for i, part in enumerate(list_at(value, where))
    )


def _both(first: Content, second: Content) -> Content:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    return [
        part
        for content in (first, second)
        for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]
