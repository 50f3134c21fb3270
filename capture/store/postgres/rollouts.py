"""Rollouts, engines and answers on PostgreSQL: each function is one transaction's work, or a read.

Order of locks, so that no two wait for each other: a rollout's row, then the counter of an order, then the lock of
sweeping. A counter's row stays locked until the commit, so places in an order are given out in the order of commits,
and a list that is followed by its cursor misses none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from capture.store import answers, reads, rows
from capture.store.base import Arrival, EngineState, Entry, Page, Query, Spent
from capture.store.postgres.driver import Connection, columns
from capture.store.postgres.schema import HOLDING, LOCKS, SWEEPING
from capture.store.writes import changed, id_taken
from graph.records import Rollout, Stop


async def add(db: Connection, entries: Sequence[Entry], *, key: str | None, answer: bytes | None, now: str) -> None:
    """Add rollouts, all or none, and keep the answer under its key. `key`: Idempotency-Key, a space, body's digest."""
    # First, so that of two with one key, or one id, the second sees the first.
    created = await _next(db, "created", len(entries))
    idempotency, body = answers.parted(key)
    if key is not None and await answered(db, idempotency, body, now=now) is not None:
        raise answers.raced()
    names = [entry.rollout.id for entry in entries]
    taken = {name for (name,) in await db.fetch("SELECT id FROM rollout WHERE id = ANY($1::text[])", names)}
    for name in names:
        if name in taken:
            raise id_taken(name)
        taken.add(name)
    gone = [entry for entry in entries if entry.rollout.state == "closed"]
    closed = iter(range(await _next(db, "closed", len(gone)), 2**63)) if gone else iter(())
    made = [
        (
            entry.rollout.id,
            entry.version,
            created + at,
            next(closed) if entry.rollout.state == "closed" else None,
            entry.rollout.state,
            _spelt(entry.rollout.group),
            entry.rollout.first_call_at,
            entry.rollout.last_call_at,
            entry.secret,
            entry.tools_secret,
            rows.dump_rollout(entry.rollout),
            rows.dump(entry.registration),
        )
        for at, entry in enumerate(entries)
    ]
    # All in one: a registration may be of thousands, and other calls' records wait behind it.
    put = await db.fetch(
        'INSERT INTO rollout (id, version, created, closed, state, "group", first_call_at, last_call_at, secret,'
        " tools_secret, record, registration) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[],"
        " $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bytea[], $10::bytea[], $11::text[],"
        " $12::text[]) RETURNING id, key",
        *columns(made, 12),
    )
    keys = {row["id"]: row["key"] for row in put}
    await _put_labels(
        db,
        [(keys[entry.rollout.id], name, value) for entry in entries for name, value in entry.rollout.labels.items()],
    )
    if key is not None and answer is not None:
        await db.execute("DELETE FROM answer WHERE until <= $1", now)
        await db.execute(
            "INSERT INTO answer (key, body, until, sealed) VALUES ($1, $2, $3, $4) ON CONFLICT (key)"
            " DO UPDATE SET body = excluded.body, until = excluded.until, sealed = excluded.sealed",
            answers.name_of(idempotency),
            body,
            answers.until(now),
            answers.sealed(idempotency, body, answer),
        )


async def answered(db: Connection, key: str, body: str, *, now: str) -> bytes | None:
    """Return the answer kept under an Idempotency-Key, None for a new or expired one.

    Raises `ClientError` `idempotency_key_reused` (422) if `body`, a digest, is another.
    """
    row = await db.fetchrow("SELECT body, sealed FROM answer WHERE key = $1 AND until > $2", answers.name_of(key), now)
    return None if row is None else answers.opened(key, body, kept_body=row[0], sealed=row[1])


