"""Findings made from the table: code and data in, a levelled sentence out.

A code that is no row of the table is an error where this project makes it; a notice with one (from a newer process that
shares the store) is kept, at level info, with its data. Calls are sorted, so two findings that say the same are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from graph.findings import TABLE, Row
from graph.records import Finding, Notice

_LENT = frozenset(("no_calls",))
"""Codes whose notices lend their data to a finding that the graph makes."""

_ORDER = {code: place for place, code in enumerate(TABLE)}


_ONE_OR_MORE = re.compile(r"\[(?:(\w+): )?([^|\]]*)\|([^|\]]*)\]")


class _Lenient(dict[str, Any]):
    # A notice's data comes from another process; a key that it lacks must not cost the graph.
    def __missing__(self, key: str) -> str:
        return "unknown"


def make(code: str, calls: Iterable[int] = (), *, tier: str = "train", why: str = "", **data: Any) -> Finding:
    """Return the finding of a code, its calls sorted, its level and message from the table.

    `why` is said in the message alone, where the row has a place for it; programs read the data. Raises KeyError for a
    code that the table does not have.
    """
    return _fill(TABLE[code], calls, tier, data, why)


def named(numbers: Sequence[int]) -> str:
    """Return numbers of calls as a sentence has them: "0", "0 and 3", "0, 3 and 5"."""
    words = [str(n) for n in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def worded(text: str, numbers: Mapping[str, Any]) -> str:
    """Choose a row's words for one or for more of a thing; those for more where the number isn't known."""
    return _ONE_OR_MORE.sub(lambda found: found[2 if numbers.get(found[1] or "count") == 1 else 3], text)


def _fill(row: Row, calls: Iterable[int], tier: str, data: Mapping[str, Any], why: str = "") -> Finding:
    numbers = tuple(sorted(set(calls)))
    words: dict[str, Any] = {"why": why}
    words |= {key: ", ".join(map(str, value)) if isinstance(value, list) else value for key, value in data.items()}
    level = row.eval_level if tier == "eval" and row.eval_level is not None else row.level
    text = worded(row.text, {**data, "count": len(numbers)}).format_map(_Lenient(words, count=len(numbers)))
    return Finding(code=row.code, level=level, calls=numbers, message=text, data=dict(data))


def of_notices(notices: Iterable[Notice], *, tier: str = "train") -> list[Finding]:
    """Return one finding for each code and data among the notices, with the calls of all that say the same.

    One of `no_calls` makes none: its data goes into the graph's own finding.
    """
    said: dict[tuple[str, bytes], tuple[set[int], dict[str, Any]]] = {}
    for notice in notices:
        key = notice.code, msgspec.json.encode(notice.data, order="deterministic")
        said.setdefault(key, (set(), notice.data))[0].update(notice.calls)
    found = []
    for (code, _), (calls, data) in sorted(said.items()):
        if code in _LENT:
            continue
        row = TABLE.get(code)
        if row is None:
            text = "Noted while capturing; this version has no more words for it."
            row = Row(code=code, level="info", text=text, means="", do="")
        found.append(_fill(row, calls, tier, data))
    return found


def in_order(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by the table's order, then by calls and data; codes of no row go last."""
    unknown = len(_ORDER)
    return tuple(
        sorted(
            found,
            key=lambda finding: (
                _ORDER.get(finding.code, unknown),
                finding.code,
                finding.calls,
                msgspec.json.encode(finding.data, order="deterministic"),
            ),
        )
    )
