"""A Gemini body read by what is new in it: its contents, each translated once.

A content stands for itself where its calls have ids and its results name theirs, as agents echo them: which call a
result answers is then seen in the contents alone. Others are the long way's. Contents of the model that follow each
other are one turn, so they are translated, and kept, together.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    # Ids of calls that it makes, and of calls that its results answer.
    calls: tuple[str, ...]
    answers: tuple[str, ...]


class Given(Calls):
    """Calls that are told by their own ids, whatever came before."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []
        self.answered: list[str] = []

    def call(self, part: Node) -> dict[str, Any]:
        """Take a call. Raises ValueError for one without an id."""
        call = super().call(part)
        if call["id"] != part.optional_text("id"):
            raise ValueError("a call without an id")
        self.called.append(call["id"])
        return call

    def answer(self, part: Node) -> str:
        """Take a result. Raises ValueError for one without an id."""
        id_ = part.optional_text("id")
        # For its faults.
        part.optional_text("name")
        if not id_:
            raise ValueError("a result without an id")
        self.answered.append(id_)
        return id_


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
    said = _turns(contents)
    known: set[str] = set()
    for one in said:
        if one.answers and not known.issuperset(one.answers):
            return None
        known.update(one.calls)
    if not said:
        return None
    units = [one.unit for one in said]
    if (system := others.get("systemInstruction")) is not None:
        units.insert(0, system.meaning)
    messages, elements, repairs = joined(units)
    tools = others["tools"].meaning if "tools" in others else ToolList()
    told = Known(messages=messages, repairs=repairs, is_open=units[-1].is_open, tools=tools)
    return Apart(known=told, elements=elements, contents=contents, others=others)


def _turns(contents: Sequence[Piece[Said]]) -> list[Said]:
    """Return what contents mean, those of the model that follow each other as one."""
    out: list[Said] = []
    at = 0
    while at < len(contents):
        end = at + 1
        while contents[at].meaning.is_model and end < len(contents) and contents[end].meaning.is_model:
            end += 1
        out.append(contents[at].meaning if end == at + 1 else _turn(tuple(piece.raw for piece in contents[at:end])))
        at = end
    return out


def _turn(raws: tuple[bytes, ...]) -> Said:
    (known,) = _kept_turns.find([raws])
    if known is None:
        known = _said([msgspec.json.decode(raw) for raw in raws])
        _kept_turns.keep(raws, known, 3 * sum(map(len, raws)) + EACH_BYTES)
    return known


def _said(contents: list[Any]) -> Said:
    calls, repairs = Given(), Repairs()
    nodes = [Node(content, "contents") for content in contents]
    messages = of_contents(nodes, calls, repairs.note)
    return Said(
        unit=unit_of(messages, repairs),
        is_model=nodes[0].optional_text("role") == "model",
        calls=tuple(calls.called),
        answers=tuple(calls.answered),
    )


def _system(value: Any) -> Unit:
    repairs = Repairs()
    return unit_of(system_messages(Node({"systemInstruction": value}, ""), repairs.note), repairs)


_contents = Repeats(lambda content: _said([content]))
_kept_turns: Kept[tuple[bytes, ...], Said] = Kept(room=FEW_BYTES)
_APART: dict[str, Repeats[Any]] = {
    "systemInstruction": Repeats(_system, room=FEW_BYTES),
    "tools": Repeats(tool_list, room=FEW_BYTES),
}
READ_APART = frozenset(("contents", *_APART))
"""Fields of a body that are read apart."""
