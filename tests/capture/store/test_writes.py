"""What each write does, seen through the store."""

import json

import msgspec
import numpy as np
import pytest

from capture.dialects.base import Target
from capture.dialects.chat import Chat
from capture.dialects.completions import Completions
from capture.dialects.gemini import Gemini
from capture.dialects.messages import Messages
from capture.dialects.responses import Responses
from capture.errors import ClientError, StoreError
from capture.store import bodies
from capture.store.base import Delta, Parts, Query, Spool
from graph.records import Notice
from tests.capture.store.places import count, opened
from tests.capture.store.samples import NOW, as_json, call, ended, entry, ids, listed, logprobs, plain, request

BODY = request("hello")


# -- add


async def test_rollouts_are_added_all_or_none(store, place):
    await store.add([entry("a")])
    with pytest.raises(ClientError, match="'a'") as caught:
        await store.add([entry("b"), entry("a")])
    assert (caught.value.code, caught.value.status) == ("id_taken", 409)
    with pytest.raises(ClientError, match="'c'"):
        await store.add([entry("c"), entry("c")])
    assert [found.rollout.id for found in (await store.page(Query())).entries] == ["a"]
    assert (await count(place))["rollout"] == 1


async def test_a_secret_is_never_given_twice(store):
    await store.add([entry("a")])
    with pytest.raises(StoreError):
        await store.add([msgspec.structs.replace(entry("b"), secret=entry("a").secret)])
    assert store.failure is None
    assert await store.get("b") is None


async def test_an_answer_is_kept_with_what_it_answered(store):
    await store.add([entry("a")], key="a key with spaces digest", answer=b"first")
    assert await store.answered("a key with spaces", "digest") == b"first"
    assert await store.answered("another", "digest") is None
    with pytest.raises(ClientError) as caught:
        await store.answered("a key with spaces", "other")
    assert caught.value.status == 422


async def test_of_two_equal_registrations_at_once_one_is_added(store):
    await store.add([entry("a")], key="key digest", answer=b"first")
    with pytest.raises(ClientError) as caught:
        await store.add([entry("b")], key="key digest", answer=b"second")
    assert (caught.value.code, caught.value.status) == ("idempotency_key_raced", 409)
    assert await store.get("b") is None
    assert await store.answered("key", "digest") == b"first"


async def test_answers_outlive_the_process_and_not_the_hour(place):
    now = ["2026-01-01T10:00:00.000Z"]
    for at, expected in (("10:00", None), ("10:59", b"first"), ("11:00", None)):
        now[0] = f"2026-01-01T{at}:00.000Z"
        store = await opened(place, now=lambda: now[0])
        assert await store.answered("key", "digest") == expected
        if at == "10:00":
            await store.add([entry("a")], key="key digest", answer=b"first")
        await store.close()


# -- change


async def test_closing_stamps_the_time_once(store):
    await store.add([entry("a"), entry("b")])
    changed = await store.change("a", {"state": "closed"})
    assert changed.rollout.closed_at == NOW
    changed = await store.change("b", {"state": "closed", "closed_at": "2026-02-02T00:00:00.000Z"})
    assert changed.rollout.closed_at == "2026-02-02T00:00:00.000Z"
    await store.change("a", {"state": "closed", "reward": 1.0})
    page = await store.page(Query(order="closed"))
    assert [found.rollout.id for found in page.entries] == ["a", "b"]


async def test_labels_and_group_are_found_by_after_they_changed(store):
    await store.add([entry("a", labels={"split": "train"}, group="g")])
    await store.change("a", {"labels": {"split": "test"}, "group": "h"})
    assert (await store.page(Query(labels={"split": "train"}))).entries == ()
    assert (await store.page(Query(group="g"))).entries == ()
    assert len((await store.page(Query(labels={"split": "test"}, group="h"))).entries) == 1


async def test_the_first_and_last_call_are_kept_without_being_told(store):
    await store.add([entry("a")])
    for n, at in enumerate(["2026-01-01T00:00:05.000Z", "2026-01-01T00:00:03.000Z", ""]):
        store.begin("a", call(n, BODY, started_at=at), BODY)
    rollout = (await store.get("a")).rollout
    assert rollout.first_call_at == "2026-01-01T00:00:03.000Z"
    assert rollout.last_call_at == "2026-01-01T00:00:05.000Z"
    # A change of something else keeps them.
    assert (await store.change("a", {"reward": 1.0})).rollout.first_call_at == rollout.first_call_at


