"""What each read takes: pages, prompts put together in any order."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import ClientError
from capture.store import reads, rows
from capture.store.base import Delta, Query, Store
from capture.store.canonical import Canonical
from tests.capture.store.samples import call, ended, entry, ids, in_memory, listed, request

BODY = request("hello")


async def pages(store: Store, **asked: Any) -> list[list[str]]:
    """The ids of each page until a page is empty or the last."""
    found, after = [], None
    while True:
        page = await store.page(Query(after=after, **asked))
        found.append([entry.rollout.id for entry in page.entries])
        after = page.next
        if after is None or not page.entries:
            return found


# -- pages


async def test_pages_follow_the_order_of_creation(store):
    await store.add([entry(name) for name in "cab"])
    await store.add([entry("d")])
    assert await pages(store, limit=2) == [["c", "a"], ["b", "d"]]
    assert await pages(store, limit=3) == [["c", "a", "b"], ["d"]]
    assert await pages(store) == [["c", "a", "b", "d"]]


async def test_a_page_filters(store):
    await store.add([entry("a", group="g", labels={"split": "train", "task": "1"})])
    await store.add([entry("b", group="g", labels={"split": "test", "task": "1"})])
    await store.add([entry("c", labels={"split": "train"})])
    await store.change("b", {"state": "closed"})
    assert await pages(store, group="g") == [["a", "b"]]
    assert await pages(store, labels={"split": "train"}) == [["a", "c"]]
    assert await pages(store, labels={"split": "train", "task": "1"}) == [["a"]]
    assert await pages(store, labels={"split": "other"}) == [[]]
    assert await pages(store, state="open") == [["a", "c"]]
    assert await pages(store, state="closed", group="g") == [["b"]]


async def test_the_order_of_closing_can_be_tailed(store):
    await store.add([entry(name) for name in "abc"])
    page = await store.page(Query(order="closed"))
    assert page.entries == ()
    for name in "ca":
        await store.change(name, {"state": "closed"})
        page = await store.page(Query(order="closed", after=page.next))
        assert [found.rollout.id for found in page.entries] == [name]
    assert (await store.page(Query(order="closed", after=page.next))).next == page.next
    # One that is deleted leaves no hole to stumble over.
    await store.delete("a")
    await store.change("b", {"state": "closed"})
    page = await store.page(Query(order="closed", after=page.next))
    assert [found.rollout.id for found in page.entries] == ["b"]


async def test_a_cursor_survives_the_deletion_of_all_that_was_seen(store):
    await store.add([entry(name) for name in "ab"])
    after = (await store.page(Query(limit=1))).next
    await store.delete("a")
    await store.delete("b")
    await store.add([entry("c")])
    assert [found.rollout.id for found in (await store.page(Query(after=after))).entries] == ["c"]


@pytest.mark.parametrize("cursor", ["", "x", "cr", "cl1", "cr-1", "cr1.5", "cr١", "cr" + "9" * 30])
async def test_a_cursor_that_is_none_of_ours_is_the_callers_error(store, cursor):
    with pytest.raises(ClientError) as caught:
        await store.page(Query(after=cursor))
    assert (caught.value.status, caught.value.param) == (400, "after")


# -- calls


async def test_calls_come_by_number_in_pages(store):
    await store.add([entry("a")])
    for n in (3, 0, 2, 5):
        await store.finish("a", [ended(call(n, BODY), BODY)])
    assert [found.n for found in await store.calls("a")] == [0, 2, 3, 5]
    assert [found.n for found in await store.calls("a", after=0, limit=2)] == [2, 3]
    assert [found.n for found in await store.calls("a", after=5)] == []
    assert await store.calls("other") == []


async def test_arrays_cannot_be_written_to(store):
    await store.add([entry("a")])
    await store.finish("a", [ended(call(0, BODY), BODY, prompt_ids=ids(1), sampled_ids=ids(2))])
    (found,) = await store.calls("a")
    for array in (found.prompt_ids, found.sampled_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


async def test_messages_are_read_once_for_all_calls(store):
    await store.add([entry("a")])
    for n in range(3):
        body = request(*(f"text {at}" for at in range(n + 1)))
        await store.finish("a", [ended(call(n, body), body)])
    one, two, three = await store.calls("a")
    assert [message.text for message in three.messages] == ["text 0", "text 1", "text 2"]
    assert three.messages[1] is two.messages[1]
    assert three.messages[0] is one.messages[0]


async def test_an_exchange_that_is_not_there_is_none(store):
    await store.add([entry("a")])
    assert await store.exchange("a", 0) is None
    assert await store.exchange("b", 0) is None


# -- prompts


@st.composite
def forests(draw):
    """Calls whose prompts hang on any other's, earlier or later by number, in the order in which they are stored."""
    n_calls = draw(st.integers(1, 12))
    numbers = draw(st.permutations(range(n_calls)))
    rng = random.Random(draw(st.integers(0, 2**32)))
    stored: list[tuple[int, list[int], list[int], Delta | None]] = []
    for n in numbers:
        prompt = [rng.randrange(100) for _ in range(rng.randrange(6))]
        delta = None
        if stored and rng.random() < 0.9:
            holder, held, sampled, _ = rng.choice(stored)
            stream = held + sampled
            shared = rng.randint(0, len(stream))
            prompt = stream[:shared] + prompt
            delta = Delta(holder=holder, shared=shared)
        stored.append((n, prompt, [rng.randrange(100) for _ in range(rng.randrange(4))], delta))
    return stored, draw(st.integers(-1, n_calls)), draw(st.none() | st.integers(0, n_calls))


