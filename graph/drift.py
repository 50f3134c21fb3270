"""Where two renderings of one conversation part, how much is lost, and why.

Drift is a number of tokens: those of the parent, prompt and sampled ids, that the child's prompt no longer begins with.
The number and the position are facts about ids; `graph.causes` reads the cause from the two sides' messages.
`graph.transitions` counts the drifts of main.
"""

from __future__ import annotations

from typing import Literal

from graph.causes import cause_of
from graph.records import Call, Drift, IntArray, Message
from graph.tokens import lcp

THRESHOLD = 1024
"""Tokens. Drift up to this is a property of a template, and rows may cross it when asked; above it is a fork."""

Where = Literal["prompt", "sampled"]


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
    cause = cause_of(parent, child, echo, at=at, parent_ids=parent_ids, n_parent_prompt=n_parent_prompt, new=new)
    return Drift(tokens=tokens, at=at, where=where, cause=cause)
