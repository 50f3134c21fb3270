"""Small chat templates with a tokeniser of characters, to plan against: each has a habit that real templates have.

A rendering is made of parts, so that what follows a reply is known by construction and not by looking for it. Marks in
angle brackets are one token each, as special tokens are; anything else is a token a character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_MARK = re.compile(r"<[a-z|_/]+>|.", re.DOTALL)
_MARKS: dict[str, int] = {}


def encode(text: str) -> np.ndarray:
    """Tokens of a text: marks from 1,000,000 on, characters by their code."""
    return np.array(
        [
            _MARKS.setdefault(part, 1_000_000 + len(_MARKS)) if len(part) > 1 else ord(part)
            for part in _MARK.findall(text)
        ],
        np.int32,
    )


class RefusalError(Exception):
    """What a template raises."""


class Template:
    """One template. `parts` gives a rendering's parts, one a message, each with what closes it."""

    def __init__(self, name: str, parts: Callable[[Sequence[dict[str, Any]]], list[str]], opening: str) -> None:
        self.name = name
        self._parts = parts
        self._opening = opening
        self.asked = 0

    def parts(self, messages: Sequence[dict[str, Any]]) -> list[str]:
        return self._parts(messages)

    def text(self, messages: Sequence[dict[str, Any]], *, closed: bool = False) -> str:
        return "".join(self._parts(messages)) + ("" if closed else self._opening)

    def render(self, messages: Sequence[dict[str, Any]], *, closed: bool = False) -> np.ndarray | None:
        """Ids, None where the template refuses."""
        self.asked += 1
        try:
            return encode(self.text(messages, closed=closed))
        except RefusalError:
            return None


def calls(message: dict[str, Any], form: str) -> str:
    found = []
    for call in message.get("tool_calls") or []:
        arguments = call["function"]["arguments"]
        arguments = json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments)
        found.append(form.format(name=call["function"]["name"], arguments=arguments))
    return "".join(found)


def content(message: dict[str, Any]) -> str:
    given = message.get("content") or ""
    return given if isinstance(given, str) else "\n".join(part["text"] for part in given)


def _chatml(messages):
    return [
        f"<im_start>{m['role']}\n{content(m)}{calls(m, '<call>{name} {arguments}</call>')}<im_end>\n" for m in messages
    ]


def _thinking(messages):
    """Drops the thinking of replies before the last user message; the last reply keeps an empty block."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    found = []
    for i, m in enumerate(messages):
        said = content(m)
        if m["role"] == "assistant":
            thought, _, rest = said.rpartition("</think>")
            block = (
                f"{thought}</think>" if thought and i > last else "<think></think>" if i == len(messages) - 1 else ""
            )
            said = block + rest + calls(m, "<call>{name} {arguments}</call>")
        found.append(f"<im_start>{m['role']}\n{said}<im_end>\n")
    return found


def _unended(messages):
    """No end of its own: a turn is over where the next role's mark begins."""
    return [f"<{m['role']}>\n{content(m)}{calls(m, '<call>{name} {arguments}</call>')}" for m in messages]


def _counted(messages):
    """Keeps a state across the chat: the second round of tools has no mark in front."""
    found, seen = [], False
    for m in messages:
        if m["role"] == "tool":
            found.append(("" if seen else "<outputs>") + f"<output>{content(m)}</output>")
            seen = True
        else:
            found.append(f"<{m['role']}>{content(m)}{calls(m, '<call>{name} {arguments}</call>')}<end>")
    return found


def _open_calls(messages):
    """Leaves a turn open behind a tool call."""
    return [
        f"<{m['role']}>{content(m)}{calls(m, '<call>{name} {arguments}</call>')}"
        + ("" if m.get("tool_calls") else "<end>")
        for m in messages
    ]


def _strict(messages):
    """Refuses anything but user and assistant in turn."""
    for i, m in enumerate(m for m in messages if m["role"] != "system"):
        if m["role"] != ("user", "assistant")[i % 2]:
            raise RefusalError
    return _chatml(messages)


def _deaf(messages):
    """Renders no tool calls at all."""
    return [f"<im_start>{m['role']}\n{content(m)}<im_end>\n" for m in messages]


def _return(messages):
    """The last reply is closed by another mark than those in history."""
    last = len(messages) - 1
    return [
        f"<start>{m['role']}<message>{content(m)}{calls(m, '<call>{name} {arguments}</call>')}"
        + ("<return>" if i == last and m["role"] == "assistant" else "<end>")
        for i, m in enumerate(messages)
    ]


TEMPLATES = {
    template.name: template
    for template in (
        Template("chatml", _chatml, "<im_start>assistant\n"),
        Template("thinking", _thinking, "<im_start>assistant\n"),
        Template("unended", _unended, "<assistant>\n"),
        Template("counted", _counted, "<assistant>"),
        Template("open-calls", _open_calls, "<assistant>"),
        Template("strict", _strict, "<im_start>assistant\n"),
        Template("deaf", _deaf, "<im_start>assistant\n"),
        Template("return", _return, "<start>assistant<message>"),
    )
}
ENDS = {
    "chatml": "<im_end>", "thinking": "<im_end>", "counted": "<end>", "open-calls": "<end>", "strict": "<im_end>",
    "deaf": "<im_end>", "return": "<return>",
}  # fmt: skip
"""What the model samples at the end of its turn; of `unended` it is the next role's mark."""
