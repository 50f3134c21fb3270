"""What changes of rollouts and their calls, and how it is written: a statement a table, for all of them.

`batch` fills these from what is stored, applies writes to them in memory, and has them written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from capture.store import rows
from capture.store.postgres.driver import Connection, columns
from capture.store.postgres.prepared import Row, as_json
from graph.records import Notice


class RolloutChange(msgspec.Struct, kw_only=True, eq=False):
    """What is there of a rollout, and what changes."""

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


class CallChange(msgspec.Struct, kw_only=True, eq=False):
    """What is there of a call, and what changes."""

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


Calls = Mapping[tuple[int, int], CallChange]
"""By the rollout's key and the call's number."""

Begun = tuple[int, int, int, str | None]
"""A call that began: rollout's key, number, arrival, engine."""


async def put_calls(db: Connection, calls: Calls) -> None:
    """Write calls whole, and what ends with them."""
    whole = [(key, n, call, call.row) for (key, n), call in calls.items() if call.row is not None]
    ends = [at for at, call in calls.items() if call.ends]
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


async def put_running(db: Connection, begun: Sequence[Begun], process: str) -> None:
    """Note that calls run, and where they went."""
    await db.execute(
        "INSERT INTO running (rollout, n, arrived, engine, process)"
        " SELECT rollout, n, arrived, engine, $5 FROM"
        " unnest($1::bigint[], $2::integer[], $3::bigint[], $4::text[]) AS begun (rollout, n, arrived, engine)"
        " ON CONFLICT (rollout, n) DO UPDATE SET engine = excluded.engine",
        *columns(begun, 4),
        process,
    )


async def put_marks(db: Connection, calls: Calls) -> None:
    """Write what changes of calls that are there: a prompt, what a stream brought, deliveries."""
    prompts = [
        (key, n, call.n_prompt, rows.check(call.prompt), call.prompt)
        for (key, n), call in calls.items()
        if call.prompt is not None and call.row is None
    ]
    if prompts:
        await db.execute(
            "UPDATE call SET holder = NULL, shared = NULL, n_prompt = new.n_prompt,"
            " check_prompt = new.check_prompt, tail = new.tail"
            " FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::bigint[], $5::bytea[])"
            " AS new (rollout, n, n_prompt, check_prompt, tail)"
            " WHERE call.rollout = new.rollout AND call.n = new.n",
            *columns(prompts, 5),
        )
    spools = [(key, n, *call.spool) for (key, n), call in calls.items() if call.spool is not None]
    if spools:
        await db.execute(
            "INSERT INTO spool (rollout, n, logprobs, sampled)"
            " SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bytea[], $4::bytea[])"
            " ON CONFLICT (rollout, n) DO UPDATE SET logprobs = excluded.logprobs, sampled = excluded.sampled",
            *columns(spools, 4),
        )
    marks = [
        (key, n, call.delivered, as_json(call.deliveries))
        for (key, n), call in calls.items()
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
            *columns(marks, 4),
        )


async def put_notices(
    db: Connection, notices: Sequence[tuple[int, Notice, bool]], rollouts: Iterable[RolloutChange]
) -> None:
    """Write notices by their rollout's key; one that is to be there `once` only if none with its code and calls is."""
    by_key = {rollout.key: rollout for rollout in rollouts}
    once = sorted({key for key, _, only in notices if only})
    said: set[tuple[int, str, tuple[int, ...]]] = set()
    if once:
        for key, record in await db.fetch("SELECT rollout, record FROM notice WHERE rollout = ANY($1::bigint[])", once):
            notice = rows.load(record, Notice)
            said.add((key, notice.code, notice.calls))
    new = []
    for key, notice, only in notices:
        if only and (key, notice.code, notice.calls) in said:
            continue
        said.add((key, notice.code, notice.calls))
        new.append((key, rows.dump(notice)))
        by_key[key].bumps += 1
    if new:
        await db.execute(
            "INSERT INTO notice (rollout, record) SELECT rollout, record"
            " FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS new (rollout, record, at) ORDER BY at",
            *columns(new, 2),
        )


async def put_rollouts(db: Connection, rollouts: Iterable[RolloutChange]) -> None:
    """Write what changes of rollouts."""
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
        for each in rollouts
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
            *columns(changed, 8),
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


def _columns(whole: Iterable[tuple[int, int, CallChange, Row]]) -> list[list[Any]]:
    return columns(
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
                None if row.prompt is None else rows.check_of(row.prompt, row.delta),
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
