"""Many writes about calls as a few statements, in one transaction that the writer opened.

    lock the rollouts, in one order ▸ load what is there of the calls ▸ apply each write in turn ▸ write what changed

Rules.
1. Every transaction locks its rollouts before anything else, by key. So no two of them wait for each other, and a
   rollout's counter and sums are ours until the commit. After them comes the lock that a sweep of contents excludes.
2. Writes are applied in the order in which they were handed over, in memory, to what was loaded; each row is then
   written once, however many writes it saw.
3. A write about a rollout that is gone does nothing, for it was deleted on purpose.
4. Nothing outlives the transaction, so a group may be run again.

Costs. Some ten round trips for a group of any size; look-ups of a dozen of a request's prefixes and of its long values.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container, Iterable, Sequence
from typing import Any

import msgspec

from capture.store import rows
from capture.store.base import Delta, new_tokens
from capture.store.postgres.driver import Connection
from capture.store.postgres.kept import Kept, pack
from capture.store.postgres.prepared import Begin, Brought, Deliver, Finish, Ready, Row, as_json
from capture.store.postgres.schema import LOCKS, SWEEPING
from graph.records import Notice

PACK_ASIDE = 256 * 1024
"""Bytes from which contents are packed in a thread."""


class _Rollout(msgspec.Struct, kw_only=True, eq=False):
    """What a batch changes of a rollout."""

    key: int
    tick: int
    next: int
    bumps: int = 0
    sampled: int = 0
    new_tokens: int = 0
    first_call_at: str | None = None
    last_call_at: str | None = None

    def touch(self, row: Row, ended: int | None) -> None:
        """Stretch the counters and the first and last call over a call."""
        call = row.call
        self.next = max(self.next, call.n + 1)
        self.tick = max(self.tick, call.arrived + 1, -1 if ended is None else ended + 1)
        if call.started_at:
            self.first_call_at = min(self.first_call_at or call.started_at, call.started_at)
            self.last_call_at = max(self.last_call_at or call.started_at, call.started_at)


class _Call(msgspec.Struct, kw_only=True, eq=False):
    """What is stored of a call, and what a batch changes of it."""

    stored: bool = False
    # Empty: it isn't there.
    status: str = ""
    choice: int = 0
    delivered: bool | None = None
    spent: int = 0
    n_prompt: int | None = None
    n_sampled: int | None = None
    # None: there is no exchange to hold them.
    deliveries: list[Any] | None = None

    # To be written whole.
    row: Row | None = None
    ended: int | None = None
    holder: int | None = None
    shared: int | None = None
    # To be written into a row that is there.
    prompt: bytes | None = None
    marked: bool = False
    spool: tuple[bytes | None, bytes | None] | None = None
    ends: bool = False

    @property
    def is_sampled(self) -> bool:
        return self.choice == 0 and self.status in ("complete", "aborted")


class Batch:
    """Some writes about calls, and the transaction that writes them."""

    def __init__(self, ready: Sequence[Ready], kept: Kept, *, process: str) -> None:
        """`process`: who runs the calls that begin."""
        self._ready = ready
        self._kept = kept
        self._process = process
        self._rollouts: dict[str, _Rollout] = {}
        self._calls: dict[tuple[int, int], _Call] = {}
        self._begun: list[tuple[int, int, int, str | None]] = []
        self._notices: list[tuple[int, Notice, bool]] = []

    def __repr__(self) -> str:
        return f"<Batch {len(self._ready)} writes, {self._kept!r}>"

    async def run(self, db: Connection) -> None:
        """Write it all, inside a transaction."""
        self._rollouts, self._calls, self._begun, self._notices = {}, {}, [], []
        await self._lock(db)
        if not self._rollouts:
            return
        await self._load(db)
        for write, made in self._ready:
            rollout = self._rollouts.get(write.rollout)
            if rollout is None:
                continue
            if isinstance(write, Begin):
                self._begin(rollout, made[0])
            elif isinstance(write, Brought):
                self._spool(rollout, write)
            elif isinstance(write, Finish):
                self._finish(rollout, made)
            elif isinstance(write, Deliver):
                self._deliver(rollout, write)
            else:
                self._notices.append((rollout.key, write.notice, write.once))
                rollout.bumps += not write.once
        await self._write_contents(db)
        await self._write_calls(db)
        await self._write_rest(db)
        await self._write_rollouts(db)

    # What is there

    async def _lock(self, db: Connection) -> None:
        found = await db.fetch(
            "SELECT id, key, tick, next FROM rollout WHERE id = ANY($1::text[]) ORDER BY key FOR NO KEY UPDATE",
            list({write.rollout for write, _ in self._ready}),
        )
        self._rollouts = {name: _Rollout(key=key, tick=tick, next=next_) for name, key, tick, next_ in found}
        if (self._kept.data or self._kept.chains) and found:
            await db.execute("SELECT pg_advisory_xact_lock_shared($1, $2)", LOCKS, SWEEPING)

    async def _load(self, db: Connection) -> None:
        for write, made in self._ready:
            rollout = self._rollouts.get(write.rollout)
            if rollout is None:
                continue
            numbers = {row.call.n for row in made} | {row.delta.holder for row in made if row.delta is not None}
            if isinstance(write, Brought):
                numbers.add(write.n)
            elif isinstance(write, Deliver):
                numbers.update(write.numbers)
            for n in numbers:
                self._calls.setdefault((rollout.key, n), _Call())
        if not self._calls:
            return
        found = await db.fetch(
            "SELECT call.rollout, call.n, status, choice, delivered, spent, n_prompt, n_sampled, deliveries"
            " FROM unnest($1::bigint[], $2::integer[]) AS asked (rollout, n)"
            " JOIN call ON call.rollout = asked.rollout AND call.n = asked.n"
            " LEFT JOIN exchange ON exchange.rollout = call.rollout AND exchange.n = call.n",
            [key for key, _ in self._calls],
            [n for _, n in self._calls],
        )
        for key, n, status, choice, delivered, spent, n_prompt, n_sampled, deliveries in found:
            self._calls[key, n] = _Call(
                stored=True,
                status=status,
                choice=choice,
                delivered=delivered,
                spent=spent,
                n_prompt=n_prompt,
                n_sampled=n_sampled,
                deliveries=None if deliveries is None else json.loads(deliveries),
            )

    # What each write does

    def _begin(self, rollout: _Rollout, row: Row) -> None:
        call = self._calls[rollout.key, row.call.n]
        if call.stored:
            return
        self._put(rollout, call, row, ended=row.call.ended)
        self._begun.append((rollout.key, row.call.n, row.call.arrived, row.call.engine))
        rollout.bumps += 1

    def _spool(self, rollout: _Rollout, write: Brought) -> None:
        call = self._calls[rollout.key, write.n]
        if call.status != "running":
            return
        prompt = rows.ints(write.spool.prompt_ids)
        if prompt is not None and call.n_prompt is None:
            call.n_prompt = len(prompt) // 4
            if call.row is not None:
                call.row = msgspec.structs.replace(call.row, prompt=prompt)
                call.holder = call.shared = None
            else:
                call.prompt = prompt
        call.spool = rows.floats(write.spool.logprobs), rows.ints(write.spool.sampled_ids)
        rollout.bumps += 1

    def _finish(self, rollout: _Rollout, made: Sequence[Row]) -> None:
        given: int | None = None
        for row in made:
            ended = row.call.ended
            if ended is None:
                if given is None:
                    given = max(rollout.tick, row.call.arrived + 1)
                    rollout.tick = given + 1
                ended = given
            call = self._calls[rollout.key, row.call.n]
            # One that was thought dead and ended after all was counted before.
            rollout.sampled -= call.is_sampled
            rollout.new_tokens -= call.spent
            self._put(rollout, call, row, ended=ended)
            rollout.sampled += call.is_sampled
            rollout.new_tokens += call.spent
            call.spool, call.ends, call.prompt = None, True, None
        rollout.bumps += 1

    def _deliver(self, rollout: _Rollout, write: Deliver) -> None:
        for n in write.numbers:
            call = self._calls[rollout.key, n]
            if call.deliveries is None:
                continue
            call.deliveries = [*call.deliveries, {"at": write.at, "complete": write.delivered}]
            call.delivered = bool(call.delivered) or write.delivered
            call.marked = True
        rollout.bumps += 1

    def _put(self, rollout: _Rollout, call: _Call, row: Row, *, ended: int | None) -> None:
        """Have a call written as it stands in `row`."""
        delta = row.delta
        length = None if row.prompt is None else len(row.prompt) // 4
        if delta is not None and not self._holds(rollout.key, row.call.n, delta, length):
            # A prompt whose holder never came to be is stored whole.
            delta = None
        call.row, call.stored, call.ended = row, True, ended
        call.holder, call.shared = (None, None) if delta is None else (delta.holder, delta.shared)
        call.status, call.choice = row.call.status, row.call.choice
        call.n_prompt = length
        call.n_sampled = None if row.sampled is None else len(row.sampled) // 4
        call.spent = 0 if call.status == "running" else new_tokens(row.call, delta)
        if row.call.delivered is not None:
            call.delivered = row.call.delivered
        call.deliveries = row.deliveries or call.deliveries or []
        rollout.touch(row, ended)

    def _holds(self, key: int, n: int, delta: Delta, length: int | None) -> bool:
        """Tell whether a delta's holder is stored, ended, and long enough."""
        held = self._calls.get((key, delta.holder))
        if held is None or delta.holder == n or held.status in ("", "running"):
            return False
        if length is None or held.n_prompt is None:
            return False
        return 0 <= delta.shared <= min(length, held.n_prompt + (held.n_sampled or 0))

    # What changed

    async def _write_contents(self, db: Connection) -> None:
        chains = [
            (self._rollouts[name].key, chain)
            for name, kept in self._kept.chains.items()
            if name in self._rollouts
            for chain in kept.values()
        ]
        uses = {
            (self._rollouts[name].key, content)
            for name, used in self._kept.used.items()
            if name in self._rollouts
            for content in used
        }
        if not chains and not uses:
            return
        asked = {(key, chain.links[at]) for key, chain in chains for at in _probes(len(chain.links))}
        there = {tuple(row) for row in await self._known(db, asked, {content for _, content in uses})}
        # What lies between the last that is there and the first that isn't was not asked; as a rule that is nothing.
        between = {
            (key, link)
            for key, chain in chains
            for link in chain.links[slice(*_between(key, chain.links, there, asked))]
        }
        if between:
            there |= {tuple(row) for row in await self._known(db, between, set())}
        data = {name: self._kept.data[name] for _, name in uses if (None, name) not in there}
        new: dict[tuple[int, bytes], tuple[bytes | None, bytes]] = {}
        for key, chain in chains:
            first, _ = _between(key, chain.links, there, asked | between)
            for at in range(first, len(chain.links)):
                name = chain.names[at]
                new[key, chain.links[at]] = (chain.links[at - 1] if at else None), name
                # Sent without asking: most are new, and the rest are a rollout's first few.
                data[name] = chain.elements[at]
                uses.add((key, name))
        names, in_order = sorted(data), sorted(uses)
        packed = await _packed([data[name] for name in names])
        await db.execute(
            "WITH c AS (INSERT INTO content (digest, packed, data)"
            "  SELECT * FROM unnest($1::bytea[], $2::text[], $3::bytea[]) ON CONFLICT DO NOTHING),"
            " u AS (INSERT INTO use (rollout, content)"
            "  SELECT * FROM unnest($4::bigint[], $5::bytea[]) ON CONFLICT DO NOTHING)"
            " INSERT INTO chain (rollout, digest, parent, content)"
            " SELECT * FROM unnest($6::bigint[], $7::bytea[], $8::bytea[], $9::bytea[])",
            names,
            *_turned(packed, 2),
            *_turned(in_order, 2),
            *_turned([(*link, *of) for link, of in new.items()], 4),
        )

    async def _known(self, db: Connection, links: set[tuple[int, bytes]], contents: set[bytes]) -> list[Any]:
        """Return those of some links, and (None, digest) for those of some contents, that are stored."""
        return await db.fetch(
            "SELECT asked.rollout, chain.digest FROM unnest($1::bigint[], $2::bytea[]) AS asked (rollout, digest)"
            " JOIN chain ON chain.rollout = asked.rollout AND chain.digest = asked.digest"
            " UNION ALL SELECT NULL, digest FROM content WHERE digest = ANY($3::bytea[])",
            *_turned(list(links), 2),
            list(contents),
        )

    async def _write_calls(self, db: Connection) -> None:
        whole = [(key, n, call, call.row) for (key, n), call in self._calls.items() if call.row is not None]
        ends = [at for at, call in self._calls.items() if call.ends]
        if whole:
            await db.execute(_PUT_CALLS, *_columns(whole))
        if ends:
            keys, numbers = [key for key, _ in ends], [n for _, n in ends]
            await db.execute(
                "WITH s AS (DELETE FROM spool USING unnest($1::bigint[], $2::integer[]) AS ended (rollout, n)"
                "  WHERE spool.rollout = ended.rollout AND spool.n = ended.n)"
                " DELETE FROM running USING unnest($1::bigint[], $2::integer[]) AS ended (rollout, n)"
                " WHERE running.rollout = ended.rollout AND running.n = ended.n",
                keys,
                numbers,
            )
        begun = [each for each in self._begun if not self._calls[each[0], each[1]].ends]
        if begun:
            await db.execute(
                "INSERT INTO running (rollout, n, arrived, engine, process)"
                " SELECT rollout, n, arrived, engine, $5 FROM"
                " unnest($1::bigint[], $2::integer[], $3::bigint[], $4::text[]) AS begun (rollout, n, arrived, engine)"
                " ON CONFLICT (rollout, n) DO UPDATE SET engine = excluded.engine",
                *_turned(begun, 4),
                self._process,
            )

    async def _write_rest(self, db: Connection) -> None:
        prompts = [
            (key, n, call.n_prompt, rows.check(call.prompt), call.prompt)
            for (key, n), call in self._calls.items()
            if call.prompt is not None and call.row is None
        ]
        if prompts:
            await db.execute(
                "UPDATE call SET holder = NULL, shared = NULL, n_prompt = new.n_prompt,"
                " check_prompt = new.check_prompt, tail = new.tail"
                " FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::bigint[], $5::bytea[])"
                " AS new (rollout, n, n_prompt, check_prompt, tail)"
                " WHERE call.rollout = new.rollout AND call.n = new.n",
                *_turned(prompts, 5),
            )
        spools = [(key, n, *call.spool) for (key, n), call in self._calls.items() if call.spool is not None]
        if spools:
            await db.execute(
                "INSERT INTO spool (rollout, n, logprobs, sampled)"
                " SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bytea[], $4::bytea[])"
                " ON CONFLICT (rollout, n) DO UPDATE SET logprobs = excluded.logprobs, sampled = excluded.sampled",
                *_turned(spools, 4),
            )
        marks = [
            (key, n, call.delivered, as_json(call.deliveries))
            for (key, n), call in self._calls.items()
            if call.marked and call.row is None
        ]
        if marks:
            await db.execute(
                "WITH new AS (SELECT * FROM unnest($1::bigint[], $2::integer[], $3::boolean[], $4::text[])"
                "  AS new (rollout, n, delivered, deliveries)),"
                " c AS (UPDATE call SET delivered = new.delivered FROM new"
                "  WHERE call.rollout = new.rollout AND call.n = new.n)"
                " UPDATE exchange SET deliveries = new.deliveries FROM new"
                " WHERE exchange.rollout = new.rollout AND exchange.n = new.n",
                *_turned(marks, 4),
            )
        if self._notices:
            await self._write_notices(db)

    async def _write_notices(self, db: Connection) -> None:
        once = sorted({key for key, _, only in self._notices if only})
        said: set[tuple[int, str, tuple[int, ...]]] = set()
        if once:
            for key, record in await db.fetch(
                "SELECT rollout, record FROM notice WHERE rollout = ANY($1::bigint[])", once
            ):
                notice = rows.load(record, Notice)
                said.add((key, notice.code, notice.calls))
        new = []
        for key, notice, only in self._notices:
            if only and (key, notice.code, notice.calls) in said:
                continue
            said.add((key, notice.code, notice.calls))
            new.append((key, rows.dump(notice)))
            for rollout in self._rollouts.values():
                rollout.bumps += only and rollout.key == key
        if new:
            await db.execute(
                "INSERT INTO notice (rollout, record) SELECT rollout, record"
                " FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS new (rollout, record, at) ORDER BY at",
                *_turned(new, 2),
            )

    async def _write_rollouts(self, db: Connection) -> None:
        changed = [
            (
                each.key,
                each.bumps,
                each.next,
                each.tick,
                each.sampled,
                each.new_tokens,
                each.first_call_at,
                each.last_call_at,
            )
            for each in self._rollouts.values()
            if each.bumps
        ]
        if changed:
            await db.execute(
                "UPDATE rollout SET version = version + new.bumps, next = new.next, tick = new.tick,"
                " sampled = rollout.sampled + new.sampled, new_tokens = rollout.new_tokens + new.new_tokens,"
                " first_call_at = least(rollout.first_call_at, new.first_call_at),"
                " last_call_at = greatest(rollout.last_call_at, new.last_call_at)"
                " FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::bigint[], $5::integer[], $6::bigint[],"
                " $7::text[], $8::text[])"
                " AS new (key, bumps, next, tick, sampled, new_tokens, first_call_at, last_call_at)"
                " WHERE rollout.key = new.key",
                *_turned(changed, 8),
            )


