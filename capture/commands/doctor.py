"""`treering doctor`: the checks of `capture.doctor`, printed."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from capture import terminal
from capture.cli import Given
from capture.doctor import examine


def doctor(given: Given) -> int:
    """Make all checks and print them; 1 if one failed."""
    checks = asyncio.run(examine(given.settings))
    if given.arguments["json"]:
        text = msgspec.json.encode({"checks": checks}).decode()
    else:
        lines = []
        for check in checks:
            lines.append(f"{check.level:<5} {check.name}: {terminal.clean(check.message)}")
            if check.todo:
                lines.append(f"      {terminal.clean(check.todo)}")
        text = "\n".join(lines)
    sys.stdout.write(terminal.fit(text, sys.stdout.encoding) + "\n")
    return int(any(check.level == "fail" for check in checks))
