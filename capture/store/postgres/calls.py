"""Reads about calls on PostgreSQL: in one snapshot each, a few statements, and no statement a call.

What is fetched is decided first (which holders' ids a prompt is made of, which messages aren't known in canonical
form), then fetched together, then put together by the same code as on SQLite (`capture.store.prompts`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence

import msgspec

from capture.errors import StoreError
from capture.store import prompts, rows
from capture.store.base import Exchange
from capture.store.canonical import Canonical
from capture.store.postgres import kept
from capture.store.postgres.driver import Connection
from capture.store.reads import Calls
from graph.records import Call, Message, Notice

ASIDE_FROM = 50
"""Calls from which they are put together in a thread: some 50 µs each."""


async def calls(db: Connection, rollout: str, *, after: int, limit: int | None, canonical: Canonical) -> Calls:
    """Return calls in order of `n`, prompts whole; a prompt that can't be is None, and its call is `broken`."""
    key = await db.fetchval("SELECT key FROM rollout WHERE id = $1", rollout)
    if key is None:
        return Calls([], ())
    found = await db.fetch(
        "SELECT call.n, status, delivered, arrived, ended, chain, messages, record,"
        " CASE WHEN spool.n IS NULL THEN call.logprobs ELSE spool.logprobs END,"
        " CASE WHEN spool.n IS NULL THEN call.sampled ELSE spool.sampled END"
        " FROM call LEFT JOIN spool ON spool.rollout = call.rollout AND spool.n = call.n"
        " WHERE call.rollout = $1 AND call.n > $2 ORDER BY call.n LIMIT $3",
        key,
        after,
        limit,
    )
    if not found:
        return Calls([], ())
    skeleton = {
        n: prompts.Stored(*columns)
        for n, *columns in await db.fetch(
            "SELECT n, holder, shared, n_prompt, n_sampled, check_prompt FROM call WHERE rollout = $1", key
        )
    }
    numbers = [row[0] for row in found]
    pieces = await _pieces(db, key, prompts.needed(skeleton, numbers))
    messages = await _messages(db, key, [row[5] for row in found], canonical)
    own = await contents(db, {row[6] for row in found if row[6] is not None})

    def put_together() -> Calls:
        whole = prompts.Prompts(skeleton, pieces.get)
        out = []
        for n, status, delivered, arrived, ended, chain, messages_of, record, logprobs, sampled in found:
            call = rows.load(record, Call, n=n, status=status, delivered=delivered, arrived=arrived, ended=ended)
            if messages_of is not None:
                said = rows.load_messages(own[messages_of])
            else:
                said = messages[chain] if chain is not None else ()
            out.append(
                msgspec.structs.replace(
                    call,
                    messages=said,
                    prompt_ids=whole.of(n),
                    sampled_ids=rows.read_ints(sampled),
                    logprobs=rows.read_floats(logprobs),
                )
            )
        return Calls(out, tuple(whole.broken))

    done = await _aside(put_together, len(found))
    if done.broken:
        # What leans on a damaged prompt may be whole all the same, and then needs what that one was to give.
        pieces = await _pieces(db, key, prompts.needed(skeleton, numbers, alone=True))
        done = await _aside(put_together, len(found))
    return done


async def _aside(work: Callable[[], Calls], calls: int) -> Calls:
    return await asyncio.to_thread(work) if calls >= ASIDE_FROM else work()


async def _pieces(db: Connection, key: int, wanted: set[prompts.Piece]) -> dict[prompts.Piece, bytes | None]:
    if not wanted:
        return {}
    tails = [n for n, column in wanted if column == "tail"]
    sampled = [n for n, column in wanted if column == "sampled"]
    found = await db.fetch(
        "SELECT n, 'tail', tail FROM call WHERE rollout = $1 AND n = ANY($2::integer[])"
        " UNION ALL SELECT n, 'sampled', sampled FROM call WHERE rollout = $1 AND n = ANY($3::integer[])",
        key,
        tails,
        sampled,
    )
    return {(n, column): data for n, column, data in found}


