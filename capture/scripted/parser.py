"""Sampled text to message: reasoning and tool calls, found as vLLM 0.32 finds them.

Rules, as vLLM 0.32 has them with `--reasoning-parser qwen3 --tool-call-parser hermes`
1. With thinking on, all is reasoning until `</think>`, or until `<tool_call>`, which ends it too; `<think>` is
   dropped. The blank line behind `</think>` is content. A reply cut inside its thinking has no content at all.
2. With thinking off, all is content, and think tags in it are text.
3. Tool calls are looked for in the content, unless `tool_choice` is `none`: the JSON between `<tool_call>` tags.
4. A whole reply is parsed with a JSON decoder: one call that is cut or malformed leaves the whole content as text,
   tags and all. A stream has sent the name and some arguments by then. The two disagree in vLLM, and so here.
5. In a stream, a text that may be the beginning of a tag is held back until the next chunk settles it; so is a call
   until its name is complete, and blanks at the end of its arguments. A chunk that yields nothing is `None`: it is
   sent with an empty delta where ids or logprobs are asked for, and not sent otherwise.

Theory of operation: `parse_whole` reads a finished text. `DeltaParser` is fed each chunk's text and ids and returns
the delta: first reasoning, then content and calls by reading again the content so far and sending what is new.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from capture.scripted.tokeniser import IM_END, IM_START, THINK, THINK_END, TOOL_CALL, TOOL_CALL_END, Tokeniser

_MARK = re.compile("|".join(re.escape(tag) for tag in (THINK, THINK_END, TOOL_CALL)))
_CALL = re.compile(f"{TOOL_CALL}(.*?){TOOL_CALL_END}|{TOOL_CALL}(.*)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')

# What vLLM's lexer holds back while it reads reasoning: anything that may become one of these.
_LEXED = (
    THINK,
    THINK_END,
    TOOL_CALL,
    TOOL_CALL_END,
    IM_START,
    IM_END,
    "<|endoftext|>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
)
_MARKS = (THINK, THINK_END, TOOL_CALL)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed tool call; `arguments` is JSON text."""

    name: str
    arguments: str


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole reply says; null where there is nothing, "" where there is empty text."""

    reasoning: str | None
    content: str | None
    calls: tuple[Call, ...] = ()


def parse_whole(text: str, *, thinking: bool, tools: bool, forced: bool) -> Parsed:
    """Parse a finished text.

    `tools`: calls are looked for. `forced`: `tool_choice` is `required` or names a tool; content is then never null.
    """
    reasoning: str | None = None
    content: str | None = text
    if thinking:
        reasoning, content = _divide(text)
    calls: tuple[Call, ...] = ()
    if tools and TOOL_CALL in (content or ""):
        calls, content = _calls(content or "")
    if forced and not calls:
        content = content if content and content.strip() else None
    return Parsed(reasoning=reasoning, content=(content or "") if forced else content, calls=calls)


def _divide(text: str) -> tuple[str | None, str | None]:
    reasoning = []
    at = 0
    for mark in _MARK.finditer(text):
        reasoning.append(text[at : mark.start()])
        at = mark.end()
        if mark.group() != THINK:
            at = mark.start() if mark.group() == TOOL_CALL else mark.end()
            return "".join(reasoning) or None, text[at:].replace(THINK_END, "") or None
    reasoning.append(text[at:])
    return "".join(reasoning) or None, None


def _calls(content: str) -> tuple[tuple[Call, ...], str | None]:
    calls = []
    try:
        for closed, cut in _CALL.findall(content):
            call = json.loads(closed or cut)
            calls.append(Call(name=call["name"], arguments=json.dumps(call["arguments"], ensure_ascii=False)))
    except (ValueError, TypeError, KeyError):
        return (), content
    before = content[: content.index(TOOL_CALL)]
    return tuple(calls), before if before.strip() else None


def overlap(text: str, tag: str) -> int:
    """Give the length of the longest beginning of `tag`, short of the whole, that `text` ends in."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def thinks_on(tokeniser: Tokeniser, prompt: Sequence[int]) -> bool:
    """Say whether a stream behind this prompt begins within the thinking: not where its last turn has closed it.

    vLLM asks this of a stream only; a whole reply is parsed by what the template was told.
    """
    end, begin = tokeniser.special(THINK_END), tokeniser.special(THINK)
    boundaries = (tokeniser.special(IM_START), tokeniser.special(IM_END))
    for token in reversed(prompt):
        if token == end:
            return False
        if token == begin or token in boundaries:
            break
    return True


