"""Any store as its users see it: what goes in comes out, whatever happens."""

import asyncio
import json

import msgspec
import numpy as np
import pytest

from capture.errors import StoreError
from capture.store.base import Delta, Registration, Spool
from graph.messages import from_chat
from graph.records import Notice, Stop, Weights, WeightSpan
from tests.capture.store.places import FilePlace, opened
from tests.capture.store.samples import (
    NOW,
    as_json,
    call,
    ended,
    entry,
    ids,
    listed,
    logprobs,
    parsed,
    plain,
    request,
)


async def test_every_field_of_a_call_comes_back(store):
    body = request("hello", seed=10**30, tools=[{"type": "function", "function": {"name": "f" * 300}}])
    sent = body[:-1] + b', "logprobs": true}'
    running = call(
        3,
        body,
        id="chatcmpl-1",
        streamed=True,
        engine="http://e",
        model_asked="m",
        tools="abc",
        tool_names=("f",),
        body="digest",
        usage_prompt=3,
        usage_sampled=2,
        sampling_asked={"seed": 10**30, "stop": ["\ud800"]},
        sampling_sent={"temperature": 0.1, "logit_bias": {"7": -1}},
        constrained=("response_format",),
        repairs=("tool_call_id",),
        weights=Weights(start="1", end="2", spans=(WeightSpan(version="1", start=0, end=2),)),
        hints={"x-treering-role": "main"},
        queued_ms=0.5,
        first_token_ms=1.25,
        dialect="responses",
        choice=1,
        reply=call(0, request("yes")).messages[0],
    )
    record = ended(
        running,
        body,
        delivered=False,
        finish_reason="stop",
        ended_ms=9.0,
        prompt_ids=ids(1, 2, 3),
        sampled_ids=ids(4, 5),
        logprobs=logprobs(-0.5, float("nan")),
        sent=sent,
        reply=b'{"choices":[{"message":{"content":"yes"}}],"created":1.50}',
        error={"blame": "engine", "status": 500, "message": "no"},
        usage=b'{"prompt_tokens":3}',
        top_logprobs=b"[[]]",
        undecoded=b"\xff\x00",
        deliveries=({"at": NOW, "complete": False},),
    )
    await store.add([entry("r")])
    await store.finish("r", [record])
    (found,) = await store.calls("r")
    assert plain(found) == plain(record.call)
    assert as_json(await store.exchange("r", 3)) == as_json(record.exchange)


async def test_what_the_engine_did_not_give_is_none_and_what_it_gave_empty_is_empty(store):
    body = request("hello")
    await store.add([entry("r")])
    absent = ended(call(0, body), body)
    empty = ended(call(1, body), body, prompt_ids=ids(), sampled_ids=ids(), logprobs=logprobs())
    await store.finish("r", [absent])
    await store.finish("r", [empty])
    first, second = await store.calls("r")
    assert (first.prompt_ids, first.sampled_ids, first.logprobs) == (None, None, None)
    assert [second.prompt_ids.tolist(), second.sampled_ids.tolist(), second.logprobs.tolist()] == [[], [], []]
    assert (second.prompt_ids.dtype, second.logprobs.dtype) == (np.int32, np.float32)


async def test_arrays_of_unequal_length_are_not_cut_to_the_shorter(store):
    body = request("hello")
    await store.add([entry("r")])
    await store.finish("r", [ended(call(0, body), body, sampled_ids=ids(1, 2, 3), logprobs=logprobs(-1))])
    (found,) = await store.calls("r")
    assert (len(found.sampled_ids), len(found.logprobs)) == (3, 1)


async def test_choices_of_one_call_are_entries_of_their_own_and_share_their_content(store, place):
    body = request("pick " * 100)
    await store.add([entry("r")])
    store.begin("r", call(0, body), body)
    one = ended(
        call(0, body, id="x"), body, prompt_ids=ids(1, 2, 3), sampled_ids=ids(4), reply=b'{"a":"%s"}' % (b"z" * 500)
    )
    two = ended(
        call(1, body, id="x", choice=1),
        body,
        prompt_ids=ids(1, 2, 3),
        sampled_ids=ids(5),
        reply=b'{"a":"%s"}' % (b"z" * 500),
        delta=Delta(holder=0, shared=3),
    )
    await store.finish("r", [one, two])
    assert [plain(found) for found in await store.calls("r")] == [plain(one.call), plain(two.call)]
    assert await place.sql("SELECT count(*) FROM content") == [(2,)]