async def _messages(
    db: Connection, key: int, ends: Sequence[bytes | None], canonical: Canonical
) -> dict[bytes, tuple[Message, ...]]:
    """Return the canonical messages of the chains that end with some links, each message read once."""
    if not any(end is not None for end in ends):
        return {}
    links = {
        digest: (parent, content)
        for digest, parent, content in await db.fetch(
            "SELECT digest, parent, content FROM chain WHERE rollout = $1", key
        )
    }
    read: dict[bytes, Message | None] = {}
    unread = set()
    for _, name in links.values():
        if name not in read:
            try:
                read[name] = canonical.read(name, None)
            except KeyError:
                unread.add(name)
    for name, raw in (await contents(db, unread)).items():
        read[name] = canonical.read(name, raw, keep=False)
    known: dict[bytes, tuple[Message, ...]] = {}
    for end in ends:
        new: list[Message] = []
        link = end
        while link is not None and link not in known:
            parent, name = links[link]
            message = read[name]
            if message is None:
                # The writer stores a chain for a call only if all of its messages could be read.
                raise StoreError("store_failed", f"message {name.hex()} can't be read in canonical form any more")
            new.append(message)
            link = parent
        if end is not None:
            known[end] = (() if link is None else known[link]) + tuple(reversed(new))
    return known


async def contents(db: Connection, names: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return contents by digest. Raises `LookupError` for one that isn't there."""
    wanted = list(names)
    if not wanted:
        return {}
    found = await db.fetch("SELECT digest, packed, data FROM content WHERE digest = ANY($1::bytea[])", wanted)
    out = {digest: kept.unpack(packed, data) for digest, packed, data in found}
    if missing := set(wanted) - set(out):
        raise LookupError(f"content {min(missing).hex()}")
    return out


async def exchange(db: Connection, rollout: str, n: int) -> Exchange | None:
    """Return what passed in a call."""
    row = await db.fetchrow(
        "SELECT key, top_logprobs, undecoded, error, deliveries, usage, request, sent, reply"
        " FROM rollout JOIN exchange ON exchange.rollout = rollout.key WHERE rollout.id = $1 AND n = $2",
        rollout,
        n,
    )
    if row is None:
        return None
    key, top_logprobs, undecoded, error, deliveries, usage, request, sent, reply = row
    refers = kept.references((request, sent, reply))
    chains = await _chains(db, key, refers.chains)
    held = await contents(db, refers.contents | {name for name in (top_logprobs, undecoded) if name is not None})

    def body(stored: bytes, base: bytes | None = None) -> bytes:
        return kept.body(stored, content=held.__getitem__, chain=chains.__getitem__, base=base)

    return Exchange(
        request=body(request),
        sent=None if sent is None else body(sent, request),
        reply=None if reply is None else body(reply),
        error=None if error is None else json.loads(error),
        usage=usage,
        top_logprobs=None if top_logprobs is None else held[top_logprobs],
        undecoded=None if undecoded is None else held[undecoded],
        deliveries=tuple(json.loads(deliveries)),
    )


async def _chains(db: Connection, key: int, ends: set[bytes]) -> dict[bytes, list[bytes]]:
    """Return the raw elements of the lists that end with some links."""
    out: dict[bytes, list[bytes]] = {end: [] for end in ends}
    if not ends:
        return out
    found = await db.fetch(
        "WITH RECURSIVE walk (last, parent, content, depth) AS ("
        " SELECT digest, parent, content, 0 FROM chain WHERE rollout = $1 AND digest = ANY($2::bytea[])"
        " UNION ALL SELECT last, chain.parent, chain.content, depth + 1"
        "  FROM walk JOIN chain ON chain.rollout = $1 AND chain.digest = walk.parent"
        ") SELECT last, packed, data FROM walk JOIN content ON content.digest = walk.content ORDER BY depth DESC",
        key,
        list(ends),
    )
    for last, packed, data in found:
        out[last].append(kept.unpack(packed, data))
    return out


async def notices(db: Connection, rollout: str) -> list[Notice]:
    """Return a rollout's notices in the order in which they came."""
    found = await db.fetch(
        "SELECT notice.record FROM notice JOIN rollout ON rollout.key = notice.rollout WHERE rollout.id = $1"
        " ORDER BY notice.key",
        rollout,
    )
    return [rows.load(record, Notice) for (record,) in found]


async def running(db: Connection, rollout: str | None, *, engine: str | None) -> list[tuple[str, int]]:
    """Return the calls that run, of one rollout or of all, in order."""
    found = await db.fetch(
        "SELECT id, n FROM running JOIN rollout ON rollout.key = running.rollout"
        " WHERE ($1::text IS NULL OR id = $1) AND ($2::text IS NULL OR engine IS NULL OR engine = $2)"
        " ORDER BY rollout.key, n",
        rollout,
        engine,
    )
    return [(name, n) for name, n in found]
