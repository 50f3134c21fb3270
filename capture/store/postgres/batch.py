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

import json
from collections.abc import Sequence

import msgspec

from capture.store import rows
from capture.store.base import Delta, new_tokens
from capture.store.postgres import changes, contents
from capture.store.postgres.changes import Begun, CallChange, RolloutChange
from capture.store.postgres.driver import Connection
from capture.store.postgres.kept import Kept
from capture.store.postgres.prepared import Begin, Brought, Deliver, Finish, Ready, Row
from capture.store.postgres.schema import LOCKS, SWEEPING
from graph.records import Notice


class Batch:
    """Some writes about calls, and the transaction that writes them."""

    def __init__(self, ready: Sequence[Ready], kept: Kept, *, process: str) -> None:
        """`process`: who runs the calls that begin."""
        self._ready = ready
        self._kept = kept
        self._process = process
        self._rollouts: dict[str, RolloutChange] = {}
        self._calls: dict[tuple[int, int], CallChange] = {}
        self._begun: list[Begun] = []
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
        await contents.put(db, self._kept, {name: each.key for name, each in self._rollouts.items()})
        await changes.put_calls(db, self._calls)
        begun = [each for each in self._begun if not self._calls[each[0], each[1]].ends]
        if begun:
            await changes.put_running(db, begun, self._process)
        await changes.put_marks(db, self._calls)
        if self._notices:
            await changes.put_notices(db, self._notices, self._rollouts.values())
        await changes.put_rollouts(db, self._rollouts.values())

    # What is there

    async def _lock(self, db: Connection) -> None:
        found = await db.fetch(
            "SELECT id, key, tick, next FROM rollout WHERE id = ANY($1::text[]) ORDER BY key FOR NO KEY UPDATE",
            list({write.rollout for write, _ in self._ready}),
        )
        self._rollouts = {name: RolloutChange(key=key, tick=tick, next=next_) for name, key, tick, next_ in found}
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
                self._calls.setdefault((rollout.key, n), CallChange())
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
            self._calls[key, n] = CallChange(
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

    def _begin(self, rollout: RolloutChange, row: Row) -> None:
        call = self._calls[rollout.key, row.call.n]
        if call.stored:
            return
        self._put(rollout, call, row, ended=row.call.ended)
        self._begun.append((rollout.key, row.call.n, row.call.arrived, row.call.engine))
        rollout.bumps += 1

    def _spool(self, rollout: RolloutChange, write: Brought) -> None:
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

    def _finish(self, rollout: RolloutChange, made: Sequence[Row]) -> None:
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

    def _deliver(self, rollout: RolloutChange, write: Deliver) -> None:
        for n in write.numbers:
            call = self._calls[rollout.key, n]
            if call.deliveries is None:
                continue
            call.deliveries = [*call.deliveries, {"at": write.at, "complete": write.delivered}]
            call.delivered = bool(call.delivered) or write.delivered
            call.marked = True
        rollout.bumps += 1

    def _put(self, rollout: RolloutChange, call: CallChange, row: Row, *, ended: int | None) -> None:
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
