"""A Gemini body read by what is new in it: its contents, each translated once.

A content stands for itself where its calls have ids and its results name theirs, as agents mostly echo them: which
call a result answers is then seen in the contents alone. Others (gemini-cli's subagents drop the ids) mean something
together with the calls before them, and are kept with what of those decides it. Contents of the model that follow each
other are one turn, so they are translated, and kept, together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import msgspec

from capture.dialects.gemini_content import Calls, of_contents, system_messages
from capture.dialects.gemini_fields import Node
from capture.dialects.gemini_request import tool_list
from capture.dialects.repeats import (
    EACH_BYTES,
    FEW_BYTES,
    Kept,
    Known,
    Piece,
    Repairs,
    Repeats,
    ToolList,
    Unit,
    joined,
    unit_of,
)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a content means, or several of the model's."""

    unit: Unit
    is_model: bool
    # Id and name of the calls that it makes; of its results the ids that they have, and those of the calls they answer.
    calls: tuple[tuple[str, str], ...]
    given: tuple[str, ...]
    answers: tuple[str, ...]
    # All of its calls and results have ids of their own.
    is_free: bool


class Noted(Calls):
    """Calls that note what comes."""

    def __init__(self, before: Calls | None = None) -> None:
        """Go on from `before`; without it a result answers the call whose id it has, whether or not that came."""
        super().__init__(before)
        self._knows_before = before is not None
        self.called: list[tuple[str, str]] = []
        self.given: list[str] = []
        self.answered: list[str] = []
        self.is_free = True

    def call(self, part: Node) -> dict[str, Any]:
        """Take a call."""
        call = super().call(part)
        self.called.append((call["id"], call["function"]["name"]))
        self.is_free = self.is_free and call["id"] == part.optional_text("id")
        return call

    def answer(self, part: Node) -> str:
        """Take a result."""
        id_ = part.optional_text("id")
        answered = super().answer(part)
        if id_ and not self._knows_before:
            answered = id_
        self.given.append(id_)
        self.answered.append(answered)
        self.is_free = self.is_free and bool(id_)
        return answered


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """A body taken apart: what is known of it, and its pieces."""

    known: Known
    elements: tuple[Any, ...]
    contents: list[Piece[Said]]
    # By name.
    others: dict[str, Piece[Any]]


def maybe_apart(fields: dict[str, bytes]) -> Apart | None:
    """Read what of a body repeats, None where that is for the long way. May raise `UNTRANSLATED`."""
    if "contents" not in fields or "system_instruction" in fields:
        return None
    contents = _contents.elements(fields["contents"])
    others = {name: known.read([fields[name]])[0] for name, known in _APART.items() if name in fields}
    units = _maybe_units(_turns(contents)) or [one.unit for one in _with_calls(contents)]
    if not units:
        return None
    if (system := others.get("systemInstruction")) is not None:
        units.insert(0, system.meaning)
    messages, elements, repairs = joined(units)
    tools = others["tools"].meaning if "tools" in others else ToolList()
    told = Known(messages=messages, repairs=repairs, is_open=units[-1].is_open, tools=tools)
    return Apart(known=told, elements=elements, contents=contents, others=others)


def _maybe_units(turns: Sequence[tuple[Said, tuple[bytes, ...]]]) -> list[Unit] | None:
    """Return what turns mean where each stands for itself, None where one doesn't."""
    known: set[str] = set()
    for said, _ in turns:
        if not said.is_free or (said.answers and not known.issuperset(said.answers)):
            return None
        known.update([id_ for id_, _ in said.calls])
    return [said.unit for said, _ in turns]


def _with_calls(contents: Sequence[Piece[Said]]) -> Iterator[Said]:
    """Yield what turns mean together with the calls before them."""
    calls = Calls()
    for said, raws in _turns(contents):
        if said.calls or said.given:
            # Of the calls before it, all that `Calls` looks at.
            said = _turn(raws, calls, calls.state(said.given))
            calls.go_on(said.calls, said.answers)
        yield said


def _turns(contents: Sequence[Piece[Said]]) -> list[tuple[Said, tuple[bytes, ...]]]:
    """Return what contents mean by themselves, those of the model that follow each other as one; and their bytes."""
    out: list[tuple[Said, tuple[bytes, ...]]] = []
    at = 0
    while at < len(contents):
        end = at + 1
        while contents[at].meaning.is_model and end < len(contents) and contents[end].meaning.is_model:
            end += 1
        raws = tuple([piece.raw for piece in contents[at:end]])
        out.append((contents[at].meaning if end == at + 1 else _turn(raws), raws))
        at = end
    return out


def _turn(raws: tuple[bytes, ...], calls: Calls | None = None, state: Hashable = None) -> Said:
    """Return what a turn means, behind `calls` that are in a state, or by itself."""
    (known,) = _kept_turns.find([(raws, state)])
    if known is None:
        known = _said([msgspec.json.decode(raw) for raw in raws], calls)
        _kept_turns.keep((raws, state), known, 3 * sum(map(len, raws)) + EACH_BYTES)
    return known


def _said(contents: list[Any], before: Calls | None = None) -> Said:
    calls, repairs = Noted(before), Repairs()
    nodes = [Node(content, "contents") for content in contents]
    messages = of_contents(nodes, calls, repairs.note)
    return Said(
        unit=unit_of(messages, repairs),
        is_model=nodes[0].optional_text("role") == "model",
        calls=tuple(calls.called),
        given=tuple(calls.given),
        answers=tuple(calls.answered),
        is_free=calls.is_free,
    )


def _system(value: Any) -> Unit:
    repairs = Repairs()
    return unit_of(system_messages(Node({"systemInstruction": value}, ""), repairs.note), repairs)


_contents = Repeats(lambda content: _said([content]))
_kept_turns: Kept[tuple[tuple[bytes, ...], Hashable], Said] = Kept(room=FEW_BYTES)
_APART: dict[str, Repeats[Any]] = {
    "systemInstruction": Repeats(_system, room=FEW_BYTES),
    "tools": Repeats(tool_list, room=FEW_BYTES),
}
READ_APART = frozenset(("contents", *_APART))
"""Fields of a body that are read apart."""