_PUT_CALLS = """
WITH e AS (
  INSERT INTO exchange (rollout, n, top_logprobs, undecoded, error, deliveries, usage, request, sent, reply)
  SELECT * FROM unnest($1::bigint[], $2::integer[], $20::bytea[], $21::bytea[], $22::text[], $23::text[],
    $24::bytea[], $25::bytea[], $26::bytea[], $27::bytea[])
  ON CONFLICT (rollout, n) DO UPDATE SET top_logprobs = excluded.top_logprobs, undecoded = excluded.undecoded,
    error = excluded.error, deliveries = excluded.deliveries, usage = excluded.usage, request = excluded.request,
    sent = excluded.sent, reply = excluded.reply
)
INSERT INTO call (rollout, n, status, choice, delivered, arrived, ended, chain, messages, holder, shared, n_prompt,
  n_sampled, check_prompt, spent, record, logprobs, sampled, tail)
SELECT * FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::integer[], $5::boolean[], $6::bigint[],
  $7::bigint[], $8::bytea[], $9::bytea[], $10::integer[], $11::integer[], $12::integer[], $13::integer[],
  $14::bigint[], $15::integer[], $16::text[], $17::bytea[], $18::bytea[], $19::bytea[])
ON CONFLICT (rollout, n) DO UPDATE SET status = excluded.status, choice = excluded.choice,
  delivered = excluded.delivered, arrived = excluded.arrived, ended = excluded.ended, chain = excluded.chain,
  messages = excluded.messages, holder = excluded.holder, shared = excluded.shared, n_prompt = excluded.n_prompt,
  n_sampled = excluded.n_sampled, check_prompt = excluded.check_prompt, spent = excluded.spent,
  record = excluded.record, logprobs = excluded.logprobs, sampled = excluded.sampled, tail = excluded.tail
"""


