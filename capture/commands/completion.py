"""`treering completion`: a file that teaches a shell our verbs, flags and choices; made from the table of verbs.

    source <(treering completion bash)          bash, as long as the shell lasts
    treering completion zsh > ~/.zfunc/_treering
    treering completion fish > ~/.config/fish/completions/treering.fish

zsh runs bash's function by its own `bashcompinit`. What is in the file is what this version has: make it anew after an
update. Nothing is asked of a server, and nothing is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from capture.cli import Given
from capture.commands.table import FAMILIES, VERBS, Argument, Verb
from capture.settings import BY_NAME

FILES = ("FILE", "FOLDER", "OUT", "F")
"""Metavars of values that are paths."""


def completion(given: Given) -> int:
    """Print the file."""
    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[given.arguments["shell"]]())
    return 0


class _Flag:
    """A flag as a shell sees it."""

    def __init__(self, name: str, help: str, choices: tuple[str, ...], metavar: str, *, bare: bool) -> None:  # noqa: A002  the table's own word
        self.name = name
        self.help = help
        self.choices = choices
        self.takes_path = metavar in FILES or metavar.endswith("=F")
        # It takes no value, or may stand without one.
        self.bare = bare


def flags(verb: Verb) -> Iterator[_Flag]:
    """Yield a verb's flags, those of its settings included."""
    for one in verb.arguments:
        if one.name.startswith("-"):
            yield _Flag(one.name, one.help, one.choices, one.metavar, bare=one.kind == "yes" or one.optional)
    for name in verb.settings:
        row = BY_NAME[name]
        yield _Flag(row.flag, row.help, row.choices, row.metavar, bare=row.kind == "yes")
    yield _Flag("--help", "Show what it takes.", (), "", bare=True)


def _positions(verb: Verb) -> tuple[Argument, ...]:
    return tuple(one for one in verb.arguments if not one.name.startswith("-"))


def _firsts() -> list[str]:
    return list(dict.fromkeys(verb.name.partition(" ")[0] for verb in VERBS))


def _seconds(family: str) -> list[str]:
    return [verb.name.partition(" ")[2] for verb in VERBS if verb.name.startswith(f"{family} ")]


def bash() -> str:
    """Return the file for bash: one function, and what it is for."""
    lines = [
        "# bash completion of treering; made by `treering completion bash`.",
        "_treering() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}" words=""',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join([*_firsts(), "--help", "--version"])}" -- "$cur"))',
        "    return",
        "  fi",
        '  case "$verb" in',
        f"    {'|'.join(FAMILIES)})",
        '      if [ "$COMP_CWORD" -eq 2 ]; then',
        '        case "$verb" in',
        *(f'          {family}) words="{" ".join(_seconds(family))}" ;;' for family in FAMILIES),
        "        esac",
        '        COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "        return",
        "      fi",
        '      verb="$verb ${COMP_WORDS[2]}" ;;',
        "  esac",
        '  case "$verb $prev" in',
    ]
    for verb in VERBS:
        for flag in flags(verb):
            if flag.choices:
                lines.append(f'    "{verb.name} {flag.name}") words="{" ".join(flag.choices)}" ;;')
            elif flag.takes_path:
                lines.append(f'    "{verb.name} {flag.name}") COMPREPLY=($(compgen -f -- "$cur")); return ;;')
            elif not flag.bare:
                # A value that nobody but the caller knows.
                lines.append(f'    "{verb.name} {flag.name}") return ;;')
    lines += ["  esac", '  if [ -z "$words" ]; then', '    case "$verb" in']
    for verb in VERBS:
        words = [flag.name for flag in flags(verb)]
        words += [choice for one in _positions(verb) for choice in one.choices]
        lines.append(f'      "{verb.name}") words="{" ".join(words)}" ;;')
    lines += [
        "    esac",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "}",
        "complete -F _treering treering",
    ]
    return "\n".join(lines) + "\n"


def zsh() -> str:
    """Return the file for zsh."""
    return f"#compdef treering\nautoload -U +X bashcompinit && bashcompinit\n{bash()}"


def fish() -> str:
    """Return the file for fish: a line a verb, a flag, a choice."""
    lines = [
        "# fish completion of treering; made by `treering completion fish`.",
        "function __treering_verb",
        "    set -l words (commandline -opc)",
        '    test "$words[2..]" = "$argv[1]"; or string match -q -- "$argv[1] *" "$words[2..]"',
        "end",
        "function __treering_at",
        "    set -l words (commandline -opc)",
        '    test "$words[2..]" = "$argv[1]"',
        "end",
        "complete -c treering -f",
    ]
    for first in _firsts():
        said = FAMILIES.get(first) or next(verb.help for verb in VERBS if verb.name == first)
        lines.append(f"complete -c treering -n '__treering_at \"\"' -a {first} -d {_quoted(said)}")
    for verb in VERBS:
        family, space, word = verb.name.partition(" ")
        if space:
            lines.append(f"complete -c treering -n '__treering_at {family}' -a {word} -d {_quoted(verb.help)}")
        where = f"-n '__treering_verb \"{verb.name}\"'"
        for flag in flags(verb):
            value = "" if flag.bare else " -x"
            if flag.choices:
                value = f" -x -a '{' '.join(flag.choices)}'"
            elif flag.takes_path:
                value = " -r -F"
            lines.append(f"complete -c treering {where} -l {flag.name[2:]}{value} -d {_quoted(flag.help)}")
        choices = [one.choices for one in _positions(verb) if one.choices]
        lines += [f"complete -c treering {where} -a '{' '.join(each)}'" for each in choices]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return the first sentence as a word of fish."""
    first = text.partition(". ")[0].rstrip(".")
    return "'" + first.replace("\\", "\\\\").replace("'", "\\'") + "'"
