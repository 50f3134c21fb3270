"""What can be wrong with a store, and what a look at a whole one says (`check`)."""

from __future__ import annotations

import msgspec

FAULTS: dict[str, str] = {
    "file_damaged": "SQLite finds its pages or indexes damaged.",
    "reference_broken": "A row names one that isn't there.",
    "content_damaged": "Stored bytes don't have the digest they are stored under.",
    "content_unused": "Stored bytes that no rollout uses: lost space, nothing else.",
    "content_unclaimed": "A rollout uses bytes without the note that keeps them from being swept.",
    "chain_damaged": "A message list's digest is not that of its messages.",
    "rollout_damaged": "A rollout's record can't be read, or disagrees with its columns.",
    "call_damaged": "A call can't be read, or its lengths disagree with its arrays.",
    "prompt_lost": "A call's prompt can't be put together, or isn't what its check sum says.",
    "exchange_lost": "What passed in a call is missing, or can't be put together.",
    "spool_left": "A call that has ended still has what was spooled of it.",
    "order_broken": "A place in the order of creation or closing, or a call's number, could be given twice.",
    "count_wrong": "What a rollout is said to have spent is not what its calls come to.",
    "summary_wrong": "What is kept of a rollout for lists is not what the rollout says.",
}
"""Every code that a fault may have, and what it means."""

WASTE = frozenset({"content_unused", "spool_left"})
"""Faults that take nothing from anybody."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    code: str
    message: str
    # None: of the file, not of one rollout.
    rollout: str | None = None
    call: int | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and what was wrong with it."""

    version: int
    rollouts: int
    calls: int
    # Running: they end as aborted with the next start, unless a Treering runs them now.
    running: int
    contents: int
    size_bytes: int
    faults: tuple[Fault, ...]
