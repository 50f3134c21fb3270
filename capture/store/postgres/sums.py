"""Summaries in PostgreSQL: what writes and reads them, as `capture.store.sums` does in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from capture.store import summary
from capture.store.base import Entry
from capture.store.postgres.driver import Connection, columns
from capture.store.summary import Dialect, Look, Overview, Sheet, Summary

DIALECT = Dialect(
    holder=lambda n: f"${n}",
    # As JSON spells it, without the quotes; see `rollouts`.
    spelt=lambda text: json.dumps(text)[1:-1],
    told=lambda text: str(json.loads(f'"{text}"')),
    running="SELECT rollout FROM running",
)

_PUT = (
    "INSERT INTO summary (rollout, version, trouble, incomplete, stopped, drifted, calls, sampled_tokens, reward,"
    " until, deadline_s, words, data) SELECT key, $3::bigint, $4::boolean, $5::boolean, $6::boolean, $7::integer,"
    " $8::integer, $9::bigint, $10::double precision, $11::text, $12::double precision, $13::text, $14::bytea"
    " FROM rollout WHERE id = $1 AND secret = $2"
    " ON CONFLICT (rollout) DO UPDATE SET version = excluded.version, trouble = excluded.trouble,"
    " incomplete = excluded.incomplete, stopped = excluded.stopped, drifted = excluded.drifted, calls = excluded.calls,"
    " sampled_tokens = excluded.sampled_tokens, reward = excluded.reward, until = excluded.until,"
    " deadline_s = excluded.deadline_s, words = excluded.words, data = excluded.data"
    " WHERE summary.version <= excluded.version RETURNING rollout"
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
            one.until,
            one.deadline_s,
            one.words,
            one.row,
        )
        if key is None:
            continue
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
    rows = {}
    for name, (text, values) in summary.overview(look, DIALECT).items():
        rows[name] = [tuple(row) for row in await db.fetch(text, *values)]
    return summary.summed(rows, DIALECT)
