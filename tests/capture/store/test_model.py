"""The store against a dictionary: any order of writes, with closes between, reads back as what was written.

What is between two reads is handed over without waiting, so the writes of a step share groups as they happen to.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from capture.store.base import Delta, EngineState, Entry, Query, Record, Spent, Spool, new_tokens
from graph.records import Call, Notice, Stop
from tests.capture.store.places import FilePlace, Place, with_database
from tests.capture.store.samples import NOW, as_json, ended, entry, parsed, plain, request
from tests.capture.store.samples import call as running_call

if TYPE_CHECKING:
    from tests.postgres import Server

TEXTS = st.lists(st.sampled_from(["a", "b", "long " * 80]), max_size=4)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6).map(lambda tokens: np.array(tokens, np.int32))
LOGPROBS = st.lists(st.floats(width=32), max_size=6).map(lambda values: np.array(values, np.float32))
EXTRA = st.dictionaries(
    st.sampled_from(["seed", "tools", "n"]), st.sampled_from([1, 10**30, "x" * 300, None]), max_size=2
)


ENDS = st.fixed_dictionaries(
    {
        "status": st.sampled_from(["complete", "aborted", "error"]),
        "tail": st.none() | IDS,
        "sampled": st.none() | IDS,
        "logprobs": st.none() | LOGPROBS,
        "choose": st.integers(0, 100),
        "sent": st.none() | EXTRA,
        "given_out": st.booleans(),
        "reply": st.none() | st.sampled_from([b'{"id":"x"}', b"not json", b'{"choices":["' + b"z" * 400 + b'"]}']),
    }
)


class Kept:
    """What the model knows of one rollout."""

    def __init__(self, kept: Entry) -> None:
        self.entry = kept
        self.calls: dict[int, Call] = {}
        self.requests: dict[int, bytes] = {}
        self.records: dict[int, Record] = {}
        self.deliveries: dict[int, list[dict[str, Any]]] = {}
        self.notices: list[Notice] = []
        # The next number, and the next reading of the counter.
        self.next = self.tick = 0
        # Arrivals that have not begun.
        self.arrived: set[int] = set()
        # What each ended call counts as.
        self.spent: dict[int, int] = {}
        self.sealed = 0
        self.called = False

    def see(self, call: Call) -> None:
        """Move the counters behind a call."""
        self.next = max(self.next, call.n + 1)
        self.tick = max(self.tick, call.arrived + 1, -1 if call.ended is None else call.ended + 1)

    def end(self) -> int:
        """Give out the reading at an end."""
        self.tick += 1
        return self.tick - 1

    def abort(self, n: int) -> None:
        """End a call that runs."""
        call = self.calls[n] = msgspec.structs.replace(
            self.calls[n], status="aborted", delivered=None, ended=self.end()
        )
        self.spent[n] = new_tokens(call, None)

    @property
    def running(self) -> list[int]:
        return sorted(self.arrived | {n for n, call in self.calls.items() if call.status == "running"})


class StoreMachine(RuleBasedStateMachine):
    rollouts = Bundle("rollouts")
    running = Bundle("running")
    # PostgreSQL; None is SQLite.
    server: "Server | None" = None

    @initialize(target=rollouts)
    def start(self):
        self.loop = asyncio.Runner()
        self.stack = contextlib.ExitStack()
        if self.server is None:
            self.place: Place = FilePlace(Path(self.stack.enter_context(tempfile.TemporaryDirectory())))
        else:
            held = with_database(self.server)
            self.place = self.loop.run(held.__aenter__())
            self.stack.callback(lambda: self.loop.run(held.__aexit__(None, None, None)))
        self.kept: dict[str, Kept] = {}
        self.created: list[str] = []
        self.closed: list[str] = []
        self.named = 0
        self.engines: dict[str, EngineState] = {}
        self.open()
        return multiple(*(self.add(1, None, "x") for _ in range(2)))

    def open(self) -> None:
        self.store = self.place.store(durability="none")
        self.loop.run(self.store.open())

    def teardown(self):
        if hasattr(self, "store"):
            self.read_all()
            self.loop.run(self.store.close())
            self.stack.close()
            self.loop.close()

    @rule(target=rollouts, n=st.integers(1, 2), group=st.none() | st.sampled_from("gh"), label=st.sampled_from("xy"))
    def add(self, n, group, label):
        entries = [entry(f"r{self.named + at}", group=group, labels={"l": label}) for at in range(n)]
        self.named += n
        self.loop.run(self.store.add(entries))
        for added in entries:
            self.kept[added.rollout.id] = Kept(added)
            self.created.append(added.rollout.id)
        return entries[0].rollout.id

    @rule(target=running, name=rollouts, texts=TEXTS, extra=EXTRA)
    def begin(self, name, texts, extra):
        """A call that was numbered by its process, as where there is but one."""
        kept = self.kept.get(name)
        n = kept.next if kept else 0
        return self._begun(name, running_call(n, b"{}", arrived=kept.tick if kept else 0), texts, extra)

    @rule(target=running, name=rollouts, choices=st.integers(0, 2), texts=st.none() | TEXTS, extra=EXTRA)
    def arrive(self, name, choices, texts, extra):
        """A call that was numbered by the store; without texts it ends before it begins."""
        kept = self.kept.get(name)
        found = self.loop.run(self.store.arrive(name, choices=choices, started_at=NOW))
        if kept is None or kept.sealed or kept.entry.rollout.state == "closed":
            assert found is None
            return multiple()
        assert (found.n, found.arrived) == (kept.next, kept.tick)
        kept.next += max(1, choices)
        kept.tick += 1
        kept.arrived.add(found.n)
        sampled = sum(call.status in ("complete", "aborted") for call in kept.calls.values())
        assert found.spent == Spent(
            sampled=sampled, running=len(kept.running), new_tokens=sum(kept.spent.values()), first_call_at=NOW
        )
        assert found.engines == self.engines
        kept.called = True
        self.same_entry(found.entry, kept)
        started = running_call(found.n, b"{}", arrived=found.arrived)
        if texts is None:
            return name, started, request("never begun", **extra)
        return self._begun(name, started, texts, extra)

    def _begun(self, name, started, texts, extra):
        body = request(*texts, **extra)
        begun = running_call(started.n, body, arrived=started.arrived)
        self.store.begin(name, begun, body)
        if (kept := self.kept.get(name)) is not None:
            kept.arrived.discard(begun.n)
            kept.calls[begun.n], kept.requests[begun.n], kept.deliveries[begun.n] = begun, body, []
            kept.see(begun)
            kept.called = True
        return name, started, body

    @rule(at=running, prompt=st.none() | IDS, sampled=st.none() | IDS, logprobs=st.none() | LOGPROBS)
    def spool(self, at, prompt, sampled, logprobs):
        name, n = at[0], at[1].n
        self.store.spool(name, n, Spool(prompt_ids=prompt, sampled_ids=sampled, logprobs=logprobs))
        kept = self.kept.get(name)
        if kept and n in kept.calls and kept.calls[n].status == "running":
            old = kept.calls[n]
            kept.calls[n] = msgspec.structs.replace(
                old,
                prompt_ids=old.prompt_ids if old.prompt_ids is not None else prompt,
                sampled_ids=sampled,
                logprobs=logprobs,
            )

    @rule(at=consumes(running), end=ENDS)
    def finish(self, at, end):
        self._finish(at, **end)

    @rule(
        name=rollouts,
        choices=st.integers(0, 2),
        texts=TEXTS,
        extra=EXTRA,
        end=ENDS,
        delivered=st.none() | st.booleans(),
    )
    def call(self, name, choices, texts, extra, end, delivered):
        """A call from its arrival to its delivery, with nothing between: most are."""
        at = self.arrive(name, choices, texts, extra)
        if isinstance(at, tuple):
            self._finish(at, **end)
            if delivered is not None:
                self._deliver(name, at[1].n, delivered)

    def _finish(self, at, status, tail, sampled, logprobs, choose, sent, given_out, reply):
        name, started, body = at
        n, kept = started.n, self.kept.get(name)
        delta, prompt = None, tail
        holders = [call for call in kept.calls.values() if call.prompt_ids is not None] if kept else []
        if tail is not None and holders and choose % 4:
            # Some of them still run, which the store has to notice.
            holder = holders[choose % len(holders)]
            parts = [holder.prompt_ids, holder.sampled_ids if holder.sampled_ids is not None else holder.prompt_ids[:0]]
            stream = np.concatenate(parts)
            shared = choose % (len(stream) + 1)
            delta, prompt = Delta(holder=holder.n, shared=shared), np.concatenate([stream[:shared], tail])
        record = ended(
            running_call(n, body, arrived=started.arrived),
            body,
            ended=None if given_out or kept is None else kept.tick,
            delta=delta,
            status=status,
            prompt_ids=prompt,
            sampled_ids=sampled,
            logprobs=logprobs,
            sent=None if sent is None else json.dumps(json.loads(body) | sent).encode(),
            reply=reply,
        )
        if choose % 3:
            self.loop.run(self.store.finish(name, [record]))
        else:
            # In a group with whatever was handed over, and with what comes next.
            self.loop.run(self.together(self.store.finish(name, [record]), self.store.flush()))
        if kept:
            delivered = kept.calls[n].delivered if n in kept.calls else None
            if delta is not None and (delta.holder == n or kept.calls[delta.holder].status == "running"):
                delta = None
            kept.arrived.discard(n)
            kept.calls[n] = msgspec.structs.replace(
                record.call, delivered=delivered, ended=kept.end() if record.call.ended is None else record.call.ended
            )
            kept.see(kept.calls[n])
            kept.spent[n] = new_tokens(record.call, delta)
            kept.records[n] = record
            kept.requests[n] = body
            kept.deliveries.setdefault(n, [])
            kept.called = True

    @rule(
        name=rollouts,
        what=st.one_of(
            st.tuples(st.just("_abort"), st.sets(st.integers(0, 5))),
            st.tuples(st.just("_seal"), st.booleans()),
            st.tuples(st.just("_stop"), st.integers(0, 3), st.sampled_from(["max_calls", "deadline_s"])),
            st.tuples(st.just("_deliver"), st.integers(0, 5), st.booleans()),
            st.tuples(st.just("_notice"), st.sampled_from("xy")),
        ),
    )
    def do(self, name, what):
        """A small thing: one rule for all of them, so that they don't crowd out the calls."""
        getattr(self, what[0])(name, *what[1:])

    def _abort(self, name, numbers):
        self.loop.run(self.store.abort([(name, n) for n in sorted(numbers)]))
        if (kept := self.kept.get(name)) is not None:
            kept.arrived -= numbers
            for n in sorted(numbers):
                if n in kept.calls and kept.calls[n].status == "running":
                    kept.abort(n)

    def _seal(self, name, cut):
        self.loop.run(self.store.seal(name, cut=cut))
        if (kept := self.kept.get(name)) is not None:
            kept.sealed = max(kept.sealed, 1 + cut)

    def _stop(self, name, n, limit):
        kept = self.kept.get(name)
        before = kept.entry.rollout.stopped if kept else None
        expected = Stop(limit=limit, at_call=before.at_call if before else n, stops=1 + (before.stops if before else 0))
        assert self.loop.run(self.store.stop(name, n, limit)) == expected
        if kept:
            rollout = msgspec.structs.replace(kept.entry.rollout, stopped=expected)
            kept.entry = msgspec.structs.replace(kept.entry, rollout=rollout)

    @rule(name=st.sampled_from("ef"), held=st.none() | st.booleans(), version=st.none() | st.sampled_from(["1", "2"]))
    def set_engine(self, name, held, version):
        self.loop.run(self.store.set_engine(name, held=held, version=version))
        old = self.engines.get(name, EngineState())
        self.engines[name] = EngineState(
            held=old.held if held is None else held, version=old.version if version is None else version
        )

    async def together(self, *works: Awaitable[None]) -> None:
        await asyncio.gather(*works)

    def _deliver(self, name, n, delivered):
        self.store.deliver(name, [n], delivered=delivered, at=NOW)
        kept = self.kept.get(name)
        if kept and n in kept.calls:
            old = kept.calls[n]
            kept.calls[n] = msgspec.structs.replace(old, delivered=bool(old.delivered) or delivered)
            kept.deliveries[n].append({"at": NOW, "complete": delivered})

    def _notice(self, name, code):
        notice = Notice(code=code, calls=(0,))
        self.store.notice(name, notice)
        if name in self.kept:
            self.kept[name].notices.append(notice)

    @rule(
        name=rollouts, reward=st.none() | st.floats(allow_nan=False), close=st.booleans(), label=st.sampled_from("xy")
    )
    def change(self, name, reward, close, label):
        changes = {"reward": reward, "labels": {"l": label}} | ({"state": "closed", "closed_at": NOW} if close else {})
        changed = self.loop.run(self.store.change(name, changes))
        kept = self.kept.get(name)
        if kept is None:
            assert changed is None
            return
        if close and kept.entry.rollout.state == "open":
            self.closed.append(name)
        kept.entry = msgspec.structs.replace(kept.entry, rollout=msgspec.structs.replace(kept.entry.rollout, **changes))
        self.same_entry(changed, kept)

    @rule(name=consumes(rollouts))
    def delete(self, name):
        assert self.loop.run(self.store.delete(name)) == (name in self.kept)
        if self.kept.pop(name, None):
            self.created.remove(name)
            if name in self.closed:
                self.closed.remove(name)

    @precondition(lambda self: self.kept)
    @rule()
    def reopen(self):
        self.loop.run(self.store.close())
        self.open()
        recovered = []
        for name in self.created:
            kept = self.kept[name]
            kept.arrived.clear()
            for n in kept.running:
                kept.abort(n)
                recovered.append((name, n))
        assert self.store.recovered == tuple(recovered)

    @rule()
    def read_all(self):
        for name, kept in self.kept.items():
            self.same_entry(self.loop.run(self.store.get(name)), kept)
            calls = self.loop.run(self.store.calls(name))
            assert [plain(call) for call in calls] == [plain(kept.calls[n]) for n in sorted(kept.calls)]
            for n in kept.calls:
                found = as_json(self.loop.run(self.store.exchange(name, n)))
                assert found["deliveries"] == tuple(kept.deliveries[n])
                if n in kept.records:
                    assert found == as_json(kept.records[n].exchange) | {"deliveries": tuple(kept.deliveries[n])}
                else:
                    assert found["request"] == parsed(kept.requests[n])
            assert self.loop.run(self.store.notices(name)) == kept.notices
            assert self.loop.run(self.store.running(name)) == [(name, n) for n in kept.running]
        assert self.loop.run(self.store.engines()) == self.engines
        assert self.loop.run(self.store.running()) == [
            (name, n) for name in self.created for n in self.kept[name].running
        ]
        assert self.loop.run(self.store.sealed()) == {
            name: kept.sealed > 1
            for name, kept in self.kept.items()
            if kept.sealed and kept.entry.rollout.state == "open"
        }

    @rule(
        limit=st.integers(1, 3), label=st.none() | st.sampled_from("xy"), order=st.sampled_from(["created", "closed"])
    )
    def list_all(self, limit, label, order):
        found, after = [], None
        while True:
            asked = Query(order=order, limit=limit, after=after, labels={} if label is None else {"l": label})
            page = self.loop.run(self.store.page(asked))
            found += [entry.rollout.id for entry in page.entries]
            after = page.next
            if after is None or not page.entries:
                break
        names = self.created if order == "created" else self.closed
        assert found == [name for name in names if label is None or self.kept[name].entry.rollout.labels["l"] == label]

    def same_entry(self, found: Entry | None, kept: Kept) -> None:
        """Compare but for what the store keeps by itself: the version, and the times of the first and last call."""
        at = NOW if kept.called else None
        rollout = msgspec.structs.replace(kept.entry.rollout, first_call_at=at, last_call_at=at)
        assert found is not None
        assert found.version >= kept.entry.version
        kept.entry = msgspec.structs.replace(kept.entry, version=found.version)
        assert found == msgspec.structs.replace(kept.entry, rollout=rollout)


# Drawn histories of 30 steps; each step on PostgreSQL is a transaction, and each history a database of its own.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sort", ["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
def test_any_order_of_writes_reads_back_as_the_model_says(request, sort):
    class Machine(StoreMachine):
        server = None if sort == "sqlite" else request.getfixturevalue("postgres")

    examples = 60 if sort == "sqlite" else 20
    # A database for each example: to make a failing one small would take minutes.
    phases = tuple(Phase) if sort == "sqlite" else (Phase.explicit, Phase.generate)
    chosen = settings(max_examples=examples, stateful_step_count=30, deadline=None, phases=phases)
    run_state_machine_as_test(Machine, settings=chosen)
