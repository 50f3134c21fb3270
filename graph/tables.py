"""The tables that the documentation is printed from.

`python -m graph.tables > docs/findings.md`; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from graph.causes import CAUSES
from graph.eligibility import REASONS
from graph.examples import CODES as EXAMPLES
from graph.examples import example
from graph.finders.statements import worded
from graph.findings import TABLE, Row
from graph.roles import RULES

_ADDED = re.compile(r"(?<=[\w}])\{why\}")
"""Words of a finder's that are added only where there are some: no part of the text as a table has it."""


def document() -> str:
    """Return docs/findings.md: findings, rules of evidence, reasons for leaving a call out."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Findings, evidence, causes, reasons"
    yield ""
    yield "Printed by `python -m graph.tables` from the tables in `graph/`; change those."
    yield ""
    yield "## Findings"
    yield ""
    yield "Statements about one rollout: `GET /rollouts/{id}/findings`. Level `error`: it can't be used as it is;"
    yield "`warn`: look before you train on it; `info`: good to know. The API gives the same words with each, as"
    yield "`message`, `means` and, what to do, `hint`."
    yield ""
    yield "The examples are small rollouts as the graph reads them: a line a call, with its last message and its reply,"
    yield "indented under the call that it goes on from; then the finding, and its data."
    for row in TABLE.values():
        yield ""
        yield from _finding(row)
    yield ""
    yield "## Evidence"
    yield ""
    yield "`conversations[].evidence[].rule`: why a conversation has its role."
    yield ""
    yield "| rule | says |"
    yield "|---|---|"
    for rule, says in RULES.items():
        yield f"| `{rule}` | {says} |"
    yield ""
    yield "## Causes"
    yield ""
    yield "`calls[].drift.cause`: why a call's prompt parts from its parent's prompt and sampled ids."
    yield ""
    yield "| cause | says |"
    yield "|---|---|"
    for cause, says in CAUSES.items():
        yield f"| `{cause}` | {says} |"
    yield ""
    yield "## Reasons"
    yield ""
    yield "`left_out[].reason`: why no row trains a call. The first that holds counts."
    yield ""
    yield "| reason | says |"
    yield "|---|---|"
    for reason, says in REASONS.items():
        yield f"| `{reason}` | {says} |"


def _finding(row: Row) -> Iterator[str]:
    level = row.level if row.eval_level is None else f"{row.level}, in tier `eval` {row.eval_level}"
    # Nothing but the code in the heading: that is its anchor, which other pages link to.
    yield f"### `{row.code}`"
    yield ""
    yield f"Level {level}. *{worded(_ADDED.sub('', row.text), {})}* {row.means}"
    yield ""
    yield f"What to do: {row.do}"
    if row.data:
        yield ""
        yield "Data: " + "; ".join(f"`{key}`, {holds}" for key, holds in row.data) + "."
    if row.source == "notice":
        yield ""
        yield "Noted while capturing."
    if row.source == "export":
        yield ""
        yield "Said of an export, in its `findings`; the data stand under the code's name."
    if row.code in EXAMPLES:
        yield ""
        yield "```"
        yield example(row.code)
        yield "```"


if __name__ == "__main__":
    import sys

    sys.stdout.write(document())
