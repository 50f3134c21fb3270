"""What each write does to the file: functions of a connection inside a transaction that the writer opened.

Rules. A function may run twice (once in a group that was rolled back, once alone), so it keeps nothing outside the
file. It raises `ClientError` only before its first change: the group then goes on without it. A write about a rollout
that is gone does nothing, for it was deleted on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from capture.errors import ClientError
from capture.store import answers, chains, exchanges, query, rows, tally
from capture.store.base import Delta, Entry, Exchange, Parts, Record, Spool, new_tokens
from capture.store.canonical import Canonical
from capture.store.chains import Chain
from capture.store.exchanges import Body, Filing
from graph.records import Call, Notice, Rollout

CRASHED = {"blame": "treering", "status": 503, "message": "Treering stopped while the call ran."}
"""The error of a call that was running when its process died."""

_BUMP = "UPDATE rollout SET version = version + 1 WHERE key = ?"

# A rollout's key, and what of a call's ids a later prompt can begin with, if that call has ended.
_HELD = (
    "SELECT key, (SELECT n_prompt + coalesce(n_sampled, 0) FROM call"
    " WHERE call.rollout = rollout.key AND call.n = ?2 AND status <> 'running') FROM rollout WHERE id = ?1"
)


def add(db: apsw.Connection, entries: Sequence[Entry], *, key: str | None, answer: bytes | None, now: str) -> None:
    """Add rollouts, all or none, and keep the answer under its key. `key`: Idempotency-Key, a space, body's digest."""
    idempotency, body = answers.parted(key)
    if key is not None and answers.get(db, idempotency, body, now=now) is not None:
        raise answers.raced()
    seen = set()
    for entry in entries:
        name = entry.rollout.id
        if name in seen or _key(db, name) is not None:
            raise id_taken(name)
        seen.add(name)
    for entry in entries:
        _add_one(db, entry)
    if key is not None and answer is not None:
        answers.put(db, idempotency, body, answer, now=now)


def id_taken(name: str) -> ClientError:
    """Return the error for an id that is there already."""
    return ClientError("id_taken", f"a rollout with the id {name!r} is there already", status=409, param="id")


def change(db: apsw.Connection, rollout: str, changes: Mapping[str, Any], *, now: str) -> Entry | None:
    """Set fields of the stored rollout; closing it takes its place in the order of closing."""
    key = _key(db, rollout)
    if key is None:
        return None
    old = _entry(db, key)
    new = changed(old.rollout, changes, now=now)
    if new.state == "closed" and old.rollout.state == "open":
        db.execute("UPDATE rollout SET closed = ? WHERE key = ?", (_next(db, "closed"), key))
        chains.forget(key)
    elif new.state == "open" and old.rollout.state == "closed":
        db.execute("UPDATE rollout SET closed = NULL, sealed = 0 WHERE key = ?", (key,))
    db.execute(
        'UPDATE rollout SET version = version + 1, state = ?, "group" = ?, first_call_at = ?, last_call_at = ?,'
        " record = ? WHERE key = ?",
        (new.state, new.group, new.first_call_at, new.last_call_at, rows.dump_rollout(new), key),
    )
    if new.labels != old.rollout.labels:
        db.execute("DELETE FROM label WHERE rollout = ?", (key,))
        _put_labels(db, key, new.labels)
    # Read back, not handed back: a value that the record can't hold fails here, and the change with it.
    return _entry(db, key)


def changed(old: Rollout, changes: Mapping[str, Any], *, now: str) -> Rollout:
    """Return a rollout with some fields set; one that closes has its time."""
    new = msgspec.structs.replace(old, **changes)
    if new.state == "closed" and old.state == "open" and new.closed_at is None:
        return msgspec.structs.replace(new, closed_at=now)
    return new


def delete(db: apsw.Connection, rollout: str) -> bool:
    """Remove a rollout with all that is its own, then the content that nobody else uses."""
    key = _key(db, rollout)
    if key is None:
        return False
    used = [(content, content) for (content,) in query.every(db, "SELECT content FROM use WHERE rollout = ?", (key,))]
    db.execute("DELETE FROM rollout WHERE key = ?", (key,))
    db.executemany("DELETE FROM content WHERE key = ? AND NOT EXISTS (SELECT 1 FROM use WHERE use.content = ?)", used)
    return True


