"""The script: rules that match a request and say the reply.

Rules
1. The first rule whose every condition holds answers; with `times = k` a rule answers only the first k requests
   that it matches. Where none does, the built-in rules answer.
2. `{turn}`, `{last}`, `{1}` and `{name}` in texts and arguments stand for the number of assistant messages, the
   last message's text, and the groups of the `text` and `system` expressions. `{{turn}}` is the text `{turn}`.
   Braces around anything else are left alone, so JSON needs no escaping.

`rulesfile` reads them from a file, whose form is in docs/scripted.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

# The probability that a piece of a reply is sampled in another tokenisation than the canonical one. At 0.3 hardly any
# reply of ten words comes back to the same ids, which is the drift that a capture has to live with.
NONCANONICAL = 0.3

# `{{name}}`, which is left as `{name}`, or `{name}`, which stands for a value.
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a rule; one that is not given holds always. Expressions are searched for, not matched whole."""

    # The last message's role, and its text as a regular expression.
    role: str | None = None
    text: str | None = None
    # All system messages' texts, joined with newlines.
    system: str | None = None
    # Names of tools that the request must offer, and must not offer; and whether it offers any.
    tools: tuple[str, ...] = ()
    without_tools: tuple[str, ...] = ()
    any_tools: bool | None = None
    tool_choice: Literal["none", "auto", "required", "named"] | None = None
    # The number of assistant messages in the request, or several numbers.
    turn: int | tuple[int, ...] | None = None
    # The request's model as a regular expression.
    model: str | None = None
    # Whether thinking is on.
    thinking: bool | None = None


class CallReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call of a reply: arguments as a table, or as the very JSON text that the model is to write."""

    tool: str
    arguments: dict[str, Any] | str = msgspec.field(default_factory=dict)


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong; one kind. Numbers of tokens are of each choice."""

    # An HTTP error before anything else, with a message, and seconds for `Retry-After`.
    status: int | None = None
    message: str | None = None
    retry_after: int | None = None
    # The connection is cut behind so many tokens: no end of the stream, or half a body.
    cut_after_tokens: int | None = None
    # An error event and `[DONE]` behind so many tokens, as when vLLM's engine dies; 500 where it is not streamed.
    error_event_after_tokens: int | None = None
    # `finish_reason: "abort"` behind so many tokens, as when vLLM is paused or shut down.
    abort_after_tokens: int | None = None
    # Nothing at all comes, or nothing more behind so many tokens, until the client goes away.
    hang: bool = False
    hang_after_tokens: int | None = None

    @property
    def after_tokens(self) -> int | None:
        """The number of tokens that come before the failure, where it is one of those that wait for tokens."""
        counts = (
            self.cut_after_tokens,
            self.error_event_after_tokens,
            self.abort_after_tokens,
            self.hang_after_tokens,
        )
        return next((count for count in counts if count is not None), None)


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model says. Either `raw`, the sampled text to the letter, or its parts: thinking, text, calls."""

    thinking: str | None = None
    text: str = ""
    call: tuple[CallReply, ...] = ()
    raw: str | None = None
    # The finish reason, where it is not to follow from the reply. With `length` no end token is sampled.
    finish: Literal["stop", "length", "tool_calls", "abort"] | None = None
    # The end token; the second one ends a reply too, and vLLM then gives its id as `stop_reason`.
    end: Literal["<|im_end|>", "<|endoftext|>"] = "<|im_end|>"
    # Seconds per token, and tokens per chunk; the engine's where not given.
    pace_s: float | None = None
    tokens_per_chunk: int = 1
    failure: Failure | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A match and its reply."""

    reply: Reply
    match: Match = Match()
    name: str | None = None
    times: int | None = None


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """A script. The empty one leaves everything to the built-in rules."""

    rules: tuple[Rule, ...] = ()
    noncanonical: float = NONCANONICAL


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What rules look at in a request."""

    role: str
    text: str
    system: str
    tools: tuple[str, ...]
    tool_choice: str
    turn: int
    model: str
    thinking: bool


def matches(match: Match, seen: Seen) -> dict[str, str] | None:
    """Give the values of the placeholders if every condition holds, else None."""
    values = {"turn": str(seen.turn), "last": seen.text}
    turns = (match.turn,) if isinstance(match.turn, int) else match.turn
    holds = (
        match.role in (None, seen.role)
        and match.thinking in (None, seen.thinking)
        and match.tool_choice in (None, seen.tool_choice)
        and match.any_tools in (None, bool(seen.tools))
        and (turns is None or seen.turn in turns)
        and set(match.tools) <= set(seen.tools)
        and not set(match.without_tools) & set(seen.tools)
        and (match.model is None or re.search(match.model, seen.model) is not None)
    )
    if not holds:
        return None
    for pattern, text, numbered in ((match.system, seen.system, False), (match.text, seen.text, True)):
        if pattern is None:
            continue
        found = re.search(pattern, text, re.DOTALL)
        if found is None:
            return None
        values.update({name: value or "" for name, value in found.groupdict().items()})
        if numbered:
            values.update({str(n): found.group(n) or "" for n in range(found.re.groups + 1)})
    return values


def fill(reply: Reply, values: dict[str, str]) -> Reply:
    """Put the values in the place of a reply's placeholders."""

    def put(text: str) -> str:
        return PLACEHOLDER.sub(
            lambda m: "{" + m.group(1) + "}" if m.group(1) else values.get(m.group(2), m.group()), text
        )

    return msgspec.structs.replace(
        reply,
        thinking=None if reply.thinking is None else put(reply.thinking),
        text=put(reply.text),
        raw=None if reply.raw is None else put(reply.raw),
        call=tuple(CallReply(tool=put(call.tool), arguments=_each_text(call.arguments, put)) for call in reply.call),
    )


def _each_text(value: Any, put: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return put(value)
    if isinstance(value, dict):
        return {key: _each_text(inner, put) for key, inner in value.items()}
    if isinstance(value, list):
        return [_each_text(inner, put) for inner in value]
    return value
