"""What each call's request adds to the messages of the call that it goes on from."""

from __future__ import annotations

from collections.abc import Sequence

from graph.forest import Forest
from graph.records import Message


def added(forest: Forest, n: int) -> Sequence[Message]:
    """Return the messages of call `n` that stand behind its parent's reply; all of them for a root or a compaction.

    Where the reply's echo can't be found (a prompt of ids, an echo that drops what it can't spell), the messages behind
    what the two requests have in common.
    """
    call, link = forest.calls[n], forest.links[n]
    if link.parent is None or link.kind not in {"exact", "drift"}:
        return call.messages
    parent = forest.calls[link.parent]
    if parent.reply is not None:
        # Usually right behind the parent's own messages; an agent that drops some of them has moved it up.
        places = [len(parent.messages), *reversed(range(len(call.messages)))]
        for place in places:
            if place < len(call.messages) and call.messages[place].digest == parent.reply.digest:
                return call.messages[place + 1 :]
    return call.messages[_common(parent.messages, call.messages) :]


def _common(one: Sequence[Message], other: Sequence[Message]) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[same].digest == other[same].digest:
        same += 1
    return same
