"""docs/cli.md, made from the tables of verbs and settings: `python -m capture.commands.reference > docs/cli.md`.

Not from argparse's own help, whose layout changes with Python's version.
"""

from __future__ import annotations

import sys

import msgspec

from capture.commands.table import EXIT_CODES, VERBS, Argument, Verb
from capture.settings import BY_NAME, FILE, OTHER_VARIABLES, TABLE
from capture.values import Setting


def render() -> str:
    """Return the whole of docs/cli.md."""
    lines = [
        "# Command line",
        "",
        "<!-- Made by `python -m capture.commands.reference`; edit the tables, not this file. -->",
        "",
        "`treering VERB …`; without a verb, `treering serve`. Data goes to stdout, what is said to a person to stderr.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES),
        "",
        "## Settings",
        "",
        f"Each is a flag, a variable, and a key of `{FILE}` in the working folder, or of the file that",
        "`TREERING_CONFIG` names; precedence in that order. A repeatable setting is given as several flags, as an",
        "array in the file (a table for `KEY=VALUE`),",
        "or in its variable with commas between or as JSON. What isn't in this table is an error.",
        "",
        "| flag | variable | key | default | meaning |",
        "|---|---|---|---|---|",
        *(_setting(row) for row in TABLE),
        "",
        f"Variables that are no settings: {', '.join(f'`{name}`' for name in OTHER_VARIABLES)}.",
        "",
        "## Verbs",
    ]
    for verb in VERBS:
        lines += _verb(verb)
    return "\n".join(lines) + "\n"


def _setting(row: Setting) -> str:
    flag = "-" if row.secret else f"`{row.flag}{_value(row.metavar, row.choices, yes=row.kind == 'yes')}`"
    key = "-" if row.secret else f"`{row.name}`"
    again = " Repeatable." if row.repeatable else ""
    return f"| {flag} | `{row.variable}` | {key} | {_default(row)} | {_cell(row.help)}{again} |"


def _default(row: Setting) -> str:
    if row.default in (None, (), {}):
        return "-"
    if isinstance(row.default, str):
        return f"`{row.default}`"
    return f"`{msgspec.json.encode(row.default).decode()}`"


def _verb(verb: Verb) -> list[str]:
    positions = [argument for argument in verb.arguments if not argument.name.startswith("-")]
    words = [
        (f"[{each.name.upper()}]" if each.optional else each.name.upper()) + ("…" if each.repeatable else "")
        for each in positions
    ]
    lines = ["", f"### treering {' '.join([verb.name, *words])}", "", verb.help]
    if verb.arguments:
        lines += ["", "| argument | meaning |", "|---|---|", *(_argument(each) for each in verb.arguments)]
    # One that is an argument of its own is told above.
    told = {*verb.settings, *(argument.name.lstrip("-").replace("-", "_") for argument in verb.arguments)}
    every = told >= {row.name for row in TABLE if not row.secret}
    if every:
        lines += ["", "Takes every setting as a flag."]
    elif verb.settings:
        lines += ["", f"Settings: {', '.join(f'`{BY_NAME[name].flag}`' for name in verb.settings)}."]
    return lines


def _argument(argument: Argument) -> str:
    position = not argument.name.startswith("-")
    name = argument.name.upper() if position else argument.name
    shown = name + ("" if position else _value(argument.metavar, argument.choices, yes=argument.kind == "yes"))
    notes = "" if argument.default is None else f" Default: `{argument.default}`."
    again = " Repeatable." if argument.repeatable else ""
    return f"| `{shown}` | {_cell(argument.help)}{notes}{again} |"


def _value(metavar: str, choices: tuple[str, ...], *, yes: bool) -> str:
    if yes:
        return ""
    return " " + (metavar or "\\|".join(choices) or "VALUE")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
