"""Print the page's copies of tables: capture/page/codes.js and capture/page/formats.js.

    python bin/page_tables.py codes > capture/page/codes.js
    python bin/page_tables.py formats > capture/page/formats.js

The page says what a finding means, and which formats there are, before it has asked for a rollout. A test compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Run as a script, Python looks in bin/ and not in the clone.
sys.path.insert(0, str(ROOT))

from capture.formats import FORMATS  # noqa: E402 -- found by the line above
from graph.findings import TABLE  # noqa: E402 -- found by the line above


def codes() -> str:
    """Return codes.js: every finding's code with its level, what it means and what to do."""
    rows = {
        row.code: {
            "level": row.level,
            **({"evalLevel": row.eval_level} if row.eval_level else {}),
            "means": row.means,
            "todo": row.do,
        }
        for row in TABLE.values()
    }
    head = (
        "/* Every finding's code: its level (error, warn, info; `evalLevel` counts in tier eval), what it means,\n"
        "   what to do. Printed by `python bin/page_tables.py codes` from graph/findings.py; change that. */\n\n"
    )
    return head + _table("CODES", rows)


def formats() -> str:
    """Return formats.js: every format of training sequences."""
    rows = {
        name: {
            "help": each.help,
            **({"needsReward": True} if each.needs_reward else {}),
            **({"extra": each.extra} if each.extra else {}),
            "extension": each.extension,
            "drifts": list(each.drifts),
        }
        for name, each in FORMATS.items()
    }
    head = (
        "/* Every format in which training sequences go out, in the order in which they are offered.\n"
        "   Printed by `python bin/page_tables.py formats` from capture/formats.py; change that. */\n\n"
    )
    return head + _table("FORMATS", rows)


def _table(name: str, rows: Mapping[str, Mapping[str, object]]) -> str:
    lines = (f"  {json.dumps(key)}: {json.dumps(row, ensure_ascii=False)},\n" for key, row in rows.items())
    return f"export const {name} = {{\n{''.join(lines)}}};\n"


PRINTED = {"codes": codes, "formats": formats}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PRINTED:
        sys.exit(f"usage: python bin/page_tables.py {'|'.join(PRINTED)}")
    sys.stdout.write(PRINTED[sys.argv[1]]())
