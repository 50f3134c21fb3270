"""What happened, in order, as the database keeps it for a day; as `capture.store.events`, for many writers.

An event's id is the number of the transaction that wrote it, a dot, and its key. Keys alone won't do: of two
transactions the one that took its key first may commit last, and who has read the other would never see it. So nothing
is read of a transaction while an older one still runs (`pg_snapshot_xmin`): what is behind an id then never changes.
A transaction of anything else in the same cluster that writes for minutes holds events back as long, and loses none.

After a database was restored elsewhere its numbers may lie before those of its events: these wait, or are dropped with
their day, and an id from before is refused as gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from capture.store.base import Event, Telling
from capture.store.events import COLUMNS, DROPPED_AT_ONCE, OLDEST, bad_cursor, data, event, gone
from capture.store.postgres.driver import Connection, columns

Place = tuple[int, int]
"""Transaction and key."""

_SETTLED = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

_NEWEST = f"SELECT xid, key FROM event WHERE xid < {_SETTLED} ORDER BY xid DESC, key DESC LIMIT 1"  # noqa: S608  ours
_DROP = (
    "DELETE FROM event WHERE (xid, key) IN (SELECT xid, key FROM event"  # noqa: S608  all of it is ours
    f" WHERE (xid, key) < ($1::bigint, $2::bigint) AND xid < {_SETTLED} ORDER BY xid, key LIMIT $3)"
    " RETURNING xid, key"
)

_MOST = 2**63 - 1


async def after(db: Connection, cursor: str, *, rollout: str | None, limit: int) -> list[Event]:
    """Return events behind an id, the oldest first; see `Store.events`."""
    at = place(cursor)
    if at != (0, 0):
        lowest = tuple(await db.fetchrow("SELECT xid, key FROM event_floor"))
        # Of another database, or of this one before it was restored.
        ahead = at[0] >= await db.fetchval(f"SELECT {_SETTLED}")
        if at < lowest or ahead:
            raise gone(cursor)
    of = "" if rollout is None else " AND event.id = $4"
    found = await db.fetch(
        f"SELECT event.xid, event.key, {COLUMNS} WHERE (event.xid, event.key) > ($1::bigint, $2::bigint)"
        f" AND event.xid < {_SETTLED}{of} ORDER BY event.xid, event.key LIMIT $3",
        *at,
        limit,
        *(() if rollout is None else (rollout,)),
    )
    return [event(f"{row[0]}.{row[1]}", tuple(row)[2:]) for row in found]


async def newest(db: Connection) -> str:
    """Return the newest event's id, `OLDEST` where there is none."""
    row = await db.fetchrow(_NEWEST)
    return OLDEST if row is None else f"{row[0]}.{row[1]}"


async def put(db: Connection, told: Sequence[Telling]) -> None:
    """Add events, unless their rollout is gone."""
    # Held until the commit: a rollout that another process deletes meanwhile takes them along, or leaves none to add.
    of = sorted({one.rollout for one in told if one.rollout is not None})
    if of:
        await db.execute("SELECT FROM rollout WHERE id = ANY($1::text[]) ORDER BY id FOR KEY SHARE", of)
    await db.execute(
        "INSERT INTO event (at, name, id, n, data) SELECT at, name, id, n, data"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::text[]) WITH ORDINALITY"
        " AS new (at, name, id, n, data, nth)"
        " WHERE new.id IS NULL OR EXISTS (SELECT FROM rollout WHERE rollout.id = new.id) ORDER BY nth",
        *columns([(one.at, one.name, one.rollout, one.call, data(one)) for one in told], 5),
    )


async def drop(db: Connection, before: str) -> bool:
    """Drop some of the events from before a time; False when none is left to drop."""
    # In order, up to the first that stays: what is kept is then all that is behind the floor.
    stays = await db.fetchrow("SELECT xid, key FROM event WHERE at >= $1 ORDER BY xid, key LIMIT 1", before)
    end = (_MOST, _MOST) if stays is None else tuple(stays)
    rows = await db.fetch(
        _DROP,
        *end,
        DROPPED_AT_ONCE,
    )
    if not rows:
        return False
    highest: Place = max((row[0], row[1]) for row in rows)
    await db.execute("UPDATE event_floor SET xid = $1, key = $2 WHERE (xid, key) < ($1::bigint, $2::bigint)", *highest)
    return True


def place(cursor: str) -> Place:
    """Read an id. Raises `ClientError` 400 `bad_cursor`."""
    if cursor == OLDEST:
        return 0, 0
    xid, dot, key = cursor.partition(".")
    if not (dot and cursor.isascii() and xid.isdigit() and key.isdigit() and max(len(xid), len(key)) < 19):
        raise bad_cursor(cursor)
    return int(xid), int(key)