async def test_a_rollout_comes_back_with_all_that_was_set(store):
    given_entry = msgspec.structs.replace(
        entry("r", group="g", labels={"split": "train"}, limits={"max_calls": 3}, task="do it", pins={"seed": 1}),
        registration=Registration(
            engine="http://e", allow=("priority",), task_data={"a": [1]}, task_private="gold", ttl_s=5.0, body="d"
        ),
        version=7,
    )
    await store.add([given_entry])
    assert await store.get("r") == given_entry
    assert await store.by_secret(given_entry.secret) == (given_entry, "agent")
    assert await store.by_secret(given_entry.tools_secret) == (given_entry, "tools")
    assert await store.by_secret(b"other") is None
    assert await store.get("other") is None
    changed = await store.change(
        "r",
        {
            "reward": 0.5,
            "roles": {3: "main"},
            "stopped": Stop(limit="max_calls", at_call=3, stops=1),
            "incomplete": True,
            "per_call_rewards": {"x#1": -1.0},
            "reward_details": {"why": None},
        },
    )
    assert changed is not None
    assert changed.rollout.roles == {3: "main"}
    assert changed.version == 8
    assert await store.get("r") == changed
    assert await store.change("other", {"reward": 1.0}) is None


async def test_a_field_that_a_rollout_has_not_is_refused_before_it_is_queued(store):
    await store.add([entry("r")])
    with pytest.raises(TypeError, match="nonsense"):
        await store.change("r", {"nonsense": 1})
    with pytest.raises(TypeError, match="id"):
        await store.change("r", {"id": "s"})


async def test_a_value_that_could_not_be_read_back_fails_its_change_and_nothing_else(store):
    await store.add([entry("r")])
    with pytest.raises(StoreError):
        await store.change("r", {"per_call_rewards": {"x": "much"}})
    assert store.failure is None
    assert (await store.get("r")).rollout.per_call_rewards == {}


async def test_the_version_grows_with_every_change(store):
    body = request("hello")
    await store.add([entry("r")])
    versions = [(await store.get("r")).version]

    async def seen() -> None:
        versions.append((await store.get("r")).version)

    store.begin("r", call(0, body), body)
    await seen()
    store.spool("r", 0, Spool(prompt_ids=ids(1), sampled_ids=ids(2), logprobs=None))
    await seen()
    await store.finish("r", [ended(call(0, body), body)])
    await seen()
    store.deliver("r", [0], delivered=True, at=NOW)
    await seen()
    store.notice("r", Notice(code="tunnel_lost"))
    await seen()
    await store.change("r", {"state": "closed"})
    await seen()
    assert versions == sorted(set(versions))


async def test_reads_see_what_was_handed_over_before_them(store):
    body = request("hello")
    await store.add([entry("r")])
    store.begin("r", call(0, body), body)
    store.notice("r", Notice(code="x", data={"field": "priority"}, calls=(0,)))
    assert [found.status for found in await store.calls("r")] == ["running"]
    assert await store.notices("r") == [Notice(code="x", data={"field": "priority"}, calls=(0,))]
    assert json.loads((await store.exchange("r", 0)).request) == json.loads(body)


async def test_writes_about_a_rollout_that_is_gone_do_nothing(store):
    body = request("hello")
    store.begin("gone", call(0, body), body)
    store.spool("gone", 0, Spool(prompt_ids=None, sampled_ids=None, logprobs=None))
    store.deliver("gone", [0], delivered=True, at=NOW)
    store.notice("gone", Notice(code="x"))
    await store.finish("gone", [ended(call(0, body), body)])
    await store.flush()
    assert await store.calls("gone") == []
    assert await store.exchange("gone", 0) is None
    assert not await store.delete("gone")