# -- a call's life


async def test_a_running_call_shows_what_it_brought_so_far(store, place):
    await store.add([entry("a")])
    store.begin("a", call(0, BODY), BODY)
    store.spool("a", 0, Spool(prompt_ids=ids(1, 2), sampled_ids=ids(3), logprobs=None))
    store.spool("a", 0, Spool(prompt_ids=ids(1, 2), sampled_ids=ids(3, 4), logprobs=logprobs(-1, -2)))
    (found,) = await store.calls("a")
    assert found.status == "running"
    assert [listed(found.prompt_ids), listed(found.sampled_ids), listed(found.logprobs)] == [
        [1, 2],
        [3, 4],
        [-1, -2],
    ]
    record = ended(call(0, BODY), BODY, prompt_ids=ids(1, 2), sampled_ids=ids(3, 4, 5), logprobs=logprobs(-1, -2, -3))
    await store.finish("a", [record])
    (found,) = await store.calls("a")
    assert plain(found) == plain(record.call)
    assert (await count(place))["spool"] == 0


async def test_a_start_that_comes_late_changes_nothing(store):
    await store.add([entry("a")])
    record = ended(call(0, BODY), BODY, sampled_ids=ids(1))
    await store.finish("a", [record])
    store.begin("a", call(0, BODY), BODY)
    store.spool("a", 0, Spool(prompt_ids=None, sampled_ids=None, logprobs=None))
    (found,) = await store.calls("a")
    assert plain(found) == plain(record.call)


async def test_a_reply_that_reached_its_client_once_stays_delivered(store):
    await store.add([entry("a")])
    await store.finish("a", [ended(call(0, BODY), BODY)])
    seen = []
    for at, delivered in enumerate([False, True, False]):
        store.deliver("a", [0, 7], delivered=delivered, at=str(at))
        seen.append((await store.calls("a"))[0].delivered)
    assert seen == [False, True, True]
    assert (await store.exchange("a", 0)).deliveries == (
        {"at": "0", "complete": False},
        {"at": "1", "complete": True},
        {"at": "2", "complete": False},
    )


async def test_a_delivery_that_is_noted_before_the_end_is_kept(store):
    await store.add([entry("a")])
    store.begin("a", call(0, BODY), BODY)
    store.deliver("a", [0], delivered=True, at="0")
    await store.finish("a", [ended(call(0, BODY), BODY)])
    assert (await store.calls("a"))[0].delivered is True
    assert (await store.exchange("a", 0)).deliveries == ({"at": "0", "complete": True},)


async def test_messages_are_stored_with_the_request_alone(store, place):
    await store.add([entry("a")])
    await store.finish("a", [ended(call(0, BODY), BODY)])
    await store.flush()
    assert await place.sql("SELECT chain IS NULL, messages IS NULL FROM call") == [(False, True)]


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":NaN}',
        b'{"input":[{"role":"user","content":"hello"}]}',
        b'{"messages":[{"role":"user","content":"other"}]}',
        b'{"messages":[1,2,3]}',
    ],
)
async def test_messages_that_the_request_does_not_give_are_stored_in_canonical_form(store, body):
    await store.add([entry("a")])
    record = ended(call(0, BODY), body)
    await store.finish("a", [record])
    (found,) = await store.calls("a")
    assert found.messages == record.call.messages
    assert (await store.exchange("a", 0)).request == body


# -- prompts in delta form


@pytest.mark.parametrize(
    "delta",
    [
        Delta(holder=7, shared=2),
        Delta(holder=1, shared=2),
        Delta(holder=2, shared=1),
        Delta(holder=0, shared=5),
        Delta(holder=0, shared=-1),
        Delta(holder=3, shared=1),
    ],
    ids=["missing", "running", "itself", "longer than the holder", "negative", "without a prompt"],
)
async def test_a_prompt_whose_holder_cannot_hold_it_is_stored_whole(store, place, delta):
    await store.add([entry("a")])
    await store.finish("a", [ended(call(0, BODY), BODY, prompt_ids=ids(1, 2, 3), sampled_ids=ids(4))])
    store.begin("a", call(1, BODY), BODY)
    store.spool("a", 1, Spool(prompt_ids=ids(1, 2, 3), sampled_ids=None, logprobs=None))
    await store.finish("a", [ended(call(3, BODY), BODY)])
    await store.finish("a", [ended(call(2, BODY), BODY, prompt_ids=ids(1, 2, 3, 4, 9), delta=delta)])
    found = {found.n: found.prompt_ids for found in await store.calls("a")}
    assert listed(found[2]) == [1, 2, 3, 4, 9]
    assert await place.sql("SELECT holder FROM call WHERE n = 2") == [(None,)]


