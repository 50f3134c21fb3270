"""What differs between two requests, field by field: what an agent changed when it sent its messages again.

Rules
1. Requests are compared as parsed JSON, whatever their dialect: a field's name is its path (`messages[3].content`,
   `tools[0].function.description`, `temperature`), as a person would look it up in the body.
2. Spellings of nothing are alike (absent, null, "", []), text is alike as a string and as a list of text parts,
   `reasoning` is `reasoning_content`, and cache marks say nothing: no template shows them.
3. Lists are aligned: a message that was left out or put in is one change, and does not make all behind it differ.
4. Few changes are told, the first ones, and of a long value what lies around the difference.

Costs: equal parts are compared once, as they are; only what differs is looked into.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

MOST_CHANGES = 8
"""Told of two requests; the first says most, for what stands behind it is mostly its consequence."""

MOST_CHARS = 300
"""Of a value that is told; some lines on a page."""

BEFORE = 80
"""Characters of those before the place where two values part."""

LISTS = ("messages", "input", "contents")
"""Fields that hold a request's messages, one a dialect."""

_TEXTS = ("text", "input_text", "output_text")
_SAME = {"reasoning_content": "reasoning"}
# Marks for a cache, and what an engine's reply has that no agent sends back.
_SAYS_NOTHING = frozenset({"cache_control", "annotations", "audio", "function_call", "logprobs", "refusal", "status"})
# Where one side has none, nothing was changed.
_OPTIONAL = frozenset({"id", "index", "type"})
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One field that differs: its path, what it was, what it is; None where it is absent."""

    field: str
    was: Any = None
    # `is` is Python's own word.
    now: Any = msgspec.field(default=None, name="is")


def changes(was: Mapping[str, Any], now: Mapping[str, Any], *, most: int = MOST_CHANGES) -> tuple[Change, ...]:
    """Return the first differences of two requests: of their messages, then of their other fields."""
    names = [*dict.fromkeys([*was, *now])]
    ordered = [name for name in names if name in LISTS] + [name for name in names if name not in LISTS]
    found = (each for name in ordered for each in _differ(was.get(name), now.get(name), name))
    return tuple(islice(found, most))


def going_on(
    was: Mapping[str, Any], said: Sequence[Any], now: Mapping[str, Any], *, most: int = MOST_CHANGES
) -> tuple[Change, ...]:
    """Return what of an earlier request, and of what was `said` in reply to it, a later one has otherwise.

    What the later one has behind that is new, and no change. Fields beside the messages count if they shape a prompt.
    """
    found: list[Iterator[Change]] = []
    for name in LISTS:
        before, after = was.get(name), now.get(name)
        if isinstance(before, list) and isinstance(after, list):
            found.append(_aligned([*before, *said], after, name, goes_on=True))
        elif name in was or name in now:
            found.append(_differ(before, after, name))
    beside = [name for name in dict.fromkeys([*was, *now]) if name in _SHAPES]
    found += [_differ(was.get(name), now.get(name), name) for name in beside]
    return tuple(islice((each for some in found for each in some), most))


_SHAPES = frozenset(
    {
        "system", "instructions", "systemInstruction", "system_instruction", "tools", "tool_choice", "toolConfig",
        "tool_config", "functions", "documents", "reasoning", "reasoning_effort", "thinking", "chat_template",
        "chat_template_kwargs", "response_format", "text", "prompt", "add_generation_prompt", "continue_final_message",
    }
)  # fmt: skip


def _differ(was: Any, now: Any, path: str) -> Iterator[Change]:
    """Yield the differences of two values."""
    if was == now:
        return
    was, now = _plain(was), _plain(now)
    if was == now and type(was) is type(now):
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*was, *now]):
            if name in _OPTIONAL and (name in was) is not (name in now):
                continue
            yield from _differ(was.get(name), now.get(name), f"{path}.{name}" if path else name)
    elif isinstance(was, list) and isinstance(now, list):
        yield from _aligned(was, now, path)
    else:
        yield from _change(path, was, now)


def _aligned(was: Sequence[Any], now: Sequence[Any], path: str, *, goes_on: bool = False) -> Iterator[Change]:
    """Yield the differences of two lists; with `goes_on` what `now` has behind the end of `was` is none."""
    i = j = 0
    while i < len(was) and j < len(now):
        if _alike(was[i], now[j]):
            i, j = i + 1, j + 1
        elif (gone := _place(now[j], was, i + 1)) is not None:
            for at in range(i, gone):
                yield from _change(f"{path}[{at}]", _plain(was[at]), None)
            i = gone
        elif (come := _place(was[i], now, j + 1)) is not None:
            for at in range(j, come):
                yield from _change(f"{path}[{at}]", None, _plain(now[at]))
            j = come
        else:
            yield from _differ(was[i], now[j], f"{path}[{j}]")
            i, j = i + 1, j + 1
    for at in range(i, len(was)):
        yield from _change(f"{path}[{at}]", _plain(was[at]), None)
    for at in range(j, len(now)) if not goes_on else ():
        yield from _change(f"{path}[{at}]", None, _plain(now[at]))


def _place(one: Any, among: Sequence[Any], start: int) -> int | None:
    """Return where a list has something like `one`, from `start` on."""
    return next((at for at in range(start, len(among)) if _alike(one, among[at])), None)


def _alike(one: Any, other: Any) -> bool:
    return one == other or (type(one) is type(other) and _plain(one) == _plain(other))


def _plain(value: Any) -> Any:
    """Return a value without what says nothing; text parts become their text."""
    if isinstance(value, dict):
        out = {}
        for name, each in value.items():
            if name in _SAYS_NOTHING:
                continue
            plain = _plain(each)
            if plain not in _EMPTY:
                out[_SAME.get(name, name)] = plain
        return out or None
    if isinstance(value, list):
        if value and all(_is_text(each) for each in value):
            return "".join(each["text"] for each in value)
        return [_plain(each) for each in value] or None
    return None if value == "" else value


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type", "text") in _TEXTS
        and isinstance(part.get("text"), str)
        and not set(part) - {"type", "text", *_SAYS_NOTHING}
    )


def _change(path: str, was: Any, now: Any) -> Iterator[Change]:
    if was is None and now is None:
        # What was left out, or put in, says nothing.
        return
    if _is_short(was) and _is_short(now):
        yield Change(field=path, was=was, now=now)
        return
    one, other = _written(was), _written(now)
    at = 0 if one is None or other is None else max(0, _common(one, other) - BEFORE)
    yield Change(field=path, was=_cut(one, at), now=_cut(other, at))


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MOST_CHARS
    return value is None or isinstance(value, bool | int | float)


def _written(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str | None, start: int) -> str | None:
    """Return a stretch of text, with marks where something is left out."""
    if text is None or (start == 0 and len(text) <= MOST_CHARS):
        return text
    before = "…" if start else ""
    rest = text[start:]
    room = MOST_CHARS - len(before)
    return before + (rest if len(rest) <= room else f"{rest[: room - 1]}…")


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix, by halves: values may be megabytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