def _columns(whole: Iterable[tuple[int, int, _Call, Row]]) -> list[list[Any]]:
    return _turned(
        [
            (
                key,
                n,
                call.status,
                call.choice,
                call.delivered,
                row.call.arrived,
                call.ended,
                row.chain,
                row.messages,
                call.holder,
                call.shared,
                call.n_prompt,
                call.n_sampled,
                None if row.prompt is None else rows.check(row.prompt),
                call.spent,
                row.record,
                row.logprobs,
                row.sampled,
                row.prompt if row.prompt is None or call.shared is None else row.prompt[4 * call.shared :],
                row.top_logprobs,
                row.undecoded,
                row.error,
                as_json(call.deliveries),
                row.usage,
                row.request,
                row.sent,
                row.reply,
            )
            for key, n, call, row in whole
        ],
        27,
    )


def _turned(found: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Return rows as columns."""
    return [list(column) for column in zip(*found, strict=True)] if found else [[] for _ in range(width)]


def _probes(length: int) -> list[int]:
    """Return the places of a list's links to ask for: the last few, then ever fewer, and the first."""
    back = [1, 2, 3, 4, 5]
    while back[-1] < length:
        back.append(2 * back[-1])
    return sorted({max(0, length - each) for each in back}) if length else []


def _between(key: int, links: Sequence[bytes], there: Container[object], asked: Container[object]) -> tuple[int, int]:
    """Return the place behind the last link that is known to be there, and that of the first known not to be.

    A link is never there without those before it.
    """
    first, until = 0, len(links)
    for at in range(len(links) - 1, -1, -1):
        if (key, links[at]) in there:
            first = at + 1
            break
        if (key, links[at]) in asked:
            until = at
    return first, until


async def _packed(data: list[bytes]) -> list[tuple[str | None, bytes]]:
    if sum(map(len, data)) < PACK_ASIDE:
        return [pack(one) for one in data]
    return await asyncio.to_thread(lambda: [pack(one) for one in data])