async def test_finishes_at_one_time_are_committed_together(store):
    body = request("hello")
    await store.add([entry("r")])
    before = store.groups
    async with asyncio.TaskGroup() as group:
        store.hold()
        for n in range(200):
            group.create_task(store.finish("r", [ended(call(n, body), body)]))
        await asyncio.sleep(0)
        store.release()
    # One if the writer was stopped before the first, two if the first slipped in.
    assert store.groups - before <= 2
    assert len(await store.calls("r")) == 200


async def test_a_held_writer_lets_nothing_end(store):
    body = request("hello")
    await store.add([entry("r")])
    store.hold()
    store.begin("r", call(0, body), body)
    waiting = asyncio.get_running_loop().create_task(store.finish("r", [ended(call(0, body), body)]))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.05)
    store.release()
    await waiting


async def test_a_store_that_is_not_open_says_so(place):
    store = place.store()
    with pytest.raises(StoreError, match="is closed"):
        await store.add([entry("r")])
    await store.open()
    await store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.notice("r", Notice(code="x"))
    with pytest.raises(StoreError, match="is closed"):
        await store.get("r")


async def test_a_prompt_whose_holder_was_damaged_is_none_and_a_notice_says_so(store, place):
    body = request("hello")
    await store.add([entry("r")])
    await store.finish("r", [ended(call(0, body), body, prompt_ids=ids(1, 2, 3), sampled_ids=ids(4))])
    record = ended(call(1, body), body, prompt_ids=ids(1, 2, 3, 4, 5), delta=Delta(holder=0, shared=4))
    await store.finish("r", [record])
    await store.finish("r", [ended(call(2, body), body, prompt_ids=ids(1, 2), delta=Delta(holder=1, shared=2))])
    await place.sql("DELETE FROM call WHERE n = 0")
    assert [(found.n, found.prompt_ids) for found in await store.calls("r")] == [(1, None), (2, None)]
    assert await store.calls("r")
    assert [(notice.code, notice.calls) for notice in await store.notices("r")] == [
        ("capture_incomplete", (1,)),
        ("capture_incomplete", (2,)),
    ]


async def test_a_growing_rollout_takes_space_in_proportion(place):
    turns, sampled_each, new_each = 2000 if isinstance(place, FilePlace) else 600, 20, 10
    store = await opened(place, durability="none")
    await store.add([entry("r")])
    file = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    measured = file if isinstance(place, FilePlace) else "SELECT pg_database_size(current_database())"
    sizes = {}
    raw, messages = [], []
    prompt = np.arange(100, dtype=np.int32)
    for n in range(turns):
        raw.append(b'{"role":"user","content":"turn %d"}' % n)
        messages.append(from_chat(json.loads(raw[-1])))
        body = b'{"model":"m","tools":[%s],"messages":[%s]}' % (b'"a tool",' * 100 + b"1", b",".join(raw))
        sampled = np.arange(n, n + sampled_each, dtype=np.int32)
        delta = Delta(holder=n - 1, shared=len(prompt) - new_each) if n else None
        running = call(n, body, messages=tuple(messages), prompt_ids=prompt, sampled_ids=sampled)
        await store.finish("r", [ended(running, body, sent=body[:-1] + b',"logprobs":true}', delta=delta)])
        prompt = np.concatenate([prompt, sampled, np.arange(new_each, dtype=np.int32)])
        if n + 1 in (turns // 4, turns // 2, turns):
            ((sizes[n + 1],),) = await place.sql(measured)
    last = (await store.calls("r", after=turns - 2))[0]
    assert (len(listed(last.prompt_ids)), len(last.messages)) == (100 + 30 * (turns - 1), turns)
    assert as_json(await store.exchange("r", turns - 1))["sent"] == parsed(body[:-1] + b',"logprobs":true}')
    await store.close()
    # Twice the calls, twice the growth; a form that stores each request whole would make it four times.
    assert sizes[turns] - sizes[turns // 2] < 2.3 * (sizes[turns // 2] - sizes[turns // 4])
    # Some 0.5 KiB of tokens, message and bookkeeping a call; PostgreSQL has 24 bytes for each row, and names of 16.
    each = (sizes[turns] - sizes[turns // 2]) / (turns // 2)
    assert each < (1500 if isinstance(place, FilePlace) else 3000)
