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
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from capture.store.base import Delta, Entry, Query, Record, Spool
from graph.records import Call, Notice
from tests.capture.store.places import FilePlace, Place, with_database
from tests.capture.store.samples import NOW, as_json, call, ended, entry, parsed, plain, request

if TYPE_CHECKING:
    from tests.postgres import Server

TEXTS = st.lists(st.sampled_from(["a", "b", "long " * 80]), max_size=4)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6).map(lambda tokens: np.array(tokens, np.int32))
LOGPROBS = st.lists(st.floats(width=32), max_size=6).map(lambda values: np.array(values, np.float32))
EXTRA = st.dictionaries(
    st.sampled_from(["seed", "tools", "n"]), st.sampled_from([1, 10**30, "x" * 300, None]), max_size=2
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


class StoreMachine(RuleBasedStateMachine):
    rollouts = Bundle("rollouts")
    running = Bundle("running")
    # PostgreSQL; None is SQLite.
    server: "Server | None" = None

    @initialize()
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
        self.open()

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
        kept = self.kept.get(name)
        n = len(kept.calls) if kept else 0
        body = request(*texts, **extra)
        begun = call(n, body)
        self.store.begin(name, begun, body)
        if kept:
            kept.calls[n], kept.requests[n], kept.deliveries[n] = begun, body, []
        return name, n, body

    @rule(at=running, prompt=st.none() | IDS, sampled=st.none() | IDS, logprobs=st.none() | LOGPROBS)
    def spool(self, at, prompt, sampled, logprobs):
        name, n, _ = at
        self.store.spool(name, n, Spool(prompt_ids=prompt, sampled_ids=sampled, logprobs=logprobs))
        kept = self.kept.get(name)
        if kept and n not in kept.records and kept.calls[n].status == "running":
            old = kept.calls[n]
            kept.calls[n] = msgspec.structs.replace(
                old,
                prompt_ids=old.prompt_ids if old.prompt_ids is not None else prompt,
                sampled_ids=sampled,
                logprobs=logprobs,
            )

    @rule(
        at=consumes(running),
        status=st.sampled_from(["complete", "aborted", "error"]),
        tail=st.none() | IDS,
        sampled=st.none() | IDS,
        logprobs=st.none() | LOGPROBS,
        choose=st.integers(0, 100),
        sent=st.none() | EXTRA,
        reply=st.none() | st.sampled_from([b'{"id":"x"}', b"not json", b'{"choices":["' + b"z" * 400 + b'"]}']),
    )
    def finish(self, at, status, tail, sampled, logprobs, choose, sent, reply):
        name, n, body = at
        kept = self.kept.get(name)
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
            call(n, body),
            body,
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
            delivered = kept.calls[n].delivered
            kept.calls[n] = msgspec.structs.replace(record.call, delivered=delivered)
            kept.records[n] = record

    async def together(self, *works: Awaitable[None]) -> None:
        await asyncio.gather(*works)

    @rule(name=rollouts, n=st.integers(0, 5), delivered=st.booleans())
    def deliver(self, name, n, delivered):
        self.store.deliver(name, [n], delivered=delivered, at=NOW)
        kept = self.kept.get(name)
        if kept and n in kept.calls:
            old = kept.calls[n]
            kept.calls[n] = msgspec.structs.replace(old, delivered=bool(old.delivered) or delivered)
            kept.deliveries[n].append({"at": NOW, "complete": delivered})

    @rule(name=rollouts, code=st.sampled_from(["x", "y"]))
    def notice(self, name, code):
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
            running = [n for n in sorted(kept.calls) if kept.calls[n].status == "running"]
            counter = max((max(call.arrived, call.ended or 0) for call in kept.calls.values()), default=0)
            for n in running:
                counter += 1
                kept.calls[n] = msgspec.structs.replace(kept.calls[n], status="aborted", delivered=None, ended=counter)
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
        at = NOW if kept.calls else None
        rollout = msgspec.structs.replace(kept.entry.rollout, first_call_at=at, last_call_at=at)
        assert found is not None
        assert found.version >= kept.entry.version
        kept.entry = msgspec.structs.replace(kept.entry, version=found.version)
        assert found == msgspec.structs.replace(kept.entry, rollout=rollout)


@pytest.mark.parametrize("sort", ["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
def test_any_order_of_writes_reads_back_as_the_model_says(request, sort):
    class Machine(StoreMachine):
        server = None if sort == "sqlite" else request.getfixturevalue("postgres")

    run_state_machine_as_test(Machine, settings=settings(max_examples=40, stateful_step_count=30, deadline=None))
