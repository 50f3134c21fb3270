"""Where two renderings of one conversation part, how much is lost, and why.

Drift is a number of tokens: those of the parent, prompt and sampled ids, that the child's prompt no longer begins with.
The number and the position are facts about ids. The cause is read from the two sides' messages, and is `unknown` rather
than a guess: without a tokeniser, which the graph doesn't have, ids can only be compared, not understood.

How a cause is found. A break among the parent's *sampled* ids lies in its reply, so the reply as sampled is compared
with its echo in the child's request. Where the agent changed something that a template shows (reasoning gone, arguments
spelled another way), that is the cause. Where the two are the same, the engine rendered the same message to other
ids: the template dropped the reasoning (seen by what the ids skip), or the text was tokenised afresh. A break inside
the parent's *prompt* lies in an earlier message: the first that differs between the two requests is compared in the
same way; if none differs, and there is reasoning before it, the template dropped that (Qwen3's does at every new user
message).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from graph.records import Call, Drift, IntArray, Message
from graph.tokens import lcp

if TYPE_CHECKING:
    from graph.forest import Forest

THRESHOLD = 1024
"""Tokens. Drift up to this is a property of a template, and rows may cross it when asked; above it is a fork."""

Cause = Literal["reasoning_stripped", "arguments_reserialised", "text_retokenised", "unknown"]
Where = Literal["prompt", "sampled"]


class DriftNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The transitions of main in numbers: the `drift` object of the graph's JSON form."""

    # Calls of main with a parent, and those of them whose link is exact.
    transitions: int
    exact: int
    # Over exact (0) and measured transitions; a compaction is no drift. None without any.
    tokens_mean: float | None
    tokens_max: int | None
    # Shares of all transitions: drift over the threshold, or compaction; drift up to it. None without any.
    fork_frac: float | None
    realign_frac: float | None
    # Training rows that crossing drifts up to the threshold would give.
    samples_per_rollout: int


def measure(parent_ids: IntArray, n_parent_prompt: int, child_prompt: IntArray) -> tuple[int, int, Where]:
    """Return (tokens lost, length of the common prefix, where the break lies) for int32 arrays.

    `parent_ids` are the parent's prompt and sampled ids in one. Where nothing is lost the break counts as lying in the
    sampled ids, at their end.
    """
    return located(lcp(parent_ids, child_prompt), n_parent_prompt, len(parent_ids))


def located(at: int, n_parent_prompt: int, n_parent: int) -> tuple[int, int, Where]:
    """Return what `measure` does, for a common prefix that is known."""
    return n_parent - at, at, "prompt" if at < n_parent_prompt else "sampled"


def explain(
    parent: Call,
    child: Call,
    echo: Message | None,
    *,
    at: int,
    parent_ids: IntArray,
    n_parent_prompt: int,
    new: IntArray,
) -> Drift:
    """Say where and why `child` parts from `parent`.

    `at` is the length of the common prefix; `parent_ids` the parent's prompt and sampled ids; `new` the child's prompt
    from `at` on; `echo` the message of the child's request that carries the parent's reply.
    """
    tokens, at, where = located(at, n_parent_prompt, len(parent_ids))
    if where == "prompt":
        reason = _cause_in_prompt(parent, child)
    else:
        reason = cause(parent.reply, echo, lost=parent_ids[at:], offset=at - n_parent_prompt, new=new)
    return Drift(tokens=tokens, at=at, where=where, cause=reason)


def cause(reply: Message | None, echo: Message | None, *, lost: IntArray, offset: int, new: IntArray) -> Cause:
    """Say why a reply's ids are not those of its echo.

    `lost` are the sampled ids from the break on, `offset` the number of sampled ids before it, `new` the ids of the
    later prompt from the break on.
    """
    if reply is None or echo is None:
        return "unknown"
    changed = _changed(reply, echo)
    if changed is not None:
        return changed
    if reply.reasoning and (offset == 0 or _skips(lost, new)):
        return "reasoning_stripped"
    return "text_retokenised"


def numbers(forest: Forest, main: Collection[int], *, threshold: int = THRESHOLD) -> DriftNumbers:
    """Count the transitions of `main`, the numbers of the main conversation's calls; `threshold` is in tokens."""
    links = [forest.links[n] for n in main if forest.links[n].kind != "root"]
    exact = sum(link.kind == "exact" for link in links)
    measured = [link.drift.tokens for link in links if link.drift is not None]
    known = exact + len(measured)
    over = sum(tokens > threshold for tokens in measured) + sum(link.kind == "compaction" for link in links)
    return DriftNumbers(
        transitions=len(links),
        exact=exact,
        tokens_mean=sum(measured) / known if known else None,
        tokens_max=max(measured, default=0) if known else None,
        fork_frac=over / len(links) if links else None,
        realign_frac=sum(tokens <= threshold for tokens in measured) / len(links) if links else None,
        samples_per_rollout=_rows(forest, main, threshold),
    )


def _changed(said: Message, echo: Message) -> Cause | None:
    """Say what an agent changed in a message; None when it echoed all that a template shows."""
    # A reply that is nothing but tool calls has a blank line for its text, which pi leaves out and no template shows.
    only_blank = bool(said.tool_calls) and not said.text.strip() and not echo.text.strip()
    if said.digest != echo.digest and not (only_blank and _calls(said) == _calls(echo)):
        return "unknown"
    if said.reasoning.strip() and not echo.reasoning.strip():
        return "reasoning_stripped"
    if any(a.arguments != b.arguments for a, b in zip(said.tool_calls, echo.tool_calls, strict=True)):
        return "arguments_reserialised"
    if said.reasoning != echo.reasoning:
        # Trimmed (qwen-code does it), or rewritten.
        return "reasoning_stripped" if echo.reasoning in said.reasoning else "unknown"
    return None


def _calls(message: Message) -> list[tuple[str, str]]:
    return [(call.name, call.canonical or "{}") for call in message.tool_calls]


def _cause_in_prompt(parent: Call, child: Call) -> Cause:
    if not parent.messages or not child.messages or parent.tools != child.tools:
        return "unknown"
    for before, after in zip(parent.messages, child.messages, strict=False):
        if before is after:
            continue
        changed = _changed(before, after)
        if changed is not None:
            return changed
    if len(child.messages) < len(parent.messages):
        return "unknown"
    said = [message for message in (*parent.messages, parent.reply) if message is not None]
    return "reasoning_stripped" if any(message.reasoning.strip() for message in said) else "unknown"


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


def _rows(forest: Forest, main: Collection[int], threshold: int) -> int:
    """Count the rows of main that cross drifts up to `threshold`.

    One for each end of a path; and one more for each reply that has ids behind a break on every path through it, where
    they are no longer what was scored.
    """
    no_break = 2**62
    # For each call: the furthest break that some path through it allows. Absent while nothing continues it.
    reach: dict[int, int] = {}
    rows = 0
    for n in sorted(main, reverse=True):
        sampled = forest.n_sampled(n)
        total = (forest.n_prompt(n) or 0) + (sampled or 0)
        live = forest.calls[n].status == "complete" or n in forest.proved
        if not sampled or not live or forest.delivered(n) is False or n in forest.discarded:
            continue
        if n not in reach:
            rows += 1
        furthest = reach.get(n, no_break)
        if total > furthest:
            rows += 1
        link = forest.links[n]
        if link.kind == "exact" or (link.drift is not None and link.drift.tokens <= threshold):
            assert link.parent is not None
            here = furthest if link.drift is None else min(furthest, link.drift.at)
            reach[link.parent] = max(reach.get(link.parent, 0), here)
    return rows