async def test_a_call_adds_its_tail_alone(store, place):
    await store.add([entry("a")])
    prompt = np.arange(1000, dtype=np.int32)
    await store.finish("a", [ended(call(0, BODY), BODY, prompt_ids=prompt[:900], sampled_ids=prompt[900:950])])
    await store.finish("a", [ended(call(1, BODY), BODY, prompt_ids=prompt, delta=Delta(holder=0, shared=950))])
    assert await place.sql("SELECT length(tail) FROM call ORDER BY n") == [(3600,), (200,)]
    assert [listed(found.prompt_ids) for found in await store.calls("a")] == [list(range(900)), list(range(1000))]


# -- recovery


async def test_a_call_that_ran_when_the_process_died_is_aborted_with_what_was_spooled(place):
    store = await opened(place)
    await store.add([entry("a"), entry("b")])
    await store.finish("a", [ended(call(0, BODY), BODY, sampled_ids=ids(1))])
    store.begin("a", call(1, BODY), BODY)
    store.spool("a", 1, Spool(prompt_ids=ids(1, 2), sampled_ids=ids(3), logprobs=logprobs(-1)))
    store.begin("a", call(2, BODY), BODY)
    store.begin("b", call(0, BODY), BODY)
    before = await store.get("a")
    await store.close()

    store = await opened(place)
    assert store.recovered == (("a", 1), ("a", 2), ("b", 0))
    whole, spooled, bare = await store.calls("a")
    assert (whole.status, whole.delivered, whole.ended) == ("complete", None, 1)
    assert (spooled.status, spooled.delivered, spooled.ended) == ("aborted", None, 5)
    assert [listed(spooled.prompt_ids), listed(spooled.sampled_ids), listed(spooled.logprobs)] == [[1, 2], [3], [-1]]
    assert (bare.status, bare.ended, bare.prompt_ids, bare.sampled_ids) == ("aborted", 6, None, None)
    assert [message.text for message in bare.messages] == ["hello"]
    assert as_json(await store.exchange("a", 1))["error"]["blame"] == "treering"
    assert as_json(await store.exchange("a", 0))["error"] is None
    after = await store.get("a")
    assert before is not None
    assert after is not None
    assert after.version > before.version
    await store.close()

    store = await opened(place)
    assert store.recovered == ()
    await store.close()


# -- delete


async def test_a_rollout_that_is_deleted_leaves_nothing(store, place):
    empty = await count(place)
    for name in ("a", "b"):
        await store.add([entry(name, labels={"split": "train"}, group="g")], key=f"{name} digest", answer=b"x")
        long = request("shared " * 100, "own " + name, tools=["tool"] * 200)
        store.begin(name, call(0, long), long)
        store.spool(name, 0, Spool(prompt_ids=ids(1), sampled_ids=ids(1), logprobs=None))
        record = ended(
            call(1, long), long, prompt_ids=ids(1), top_logprobs=b"[" + b"1," * 500 + b"1]", undecoded=b"\xff"
        )
        await store.finish(name, [record])
        store.notice(name, Notice(code="x"))
    await store.flush()
    both = await count(place)
    assert await store.delete("a")
    one = await count(place)
    # All that belongs to a rollout is halved; of the content only the message of its own goes.
    halved = {"rollout", "label", "use", "chain", "call", "spool", "exchange", "notice"}
    assert {table for table in both if one[table] * 2 == both[table] > 0} - {"running"} == halved
    assert both["content"] - one["content"] == 1
    found = await store.exchange("b", 1)
    assert json.loads(found.request) == json.loads(request("shared " * 100, "own b", tools=["tool"] * 200))
    assert await store.delete("b")
    assert not await store.delete("b")
    gone = await count(place)
    assert gone.pop("answer") == 2
    empty.pop("answer")
    # That it was deleted, of each.
    assert gone.pop("event") == 2
    empty.pop("event")
    assert gone == empty


