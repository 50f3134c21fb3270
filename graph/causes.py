"""Why the ids of a conversation part from what they were: causes of drift, read from the two sides' messages.

Rules
1. The messages are asked before the ids: where an agent changed something that a template shows, that is the cause.
2. The place of the break has a veto: what stands behind it can't be its cause. Where all but the last sampled id are
   there, it is the end token, whatever else the agent did; before the tool calls begin, it isn't their arguments.
3. `unknown` rather than a guess. Without a tokeniser, which the graph doesn't have, ids can be compared and counted,
   and not read.

Theory of operation. A break lies in one of three places, told by numbers alone:

    prompt of the parent                          | sampled         |
    system, tools, history …        | header      | reply …     end |
    1                                 2             3

1. In the history: the first message that the two requests don't share is the cause, if one differs. A message that is
   gone is looked for further on, so that a turn that was left out isn't taken for one that was rewritten. If none
   differs, the template did it: tools come first, then thinking that it drops (Qwen3's does at a new user message).
2. In the header of the reply (`<|im_start|>assistant`, a newline, an empty pair of thinking tags): the rest of the
   prompt stands at the end of the child's prompt too. The template has no such header for a turn that is over, or its
   last newline became one token with the reply's first.
3. In the reply: as sampled against its echo. Where the two are the same, the engine rendered one message to other ids.
   If both sides go on alike after a token or two (a *seam*), and the text can't account for them, it is white space at
   a border: of the turn, or between its parts. Else thinking was dropped (seen by what the ids skip), or put in, or
   the text was tokenised afresh.

A seam before the tool calls is known by the id behind it: the one that opens them stands in the reply once for each.

Costs: one look at the messages up to the first that differs, and at the ids of the reply. Only calls that drift pay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import numpy as np

from graph.records import Call, IntArray, Message

Cause = Literal[
    "reasoning_stripped",
    "reasoning_inserted",
    "arguments_reserialised",
    "text_retokenised",
    "end_token",
    "turn_dropped",
    "system_changed",
    "tools_changed",
    "history_pruned",
    "media",
    "turn_boundary",
    "unknown",
]

CAUSES: dict[Cause, str] = {
    "reasoning_stripped": "thinking is gone or cut short: the agent does not send it back, or the template drops it",
    "reasoning_inserted": "thinking, or an empty pair of its tags, stands where none was sampled",
    "arguments_reserialised": "a tool call's arguments are spelled another way, by the agent or by the template",
    "text_retokenised": "the same message came back as other ids: what was sampled is not how its text is tokenised",
    "end_token": "the reply ended with another token than the one with which the template ends a turn",
    "turn_dropped": "one turn of the assistant is no longer in the prompt",
    "system_changed": "the system text changed, came or went",
    "tools_changed": "the tool list changed",
    "history_pruned": "earlier messages were left out or cut short",
    "media": "an image, audio or a file changed, or takes another number of tokens",
    "turn_boundary": "white space or a header at the border of a turn or of its parts: a property of the template",
    "unknown": "neither messages nor ids say why",
}
"""Every cause, and what it says."""

SEAM_TOKENS = 2
"""White space that a template puts in or leaves out at a border: a newline or two."""
ALIKE_TOKENS = 3
"""So many ids alike behind a seam are no chance; where the reply ends before, what is left of it has to do."""
HEADER_TOKENS = 16
"""The longest header of a reply seen is 7 ids (Qwen3 without thinking); beyond twice that it is a message."""
EMPTY_THINKING_TOKENS = 8
"""An empty pair of thinking tags is 2 (GLM 4.5) to 4 ids (Qwen3), with what a template puts around it."""


def cause_of(
    parent: Call,
    child: Call,
    echo: Message | None,
    *,
    at: int,
    parent_ids: IntArray,
    n_parent_prompt: int,
    new: IntArray,
) -> Cause:
    """Say why `child` parts from `parent`.

    `at` is the length of the common prefix; `parent_ids` the parent's prompt and sampled ids (int32); `new` the child's
    prompt from `at` on; `echo` the message of the child's request that carries the parent's reply.
    """
    offset = at - n_parent_prompt
    sampled = parent_ids[n_parent_prompt:]
    length = parent.finish_reason == "length"
    if offset >= 0:
        return in_reply(parent.reply, echo, sampled, offset=offset, new=new, length=length)
    if not parent.messages or not child.messages:
        return "unknown"
    changed = _first_change(parent, child)
    header = parent_ids[at:n_parent_prompt]
    # What differs before the last message can't show, if the ids are alike up to the header.
    shows = changed is not None and changed[0] >= len(parent.messages) - 1
    if not shows and len(header) <= HEADER_TOKENS and _ends_with(new, header):
        return in_reply(parent.reply, echo, sampled, offset=offset, new=new, header=header, length=length)
    if changed is not None and changed[1] == "system_changed":
        return "system_changed"
    if parent.tools != child.tools:
        return "tools_changed"
    if changed is not None:
        return changed[1]
    return _in_same_history(parent, at=at, ids=parent_ids, new=new)


def in_reply(
    reply: Message | None,
    echo: Message | None,
    sampled: IntArray,
    *,
    offset: int,
    new: IntArray,
    header: IntArray | None = None,
    length: bool = False,
) -> Cause:
    """Say why a reply's ids are not those of its echo.

    `offset` is the number of `sampled` ids before the break, negative where it lies in the prompt's `header` of the
    reply; `new` the ids of the later prompt from the break on; `length` whether the reply was cut by length, so that
    its last id is no end token.
    """
    if reply is None or echo is None:
        return "unknown"
    lost = sampled[offset:] if header is None else np.concatenate([header, sampled])
    if offset >= 0 and len(lost) == 1 and not length:
        return "end_token"
    if offset < 0 and not reply.text.strip() and not reply.tool_calls:
        # Nothing but thinking: a template has nothing to show of it.
        return "turn_dropped"
    seam = _seam(lost, new)
    before_calls = seam is not None and _opens_tool_calls(reply, sampled, offset + seam[0])
    changed = _changed(reply, echo)
    if changed is not None:
        return "turn_boundary" if changed == "arguments_reserialised" and before_calls else changed
    if not reply.reasoning and offset == 0 and _puts_in(lost, new):
        return "reasoning_inserted"
    if seam is not None and (before_calls or 0 in seam or offset < 0 or (offset == 0 and seam == (1, 1))):
        return "turn_boundary"
    if reply.reasoning and (offset <= 0 or _skips(lost, new)):
        return "reasoning_stripped"
    if offset < 0:
        return "turn_boundary"
    if any(_respelled_by_templates(call.arguments) for call in reply.tool_calls):
        return "arguments_reserialised"
    return "text_retokenised"


# -- messages ---------------------------------------------------------------------------------------------------------


def _changed(said: Message, echo: Message) -> Cause | None:
    """Say what an agent changed in a message of the assistant; None when it echoed all that a template shows."""
    if said.media != echo.media:
        return "media"
    if said.role != echo.role or _calls(said) != _calls(echo) or said.text.strip() != echo.text.strip():
        return "unknown"
    if said.reasoning.strip() and not echo.reasoning.strip():
        return "reasoning_stripped"
    if echo.reasoning.strip() and not said.reasoning.strip():
        return "reasoning_inserted"
    if any(a.arguments != b.arguments for a, b in zip(said.tool_calls, echo.tool_calls, strict=True)):
        return "arguments_reserialised"
    if said.reasoning != echo.reasoning:
        # Trimmed (qwen-code does it), added to, or rewritten.
        if echo.reasoning in said.reasoning:
            return "reasoning_stripped"
        return "reasoning_inserted" if said.reasoning in echo.reasoning else "unknown"
    # A reply that is nothing but tool calls has a blank line for its text, which pi leaves out and no template shows.
    only_blank = bool(said.tool_calls) and not said.text.strip()
    return None if said.text == echo.text or only_blank else "turn_boundary"


def _calls(message: Message) -> list[tuple[str, str]]:
    return [(call.name, call.canonical or "{}") for call in message.tool_calls]


def _respelled_by_templates(arguments: str) -> bool:
    """Say if a template that reads arguments as JSON, as vLLM 0.32 hands them over, would spell these another way."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False) != arguments
    except (ValueError, RecursionError):
        return False