class DeltaParser:
    """Parse one choice of a stream, chunk by chunk. Stateful; not to be used after `feed(..., last=True)`."""

    def __init__(
        self, tokeniser: Tokeniser, *, thinking: bool, tools: bool, call_id: Callable[[], str], one_call: bool = False
    ) -> None:
        """Begin in reasoning if `thinking`. `call_id` gives a fresh tool-call id; `one_call` drops all but one."""
        self._marks = {tokeniser.special(mark): mark for mark in _MARKS}
        self._tokeniser = tokeniser
        self._reasoning = thinking
        self._tools = tools
        self._call_id = call_id
        self._one_call = one_call
        self._held = ""
        self._content = ""
        self._sent = 0
        self._names: list[str] = []
        self._arguments: list[str] = []
        self.called = False

    def __repr__(self) -> str:
        state = "reasoning" if self._reasoning else "content"
        return f"DeltaParser({state}, held={self._held!r}, calls={self._names})"

    def feed(self, text: str, ids: Sequence[int], *, last: bool = False) -> dict[str, Any] | None:
        """Take a chunk's text and ids; give the delta's keys, or None if there is nothing to send yet."""
        delta: dict[str, Any] = {}
        if self._reasoning:
            reasoning, text = self._think(text, ids, last=last)
            if reasoning:
                delta["reasoning"] = reasoning
            if self._reasoning:
                return delta or None
        if self._tools:
            delta = self._read(text) | delta
            # vLLM closes a stream that ends in a call's name by giving it empty arguments.
            if last and (calls := delta.get("tool_calls")) and "name" in (function := calls[-1]["function"]):
                function["arguments"] = "{}"
        elif text:
            delta = {"content": text} | delta
        return delta or None

    def _think(self, text: str, ids: Sequence[int], *, last: bool) -> tuple[str, str]:
        """Divide a chunk into reasoning and what lies behind its end."""
        text = self._held + text
        self._held = ""
        reasoning = ""
        for token in ids:
            mark = self._marks.get(token)
            if mark is None or mark not in text:
                continue
            before, _, text = text.partition(mark)
            reasoning += before
            if mark != THINK:
                self._reasoning = False
                return reasoning, (TOOL_CALL + text) if mark == TOOL_CALL else text
        if not last:
            held = max(overlap(text, tag) for tag in _LEXED)
            if held:
                text, self._held = text[:-held], text[-held:]
        return reasoning + text, ""

    def _read(self, text: str) -> dict[str, Any]:
        self._content += text
        start = self._content.find(TOOL_CALL)
        end = start if start >= 0 else len(self._content) - overlap(self._content, TOOL_CALL)
        content = self._content[self._sent : end] or None
        self._sent = max(self._sent, end)
        calls = self._read_calls() if start >= 0 else []
        if self._one_call:
            calls = [call for call in calls if call["index"] == 0]
        if calls:
            self.called = True
            return {"content": content, "tool_calls": calls}
        return {"content": content} if content else {}

    def _read_calls(self) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for n, (body, complete) in enumerate(self._bodies()):
            if n == len(self._names):
                name = _NAME.search(body)
                if name is None:
                    break
                self._names.append(name.group(1))
                self._arguments.append("")
                function = {"name": name.group(1)}
                deltas.append({"id": self._call_id(), "type": "function", "index": n, "function": function})
            arguments = _arguments_of(body, complete=complete)
            if len(arguments) > len(self._arguments[n]):
                deltas.append({"index": n, "function": {"arguments": arguments[len(self._arguments[n]) :]}})
                self._arguments[n] = arguments
        return deltas

    def _bodies(self) -> list[tuple[str, bool]]:
        found = []
        at = 0
        while (start := self._content.find(TOOL_CALL, at)) >= 0:
            start += len(TOOL_CALL)
            end = self._content.find(TOOL_CALL_END, start)
            if end < 0:
                rest = self._content[start:]
                body = rest[: len(rest) - overlap(rest, TOOL_CALL_END)].strip()
                found.append((body, _is_json(body)))
                break
            found.append((self._content[start:end].strip(), True))
            at = end + len(TOOL_CALL_END)
        return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _arguments_of(body: str, *, complete: bool) -> str:
    """Give the arguments' text so far; of a complete call, without the brace that closes the call."""
    found = _ARGUMENTS.search(body)
    if found is None:
        return ""
    text = body[found.end() :]
    if complete:
        text = text.rstrip().removesuffix("}").rstrip()
    return text