async def test_a_request_that_was_taken_apart_already_is_stored_as_any_other(store, place):
    """Its parts are the same as those that the store would have found, and so are the rows."""
    read = Chat().read(BODY)
    assert read.elements is not None
    parts = Parts(
        fields=read.fields,
        elements=[one.raw for one in read.elements],
        names=read.elements.heard.names,
        messages=read.messages,
        sent=read.fields | {"logprobs": b"true"},
    )
    sent = BODY[:-1] + b',"logprobs":true}'
    await store.add([entry("a"), entry("b")])
    for name, known in (("a", parts), ("b", None)):
        running = call(0, BODY, messages=read.messages)
        store.begin(name, running, BODY, parts=known)
        await store.flush()
        await store.finish(name, [ended(running, BODY, parts=known, sent=sent)])
    found = [as_json(await store.exchange(name, 0)) for name in ("a", "b")]
    assert found[0] == found[1]
    assert (await store.exchange("a", 0)).sent == bodies.whole(parts.sent or {})
    assert [each.messages for each in await store.calls("a")] == [each.messages for each in await store.calls("b")]
    columns = "SELECT record, (chain IS NULL), messages, request, sent FROM call JOIN exchange USING (rollout, n)"
    one, other = await place.sql(columns + " ORDER BY rollout")
    assert one[:3] == other[:3]
    assert one[4] == other[4]


OWN = [
    (Messages(), {"max_tokens": 9, "system": "s" * 300, "messages": [{"role": "user", "content": "hi"}] * 3}),
    (Responses(), {"instructions": "s" * 300, "input": [{"type": "message", "role": "user", "content": "hi"}] * 3}),
    (Gemini(), {"contents": [{"role": "user", "parts": [{"text": "hi"}]}] * 3}),
]


@pytest.mark.parametrize(("dialect", "form"), OWN, ids=lambda each: getattr(each, "name", ""))
async def test_a_translated_request_that_was_taken_apart_is_stored_as_any_other(store, place, dialect, form):
    body = json.dumps({"model": "m", **form}).encode()
    read = dialect.read(body, target=Target(model="m"))
    own, sent = read.own, bodies.whole(read.fields)
    parts = Parts(fields=own.fields, elements=own.elements, names=own.names, messages=(), key=own.key)
    await store.add([entry("a"), entry("b")])
    for name, known in (("a", parts), ("b", None)):
        for n in range(2):
            running = call(n, body, messages=read.messages)
            store.begin(name, running, body, parts=known)
            await store.flush()
            await store.finish(name, [ended(running, body, parts=known, sent=sent)])
    for n in range(2):
        exchanges = [await store.exchange(name, n) for name in ("a", "b")]
        assert as_json(exchanges[0]) == as_json(exchanges[1])
        assert json.loads(exchanges[0].request) == json.loads(body)
        assert json.loads(exchanges[0].sent) == json.loads(sent)
    assert list(map(plain, await store.calls("a"))) == list(map(plain, await store.calls("b")))
    columns = "SELECT record, (chain IS NULL), messages, request, sent FROM call JOIN exchange USING (rollout, n)"
    rows = await place.sql(columns + " ORDER BY rollout, n")
    assert [row[:3] for row in rows[:2]] == [row[:3] for row in rows[2:]]


async def test_a_completions_prompt_is_stored_once(store, place):
    body = json.dumps({"model": "m", "prompt": "Once upon a time. " * 100}).encode()
    read = Completions().read(body)
    await store.add([entry("a")])
    before = (await count(place))["content"]
    await store.finish("a", [ended(call(0, body, messages=read.messages, dialect="completions"), body, sent=body)])
    assert (await count(place))["content"] == before + 1
    (found,) = await store.calls("a")
    assert found.messages == read.messages
    assert json.loads((await store.exchange("a", 0)).request) == json.loads(body)


async def test_a_start_whose_end_comes_at_once_is_not_written_twice(store):
    await store.add([entry("a")])
    before = (await store.get("a")).version
    store.begin("a", call(0, BODY), BODY)
    await store.finish("a", [ended(call(0, BODY), BODY)])
    assert (await store.get("a")).version == before + 1
    store.begin("a", call(1, BODY), BODY)
    assert [each.status for each in await store.calls("a")] == ["complete", "running"]
    await store.finish("a", [ended(call(1, BODY), BODY)])
    assert [each.status for each in await store.calls("a")] == ["complete", "complete"]
