"""Text for people: tables, and a rollout's forest drawn like a commit log. Pure: JSON forms in, lines out.

         call  role             link   prompt + sampled  status
    ●       0  main             root         1,204 + 88  complete
    │ ●     1  auxiliary title  root            96 + 12  complete
    ●       2  main             exact        1,402 + 40  complete
    ├─╮
    │ ×     3  main             exact         1,611 + 9  aborted   retry
    ●       4  main             exact        1,611 + 51  complete  retry, kept

Theory: a lane is one path of continuations. The child that went on (the fork's `kept`, else the first that isn't
discarded) inherits its parent's lane; every other child gets a lane of its own, drawn as leaving the parent right below
it and held until the child's row comes, since other conversations' calls lie between. Rows are in order of arrival, so
a parent always stands above its children.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capture.colour import LEVELS, STATUSES, Paint

MARKS = {"complete": "●", "undelivered": "○", "aborted": "×", "error": "!", "stopped": "■", "running": "…"}
_PLAIN = str.maketrans("●○×■…│├╮─┼┬←→·", "*ox#~||+-++<>.")
_RIGHT = ">"

_HEAD = ["call", "role", "link", "prompt + sampled", "status", ""]
_STATUS = _HEAD.index("status")


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows under headers, columns as wide as needed; a header that begins with `>` is right-aligned."""
    right = [header.startswith(_RIGHT) for header in headers]
    cells = [[header.lstrip(_RIGHT) for header in headers], *([value(cell) for cell in row] for row in rows)]
    widths = [max(width(row[i]) for row in cells) for i in range(len(headers))]
    lines = []
    for row in cells:
        padded = [
            (" " * (w - width(cell)) + cell) if r else (cell + " " * (w - width(cell)))
            for cell, w, r in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def value(cell: Any) -> str:
    """Return one value as a person reads it: `-` for null, thousands apart, no control characters."""
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.6g}"
    if isinstance(cell, Mapping | list | tuple):
        return clean(msgspec.json.encode(cell).decode()) if cell else "-"
    return clean(str(cell))


def clean(text: str) -> str:
    """Escape what would break a row or steer the terminal: agents choose some of these texts."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def fit(text: str, encoding: str | None) -> str:
    """Return `text` as a stream of that encoding can take it: lines and marks in ASCII where it isn't Unicode."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode()
    return text


def columns() -> int:
    """Return the terminal's width (80 where there is none)."""
    return shutil.get_terminal_size().columns


def forest(graph: Mapping[str, Any], *, evidence: bool = False, paint: Paint | None = None) -> str:
    """Draw a graph in its JSON form, one line a call; with `evidence` each verdict's reasons below.

    `paint` colours how calls ended, and the levels of findings.
    """
    conversations = {each["n"]: each for each in graph["conversations"]}
    kept = {fork["kept"] for fork in graph["forks"] if fork["kept"] is not None}
    calls = sorted(graph["calls"], key=lambda call: call["n"])
    drawn = lanes(calls, kept)
    texts = [_columns(call, conversations.get(call["conversation"]), kept) for call in calls]
    widths = [max(width(cell) for cell in column) for column in zip(_HEAD, *texts, strict=True)]
    left = max([0, *(width(row) for pair in drawn for row in pair)])
    lines = [_row("", left, _HEAD, widths, None)] if calls else []
    for (row, below), text in zip(drawn, texts, strict=True):
        lines.append(_row(row, left, text, widths, paint))
        if below:
            lines.append(below)
    lines += _summary(graph, paint)
    if evidence:
        lines += _evidence(graph)
    return "\n".join(lines)


def _row(drawn: str, left: int, text: Sequence[str], widths: Sequence[int], paint: Paint | None) -> str:
    cells = []
    for i, (cell, w) in enumerate(zip(text, widths, strict=True)):
        gap = " " * (w - width(cell))
        shown = paint(cell, STATUSES.get(cell)) if paint is not None and i == _STATUS else cell
        cells.append(gap + shown if i in (0, 3) else shown + gap)
    return (drawn + " " * (left - width(drawn) + 2) + "  ".join(cells)).rstrip()


def lanes(calls: Sequence[Mapping[str, Any]], kept: set[int]) -> list[tuple[str, str]]:
    """Return for each call, in order of arrival, its row of lanes and the row below it ("" where nothing leaves)."""
    known = {call["n"] for call in calls}
    children: dict[int, list[Mapping[str, Any]]] = {}
    for call in calls:
        if call["parent"] in known:
            children.setdefault(call["parent"], []).append(call)
    # What each lane waits for: the call that comes next in it. None is free.
    waiting: list[int | None] = []
    out = []
    for call in calls:
        n = call["n"]
        lane = waiting.index(n) if n in waiting else _open(waiting, n, 0)
        cells = ["│" if each is not None else " " for each in waiting]
        cells[lane] = MARKS.get(call["status"], "?")
        row = " ".join(cells).rstrip()
        heirs = sorted(children.get(n, ()), key=lambda each: (each["n"] not in kept, each["discarded"], each["n"]))
        waiting[lane] = heirs[0]["n"] if heirs else None
        opened = [_open(waiting, each["n"], lane + 1) for each in sorted(heirs[1:], key=lambda each: each["n"])]
        out.append((row, _leaving(waiting, lane, opened) if opened else ""))
        while waiting and waiting[-1] is None:
            waiting.pop()
    return out


