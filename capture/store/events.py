"""What happened, in order, as the file keeps it for a day: functions of a connection.

Rules.
1. Events of rollouts and calls are written by the schema's own triggers (`migrations`), in the transaction that makes
   them true: they ride in the group that the record rides in, whoever writes it, and cost no commit. What is of no
   rollout (an engine, a tunnel), or found out afterwards, is told (`put`).
2. A row says what happened and to whom; the numbers are read from the call's own row, and so are gone with the rollout.
3. An event's id is the row's key, which only grows: the newest row is never dropped. `floor` is the highest key that
   was, and whoever asks for what is behind a lower one has missed something.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw

from capture.errors import ClientError
from capture.store import query, rows
from capture.store.base import Event, Telling
from graph.records import Call, Rollout

OLDEST = "0"
"""The id before that of every event: reading from there on begins with the oldest that is kept."""

DROPPED_AT_ONCE = 2_000
"""Rows that one write drops: some 5 ms."""

SHOWN_BEGUN = ("choice", "dialect", "streamed", "engine")
SHOWN_CALL = (
    *SHOWN_BEGUN,
    "finish_reason",
    "usage_prompt",
    "usage_sampled",
    "queued_ms",
    "first_token_ms",
    "ended_ms",
)
"""Fields of a call's record that its begin and its end show."""

SHOWN_ROLLOUT = ("rollout.registered", "rollout.closed", "rollout.graded")
"""Events that show something of the rollout's record."""

COLUMNS = (
    "event.at, event.name, event.id, event.n, event.data, call.status, call.delivered, call.n_prompt, call.n_sampled,"
    f" call.record, CASE WHEN event.name IN {SHOWN_ROLLOUT} THEN rollout.record END"
    " FROM event LEFT JOIN rollout ON rollout.id = event.id"
    " LEFT JOIN call ON call.rollout = rollout.key AND call.n = event.n"
)
"""What `event` reads, behind the id; the same in both stores."""


def after(db: apsw.Connection, cursor: str, *, rollout: str | None, limit: int) -> list[Event]:
    """Return events behind an id, the oldest first; see `Store.events`."""
    key = place(cursor)
    newest = query.value(db, "SELECT coalesce(max(key), 0) FROM event")
    if key != 0 and not floor(db) <= key <= newest:
        raise gone(cursor)
    if rollout is None:
        found = query.every(
            db, f"SELECT event.key, {COLUMNS} WHERE event.key > ? ORDER BY event.key LIMIT ?", (key, limit)
        )
    else:
        found = query.every(
            db,
            f"SELECT event.key, {COLUMNS} WHERE event.key > ? AND event.id = ? ORDER BY event.key LIMIT ?",
            (key, rollout, limit),
        )
    return [event(str(row[0]), row[1:]) for row in found]


def newest(db: apsw.Connection) -> str:
    """Return the newest event's id, `OLDEST` where there is none."""
    return str(query.value(db, "SELECT coalesce(max(key), 0) FROM event"))


def floor(db: apsw.Connection) -> int:
    """Return the highest key that was dropped."""
    return int(query.value(db, "SELECT value FROM counter WHERE name = 'event'"))


def put(db: apsw.Connection, told: Sequence[Telling]) -> None:
    """Add events, unless their rollout is gone."""
    for one in told:
        if one.rollout is None or query.first(db, "SELECT 1 FROM rollout WHERE id = ?", (one.rollout,)):
            db.execute(
                "INSERT INTO event (at, name, id, n, data) VALUES (?, ?, ?, ?, ?)",
                (one.at, one.name, one.rollout, one.call, data(one)),
            )


def drop(db: apsw.Connection, before: str) -> bool:
    """Drop some of the events from before a time; False when none is left to drop."""
    # In order, up to the first that stays: what is kept is then all that is behind the floor.
    stays = "SELECT coalesce(min(key), 0) FROM (SELECT key FROM event WHERE at >= ? ORDER BY key LIMIT 1)"
    end = query.value(db, stays, (before,)) or query.value(db, "SELECT coalesce(max(key), 0) FROM event")
    dropped = "SELECT max(key) FROM (SELECT key FROM event WHERE key < ? ORDER BY key LIMIT ?)"
    highest = query.value(db, dropped, (end, DROPPED_AT_ONCE))
    if highest is None:
        return False
    db.execute("DELETE FROM event WHERE key <= ?", (highest,))
    db.execute("UPDATE counter SET value = max(value, ?) WHERE name = 'event'", (highest,))
    return True


def event(name: str, row: Sequence[Any]) -> Event:
    """Return the event of a row of `COLUMNS`; `name` is its id."""
    at, kind, rollout, n, told, status, delivered, n_prompt, n_sampled, call, record = row
    shown: dict[str, Any] = {} if told is None else json.loads(told)
    if kind == "finding" and "code" in shown:
        # A notice as it was stored, or a finding whole.
        known: dict[str, Any] = {key: shown[key] for key in ("level", "message") if key in shown}
        shown = {"code": shown["code"], **known, "calls": shown.get("calls", []), "data": shown.get("data", {})}
    if call is not None and kind in ("call.begun", "call.ended"):
        kept = rows.load(call, Call, n=n, status=status, delivered=None, arrived=0, ended=None)
        fields = SHOWN_CALL if kind == "call.ended" else SHOWN_BEGUN
        shown |= {field: getattr(kept, field) for field in fields}
        if kind == "call.ended":
            shown |= {"status": status, "n_prompt": n_prompt, "n_sampled": n_sampled}
            shown["delivered"] = None if delivered is None else bool(delivered)
    if record is not None:
        of = rows.load(record, Rollout)
        if kind == "rollout.registered":
            shown |= {"group": of.group, "labels": of.labels, "model": of.model, "tier": of.tier}
        else:
            shown["reward"] = of.reward
    return Event(id=name, at=at, name=kind, rollout=rollout, call=n, data=shown)


def data(told: Telling) -> str | None:
    """Return what is told as its column has it."""
    return json.dumps(told.data, separators=(",", ":")) if told.data else None


def place(cursor: str) -> int:
    """Read an id. Raises `ClientError` 400 `bad_cursor`."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise bad_cursor(cursor)
    return int(cursor)


def bad_cursor(cursor: str) -> ClientError:
    """Return the error for what is no event's id."""
    return ClientError(
        "bad_cursor",
        f"{cursor[:40]!r} is no event's id.",
        hint=f"Send the id of the last event that came, or {OLDEST} for the oldest that is kept.",
    )


def gone(cursor: str) -> ClientError:
    """Return the error for an id from before what is kept, or of another store."""
    return ClientError(
        "events_gone",
        f"Not all events behind {cursor[:40]!r} are kept any more.",
        hint=f"Read the rollouts anew, then go on without an id (from now), or with {OLDEST} (from the oldest kept).",
        status=410,
    )