async def change(db: Connection, rollout: str, changes: Mapping[str, Any], *, now: str) -> Entry | None:
    """Set fields of the stored rollout; closing it takes its place in the order of closing."""
    found = await db.fetchrow("SELECT key FROM rollout WHERE id = $1 FOR NO KEY UPDATE", rollout)
    if found is None:
        return None
    key = found[0]
    old = await _entry(db, key)
    new = changed(old.rollout, changes, now=now)
    if new.state == "closed" and old.rollout.state == "open":
        place = await _next(db, "closed", 1)
        await db.execute("UPDATE rollout SET closed = $1 WHERE key = $2", place, key)
    elif new.state == "open" and old.rollout.state == "closed":
        await db.execute("UPDATE rollout SET closed = NULL, sealed = 0 WHERE key = $1", key)
    await db.execute(
        'UPDATE rollout SET version = version + 1, state = $1, "group" = $2, first_call_at = $3, last_call_at = $4,'
        " record = $5 WHERE key = $6",
        new.state,
        _spelt(new.group),
        new.first_call_at,
        new.last_call_at,
        rows.dump_rollout(new),
        key,
    )
    if new.labels != old.rollout.labels:
        await db.execute("DELETE FROM label WHERE rollout = $1", key)
        await _put_labels(db, [(key, name, value) for name, value in new.labels.items()])
    # Read back, not handed back: a value that the record can't hold fails here, and the change with it.
    return await _entry(db, key)


async def delete(db: Connection, rollout: str) -> bool:
    """Remove a rollout with all that is its own, then the content that nobody else uses."""
    key = await db.fetchval("SELECT key FROM rollout WHERE id = $1 FOR UPDATE", rollout)
    if key is None:
        return False
    used = [content for (content,) in await db.fetch("SELECT content FROM use WHERE rollout = $1", key)]
    await db.execute("DELETE FROM rollout WHERE key = $1", key)
    # Who writes contents holds this lock until the commit, so that all that is in use is seen to be.
    await db.execute("SELECT pg_advisory_xact_lock($1, $2)", LOCKS, SWEEPING)
    await db.execute(
        "DELETE FROM content WHERE digest = ANY($1::bytea[])"
        " AND NOT EXISTS (SELECT FROM use WHERE use.content = content.digest)",
        used,
    )
    return True


async def arrive(
    db: Connection, rollout: str, *, choices: int, started_at: str, process: str, token: bytes
) -> Arrival | None:
    """Give out a number and a place in time; None when the rollout takes no more calls.

    The same `token` again gives the same number, for one who didn't hear the answer.
    """
    row = await db.fetchrow(
        "SELECT place, since, runs, names, holds, versions, (entry).sampled, (entry).new_tokens, (entry).created,"
        " (entry).closed, (entry).version, (entry).first_call_at, (entry).last_call_at, (entry).secret,"
        " (entry).tools_secret, (entry).record, (entry).registration FROM arrive($1, $2, $3, $4, $5)",
        rollout,
        choices,
        started_at,
        process,
        token,
    )
    if row is None:
        return None
    place, since, runs, names, holds, versions, sampled, tokens, *entry = row
    return Arrival(
        n=place,
        arrived=since,
        entry=rows.entry(tuple(entry)),
        spent=Spent(sampled=sampled, running=runs, new_tokens=tokens, first_call_at=row["first_call_at"]),
        engines={
            name: EngineState(held=held, version=version)
            for name, held, version in zip(names or (), holds or (), versions or (), strict=True)
        },
    )


async def seal(db: Connection, rollout: str, *, cut: bool) -> None:
    """Let no more calls arrive; with `cut` what runs is to be cut. A weaker seal never takes a stronger one's place."""
    await db.execute("UPDATE rollout SET sealed = greatest(sealed, $1) WHERE id = $2", 1 + cut, rollout)


async def sealed(db: Connection) -> dict[str, bool]:
    """Return the open rollouts that are sealed, and whether what runs of them is to be cut."""
    found = await db.fetch("SELECT id, sealed FROM rollout WHERE sealed > 0 AND state = 'open' ORDER BY key")
    return {name: seal > 1 for name, seal in found}


async def stop(db: Connection, rollout: str, n: int, limit: str) -> Stop:
    """Count a call that met a limit; of a rollout that is gone it is the first."""
    row = await db.fetchrow("SELECT key, record FROM rollout WHERE id = $1 FOR NO KEY UPDATE", rollout)
    if row is None:
        return Stop(limit=limit, at_call=n, stops=1)
    key, record = row
    old = rows.load(record, Rollout)
    after = old.stopped
    after = Stop(limit=limit, at_call=after.at_call if after else n, stops=after.stops + 1 if after else 1)
    new = rows.dump_rollout(msgspec.structs.replace(old, stopped=after))
    await db.execute("UPDATE rollout SET version = version + 1, record = $1 WHERE key = $2", new, key)
    return after


