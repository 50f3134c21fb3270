"""A rules file: read, checked whole, and refused with a sentence that says what and where.

Unknown keys, wrong types, bad regular expressions and unknown placeholders are errors. Each names the file, the
rule, the key, and, for an unknown one, the nearest that is known. The file's form is in docs/scripted.md.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from capture.scripted.rules import NONCANONICAL, PLACEHOLDER, CallReply, Failure, Match, Reply, Rule, Rules


class RulesError(ValueError):
    """Raise for a rules file that cannot be used; the text names the file, the rule and the key."""


def load_rules(path: str | Path) -> Rules:
    """Read a rules file. Raises RulesError, and OSError where the file cannot be read."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RulesError(f"{path}: not a TOML file: {error}") from None
    return parse_rules(data, source=str(path))


def parse_rules(data: dict[str, Any], *, source: str = "rules") -> Rules:
    """Check a decoded rules file: a list `rule`, and `noncanonical`. Raises RulesError."""
    _known(data, ("rule", "noncanonical"), source)
    chance = data.get("noncanonical", NONCANONICAL)
    if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance <= 1:
        raise RulesError(f"{source}: noncanonical: must be a number from 0 to 1, not {chance!r}")
    listed = data.get("rule", [])
    if not isinstance(listed, list):
        raise RulesError(f"{source}: rule: write each rule as [[rule]]")
    return Rules(rules=tuple(_rule(rule, n, source) for n, rule in enumerate(listed, 1)), noncanonical=float(chance))


def _rule(data: Any, n: int, source: str) -> Rule:
    where = f"{source}: rule {n}"
    if not isinstance(data, dict):
        raise RulesError(f"{where}: must be a table")
    if isinstance(data.get("name"), str):
        where += f" ({data['name']})"
    _known_fields(data, Rule, where)
    try:
        rule = msgspec.convert(data, Rule)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        key = path.strip("`.")
        raise RulesError(f"{where}: {key + ': ' if key else ''}{message}") from None
    _check(rule, where)
    return rule


# The tables within tables, by their type and key.
_TABLES: dict[tuple[type[msgspec.Struct], str], type[msgspec.Struct]] = {
    (Rule, "match"): Match,
    (Rule, "reply"): Reply,
    (Reply, "call"): CallReply,
    (Reply, "failure"): Failure,
}


def _known_fields(data: dict[str, Any], kind: type[msgspec.Struct], where: str, path: str = "") -> None:
    _known(data, kind.__struct_fields__, where, path)
    for key, value in data.items():
        inner = _TABLES.get((kind, key))
        tables = value if isinstance(value, list) else [value]
        for table in tables if inner else ():
            if inner and isinstance(table, dict):
                _known_fields(table, inner, where, f"{path}{key}.")


def _known(data: Iterable[str], known: Iterable[str], where: str, path: str = "") -> None:
    known = list(known)
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            hint = f"did you mean `{path}{near[0]}`?" if near else f"known here: {', '.join(known)}"
            raise RulesError(f"{where}: unknown key `{path}{key}`; {hint}")


def _check(rule: Rule, where: str) -> None:
    groups = {"turn", "last", "0"} if rule.match.text is not None else {"turn", "last"}
    for key in ("text", "system", "model"):
        pattern = getattr(rule.match, key)
        if pattern is None:
            continue
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise RulesError(f"{where}: match.{key}: not a regular expression: {error}") from None
        if key != "model":
            groups |= set(compiled.groupindex)
        if key == "text":
            groups |= {str(n) for n in range(compiled.groups + 1)}
    if rule.times is not None and rule.times < 1:
        raise RulesError(f"{where}: times: must be at least 1")
    reply = rule.reply
    if reply.raw is not None and (reply.thinking is not None or reply.text or reply.call):
        raise RulesError(f"{where}: reply.raw: is the whole text; it cannot stand beside thinking, text or call")
    if reply.tokens_per_chunk < 1:
        raise RulesError(f"{where}: reply.tokens_per_chunk: must be at least 1")
    if reply.pace_s is not None and reply.pace_s < 0:
        raise RulesError(f"{where}: reply.pace_s: must not be negative")
    if reply.failure is not None:
        _check_failure(reply.failure, where)
    for path, text in _texts(reply):
        for found in PLACEHOLDER.finditer(text):
            name = found.group(2)
            if name is not None and name not in groups:
                known = ", ".join(f"{{{group}}}" for group in sorted(groups))
                raise RulesError(f"{where}: {path}: unknown placeholder `{{{name}}}`; known here: {known}")


def _check_failure(failure: Failure, where: str) -> None:
    kinds = [key for key in Failure.__struct_fields__ if getattr(failure, key) not in (None, False)]
    main = [key for key in kinds if key not in ("message", "retry_after")]
    if len(main) != 1:
        raise RulesError(f"{where}: reply.failure: needs exactly one kind, and has {', '.join(main) or 'none'}")
    if failure.status is None and failure.retry_after is not None:
        raise RulesError(f"{where}: reply.failure.retry_after: goes with status only")
    if failure.status is not None and not 400 <= failure.status <= 599:
        raise RulesError(f"{where}: reply.failure.status: must be from 400 to 599")
    if (failure.after_tokens or 0) < 0:
        raise RulesError(f"{where}: reply.failure.{main[0]}: must not be negative")


def _texts(reply: Reply) -> Iterator[tuple[str, str]]:
    yield "reply.thinking", reply.thinking or ""
    yield "reply.text", reply.text
    yield "reply.raw", reply.raw or ""
    for call in reply.call:
        yield "reply.call.tool", call.tool
        for text in _strings(call.arguments):
            yield "reply.call.arguments", text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
