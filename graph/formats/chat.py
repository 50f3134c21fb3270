"""The messages of a row, for trainers that show or grade them."""

from __future__ import annotations

from typing import Any

from graph.formats.projection import Row
from graph.graph import Graph
from graph.records import Call
from graph.surgery import Chat, to_chat


def parted(graph: Graph, row: Row) -> tuple[list[Chat], list[Chat]]:
    """Return the messages that a row began with, and those that were added, its last reply the last of them.

    The first are those of its first call's request, as far as its last call's has them too: an agent that rewrites its
    history without changing a token is possible.
    """
    calls = graph.forest.calls
    first, last = calls[row.sequence.calls[0]].messages, calls[row.sequence.calls[-1]]
    same = 0
    for one, other in zip(first, last.messages, strict=False):  # the shorter one ends what they have in common
        if one.digest != other.digest:
            break
        same += 1
    messages = [to_chat(message) for message in last.messages]
    return messages[:same], [*messages[same:], *replied(last)]


def replied(call: Call) -> list[Chat]:
    """Return the reply of a call as a list of one message, or none."""
    return [] if call.reply is None else [to_chat(call.reply)]


def tools(call: Call) -> list[dict[str, Any]] | None:
    """Return the tools that a call offered, by their names alone: a graph keeps no schemas. None where it had none."""
    if not call.tool_names:
        return None
    return [{"type": "function", "function": {"name": name}} for name in call.tool_names]