def _open(waiting: list[int | None], n: int, least: int) -> int:
    """Take the first free lane from `least` on."""
    for lane in range(least, len(waiting)):
        if waiting[lane] is None:
            waiting[lane] = n
            return lane
    waiting.append(n)
    return len(waiting) - 1


def _leaving(waiting: Sequence[int | None], lane: int, opened: Sequence[int]) -> str:
    last = max(opened)
    text = ""
    for i, each in enumerate(waiting):
        between = lane < i < last
        if i == lane:
            cell = "├"
        elif i in opened:
            cell = "╮" if i == last else "┬"
        else:
            cell = ("┼" if between else "│") if each is not None else ("─" if between else " ")
        text += cell + ("─" if lane <= i < last else " ")
    return text.rstrip()


def _columns(call: Mapping[str, Any], conversation: Mapping[str, Any] | None, kept: set[int]) -> list[str]:
    role = "-" if conversation is None else " ".join(filter(None, (conversation["role"], conversation["kind"])))
    link = call["link"]
    if drift := call["drift"]:
        link += f" {drift['tokens']:,} {drift['cause']}"
    notes = []
    if call["choice"]:
        notes.append(f"choice {call['choice']}")
    if call["fork"]:
        notes.append(call["fork"] + (", kept" if call["n"] in kept else ""))
    if call["discarded"]:
        notes.append("discarded")
    if call["carries"]:
        notes.append("carries " + ", ".join(str(n) for n in call["carries"]))
    if conversation is not None and conversation["root"] == call["n"] and conversation["parent_call"] is not None:
        notes.append(f"← {conversation['parent_call']}")
    if call["finish_reason"] not in (None, "stop", "tool_calls"):
        notes.append(clean(str(call["finish_reason"])))
    tokens = f"{_count(call['n_prompt'])} + {_count(call['n_sampled'])}"
    return [str(call["n"]), role, link, tokens, call["status"], " · ".join(notes)]


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _summary(graph: Mapping[str, Any], paint: Paint | None) -> list[str]:
    lines = ["no calls"]
    if graph["calls"]:
        drift = graph["drift"]
        line = f"main: {drift['exact']} of {drift['transitions']} transitions exact"
        if drift["tokens_mean"] is not None:
            line += f", drift {drift['tokens_mean']:,.2f} tokens in the mean, {drift['tokens_max']:,} at most"
        lines = ["", line]
    counts = {level: sum(each["level"] == level for each in graph["findings"]) for level in ("error", "warn", "info")}
    if any(counts.values()):
        told = {level: f"{count} {level}" for level, count in counts.items() if count}
        shown = told.values() if paint is None else [paint(text, LEVELS.get(level)) for level, text in told.items()]
        lines.append(f"findings: {', '.join(shown)} (treering rollout findings {clean(graph['rollout']['id'])})")
    return lines


def _evidence(graph: Mapping[str, Any]) -> list[str]:
    lines = [""]
    for each in graph["conversations"]:
        kind = f" {each['kind']}" if each["kind"] else ""
        calls = ", ".join(str(n) for n in each["calls"])
        lines.append(f"conversation {each['n']}: {each['role']}{kind}, calls {calls}")
        for item in each["evidence"]:
            shown = f" (calls {', '.join(str(n) for n in item['calls'])})" if item["calls"] else ""
            lines.append(f"  {item['rule']}: {clean(item['detail'])}{shown}")
    return lines


def findings(found: Sequence[Mapping[str, Any]], *, paint: Paint | None = None) -> str:
    """Return findings, one a line, and below them what to do about the worse ones; `paint` colours their levels."""
    if not found:
        return "no findings"
    rows = [
        (each["level"], each["code"], ", ".join(str(n) for n in each["calls"]) or "-", each["message"])
        for each in found
    ]
    lines = table(("level", "code", "calls", "message"), rows).split("\n")
    if paint is not None:
        for i, each in enumerate(found, 1):
            lines[i] = paint(each["level"], LEVELS.get(each["level"])) + lines[i].removeprefix(each["level"])
    # An older Treering sends no hints.
    hints = {each["code"]: each["hint"] for each in found if each["level"] != "info" and each.get("hint")}
    if hints:
        lines += ["", *(f"{code}: {hint}" for code, hint in hints.items())]
    return "\n".join(lines)
