"""`treering config`: the settings in force, each with where it came from; secrets are masked."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from capture import terminal
from capture.cli import Given
from capture.settings import TABLE, shown, sources

MASKED = "***"
"""In place of a secret that is set."""


def config(given: Given) -> int:
    """Print every setting."""
    values = {**shown(given.settings), **{row.name: _secret(given, row.name) for row in TABLE if row.secret}}
    origins = sources(given.flags, os.environ)
    found = [
        {"name": row.name, "value": values[row.name], "from": origins[row.name], "default": row.default}
        for row in TABLE
    ]
    if given.arguments["changed"]:
        found = [one for one in found if one["from"] != "default"]
    if given.arguments["json"]:
        text = msgspec.json.encode({"settings": found}).decode()
    else:
        text = terminal.table(["setting", "value", "from"], [(one["name"], one["value"], one["from"]) for one in found])
    sys.stdout.write(terminal.fit(text, sys.stdout.encoding) + "\n")
    return 0


def _secret(given: Given, name: str) -> Any:
    return MASKED if getattr(given.settings, name) else None
