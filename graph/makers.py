"""Who made a drift, where its cause may be two's doing: the agent, or the engine's template.

A tool call's arguments may be spelled another way by an agent that writes them anew from their parsed form, or by a
template that does so with what the agent sent back letter by letter. The cause is one (`graph.causes`); whoever wants
to end it must know which. Read from the messages alone: those of a call carry arguments as they stood on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from graph.causes import CAUSES
from graph.forest import Forest
from graph.records import Call, Message

Maker = Literal["agent", "template"]
_Calls = tuple[tuple[str, str], ...]

_EITHER = ", by the agent or by the template"
_WORDS: dict[str, str] = {str(cause): says for cause, says in CAUSES.items()}


def maker(forest: Forest, n: int) -> Maker | None:
    """Say whether the agent or the template spelled a tool call's arguments another way in call `n`.

    None where that isn't known, or the call's drift has another cause.
    """
    link = forest.links[n]
    if link.drift is None or link.parent is None or link.drift.cause != "arguments_reserialised":
        return None
    return _between(forest.calls[link.parent], forest.calls[n])


def worded(cause: str, makers: Iterable[Maker | None]) -> str:
    """Return what a cause says, with who made its drifts where all of them are known."""
    says, given = _WORDS.get(cause, cause), list(makers)
    known = sorted({each for each in given if each is not None})
    if not known or None in given:
        return says
    return says.replace(_EITHER, ", " + " and ".join(f"by the {each}" for each in known))


def _between(parent: Call, child: Call) -> Maker | None:
    """Compare the arguments that the child sends with those that it had: by what is called with which JSON, since an
    agent that drops a blank line from a message sends another message, and the same calls."""
    had: dict[_Calls, set[tuple[str, ...]]] = {}
    for message in (*parent.messages, *([parent.reply] if parent.reply is not None else [])):
        had.setdefault(_calls(message), set()).add(_spelled(message))
    known = [message for message in child.messages if message.tool_calls and _calls(message) in had]
    if not known:
        return None
    return "agent" if any(_spelled(message) not in had[_calls(message)] for message in known) else "template"


def _calls(message: Message) -> _Calls:
    return tuple((call.name, call.canonical or "{}") for call in message.tool_calls)


def _spelled(message: Message) -> tuple[str, ...]:
    return tuple(call.arguments for call in message.tool_calls)
