"""What a check of the doctor's found: a line with a level, and what to do."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found."""

    name: str
    level: Level
    message: str
    # What to do; empty where there is nothing to.
    todo: str = ""


def ok(name: str, message: str) -> Check:
    """Return a check that passed."""
    return Check(name=name, level="ok", message=message)


def warn(name: str, message: str, todo: str) -> Check:
    """Return a check that found something to look at."""
    return Check(name=name, level="warn", message=message, todo=todo)


def fail(name: str, message: str, todo: str) -> Check:
    """Return a check that failed."""
    return Check(name=name, level="fail", message=message, todo=todo)
