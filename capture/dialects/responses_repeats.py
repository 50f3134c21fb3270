"""A Responses body read by what is new in it: its items, each looked at once, and what they mean in chat.

What one reply said becomes one chat message, though it came as several items, with results between them even. So items
are translated, and kept, in runs: a run ends where whatever comes next can only begin something new. That is certain
before and behind a message that no reply said, and behind a result, where an item follows that is of no reply which the
run has named (rules 1 and 2 of `responses_items`). Where it isn't certain a run goes on, which costs time alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from capture.dialects.repeats import (
    EACH_BYTES,
    FEW_BYTES,
    KEPT_BYTES,
    Kept,
    Piece,
    Repairs,
    Repeats,
    Unit,
    joined,
    unit_of,
)
from capture.dialects.responses_items import ChatMessages, reply_of, says_nothing
from capture.dialects.responses_tables import LEFT_OUT_ITEMS, OUTPUTS
from capture.dialects.responses_tools import Tools


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be known of an item before it is translated."""

    # `said` by no reply; part of a reply; a result; or nothing that an engine is told.
    kind: Literal["said", "reply", "result", "nothing"]
    # The reply's id, where the item's own names it.
    reply: str | None = None
    # It means the same whatever the tools are.
    is_free: bool = True
    # What it means, of one that no reply said.
    unit: Unit | None = None


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """A body taken apart: its chat messages, and its pieces."""

    messages: bytes
    elements: tuple[Any, ...]
    repairs: list[str]
    tools: Tools
    # The tools as raw JSON, where there are any.
    listed: bytes | None
    items: list[Piece[Item]]
    # By name.
    others: dict[str, Piece[Any]]


def maybe_apart(fields: dict[str, bytes]) -> Apart | None:
    """Read what of a body repeats, None where that is for the long way. May raise `UNTRANSLATED`."""
    if "input" not in fields or "previous_response_id" in fields:
        return None
    items = _items.elements(fields["input"])
    others = {name: known.read([fields[name]])[0] for name, known in _APART.items() if name in fields}
    tools, listed = others["tools"].meaning if "tools" in others else (Tools(), None)
    units = [others["instructions"].meaning] if "instructions" in others else []
    known_by = others["tools"].raw if "tools" in others else b""
    units += _units_of(items, tools, known_by)
    messages, elements, repairs = joined(units)
    return Apart(
        messages=messages,
        elements=elements,
        repairs=repairs,
        tools=tools,
        listed=listed,
        items=items,
        others=others,
    )


def runs(items: Sequence[Item]) -> list[int]:
    """Return where each run of items begins: items in runs mean the same wherever they stand."""
    starts: list[int] = []
    seen: set[str] = set()
    is_new, is_answered = True, False
    for at, item in enumerate(items):
        kind = item.kind
        if kind == "result":
            is_answered = True
        elif kind == "reply":
            reply = item.reply
            if is_answered:
                if reply not in seen:
                    is_new = True
                # Else it may begin a message of its own, to which no result has come yet.
                is_answered = False
            if is_new:
                seen.clear()
            if reply is not None:
                seen.add(reply)
        if is_new or kind == "said":
            starts.append(at)
            # Behind one that no reply said another run begins.
            is_new = kind == "said"
            if is_new:
                seen.clear()
                is_answered = False
    return starts


def _units_of(items: Sequence[Piece[Item]], tools: Tools, known_by: bytes) -> list[Unit]:
    """Return what items mean; `known_by` are the tools as they came."""
    meanings = [piece.meaning for piece in items]
    starts = runs(meanings)
    units = [meanings[start].unit for start in starts]
    # Those that aren't known by their first item alone: place among the units, and key.
    keys: list[tuple[bytes, ...]] = []
    places = [at for at, unit in enumerate(units) if unit is None]
    for at in places:
        start, end = starts[at], starts[at + 1] if at + 1 < len(starts) else len(items)
        if end == start + 1 and meanings[start].is_free:
            keys.append((items[start].raw,))
            continue
        raws = [piece.raw for piece in items[start:end]]
        # No item is empty, so that a run can't be taken for one with tools.
        is_free = all(item.is_free for item in meanings[start:end])
        keys.append(tuple(raws) if is_free else (b"", known_by, *raws))
    for at, key, known in zip(places, keys, _units.find(keys), strict=True):
        units[at] = known or _unit(key, tools)
    return [unit for unit in units if unit is not None]


def _unit(key: tuple[bytes, ...], tools: Tools) -> Unit:
    """Translate a run, and keep it."""
    raws = key if key[0] else key[2:]
    unit = _translated([msgspec.json.decode(raw) for raw in raws], tools)
    _units.keep(key, unit, 3 * sum(map(len, raws)) + EACH_BYTES)
    return unit


def _translated(items: Iterable[Any], tools: Tools) -> Unit:
    messages = ChatMessages(tools)
    for item in items:
        messages.add(item, "input")
    return unit_of(messages.chat, messages.repairs)


def _item(value: Any) -> Item:
    if not isinstance(value, dict):
        raise TypeError("an item is no object")
    kind = value.get("type")
    if kind == "item_reference" or set(value) == {"id"}:
        raise ValueError("an item that names another")
    if kind == "message" or (kind is None and "role" in value):
        if value.get("role") != "assistant":
            return Item(kind="said", unit=_translated([value], Tools()))
    elif kind in OUTPUTS:
        return Item(kind="result")
    elif kind in LEFT_OUT_ITEMS or (kind == "reasoning" and says_nothing(value)):
        return Item(kind="nothing")
    return Item(kind="reply", reply=reply_of(value.get("id")), is_free=kind in ("message", "reasoning", None))


def _instructions(value: Any) -> Unit:
    messages = ChatMessages(Tools())
    if value is not None:
        if not isinstance(value, str):
            raise TypeError("the instructions are no text")
        messages.say("system", value)
    return unit_of(messages.chat, Repairs())


def _tools(value: Any) -> tuple[Tools, bytes | None]:
    tools = Tools(value)
    return tools, msgspec.json.encode(tools.chat) if tools.chat else None


_items = Repeats(_item)
_units: Kept[tuple[bytes, ...], Unit] = Kept(room=KEPT_BYTES // 2)
_APART: dict[str, Repeats[Any]] = {
    "instructions": Repeats(_instructions, room=FEW_BYTES),
    "tools": Repeats(_tools, room=FEW_BYTES),
}
READ_APART = frozenset(("input", *_APART))
"""Fields of a body that are read apart."""
