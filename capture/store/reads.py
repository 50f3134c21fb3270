"""What each read takes from the file: functions of a read-only connection."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any, Literal, NamedTuple

import apsw
import msgspec

from capture.digests import Digests, digests
from capture.errors import StoreError
from capture.store import chains, contents, cursor, exchanges, prompts, query, rows
from capture.store.base import Entry, Exchange, Page, Query
from capture.store.canonical import Canonical
from graph.records import Call, Message, Notice

MOST_PLACE = 10**18 - 1
"""Of a cursor; a store gives out places one by one."""


def get(db: apsw.Connection, rollout: str) -> Entry | None:
    """Return a rollout's entry."""
    row = query.first(db, rows.SELECT_ENTRY + " WHERE id = ?", (rollout,))
    return None if row is None else rows.entry(row)


def by_secret(db: apsw.Connection, digest: bytes) -> tuple[Entry, Literal["agent", "tools"]] | None:
    """Return the rollout with a secret of that digest, and whose secret it is."""
    row = query.first(db, rows.SELECT_ENTRY + " WHERE secret = ?", (digest,))
    if row is not None:
        return rows.entry(row), "agent"
    row = query.first(db, rows.SELECT_ENTRY + " WHERE tools_secret = ?", (digest,))
    return None if row is None else (rows.entry(row), "tools")


def page(db: apsw.Connection, asked: Query) -> Page:
    """Return a page of rollouts. A cursor is the order's first letters and the place of the last entry seen."""
    order = asked.order
    after = place(asked)
    # `order` is one of two literals; all else is bound.
    where: list[str] = [f"{order} > ?"]
    bindings: list[Any] = [after]
    if asked.state is not None:
        where.append("state = ?")
        bindings.append(asked.state)
    if asked.group is not None:
        where.append('"group" = ?')
        bindings.append(asked.group)
    for name, value in asked.labels.items():
        where.append("EXISTS (SELECT 1 FROM label WHERE rollout = rollout.key AND name = ? AND value = ?)")
        bindings += [name, value]
    sql = f"{rows.SELECT_ENTRY} WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?"
    found = query.every(db, sql, (*bindings, asked.limit + 1))
    shown = found[: asked.limit]
    last = shown[-1][("created", "closed").index(order)] if shown else after
    return Page(
        entries=tuple(rows.entry(row) for row in shown),
        next=f"{order[:2]}{last}" if len(found) > len(shown) or order == "closed" else None,
    )


def place(asked: Query) -> int:
    """Return the place that a page starts behind. Raises `ClientError` `bad_cursor`."""
    return cursor.place(asked.after, asked.order, first=0, most=MOST_PLACE)


_COLUMN: dict[prompts.Column, str] = {
    "sampled": "SELECT sampled FROM call WHERE key = ?",
    "tail": "SELECT tail FROM call WHERE key = ?",
}


class Calls(NamedTuple):
    """Some calls, and the numbers of those among them whose stored prompt couldn't be put together."""

    calls: list[Call]
    broken: tuple[int, ...]


def calls(db: apsw.Connection, rollout: str, *, after: int, limit: int | None, canonical: Canonical) -> Calls:
    """Return calls in order of `n`, prompts whole; a prompt that can't be is None, and its call is `broken`."""
    row = query.first(db, "SELECT key FROM rollout WHERE id = ?", (rollout,))
    if row is None:
        return Calls([], ())
    (key,) = row
    found = query.every(
        db,
        "SELECT call.n, status, delivered, arrived, ended, chain, messages, record,"
        " CASE WHEN spool.n IS NULL THEN call.logprobs ELSE spool.logprobs END,"
        " CASE WHEN spool.n IS NULL THEN call.sampled ELSE spool.sampled END"
        " FROM call LEFT JOIN spool ON spool.rollout = call.rollout AND spool.n = call.n"
        " WHERE call.rollout = ? AND call.n > ? ORDER BY call.n LIMIT ?",
        (key, after, -1 if limit is None else limit),
    )
    whole = _prompts(db, key)
    messages = _Messages(db, key, canonical)
    out = []
    for n, status, delivered, arrived, ended, link, own, record, logprobs, sampled in found:
        call = rows.load(
            record,
            Call,
            n=n,
            status=status,
            delivered=None if delivered is None else bool(delivered),
            arrived=arrived,
            ended=ended,
        )
        out.append(
            msgspec.structs.replace(
                call,
                messages=rows.load_messages(contents.get(db, own)) if own is not None else messages.of(link),
                prompt_ids=whole.of(n),
                sampled_ids=rows.read_ints(sampled),
                logprobs=rows.read_floats(logprobs),
            )
        )
    return Calls(out, tuple(whole.broken))