def shrink(db: apsw.Connection, *, pages: int) -> bool:
    """Give so many free pages back to the disk; False when none is left to give."""
    before = int(query.value(db, "PRAGMA freelist_count"))
    db.execute(f"PRAGMA incremental_vacuum({pages:d})")
    # A file of before it could shrink stays as it is.
    return 0 < int(query.value(db, "PRAGMA freelist_count")) < before


def begin(db: apsw.Connection, rollout: str, call: Call, exchange: Exchange, canonical: Canonical) -> None:
    """Note that a call runs, unless it is known already."""
    key = _key(db, rollout)
    if key is None or query.first(db, "SELECT 1 FROM call WHERE rollout = ? AND n = ?", (key, call.n)):
        return
    _put_call(db, key, Record(call=call, exchange=exchange), canonical)
    # Its row says from now on that it runs.
    db.execute("DELETE FROM arrival WHERE rollout = ? AND n = ?", (key, call.n))
    _touch(db, key, [call])


def spool(db: apsw.Connection, rollout: str, n: int, spool: Spool) -> None:
    """Keep what a running call has brought so far; its prompt is written once, the rest anew each time."""
    key = _key(db, rollout)
    if key is None:
        return
    running = "SELECT n_prompt FROM call WHERE rollout = ? AND n = ? AND status = 'running'"
    row = query.first(db, running, (key, n))
    if row is None:
        return
    prompt = rows.ints(spool.prompt_ids)
    if prompt is not None and row[0] is None:
        db.execute(
            "UPDATE call SET holder = NULL, shared = NULL, n_prompt = ?, check_prompt = ?, tail = ?"
            " WHERE rollout = ? AND n = ?",
            (len(prompt) // 4, rows.check(prompt), prompt, key, n),
        )
    db.execute(
        "INSERT OR REPLACE INTO spool (rollout, n, logprobs, sampled) VALUES (?, ?, ?, ?)",
        (key, n, rows.floats(spool.logprobs), rows.ints(spool.sampled_ids)),
    )
    db.execute(_BUMP, (key,))


def finish(
    db: apsw.Connection, rollout: str, records: Sequence[Record], canonical: Canonical, *, fresh: bool = False
) -> None:
    """Store an ended call, all choices at once; an `ended` that is None is given out.

    `fresh`: nothing of it was written before, not even that it arrived.
    """
    holder = next((record.delta.holder for record in records if record.delta is not None), None)
    row = query.first(db, _HELD, (rollout, holder))
    if row is None:
        return
    key, length = row
    held: dict[int | None, int | None] = {holder: length}
    calls = [record.call for record in records]
    if any(call.ended is None for call in calls):
        arrived = max(call.arrived for call in calls)
        after = "UPDATE rollout SET tick = max(tick, ? + 1) + 1 WHERE key = ? RETURNING tick - 1"
        ended = query.value(db, after, (arrived, key))
        calls = [msgspec.structs.replace(call, ended=ended) if call.ended is None else call for call in calls]
    more_sampled = more_tokens = 0
    for call, record in zip(calls, records, strict=True):
        # One that was thought dead and ended after all was counted before.
        before = tally.NOTHING if fresh else tally.counted(db, key, call.n)
        delta = record.delta
        if delta is not None:
            if delta.holder not in held:
                held[delta.holder] = _held(db, key, delta.holder)
            if not _holds(delta, call, held[delta.holder]):
                # A prompt whose holder never came to be is stored whole.
                delta = None
        if call is not record.call or delta is not record.delta:
            record = Record(call=call, exchange=record.exchange, delta=delta)
        _put_call(db, key, record, canonical, alone=len(records) == 1)
        more_sampled += (call.status in ("complete", "aborted") and call.choice == 0) - before.sampled
        more_tokens += new_tokens(call, delta) - before.new_tokens
        if not fresh:
            db.execute("DELETE FROM spool WHERE rollout = ? AND n = ?", (key, call.n))
            db.execute("DELETE FROM arrival WHERE rollout = ? AND n = ?", (key, call.n))
    _touch(db, key, calls, sampled=more_sampled, new_tokens=more_tokens)


def deliver(db: apsw.Connection, rollout: str, numbers: Sequence[int], *, delivered: bool, at: str) -> None:
    """Add a delivery to calls; a call that reached its client once stays delivered."""
    db.execute("UPDATE rollout SET version = version + 1 WHERE id = ?", (rollout,))
    if not db.changes():
        return
    delivery = msgspec.json.encode({"at": at, "complete": delivered}).decode()
    for n in numbers:
        db.execute(
            "UPDATE exchange SET deliveries = iif(deliveries = '[]', '[', substr(deliveries, 1, length(deliveries) - 1)"
            " || ',') || ? || ']' WHERE rollout = (SELECT key FROM rollout WHERE id = ?) AND n = ?",
            (delivery, rollout, n),
        )
        if db.changes():
            db.execute(
                "UPDATE call SET delivered = max(coalesce(delivered, 0), ?)"
                " WHERE rollout = (SELECT key FROM rollout WHERE id = ?) AND n = ?",
                (int(delivered), rollout, n),
            )


def notice(db: apsw.Connection, rollout: str, notice: Notice, *, once: bool = False) -> None:
    """Keep a notice; with `once` not if one with its code and calls is there."""
    key = _key(db, rollout)
    if key is None:
        return
    if once:
        for (record,) in query.every(db, "SELECT record FROM notice WHERE rollout = ?", (key,)):
            known = rows.load(record, Notice)
            if (known.code, known.calls) == (notice.code, notice.calls):
                return
    db.execute("INSERT INTO notice (rollout, record) VALUES (?, ?)", (key, rows.dump(notice)))
    db.execute(_BUMP, (key,))


def recover(db: apsw.Connection) -> list[tuple[str, int]]:
    """End the calls that ran when the last process died, with what was spooled; return (rollout, n) of each."""
    running = query.every(
        db,
        "SELECT rollout.key, rollout.id, call.n FROM call JOIN rollout ON rollout.key = call.rollout"
        " WHERE call.status = 'running' ORDER BY rollout.key, call.n",
    )
    for key, _, n in running:
        _abort(db, key, n)
    db.execute("DELETE FROM arrival")
    db.execute("DELETE FROM spool")
    db.execute("DELETE FROM probe")
    return [(name, n) for _, name, n in running]


def abort(db: apsw.Connection, calls: Iterable[tuple[str, int]]) -> None:
    """End calls that run, with what was spooled; an arrival that never began leaves nothing."""
    for rollout, n in calls:
        key = _key(db, rollout)
        if key is None:
            continue
        db.execute("DELETE FROM arrival WHERE rollout = ? AND n = ?", (key, n))
        if query.first(db, "SELECT 1 FROM call WHERE rollout = ? AND n = ? AND status = 'running'", (key, n)):
            _abort(db, key, n)


def _abort(db: apsw.Connection, key: int, n: int) -> None:
    ended = query.value(db, "UPDATE rollout SET tick = tick + 1 WHERE key = ? RETURNING tick - 1", (key,))
    db.execute(
        "UPDATE call SET status = 'aborted', delivered = NULL, ended = ? WHERE rollout = ? AND n = ?", (ended, key, n)
    )
    row = query.first(db, "SELECT logprobs, sampled FROM spool WHERE rollout = ? AND n = ?", (key, n))
    if row is not None:
        logprobs, sampled = row
        db.execute(
            "UPDATE call SET n_sampled = ?, logprobs = ?, sampled = ? WHERE rollout = ? AND n = ?",
            (None if sampled is None else len(sampled) // 4, logprobs, sampled, key, n),
        )
        db.execute("DELETE FROM spool WHERE rollout = ? AND n = ?", (key, n))
    db.execute("UPDATE exchange SET error = coalesce(error, ?) WHERE rollout = ? AND n = ?", (_json(CRASHED), key, n))
    now = tally.counted(db, key, n)
    tally.spend(db, key, sampled=now.sampled, new_tokens=now.new_tokens)
    db.execute(_BUMP, (key,))


def _key(db: apsw.Connection, rollout: str) -> int | None:
    row = query.first(db, "SELECT key FROM rollout WHERE id = ?", (rollout,))
    return None if row is None else int(row[0])


def _entry(db: apsw.Connection, key: int) -> Entry:
    row = query.first(db, rows.SELECT_ENTRY + " WHERE key = ?", (key,))
    assert row is not None
    return rows.entry(row)


def _next(db: apsw.Connection, counter: str) -> int:
    return int(query.value(db, "UPDATE counter SET value = value + 1 WHERE name = ? RETURNING value", (counter,)))


def _add_one(db: apsw.Connection, entry: Entry) -> None:
    rollout = entry.rollout
    closed = _next(db, "closed") if rollout.state == "closed" else None
    db.execute(
        'INSERT INTO rollout (id, version, created, closed, state, "group", first_call_at, last_call_at, secret,'
        " tools_secret, record, registration) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            rollout.id,
            entry.version,
            _next(db, "created"),
            closed,
            rollout.state,
            rollout.group,
            rollout.first_call_at,
            rollout.last_call_at,
            entry.secret,
            entry.tools_secret,
            rows.dump_rollout(rollout),
            rows.dump(entry.registration),
        ),
    )
    _put_labels(db, db.last_insert_rowid(), rollout.labels)


def _put_labels(db: apsw.Connection, key: int, labels: Mapping[str, str]) -> None:
    db.executemany(
        "INSERT INTO label (rollout, name, value) VALUES (?, ?, ?)",
        [(key, name, value) for name, value in labels.items()],
    )


def _touch(db: apsw.Connection, key: int, calls: Sequence[Call], *, sampled: int = 0, new_tokens: int = 0) -> None:
    """Bump the version, stretch the rollout's counters and its first and last call over these, add what they spent."""
    number = tick = -1
    first = last = None
    for call in calls:
        number = max(number, call.n)
        tick = max(tick, call.arrived, -1 if call.ended is None else call.ended)
        if at := call.started_at:
            first = at if first is None else min(first, at)
            last = at if last is None else max(last, at)
    db.execute(
        "UPDATE rollout SET version = version + 1, next = max(next, ?2), tick = max(tick, ?3),"
        " sampled = sampled + ?4, new_tokens = new_tokens + ?5,"
        " first_call_at = coalesce(min(first_call_at, ?6), first_call_at, ?6),"
        " last_call_at = coalesce(max(last_call_at, ?7), last_call_at, ?7) WHERE key = ?1",
        (key, number + 1, tick + 1, sampled, new_tokens, first, last),
    )


def _put_call(db: apsw.Connection, key: int, record: Record, canonical: Canonical, *, alone: bool = True) -> None:
    """Store a call as it stands; `alone` if it is the only choice of its call."""
    call, exchange, delta = record.call, record.exchange, record.delta
    filing = Filing(db, key)
    parts = exchange.parts
    request = filing.body(exchange.request, parts=parts)
    sent = _note_sent(filing, exchange, request)
    top_logprobs = None if exchange.top_logprobs is None else filing.content(exchange.top_logprobs)
    undecoded = None if exchange.undecoded is None else filing.content(exchange.undecoded)
    # Several choices repeat the reply.
    several = filing.body(exchange.reply) if exchange.reply is not None and not alone else None
    said = _said(filing, call, exchange, request, sent, canonical)
    filing.write()
    chain, messages = (said.last, None) if isinstance(said, Chain) else (None, filing.key(said))
    sampled = rows.ints(call.sampled_ids)
    prompt = None if call.prompt_ids is None else rows.little(call.prompt_ids)
    # A long prompt is not copied for the few ids that it adds.
    tail = None if prompt is None else prompt[0 if delta is None else delta.shared :].tobytes()
    db.execute(
        "INSERT INTO call (rollout, n, status, delivered, arrived, ended, chain, messages, holder, shared, n_prompt,"
        " n_sampled, check_prompt, record, logprobs, sampled, tail)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (rollout, n) DO UPDATE SET status = excluded.status,"
        " delivered = coalesce(excluded.delivered, delivered), arrived = excluded.arrived, ended = excluded.ended,"
        " chain = excluded.chain, messages = excluded.messages, holder = excluded.holder, shared = excluded.shared,"
        " n_prompt = excluded.n_prompt, n_sampled = excluded.n_sampled, check_prompt = excluded.check_prompt,"
        " record = excluded.record, logprobs = excluded.logprobs, sampled = excluded.sampled, tail = excluded.tail",
        (
            key,
            call.n,
            call.status,
            None if call.delivered is None else int(call.delivered),
            call.arrived,
            call.ended,
            chain,
            messages,
            None if delta is None else delta.holder,
            None if delta is None else delta.shared,
            None if prompt is None else len(prompt),
            None if sampled is None else len(sampled) // 4,
            None if prompt is None else rows.check_of(prompt.data, delta),
            rows.dump_call(call),
            rows.floats(call.logprobs),
            sampled,
            tail,
        ),
    )
    if exchange.reply is None:
        reply = None
    else:
        reply = exchanges.reply(exchange.reply) if several is None else filing.stored(several)
    db.execute(
        "INSERT INTO exchange (rollout, n, top_logprobs, undecoded, error, deliveries, usage, request, sent, reply)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (rollout, n) DO UPDATE SET top_logprobs = excluded.top_logprobs,"
        " undecoded = excluded.undecoded, error = excluded.error,"
        " deliveries = CASE excluded.deliveries WHEN '[]' THEN deliveries ELSE excluded.deliveries END,"
        " usage = excluded.usage, request = excluded.request, sent = excluded.sent, reply = excluded.reply",
        (
            key,
            call.n,
            filing.key(top_logprobs),
            filing.key(undecoded),
            None if exchange.error is None else _json(exchange.error),
            _json(exchange.deliveries) if exchange.deliveries else "[]",
            exchange.usage,
            filing.stored(request),
            None if sent is None else filing.stored(sent),
            reply,
        ),
    )


def _note_sent(filing: Filing, exchange: Exchange, request: Body) -> Body | None:
    if exchange.sent is None:
        return None
    known = None if exchange.parts is None else exchange.parts.sent
    return filing.body(
        exchange.sent, base=request.fields, fields=known, parts=exchange.sent_parts if known is None else None
    )


def is_of(parts: Parts | None, call: Call) -> bool:
    """Say if a body's messages are the very ones that the call says."""
    return parts is not None and parts.messages is call.messages and bool(call.messages)


def _held(db: apsw.Connection, key: int, n: int) -> int | None:
    """Return the length of an ended call's prompt and sampled ids, None where it isn't stored."""
    ended = "SELECT n_prompt + coalesce(n_sampled, 0) FROM call WHERE rollout = ? AND n = ? AND status <> 'running'"
    row = query.first(db, ended, (key, n))
    return None if row is None else row[0]


def _holds(delta: Delta, call: Call, held: int | None) -> bool:
    """Tell whether a delta's holder, `held` ids long, is stored, ended, and long enough."""
    if held is None or delta.holder == call.n or call.prompt_ids is None:
        return False
    return 0 <= delta.shared <= min(len(call.prompt_ids), held)


def _said(
    filing: Filing, call: Call, exchange: Exchange, request: Body, sent: Body | None, canonical: Canonical
) -> Chain | bytes | None:
    """Return where the call's canonical messages are read from: a chain, the digest of a content, or nowhere.

    The chain is that of the `messages` in one of the bodies that passed, where their canonical form is what the call
    says: the request's, or, of a translated one, what the engine got. Messages of neither are stored in canonical form.
    """
    if is_of(exchange.parts, call):
        return request.chains["messages"]
    if sent is not None and is_of(exchange.sent_parts, call) and "messages" in sent.chains:
        return sent.chains["messages"]
    if not call.messages:
        return None
    for body in (request, sent):
        chain = None if body is None else body.chains.get("messages")
        if chain is not None and canonical.says(chain.names, chain.elements, call.messages):
            return chain
    return filing.content(rows.dump_messages(call.messages))


_json = json.JSONEncoder(separators=(",", ":")).encode
