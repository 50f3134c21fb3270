"""Summaries in PostgreSQL: what writes and reads them, as `capture.store.sums` does in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from capture.store import summary
from capture.store.base import Entry
from capture.store.postgres.driver import Connection, columns
from capture.store.summary import Dialect, Look, Overview, Sheet, Summary

DIALECT = Dialect(
    holder=lambda n: f"${n}",
    # As JSON spells it, without the quotes; see `rollouts`.
    spelt=lambda text: json.dumps(text)[1:-1],
    told=lambda text: str(json.loads(f'"{text}"')),
    among="= ANY({keys}::bigint[])",
    running="SELECT rollout FROM running",
)

_PUT = (
    "INSERT INTO summary (rollout, version, current, trouble, incomplete, stopped, drifted, calls, sampled_tokens,"
    " reward) SELECT key, $3::bigint, state = 'closed' AND version = $3::bigint, $4::boolean, $5::boolean,"
    " $6::boolean, $7::integer, $8::integer, $9::bigint, $10::double precision"
    " FROM rollout WHERE id = $1 AND secret = $2"
    " ON CONFLICT (rollout) DO UPDATE SET version = excluded.version, current = excluded.current,"
    " trouble = excluded.trouble, incomplete = excluded.incomplete, stopped = excluded.stopped,"
    " drifted = excluded.drifted, calls = excluded.calls, sampled_tokens = excluded.sampled_tokens,"
    " reward = excluded.reward WHERE summary.version <= excluded.version RETURNING rollout"
)
_PUT_TEXT = (
    "INSERT INTO summary_text (rollout, until, deadline_s, words, data) VALUES ($1, $2, $3, $4, $5)"
    " ON CONFLICT (rollout) DO UPDATE SET until = excluded.until, deadline_s = excluded.deadline_s,"
    " words = excluded.words, data = excluded.data"
)


async def put(db: Connection, made: Sequence[tuple[Entry, Summary]]) -> None:
    """Keep summaries, each of the rollout that its entry is of; one of a later version stays."""
    # In one order, so that two who keep the same ones never wait for each other.
    for entry, one in sorted(made, key=lambda pair: pair[0].rollout.id):
        key = await db.fetchval(
            _PUT,
            entry.rollout.id,
            entry.secret,
            one.version,
            one.trouble,
            one.incomplete,
            one.stopped,
            one.drifted,
            one.calls,
            one.sampled_tokens,
            one.reward,
        )
        if key is None:
            continue
        await db.execute(_PUT_TEXT, key, one.until, one.deadline_s, one.words, one.row)
        await db.execute("DELETE FROM summary_finding WHERE rollout = $1", key)
        await db.execute(
            "INSERT INTO summary_finding (rollout, code, level, n)"
            " SELECT $1::bigint, * FROM unnest($2::text[], $3::smallint[], $4::integer[])",
            key,
            *columns([(found.code, found.level, found.n) for found in one.findings], 3),
        )


async def sheet(db: Connection, look: Look) -> Sheet:
    """Return a page of the list. Raises `ClientError` `bad_cursor`."""
    text, values = summary.sheet(look, DIALECT)
    return summary.lines(look, [tuple(row) for row in await db.fetch(text, *values)])


async def overview(db: Connection, look: Look) -> Overview:
    """Return the sums over what is looked for, in a transaction that sees one moment."""
    keys: list[int] | None = None
    if (wanted := summary.wanted(look, DIALECT)) is not None:
        text, values = wanted
        keys = [row[0] for row in await db.fetch(text, *values)]
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for name, (text, values) in summary.overview(keys, DIALECT).items():
        needed = summary.is_needed(name, rows)
        rows[name] = [tuple(row) for row in await db.fetch(text, *values)] if needed else []
    return summary.summed(rows, DIALECT)