async def engines(db: Connection) -> dict[str, EngineState]:
    """Return what the operator said of each engine."""
    found = await db.fetch("SELECT name, held, version FROM engine ORDER BY name")
    return {name: EngineState(held=held, version=version) for name, held, version in found}


async def set_engine(db: Connection, name: str, *, held: bool | None, version: str | None) -> None:
    """Note a hold or a version; None leaves what there is. Every arrival that missed it runs when it is committed."""
    await db.execute("SELECT pg_advisory_xact_lock($1, $2)", LOCKS, HOLDING)
    await db.execute(
        "INSERT INTO engine (name, held, version) VALUES ($1, coalesce($2::boolean, false), $3) ON CONFLICT (name)"
        " DO UPDATE SET held = coalesce($2, engine.held), version = coalesce($3, engine.version)",
        name,
        held,
        version,
    )


async def get(db: Connection, rollout: str) -> Entry | None:
    """Return a rollout's entry."""
    row = await db.fetchrow(rows.SELECT_ENTRY + " WHERE id = $1", rollout)
    return None if row is None else rows.entry(tuple(row))


async def by_secret(db: Connection, digest: bytes) -> tuple[Entry, Literal["agent", "tools"]] | None:
    """Return the rollout with a secret of that digest, and whose secret it is."""
    row = await db.fetchrow(rows.SELECT_ENTRY + " WHERE secret = $1", digest)
    if row is not None:
        return rows.entry(tuple(row)), "agent"
    row = await db.fetchrow(rows.SELECT_ENTRY + " WHERE tools_secret = $1", digest)
    return None if row is None else (rows.entry(tuple(row)), "tools")


async def page(db: Connection, asked: Query) -> Page:
    """Return a page of rollouts. Raises `ClientError` `bad_cursor`."""
    order = asked.order
    after = reads.place(asked)
    bindings: list[Any] = []

    def bound(value: Any) -> str:
        bindings.append(value)
        return f"${len(bindings)}"

    # `order` is one of two literals; all else is bound.
    where = [f"{order} > {bound(after)}"]
    if asked.state is not None:
        where.append(f"state = {bound(asked.state)}")
    if asked.group is not None:
        where.append(f'"group" = {bound(_spelt(asked.group))}')
    for name, value in asked.labels.items():
        where.append(
            f"EXISTS (SELECT FROM label WHERE rollout = rollout.key AND name = {bound(_spelt(name))}"
            f" AND value = {bound(_spelt(value))})"
        )
    sql = f"{rows.SELECT_ENTRY} WHERE {' AND '.join(where)} ORDER BY {order} LIMIT {bound(asked.limit + 1)}"
    found = [tuple(row) for row in await db.fetch(sql, *bindings)]
    shown = found[: asked.limit]
    last = shown[-1][("created", "closed").index(order)] if shown else after
    return Page(
        entries=tuple(rows.entry(row) for row in shown),
        next=f"{order[:2]}{last}" if len(found) > len(shown) or order == "closed" else None,
    )


async def _next(db: Connection, counter: str, places: int) -> int:
    """Take so many places of an order; return the first."""
    last = await db.fetchval("UPDATE counter SET value = value + $1 WHERE name = $2 RETURNING value", places, counter)
    return int(last) - places + 1


async def _entry(db: Connection, key: int) -> Entry:
    row = await db.fetchrow(rows.SELECT_ENTRY + " WHERE key = $1", key)
    assert row is not None
    return rows.entry(tuple(row))


async def _put_labels(db: Connection, labels: Sequence[tuple[int, str, str]]) -> None:
    if labels:
        await db.execute(
            "INSERT INTO label (rollout, name, value) SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[])",
            [key for key, _, _ in labels],
            [_spelt(name) for _, name, _ in labels],
            [_spelt(value) for _, _, value in labels],
        )


def _spelt(text: str | None) -> Any:
    """Return text as a column can hold it and be asked for: as JSON spells it, without the quotes.

    Most text is itself; PostgreSQL's knows neither NUL nor half a surrogate pair.
    """
    return None if text is None else json.dumps(text)[1:-1]