def _first_change(parent: Call, child: Call) -> tuple[int, Cause] | None:
    """Return the place of the first message that `child` doesn't share with `parent`, and what that says."""
    said, sent = parent.messages, child.messages
    for place, (before, after) in enumerate(zip(said, sent, strict=False)):
        if before is after:
            continue
        if before.role == after.role == "assistant":
            changed = _changed(before, after)
            if changed is not None:
                return place, _difference(parent, child, place) if changed == "unknown" else changed
        elif before.digest != after.digest:
            return place, _difference(parent, child, place)
    return (len(sent), "history_pruned") if len(sent) < len(said) else None


def _difference(parent: Call, child: Call, place: int) -> Cause:
    """Say what became of the message at `place`, where the two requests have different ones."""
    said = [*parent.messages, *([parent.reply] if parent.reply is not None else [])]
    sent = child.messages
    before, after = said[place], sent[place]
    if (end := _found(after, said, place + 1)) is not None:
        gone = [message.role for message in said[place:end]]
        if "system" in gone and "assistant" not in gone:
            return "system_changed"
        return "turn_dropped" if gone.count("assistant") == 1 and "user" not in gone else "history_pruned"
    if (end := _found(before, sent, place + 1)) is not None:
        return "system_changed" if any(message.role == "system" for message in sent[place:end]) else "unknown"
    if "system" in (before.role, after.role):
        return "system_changed"
    if before.role != after.role:
        return "unknown"
    if before.media != after.media:
        return "media"
    if after.text.strip() == before.text.strip() and _calls(before) == _calls(after):
        return "turn_boundary"
    # A result that was cleared has other words in its place, longer ones often; what was said is left out or cut.
    shorter = len(after.text) < len(before.text) and _calls(before) == _calls(after)
    return "history_pruned" if before.role == "tool" or shorter else "unknown"


