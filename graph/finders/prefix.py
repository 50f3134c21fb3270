"""Does the same thing at the prompt's beginning change from call to call?

A header with a checksum, a countdown of tokens left, the time of day: each call then parts from the one before it at
one place, early in its prompt. No prefix is cached, and each call is a training row of its own. One finding says where,
what it costs, what stands there, and which setting of which agent ends it, where that is known.

Rule: at least two calls of main go on from another, every one of them breaks inside its parent's prompt, and all breaks
lie within a few tokens of each other (the digits of a countdown: 100, 99, 98).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graph.finders.statements import make
from graph.records import Call, Finding, Message
from graph.roles import Judged

SPREAD_TOKENS = 8
"""Breaks this near to each other lie in one volatile thing: a number of up to eight digits, each an id."""

LINE_CHARS = 120
"""Of the line that changes, to be shown."""


class Volatile(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an agent is known to put into its prompt anew."""

    agent: str
    # A part of the line that does not change.
    mark: str
    # What ends it, as an environment variable or a flag.
    setting: str


KNOWN: tuple[Volatile, ...] = (
    # claude-code 2.1.197: the first line of its system prompt, with a checksum.
    Volatile(agent="claude-code", mark="x-anthropic-billing-header:", setting="CLAUDE_CODE_ATTRIBUTION_HEADER=0"),
)
"""Volatile lines of agents, with the setting that ends each."""


def find(judged: Judged) -> Iterator[Finding]:
    """Yield volatile_prefix."""
    links = judged.forest.links
    goes_on = [n for n in judged.calls_of("main") if links[n].kind in {"exact", "drift"}]
    breaks = [drift for n in goes_on if (drift := links[n].drift) is not None]
    if len(goes_on) < 2 or len(breaks) < len(goes_on) or any(drift.where != "prompt" for drift in breaks):
        return
    places = [drift.at for drift in breaks]
    if max(places) - min(places) > SPREAD_TOKENS:
        return
    last = goes_on[-1]
    parent = links[last].parent
    assert parent is not None
    part, line = _changed(judged.forest.calls[parent], judged.forest.calls[last])
    known = next((each for each in KNOWN if line is not None and each.mark in line), None)
    tokens = sum(drift.tokens for drift in breaks)
    yield make(
        "volatile_prefix",
        goes_on,
        at=min(places),
        tokens=tokens,
        tokens_mean=round(tokens / len(breaks), 3),
        part=part,
        line=None if line is None else line[:LINE_CHARS],
        agent=known.agent if known else None,
        setting=known.setting if known else None,
    )


def _changed(parent: Call, child: Call) -> tuple[str, str | None]:
    """Return the part of the prompt that changed, and the first line of it that is new; None where it has no lines."""
    for before, after in zip(parent.messages, child.messages, strict=False):
        if before.digest != after.digest:
            return after.role, _new_line(before, after)
    return ("tools" if parent.tools != child.tools else "template"), None


def _new_line(before: Message, after: Message) -> str | None:
    had = set(before.text.splitlines())
    return next((line.strip() for line in after.text.splitlines() if line not in had), None)
