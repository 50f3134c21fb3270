"""The shape of an engine's reply, and what differs between two: for comparing a stand-in with the engine itself.

Two replies never have equal values. They have one shape when
- status and content type are equal;
- a stream's events come in the same order of *kinds* (`role`, `reasoning`, `content`, `tool`, `arguments`, `empty`,
  each with `+reason` where it finishes its choice; `usage`, `error`, `[DONE]`), runs of one kind counting once, since
  how many tokens there are is not shape; choices are told apart, since how they interleave is chance;
- at each path of each kind stand the same JSON types, `null` and `absent` being types of their own. A whole reply is
  one kind, `reply`. Whole numbers are `integer`, others `number`; a map from token ids counts as an array; a string
  whose values are a closed set (role, object, type, finish_reason) stands with its value.

All is sans-I/O: bytes in, lines of text out, one line a difference.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import Any

# Keys whose strings are a closed set, so that the value itself is part of the shape.
CLOSED = frozenset({"role", "object", "type", "finish_reason"})

Shapes = dict[str, frozenset[str]]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One answer of an engine: as much of it as has a shape."""

    status: int
    content_type: str
    body: bytes


def differences(left: Exchange, right: Exchange, *, names: tuple[str, str] = ("vllm", "scripted")) -> list[str]:
    """Return one line for each difference of shape, in a fixed order; an empty list when there is none."""
    lines: list[str] = []

    def compare(where: str, one: str, other: str) -> None:
        if one != other:
            lines.append(f"{where}: {names[0]} {one}; {names[1]} {other}")

    compare("status", str(left.status), str(right.status))
    compare("content type", left.content_type, right.content_type)
    one, other = events(left), events(right)
    for choice in sorted({*orders(one), *orders(other)}):
        compare(f"order of choice {choice}", orders(one).get(choice, "absent"), orders(other).get(choice, "absent"))
    kinds_left, kinds_right = by_kind(one), by_kind(other)
    # A kind that only one side has is a difference of order, and said there.
    for kind in sorted(kinds_left.keys() & kinds_right.keys()):
        first, second = shapes(kinds_left[kind]), shapes(kinds_right[kind])
        for path in sorted({*first, *second}):
            if is_told_by_parent(path, first, second):
                continue
            compare(f"{kind} {path}", types_text(first.get(path)), types_text(second.get(path)))
    return lines


def events(exchange: Exchange) -> list[tuple[str, Any]]:
    """Cut a reply into (kind, JSON) in order: one for a whole reply, one an event for a stream, `nothing` for no body.

    Raise ValueError for a stream with anything but `data:` lines and blank ones: engines send nothing else, and what
    a stand-in adds is a difference.
    """
    if not exchange.body:
        return [("nothing", None)]
    if not exchange.content_type.startswith("text/event-stream"):
        return [("reply", json.loads(exchange.body))]
    found: list[tuple[str, Any]] = []
    for block in exchange.body.decode().split("\n\n"):
        if not block.strip():
            continue
        if not block.startswith("data: ") or "\n" in block.strip():
            raise ValueError(f"not one data line: {block[:200]!r}")
        data = block.removeprefix("data: ").strip()
        if data == "[DONE]":
            found.append((data, None))
        else:
            chunk = json.loads(data)
            found.append((kind_of(chunk), chunk))
    return found


def kind_of(chunk: dict[str, Any]) -> str:
    """Name what a chunk of chat completions is for, by what it carries."""
    if "error" in chunk:
        return "error"
    if not chunk["choices"]:
        return "usage"
    choice = chunk["choices"][0]
    delta = choice["delta"]
    calls = delta.get("tool_calls")
    if "role" in delta:
        kind = "role"
    elif calls:
        kind = "tool" if (calls[0].get("function") or {}).get("name") else "arguments"
    else:
        kind = next((name for name in ("reasoning", "content") if delta.get(name)), "empty")
    finish = choice.get("finish_reason")
    return f"{kind}+{finish}" if finish else kind


def orders(found: list[tuple[str, Any]]) -> dict[int, str]:
    """Return, for each choice, the kinds of its events and of those that are the whole reply's, runs collapsed."""
    choices = {choice["index"] for _, chunk in found for choice in (chunk or {}).get("choices", ())} or {0}

    def is_of(chunk: Any, index: int) -> bool:
        numbers = [choice["index"] for choice in (chunk or {}).get("choices", ())]
        return not numbers or index in numbers

    return {
        index: " ".join(kind for kind, _ in groupby(kind for kind, chunk in found if is_of(chunk, index)))
        for index in sorted(choices)
    }


def by_kind(found: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Group the JSON of events by kind."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for kind, value in found:
        groups[kind].append(value)
    return dict(groups)


def shapes(values: list[Any]) -> Shapes:
    """Return the types that stand at each path in any of the values; `a.b[].c` is a path, the root is ``."""
    found: dict[str, set[str]] = defaultdict(set)
    walk("", values, found)
    return {path: frozenset(types) for path, types in found.items()}


def walk(path: str, values: list[Any], found: dict[str, set[str]]) -> None:
    """Add the types of values that all stand at one path, and of all below them."""
    found[path].update(type_of(path, value) for value in values)
    objects = [value for value in values if isinstance(value, dict)]
    if objects and all(key.isdigit() for value in objects for key in value):
        # A map from token ids, as prompt_logprobs are: its keys are values.
        objects, lists = [], [list(value.values()) for value in objects]
    else:
        lists = [value for value in values if isinstance(value, list)]
    for key in {key for value in objects for key in value}:
        below = f"{path}.{key}" if path else key
        if any(key not in value for value in objects):
            found[below].add("absent")
        walk(below, [value[key] for value in objects if key in value], found)
    items = [item for value in lists for item in value]
    if items:
        walk(f"{path}[]", items, found)


def type_of(path: str, value: Any) -> str:
    """Name a value's JSON type; an empty array is a type of its own, since its items say nothing."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return f'"{value}"' if path.rpartition(".")[2] in CLOSED else "string"
        case []:
            return "empty array"
        case list():
            return "array"
        case _:
            return "object"


def types_text(types: frozenset[str] | None) -> str:
    """Write the types at a path; a path that a side never has is absent."""
    return "|".join(sorted(types)) if types else "absent"


def is_told_by_parent(path: str, first: Shapes, second: Shapes) -> bool:
    """Tell whether a side lacks a path only because nothing at its parent there could hold it."""
    parent = path.removesuffix("[]") if path.endswith("[]") else path.rpartition(".")[0]
    return any(
        path not in side and not side.get(parent, frozenset[str]()) & {"object", "array"} for side in (first, second)
    )
