"""The command line: from words to a verb, and from what it raised to an exit code.

The verbs stand in `capture.commands.table`, the settings in `capture.settings`; this file joins them into a parser,
imports the one module that the verb needs, and says in one place how an error ends the process. Until a verb runs,
nothing is imported that opens anything.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from capture.commands.table import EXIT_CODES, FAMILIES, VERBS, Argument, Verb
from capture.errors import EngineError, StoreError, TreeringError, UsageError
from capture.settings import BY_NAME, Settings, load
from capture.values import Setting, nearest
from capture.version import version as installed

DEFAULT_VERB = "serve"
PLAIN = ("version", "completion")
"""Verbs that work whatever is wrong with the settings: that is when a version is asked for."""

_SETTING = "setting:"


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb is called with: its own arguments by name (`-` as `_`), and the settings in force."""

    arguments: dict[str, Any]
    settings: Settings
    # Of the settings, those that were given as flags, by name; None where one was not.
    flags: dict[str, Any] = {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        verb, given = read(words, os.environ)
        module, _, name = verb.run.partition(":")
        run: Callable[[Given], int] = getattr(importlib.import_module(module), name)
        return run(given)
    except TreeringError as error:
        complain(error)
        return exit_code(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`… | head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def read(words: Sequence[str], environ: Mapping[str, str]) -> tuple[Verb, Given]:
    """Find the verb and its arguments, and the settings in force. Raises `UsageError`; `--help` exits."""
    words = list(words)
    if words[:1] == ["--version"]:
        words[0] = "version"
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words.insert(0, DEFAULT_VERB)
    namespace, rest = parser().parse_known_args(words)
    verb: Verb = namespace.verb
    if rest:
        raise UsageError(_unknown(verb, rest), hint=f"treering {verb.name} --help lists them")
    values = vars(namespace)
    flags = {name.removeprefix(_SETTING): value for name, value in values.items() if name.startswith(_SETTING)}
    arguments = {_plain(argument): values[_plain(argument)] for argument in verb.arguments}
    settings = Settings() if verb.name in PLAIN else load(flags, environ)
    return verb, Given(arguments=arguments, settings=settings, flags=flags)


def parser() -> argparse.ArgumentParser:
    """Make the parser from the tables."""
    codes = "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES)
    top = _Parser(
        prog="treering",
        description="A transparent token-capture proxy for reinforcement learning with black-box agents.",
        epilog=f"exit codes:\n{codes}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    first = top.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    families: dict[str, Any] = {"": first}
    for verb in VERBS:
        name, _, word = verb.name.rpartition(" ")
        if name not in families:
            family = first.add_parser(name, help=FAMILIES[name], description=FAMILIES[name], allow_abbrev=False)
            families[name] = family.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
        where = families[name]
        one = where.add_parser(word, help=verb.help, description=verb.help, allow_abbrev=False)
        one.set_defaults(verb=verb)
        for argument in verb.arguments:
            _add_argument(one, argument)
        group = one.add_argument_group("settings", "Also as TREERING_… variables and in treering.toml.")
        for setting in verb.settings:
            _add_setting(group, BY_NAME[setting])
    return top


def exit_code(error: TreeringError) -> int:
    """Return the exit code that fits an error."""
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, EngineError):
        return 3
    return 4 if isinstance(error, StoreError) else 1


def complain(error: TreeringError) -> None:
    """Print an error for a person, on stderr."""
    sys.stderr.write(f"treering: {error.message}\n" + (f"  {error.hint}\n" if error.hint else ""))


def version(given: Given) -> int:
    """Print the version."""
    told = {"treering": installed(), "python": sys.version.split()[0]}
    line = msgspec.json.encode(told).decode() if given.arguments["json"] else f"treering {told['treering']}"
    sys.stdout.write(line + "\n")
    return 0


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing the usage and exiting, so that every error ends in one place."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}", hint=f"{self.prog} --help says more")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse names all choices, which for a verb is a list of words; the nearest says more.
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            what = "/".join(action.option_strings) or str(action.metavar or "verb").lower()
            raise UsageError(
                f"{what}: {value!r} is none of {', '.join(known)}{nearest(str(value), known)}",
                hint=f"{self.prog} --help says more",
            )


def _add_argument(where: argparse.ArgumentParser, argument: Argument) -> None:
    if argument.kind == "yes":
        where.add_argument(argument.name, dest=_plain(argument), action="store_true", help=argument.help)
        return
    position = not argument.name.startswith("-")
    rest: dict[str, Any] = {"help": argument.help, "type": _TYPES[argument.kind]}
    if argument.metavar or position:
        rest["metavar"] = argument.metavar or argument.name.upper()
    if argument.choices:
        rest["choices"] = argument.choices
    if not position:
        rest["dest"] = _plain(argument)
        rest["action"] = "append" if argument.repeatable else "store"
        rest["default"] = argument.default
        if argument.optional:
            rest |= {"nargs": "?", "const": ""}
    elif argument.repeatable:
        rest["nargs"] = "*" if argument.optional else "+"
    elif argument.optional:
        rest["nargs"] = "?"
    where.add_argument(argument.name, **rest)


def _add_setting(where: argparse._ArgumentGroup, row: Setting) -> None:
    rest: dict[str, Any] = {"dest": _SETTING + row.name, "help": row.help, "default": None}
    if row.kind == "yes":
        # `--relay-abort`, and `--relay-abort=false` over a variable or the file.
        rest |= {"nargs": "?", "const": "true", "metavar": "true|false"}
    else:
        rest["metavar"] = row.metavar or ("|".join(row.choices) if row.choices else row.name.upper())
    if row.repeatable:
        rest["action"] = "append"
    where.add_argument(row.flag, **rest)


def _whole(text: str) -> int:
    return int(text)


def _number(text: str) -> float:
    return float(text)


# argparse names a type by its function in "invalid … value".
_whole.__name__, _number.__name__ = "whole number", "number"
_TYPES: dict[str, Callable[[str], Any]] = {"text": str, "whole": _whole, "number": _number}


def _plain(argument: Argument) -> str:
    return argument.name.lstrip("-").replace("-", "_")


def _unknown(verb: Verb, rest: Sequence[str]) -> str:
    known = [*(argument.name for argument in verb.arguments), *(BY_NAME[name].flag for name in verb.settings)]
    word = rest[0].partition("=")[0]
    if word.startswith("-"):
        return f"unknown flag {word}{nearest(word, known)}"
    return f"unexpected {word!r}"


if __name__ == "__main__":
    sys.exit(main())
