"""What the store does and what comes out of it: calls committed, calls lost, and training sequences exported.

Thin on purpose: `benchmarks.store_commit` measures what goes in, `benchmarks.store_export` what comes out. Each is a
part with two functions:

    rows(*, quick: bool, kill: bool) -> list[Row]     measure; say on stderr what is being done
    table(rows) -> str                                those rows as a table in Markdown
    PAGE: Path                                        optional: the page of docs/ that shows the table, between
                                                      `<!-- bin/bench store -->` and `<!-- end -->`

The document keeps them apart, since their rows have nothing in common: `rows` are the commits', `exports` the exports'.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, cast

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "docs" / "store.json"
KILLS = ROOT / "docs" / "store-kill.json"

BEGIN, END = "<!-- bin/bench store -->", "<!-- end -->"

Row = dict[str, Any]

PARTS = {"rows": "benchmarks.store_commit", "exports": "benchmarks.store_export"}
"""Key of the document → the module that measures it."""


class Part(Protocol):
    """What a part's module offers."""

    def rows(self, *, quick: bool, kill: bool) -> list[Row]:
        """Measure."""

    def table(self, rows: Sequence[Row]) -> str:
        """Return rows as a table in Markdown."""


def run(argv: list[str]) -> int:
    """Measure, print a table for each part, and write FILE."""
    parser = argparse.ArgumentParser(prog="bin/bench store", description="commits a second, exported tokens a second")
    parser.add_argument("--quick", action="store_true", help="fewer calls and rollouts")
    parser.add_argument("--kill", action="store_true", help="kill the appliance under load, and look for lost calls")
    parser.add_argument("--only", choices=tuple(PARTS), help="rows: what goes in; exports: what comes out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--docs", action="store_true", help="write docs/store.json (of kills: store-kill.json)")
    asked = parser.parse_args(argv)
    measured: dict[str, list[Row]] = {}
    # Kills are a measurement of their own, of what goes in alone, with a document of its own.
    parts = {"rows": PARTS["rows"]} if asked.kill else PARTS
    published = KILLS if asked.kill else PUBLISHED
    for key, name in parts.items():
        if asked.only in (None, key) and importlib.util.find_spec(name) is not None:
            part = cast("Part", importlib.import_module(name))
            measured[key] = part.rows(quick=asked.quick, kill=asked.kill)
            sys.stdout.write(part.table(measured[key]) + "\n")
            sys.stdout.flush()
            if asked.docs and hasattr(part, "PAGE"):
                part.PAGE.write_text(with_table(part.PAGE.read_text(), part.table(measured[key])))
    told = {
        "benchmark": "store",
        "version": 1,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "host": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
        **measured,
    }
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    if asked.docs:
        before = json.loads(published.read_text()) if published.exists() else {}
        published.write_text(json.dumps({**before, **told}, indent=1) + "\n")
    return 0


def with_table(page: str, table: str) -> str:
    """Return a page with the table of the last run replaced. Raises ValueError if there is no place for it."""
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END, page.index(BEGIN))
    at = datetime.now(UTC).date().isoformat()
    said = f"{at}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}."
    return f"{page[:before]}\n\n{said}\n\n{table}\n{page[after:]}"