def _found(message: Message, among: Sequence[Message], start: int) -> int | None:
    """Return the place of a message from `start` on; tool results with their call's id, since many say the same."""
    for place in range(start, len(among)):
        other = among[place]
        if other.digest == message.digest and other.tool_call_id == message.tool_call_id:
            return place
    return None


# -- ids --------------------------------------------------------------------------------------------------------------


def _in_same_history(parent: Call, *, at: int, ids: IntArray, new: IntArray) -> Cause:
    """Say why the same messages were rendered another way, before the header of the reply."""
    if any(message.media for message in parent.messages) and at and len(new) and ids[at - 1] in (ids[at], new[0]):
        # In a run of one id, that of a placeholder, which is longer on one side.
        return "media"
    if any(message.reasoning.strip() for message in parent.messages):
        return "reasoning_stripped"
    if any(message.role == "assistant" for message in parent.messages):
        if _puts_in(ids[at:], new):
            return "reasoning_inserted"
        if _seam(ids[at:], new) is not None:
            return "turn_boundary"
    return "unknown"


def _ends_with(ids: IntArray, tail: IntArray) -> bool:
    return len(tail) <= len(ids) and np.array_equal(ids[len(ids) - len(tail) :], tail)


def _seam(lost: IntArray, new: IntArray) -> tuple[int, int] | None:
    """Return how many ids are (left out, put in) at a break behind which both sides go on alike; None without."""
    widths = range(SEAM_TOKENS + 1)
    for out, put in sorted(((i, j) for i in widths for j in widths if i or j), key=sum):
        alike = min(ALIKE_TOKENS, len(lost) - out)
        if 0 < alike <= len(new) - put and np.array_equal(lost[out : out + alike], new[put : put + alike]):
            return out, put
    return None


def _puts_in(lost: IntArray, new: IntArray) -> bool:
    """Say if the new ids have a pair of tags or a little more, and then go on as before."""
    alike = min(len(lost), 2 * EMPTY_THINKING_TOKENS)
    if alike == 0:
        return False
    return any(
        np.array_equal(lost[:alike], new[put : put + alike])
        for put in range(2, min(EMPTY_THINKING_TOKENS, len(new) - alike) + 1)
    )


def _opens_tool_calls(reply: Message, sampled: IntArray, place: int) -> bool:
    """Say if the id at `place` opens the reply's tool calls: it stands there once for each, and their text follows."""
    calls = len(reply.tool_calls)
    if not calls or not 0 <= place < len(sampled):
        return False
    # Each is an opening, a text and a closing; and the reply has an end.
    return len(sampled) - place > 3 * calls and int(np.count_nonzero(sampled == sampled[place])) == calls


def _skips(lost: IntArray, new: IntArray) -> bool:
    """Say if the new ids go on with a tail of the lost ones, leaving out more than a token or two before it.

    Up to two ids may stand in their place: some templates leave an empty pair of thinking tags.
    """
    for put_in in range(min(3, len(new))):
        for start in np.flatnonzero(lost[put_in + 2 :] == new[put_in]) + put_in + 2:
            tail = lost[start:]
            if len(tail) <= len(new) - put_in and np.array_equal(tail, new[put_in : put_in + len(tail)]):
                return True
    return False
