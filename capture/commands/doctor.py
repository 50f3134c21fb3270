"""`treering doctor`: the checks of `capture.doctor`, printed; with `--store`, the look at a whole store."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import msgspec

from capture import terminal
from capture.checks import Check
from capture.cli import Given
from capture.colour import LEVELS, Paint
from capture.commands.store import file_of
from capture.doctor import examine
from capture.settings import load
from capture.store.check import check
from capture.store.faults import FAULTS, WASTE, Fault, Report

MOST_SHOWN = 200
"""Faults of a store that are printed; with --json all are."""


def doctor(given: Given) -> int:
    """Make all checks and print them; 1 if one failed."""
    if given.arguments["store"] is not None:
        return _store(given)
    checks = asyncio.run(examine(given.settings))
    _print(given, checks)
    return int(any(check.level == "fail" for check in checks))


def _store(given: Given) -> int:
    """Look at all of a store: 0 where nothing is lost, 1 where some of it is, 4 where the file itself is damaged."""
    url = given.arguments["store"]
    settings = load({"store": url}, os.environ) if url else given.settings
    path = file_of(settings)
    report = check(path)
    checks = [Check(name="store", level="ok", message=f"{path}, {_counted(report)}")]
    for fault in report.faults:
        told = f"{fault.code}: {fault.message}"
        if fault.code in WASTE:
            checks.append(Check(name=_name(fault), level="warn", message=told))
        else:
            checks.append(Check(name=_name(fault), level="fail", message=told, todo=_todo(fault)))
    left = len(checks) - MOST_SHOWN
    if left > 0 and not given.arguments["json"]:
        checks = [*checks[:MOST_SHOWN], Check(name="more", level="fail", message=f"{left} more; --json prints all")]
    _print(given, checks, store=msgspec.to_builtins(report))
    lost = {fault.code for fault in report.faults} - WASTE
    return 4 if "file_damaged" in lost else int(bool(lost))


def _counted(report: Report) -> str:
    running = f", {report.running} of them running" if report.running else ""
    return (
        f"version {report.version}, {report.size_bytes / 2**20:,.1f} MiB: {report.rollouts:,} rollouts, "
        f"{report.calls:,} calls{running}, {report.contents:,} contents"
    )


def _name(fault: Fault) -> str:
    rollout = "" if fault.rollout is None else f"rollout {fault.rollout}"
    return f"{rollout} call {fault.call}" if fault.call is not None else rollout or "file"


def _todo(fault: Fault) -> str:
    if fault.rollout is None:
        return f"{FAULTS[fault.code]} Stop Treering, keep this file, and bring a backup back."
    return f"{FAULTS[fault.code]} Don't train on this rollout; a backup may have it whole."


def _print(given: Given, checks: Sequence[Check], **more: object) -> None:
    if given.arguments["json"]:
        text = msgspec.json.encode({"checks": checks, **more}).decode()
    else:
        lines, paint = [], Paint(sys.stdout, os.environ)
        for each in checks:
            level = paint(f"{each.level:<5}", LEVELS.get(each.level))
            lines.append(f"{level} {each.name}: {terminal.clean(each.message)}")
            if each.todo:
                lines.append(f"      {terminal.clean(each.todo)}")
        text = "\n".join(lines)
    sys.stdout.write(terminal.fit(text, sys.stdout.encoding) + "\n")
