"""What a recipe is, and how a person reads it."""

from __future__ import annotations

import shlex

import msgspec

SECRET = "<the rollout's secret>"  # noqa: S105 -- a place for one, shown as such
PROVIDER = "treering"
"""The name that agents' configurations give to us."""
TASK = "the task"
"""Stands where the prompt goes in a command line."""
CONTEXT, OUTPUT = 131_072, 8_192
"""Tokens, where neither the caller nor an engine says otherwise: common among models of the sizes that are trained."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How to start an agent against Treering."""

    # Path → content; `~` is the home of the user that the agent runs as.
    files: dict[str, str]
    env: dict[str, str]
    command: list[str]


def root(base_url: str) -> str:
    """Return a base URL without its `/v1`, for agents that add a version of their own."""
    return base_url.rstrip("/").removesuffix("/v1")


def text(recipe: Recipe) -> str:
    """Return a recipe as a person reads and a shell runs it."""
    lines = []
    for path, content in recipe.files.items():
        lines += [f"# {path}", content, ""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in recipe.env.items()]
    # Most agents wait for more input while standard input is open.
    lines += ["", shlex.join(recipe.command) + " </dev/null"]
    return "\n".join(lines)
