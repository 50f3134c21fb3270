"""One setting, and how a value that was given for it becomes its own.

A value comes as text (a flag, a variable) or as TOML has it; either way it ends as the one type that the setting's kind
names, or as a `UsageError` that says where the value stood.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from capture.errors import UsageError

Kind = Literal["text", "whole", "number", "yes", "pairs"]

PREFIX = "TREERING_"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    # A field of `Settings`; the flag is `--like-this`, the variable TREERING_LIKE_THIS, the file's key like_this.
    name: str
    kind: Kind = "text"
    default: Any = None
    help: str
    # What stands for the value in help texts.
    metavar: str = ""
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    # Read from its variable alone, and shown nowhere.
    secret: bool = False
    least: float | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` for the closest of the known names, or nothing."""
    names = list(known)
    # A name cut short is commoner than a misspelt one, and difflib would rather have it of equal length.
    begun = [each for each in names if len(name) > 2 and each.startswith(name)]
    found = sorted(begun, key=len) or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def split(row: Setting, text: str) -> Any:
    """Read a repeatable variable: values with commas between, or a JSON array or object."""
    if not row.repeatable:
        return text
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise UsageError(f"{row.variable}: {error}", hint="write values with commas between, or JSON") from None
    return [part for part in (part.strip() for part in text.split(",")) if part]


def read(row: Setting, value: Any, where: str) -> Any:
    """Turn one given value into the setting's own type. Raises `UsageError` saying where it stood."""
    if row.kind == "pairs":
        return _pairs(value, where)
    if row.repeatable:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_one(row, item, where) for item in items)
    return _one(row, value, where)


def _one(row: Setting, value: Any, where: str) -> Any:
    if row.kind == "yes":
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        read = value if isinstance(value, bool) else words.get(str(value).lower())
        if read is None:
            raise UsageError(f"{where}: {value!r} is neither true nor false", hint="write true or false")
        return read
    if row.kind in ("whole", "number"):
        return _numeral(row, value, where)
    if not isinstance(value, str) or not value:
        message = f"{where}: expected text, got {value!r}" if value != "" else f"{where} is empty"
        raise UsageError(message, hint=f"give it {_shape(row)}, or leave it out")
    if row.choices and value not in row.choices:
        accepted = ", ".join(row.choices)
        raise UsageError(f"{where}: {value!r} is none of {accepted}{nearest(value, row.choices)}", hint=row.help)
    return value


def _shape(row: Setting) -> str:
    return row.metavar or ", ".join(row.choices) or "a text"


def _numeral(row: Setting, value: Any, where: str) -> float:
    make = int if row.kind == "whole" else float
    try:
        if isinstance(value, bool) or (row.kind == "whole" and isinstance(value, float)):
            raise ValueError
        number = make(value)
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError
    except (TypeError, ValueError):
        a = "a whole number" if row.kind == "whole" else "a number"
        raise UsageError(f"{where}: expected {a}, got {value!r}", hint=row.help) from None
    if row.least is not None and number < row.least:
        raise UsageError(f"{where}: {value} is less than {row.least:g}", hint=row.help)
    return number


def _pairs(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    pairs: dict[str, Any] = {}
    for item in value if isinstance(value, list | tuple) else [value]:
        name, equals, text = str(item).partition("=")
        if not equals or not name:
            raise UsageError(f"{where}: {item!r} is no KEY=VALUE", hint="write it like key=value")
        pairs[name] = plain(text)
    return pairs


def plain(text: str) -> Any:
    """Read the value of a KEY=VALUE: JSON where it is JSON, else the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
