"""Renders for a process that has no transformers: a question a line on standard input, an answer a line on the other.

    python -m benchmarks.drift.worker        in an environment with transformers, from the clone

Questions are JSON: `{"open": name, "folder", "template", "special", "named"}` reads a tokeniser and answers `{}`;
`{"of": name, "ask": [...]}` answers `{"got": [...]}`, one for each of `ask`:

    {"messages", "tools", "closed", "arguments", "text": true?}    ids, or text where that is asked; null where refused
    {"encode": text}                                               ids
    {"apart": text}                                                ids of its characters, each encoded alone
    {"decode": ids}                                                the text of each id

As vLLM 0.32 does before it renders, arguments of tool calls that are JSON are handed over parsed, unless a question
says `"raw": true`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from capture.rerender import Json, RefusedError, Rerenderer


def parsed(messages: list[Json]) -> list[Json]:
    """Return messages with the arguments of tool calls parsed where they are JSON."""
    return [
        message
        if not message.get("tool_calls")
        else {
            **message,
            "tool_calls": [{**call, "function": _parsed(call["function"])} for call in message["tool_calls"]],
        }
        for message in messages
    ]


def _parsed(function: Json) -> Json:
    try:
        return {**function, "arguments": json.loads(function["arguments"])}
    except (ValueError, TypeError):
        return function


def answer(tokenizer: Rerenderer, asked: Json) -> Any:
    """Answer one question of a tokeniser."""
    if "encode" in asked:
        return tokenizer.encode(asked["encode"])
    if "apart" in asked:
        return [one for char in asked["apart"] for one in tokenizer.encode(char)]
    if "decode" in asked:
        return tokenizer.decode(asked["decode"])
    messages = asked["messages"] if asked.get("raw") else parsed(asked["messages"])
    how = {"tools": asked.get("tools"), "closed": asked.get("closed", False), "arguments": asked.get("arguments")}
    try:
        return tokenizer.text(messages, **how) if asked.get("text") else tokenizer.ids(messages, **how)
    except RefusedError:
        return None


def main() -> None:
    """Answer until standard input ends."""
    known: dict[str, Rerenderer] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "open" in asked:
            one = known[asked["open"]] = Rerenderer(Path(asked["folder"]), template=asked.get("template"))
            one.add_special(asked.get("special") or [], **asked.get("named") or {})
            told: Json = {}
        else:
            told = {"got": [answer(known[asked["of"]], each) for each in asked["ask"]]}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
