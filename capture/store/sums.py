"""Summaries in the file: what writes and reads them, functions of a connection."""

from __future__ import annotations

import json
from collections.abc import Sequence

import apsw

from capture.store import query, summary
from capture.store.base import Entry
from capture.store.summary import Dialect, Look, Overview, Sheet, Summary

DIALECT = Dialect(
    holder=lambda n: f"?{n}",
    spelt=str,
    told=str,
    among="IN (SELECT value FROM json_each({keys}))",
    running="SELECT rollout FROM arrival UNION ALL SELECT rollout FROM call WHERE status = 'running'",
)

_PUT = (
    "INSERT INTO summary (rollout, version, current, trouble, incomplete, stopped, drifted, calls, sampled_tokens,"
    " reward) SELECT key, ?3, state = 'closed' AND version = ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10"
    " FROM rollout WHERE id = ?1 AND secret = ?2"
    " ON CONFLICT (rollout) DO UPDATE SET version = excluded.version, current = excluded.current,"
    " trouble = excluded.trouble, incomplete = excluded.incomplete, stopped = excluded.stopped,"
    " drifted = excluded.drifted, calls = excluded.calls, sampled_tokens = excluded.sampled_tokens,"
    " reward = excluded.reward WHERE summary.version <= excluded.version RETURNING rollout"
)


def put(db: apsw.Connection, made: Sequence[tuple[Entry, Summary]]) -> None:
    """Keep summaries, each of the rollout that its entry is of; one of a later version stays."""
    for entry, one in made:
        row = query.first(
            db,
            _PUT,
            (
                entry.rollout.id,
                entry.secret,
                one.version,
                int(one.trouble),
                int(one.incomplete),
                int(one.stopped),
                one.drifted,
                one.calls,
                one.sampled_tokens,
                one.reward,
            ),
        )
        if row is None:
            continue
        (key,) = row
        db.execute(
            "INSERT OR REPLACE INTO summary_text (rollout, until, deadline_s, words, data) VALUES (?, ?, ?, ?, ?)",
            (key, one.until, one.deadline_s, one.words, one.row),
        )
        db.execute("DELETE FROM summary_finding WHERE rollout = ?", (key,))
        db.executemany(
            "INSERT INTO summary_finding (rollout, code, level, n) VALUES (?, ?, ?, ?)",
            [(key, found.code, found.level, found.n) for found in one.findings],
        )


def sheet(db: apsw.Connection, look: Look) -> Sheet:
    """Return a page of the list. Raises `ClientError` `bad_cursor`."""
    text, values = summary.sheet(look, DIALECT)
    return summary.lines(look, query.every(db, text, values))


def overview(db: apsw.Connection, look: Look) -> Overview:
    """Return the sums over what is looked for."""
    keys: list[int] | None = None
    if (wanted := summary.wanted(look, DIALECT)) is not None:
        keys = [key for (key,) in query.every(db, *wanted)]
    statements = summary.overview(None if keys is None else json.dumps(keys), DIALECT)
    rows: dict[str, list[query.Row]] = {}
    for name, (text, values) in statements.items():
        rows[name] = query.every(db, text, values) if summary.is_needed(name, rows) else []
    return summary.summed(rows, DIALECT)