@given(forests())
def test_prompts_are_put_together_whatever_hangs_on_what(forest):
    stored, after, limit = forest
    db = in_memory()
    for n, prompt, sampled, delta in stored:
        tail = np.array(prompt[delta.shared if delta else 0 :], np.int32)
        db.execute(
            "INSERT INTO call (rollout, n, status, arrived, holder, shared, n_prompt, n_sampled, check_prompt, record,"
            " sampled, tail) VALUES (1, ?, 'complete', 0, ?, ?, ?, ?, ?, '{}', ?, ?)",
            (
                n,
                delta and delta.holder,
                delta and delta.shared,
                len(prompt),
                len(sampled),
                rows.check(np.array(prompt, np.int32).tobytes()),
                np.array(sampled, np.int32).tobytes(),
                tail.tobytes(),
            ),
        )
    found = reads.calls(db, "1", after=after, limit=limit, canonical=Canonical())
    wanted = sorted((n, prompt) for n, prompt, _, _ in stored if n > after)[:limit]
    assert [(found.n, listed(found.prompt_ids)) for found in found.calls] == wanted
    assert found.broken == ()
    db.close()


def blob(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def broken_prompt(*changes: str) -> tuple[list[Any], tuple[int, ...]]:
    """Three calls that hang on one another, after something happened to the file."""
    db = in_memory()
    stored = [(0, None, None, [1, 2], [3]), (1, 0, 3, [4], [5]), (2, 1, 5, [6], [])]
    whole = {0: [1, 2], 1: [1, 2, 3, 4], 2: [1, 2, 3, 4, 5, 6]}
    for n, holder, shared, tail, sampled in stored:
        prompt = np.array(whole[n], np.int32)
        db.execute(
            "INSERT INTO call (rollout, n, status, arrived, holder, shared, n_prompt, n_sampled, check_prompt, record,"
            " sampled, tail) VALUES (1, ?, 'complete', 0, ?, ?, ?, ?, ?, '{}', ?, ?)",
            (
                n,
                holder,
                shared,
                len(prompt),
                len(sampled),
                rows.check(prompt.tobytes()),
                blob(sampled),
                blob(tail),
            ),
        )
    for change in changes:
        db.execute(change)
    found = reads.calls(db, "1", after=-1, limit=None, canonical=Canonical())
    db.close()
    return [None if call.prompt_ids is None else listed(call.prompt_ids) for call in found.calls], found.broken


def test_what_is_missing_damaged_or_circular_is_none_and_named():
    whole = [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    assert broken_prompt() == (whole, ())
    assert broken_prompt("DELETE FROM call WHERE n = 0") == ([None, None], (1, 2))
    assert broken_prompt("UPDATE call SET holder = 2 WHERE n = 1") == ([whole[0], None, None], (1, 2))
    assert broken_prompt("UPDATE call SET sampled = x'09000000' WHERE n = 0") == ([whole[0], None, None], (1, 2))
    assert broken_prompt("UPDATE call SET sampled = NULL WHERE n = 1") == ([*whole[:2], None], (2,))
    assert broken_prompt("UPDATE call SET tail = x'' WHERE n = 2") == ([*whole[:2], None], (2,))
