"""Renderings by the small templates of tests.capture.pinning, without the process that the real ones need."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.drift.templates import Template
from tests.capture.pinning.templates import TEMPLATES, RefusalError, encode

THINKING = Template(name="thinking", file="thinking", end="<im_end>")
CHATML = Template(name="chatml", file="chatml", end="<im_end>")
STRICT = Template(name="strict", file="strict", end="<im_end>")


class Small:
    """What `Renderings` is to its callers."""

    def ask(self, template: Template, asked: list[dict[str, Any]]) -> list[Any]:
        return [self._answer(template, each) for each in asked]

    def one(self, template: Template, **asked: Any) -> Any:
        return self._answer(template, asked)

    def _answer(self, template: Template, asked: dict[str, Any]) -> Any:
        if "encode" in asked:
            return encode(asked["encode"]).tolist()
        if "apart" in asked:
            # Other ids than the tokeniser gives, for the same text.
            return [1_000_000 + ord(char) for char in asked["apart"]]
        try:
            text = TEMPLATES[template.file].text(_shown(asked["messages"]), closed=asked.get("closed", False))
        except RefusalError:
            return None
        return text if asked.get("text") else encode(text).tolist()


def _shown(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Thinking as the small template wants it: in the text."""
    found = []
    for message in messages:
        thought = message.get("reasoning_content")
        content = message.get("content")
        if isinstance(content, list):
            content = json.dumps(content)
        found.append({**message, "content": f"{thought}</think>{content}" if thought else content})
    return found