def _prompts(db: apsw.Connection, rollout: int) -> prompts.Prompts:
    keys: dict[int, int] = {}
    stored: dict[int, prompts.Stored] = {}
    columns = "SELECT n, key, holder, shared, n_prompt, n_sampled, check_prompt FROM call WHERE rollout = ?"
    for n, key, *rest in query.every(db, columns, (rollout,)):
        keys[n], stored[n] = key, prompts.Stored(*rest)

    def fetch(piece: prompts.Piece) -> bytes | None:
        n, column = piece
        data: bytes | None = query.value(db, _COLUMN[column], (keys[n],))
        return data

    return prompts.Prompts(stored, fetch)


class _Messages:
    """Reads the canonical messages of one rollout's chains, each message once."""

    def __init__(self, db: apsw.Connection, rollout: int, canonical: Canonical) -> None:
        self._db = db
        self._canonical = canonical
        # Link → (link before, content's key, its digest, how it is packed).
        self._links: dict[int, tuple[int | None, int, bytes, str | None]] = {
            link: (parent, content, name, packed)
            for link, parent, content, name, packed in query.every(
                db,
                "SELECT chain.key, parent, content, content.digest, packed"
                " FROM chain JOIN content ON content.key = content WHERE rollout = ?",
                (rollout,),
            )
        }
        self._read: dict[int, tuple[Message, ...]] = {}
        self._known: dict[int, tuple[Message, ...]] = {}

    def of(self, last: int | None) -> tuple[Message, ...]:
        """Return the messages of the chain that ends with the link `last`."""
        new: list[tuple[Message, ...]] = []
        link = last
        while link is not None and link not in self._known:
            parent, content, name, packed = self._links[link]
            new.append(self._added(content, name, packed))
            link = parent
        before = () if link is None else self._known[link]
        out = tuple(chain(before, *reversed(new)))
        if last is not None:
            self._known[last] = out
        return out

    def _added(self, content: int, name: bytes, packed: str | None) -> tuple[Message, ...]:
        messages = self._read.get(content)
        if messages is None:
            if packed == "list":
                raws = chains.added(packed, query.value(self._db, "SELECT data FROM content WHERE key = ?", (content,)))
                messages = tuple(map(self._message, Digests(digests(raws)), raws))
            else:
                try:
                    messages = (self._message(name, None),)
                except KeyError:
                    messages = (self._message(name, contents.get(self._db, content)),)
            self._read[content] = messages
        return messages

    def _message(self, name: bytes, raw: bytes | None) -> Message:
        """Raises `KeyError` without `raw` where the message isn't kept."""
        read = self._canonical.read(name, raw, keep=False)
        if read is None:
            # The writer stores a chain for a call only if all of its messages could be read, so this is a change
            # in what is read, and not to be passed over.
            raise StoreError("store_failed", f"message {name.hex()} can't be read in canonical form any more")
        return read


def exchange(db: apsw.Connection, rollout: str, n: int) -> Exchange | None:
    """Return what passed in a call."""
    row = query.first(
        db,
        "SELECT top_logprobs, undecoded, error, deliveries, usage, request, sent, reply"
        " FROM exchange JOIN rollout ON rollout.key = exchange.rollout WHERE rollout.id = ? AND n = ?",
        (rollout, n),
    )
    if row is None:
        return None
    top_logprobs, undecoded, error, deliveries, usage, request, sent, reply = row
    return Exchange(
        request=exchanges.get_body(db, request),
        sent=None if sent is None else exchanges.get_body(db, sent, base=request),
        reply=None if reply is None else exchanges.get_body(db, reply),
        error=None if error is None else json.loads(error),
        usage=usage,
        top_logprobs=None if top_logprobs is None else contents.get(db, top_logprobs),
        undecoded=None if undecoded is None else contents.get(db, undecoded),
        deliveries=tuple(json.loads(deliveries)),
    )


def size(db: apsw.Connection) -> int:
    """Return the bytes that rows and indexes take."""
    pages, free, page = (query.value(db, f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size"))
    return int((pages - free) * page)


def notices(db: apsw.Connection, rollout: str) -> list[Notice]:
    """Return a rollout's notices in the order in which they came."""
    return [
        rows.load(record, Notice)
        for (record,) in query.every(
            db,
            "SELECT notice.record FROM notice JOIN rollout ON rollout.key = notice.rollout"
            " WHERE rollout.id = ? ORDER BY notice.key",
            (rollout,),
        )
    ]
