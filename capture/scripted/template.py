"""Messages to prompt: a chat template in the manner of Qwen3's, and its ids.

Rules, as Qwen3's own template has them (tokenizer_config.json of Qwen3), with what vLLM 0.32 does to messages
before it
1. A message is `<|im_start|>role`, a newline, its text, `<|im_end|>`, a newline. `developer` is rendered as
   `system`. A list of text parts is joined with newlines. Tool results in a row share one user turn.
2. Tools go into the first system turn, one JSON object a line.
3. Thinking of assistant turns before the last real user message is left out; within the tool loop behind it, it
   stays. It is read from `reasoning`, from `reasoning_content`, or from a `<think>` block in the content.
4. Tool calls are written again from their parsed arguments, so what an agent did to the JSON's spacing is undone
   here, and what the model did too. Arguments that are no JSON object become `{}`.
5. The prompt ends in `<|im_start|>assistant` and a newline, and the model opens its thinking itself; with
   `enable_thinking: false` an empty think block follows, which is not rendered again for past turns.

Theory: the rendering is a list of segments, each beginning with a special token. Encoding does not merge across
those, so segments are encoded apart and their ids are kept: a growing conversation costs its new messages only.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from capture.scripted.tokeniser import IM_END, IM_START, THINK, THINK_END, TOOL_CALL, TOOL_CALL_END, Tokeniser

Message = dict[str, Any]

_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    f"{TOOL_CALL}{TOOL_CALL_END} XML tags:\n"
    f'{TOOL_CALL}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{TOOL_CALL_END}'
)

# Ids of segments kept, counted in tokens: some tens of long conversations, at 28 bytes an id and less.
_TOKENS_KEPT = 4_000_000


class TemplateError(ValueError):
    """Raise where the messages cannot be rendered; the text says why, with `{model}` for the model's name."""


def text_of(content: Any) -> str:
    """Give a message's content as one string: text parts joined with newlines, nothing for null.

    Raises TemplateError for a part that is no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TemplateError("message content must be a string or a list of parts")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise TemplateError("{model} is not a multimodal model")
    return "\n".join(texts)


def render(
    messages: Sequence[Message],
    tools: Sequence[Any] | None = None,
    *,
    thinking: bool = True,
    generation_prompt: bool = True,
    continue_final: bool = False,
) -> list[str]:
    """Render messages and tools to the segments of the prompt; the prompt is their concatenation.

    `continue_final` leaves the last message open, to be continued. Raises TemplateError.
    """
    segments: list[str] = []
    roles = [_role(message) for message in messages]
    texts = [text_of(m.get("content")) for m in messages]
    first = texts[0] if roles and roles[0] == "system" else None
    if tools:
        listed = "".join("\n" + _json(tool) for tool in tools)
        head = f"{first}\n\n" if first is not None else ""
        segments.append(f"{IM_START}system\n{head}{_TOOLS_HEAD}{listed}{_TOOLS_TAIL}{IM_END}\n")
    elif first is not None:
        segments.append(f"{IM_START}system\n{first}{IM_END}\n")
    query = _last_query(roles, texts)
    results: list[str] = []
    for n, (message, role, text) in enumerate(zip(messages, roles, texts, strict=True)):
        if role == "tool":
            results.append(f"\n<tool_response>\n{text}\n</tool_response>")
            if n + 1 == len(messages) or roles[n + 1] != "tool":
                segments.append(f"{IM_START}user{''.join(results)}{IM_END}\n")
                results = []
        elif role == "assistant":
            body = _assistant(message, text, behind_query=n > query, last=n + 1 == len(messages))
            segments.append(f"{IM_START}assistant\n{body}{IM_END}\n")
        elif role == "user" or (role == "system" and n > 0):
            segments.append(f"{IM_START}{role}\n{text}{IM_END}\n")
        # Any other role is nothing to the template, and is left out.
    if continue_final and segments:
        segments[-1] = segments[-1].removesuffix(f"{IM_END}\n")
    if generation_prompt:
        segments.append(f"{IM_START}assistant\n")
        if not thinking:
            segments[-1] += f"{THINK}\n\n{THINK_END}\n\n"
    return segments


def _role(message: Message) -> str:
    role = message.get("role")
    if not isinstance(role, str):
        raise TemplateError("every message needs a role")
    return "system" if role == "developer" else role


def _last_query(roles: Sequence[str], texts: Sequence[str]) -> int:
    for n in range(len(roles) - 1, -1, -1):
        wrapped = texts[n].startswith("<tool_response>") and texts[n].endswith("</tool_response>")
        if roles[n] == "user" and not wrapped:
            return n
    return len(roles) - 1


def _assistant(message: Message, text: str, *, behind_query: bool, last: bool) -> str:
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if not isinstance(reasoning, str):
        reasoning = ""
        if THINK_END in text:
            before, _, _ = text.partition(THINK_END)
            reasoning = before.rstrip("\n").rpartition(THINK)[2].lstrip("\n")
            text = text.rpartition(THINK_END)[2].lstrip("\n")
    body = text
    if behind_query and (last or reasoning):
        thought = reasoning.strip("\n")
        body = f"{THINK}\n{thought}\n{THINK_END}\n\n{text.lstrip(chr(10))}"
    for n, call in enumerate(message.get("tool_calls") or ()):
        body += "\n" if n or text else ""
        body += call_text(*_call(call))
    return body


def _call(call: Any) -> tuple[str, str]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise TemplateError("chat completions only support assistant tool_calls of type 'function'.")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return str(function.get("name")), _json(arguments if isinstance(arguments, dict) else {})


def call_text(name: str, arguments: str) -> str:
    """Write a tool call as the model writes it, around arguments that are JSON text already."""
    return f'{TOOL_CALL}\n{{"name": "{name}", "arguments": {arguments}}}\n{TOOL_CALL_END}'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Encoder:
    """Encode segments and keep their ids, the longest unused going first."""

    def __init__(self, tokeniser: Tokeniser) -> None:
        """Start with nothing kept."""
        self._tokeniser = tokeniser
        self._kept: OrderedDict[str, list[int]] = OrderedDict()
        self._tokens = 0

    def __repr__(self) -> str:
        return f"Encoder({len(self._kept)} segments, {self._tokens} tokens kept)"

    def encode(self, segments: Sequence[str]) -> list[int]:
        """Give the ids of the segments' concatenation."""
        ids: list[int] = []
        for segment in segments:
            found = self._kept.get(segment)
            if found is None:
                found = self._tokeniser.encode(segment)
                self._kept[segment] = found
                self._tokens += len(found)
            else:
                self._kept.move_to_end(segment)
            ids.extend(found)
        while self._tokens > _TOKENS_KEPT and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._tokens -= len(dropped)
        return ids
