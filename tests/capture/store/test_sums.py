"""Summaries in a store: kept with a rollout, by its version; asked for by page and in sums. On every store."""

import pytest

from capture.errors import ClientError
from capture.store.summary import MOST_GROUPS, MOST_STALE, MOST_VALUES, Found, Group, Label, Line, Look, Summary
from graph.records import Notice
from tests.capture.store.places import count, opened
from tests.capture.store.samples import NOW, call, ended, entry, ids, request

BODY = request("hi")


def made(name: str, *, version: int = 0, **fields) -> Summary:
    return Summary(version=version, row=f'{{"id":"{name}","v":{version}}}'.encode(), **{"words": name} | fields)


async def add(store, *names: str, **fields) -> None:
    await store.add([entry(name, **fields) for name in names])


async def keep(store, name: str, **fields) -> None:
    """Keep a summary of a rollout as it is now."""
    found = await store.get(name)
    await store.summarise([(found, made(name, version=found.version, **fields))])


async def names(store, **look) -> list[str]:
    return [line.id for line in (await store.sheet(Look(**look))).lines]


async def row(store, name: str) -> bytes | None:
    (found,) = [line.row for line in (await store.sheet(Look())).lines if line.id == name]
    return found


async def test_a_summary_counts_while_its_rollout_has_that_version(store):
    await add(store, "a")
    assert await row(store, "a") is None
    await keep(store, "a")
    assert await row(store, "a") == b'{"id":"a","v":0}'
    await store.change("a", {"reward": 1.0})
    assert await row(store, "a") is None
    await keep(store, "a")
    assert await row(store, "a") == b'{"id":"a","v":1}'


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.begin("a", call(0, BODY), BODY),
        lambda store: store.finish("a", [ended(call(0, BODY), BODY, prompt_ids=ids(1), sampled_ids=ids(2))]),
        lambda store: store.notice("a", Notice(code="expired", at=NOW)),
        lambda store: store.change("a", {"roles": {0: "main"}}),
        lambda store: store.stop("a", 0, "max_calls"),
    ],
    ids=["begin", "finish", "notice", "roles", "stop"],
)
async def test_whatever_changes_what_a_graph_says_leaves_its_summary_behind(store, write):
    await add(store, "a")
    await keep(store, "a")
    if (waited := write(store)) is not None:
        await waited
    await store.flush()
    assert await row(store, "a") is None
    assert (await store.overview(Look())).behind == ("a",)


async def test_a_later_versions_summary_stays(store):
    await add(store, "a")
    before = await store.get("a")
    await store.change("a", {"reward": 1.0})
    await keep(store, "a", findings=(Found("drift", 0, 2),))
    await store.summarise([(before, made("a", findings=(Found("no_calls", 2, 1),)))])
    assert await row(store, "a") == b'{"id":"a","v":1}'
    assert (await store.overview(Look())).findings == (("drift", 0, 1, 2),)


async def test_of_one_that_is_gone_or_another_by_now_nothing_is_kept(store, place):
    await add(store, "a", "b")
    a, b = await store.get("a"), await store.get("b")
    await store.delete("a")
    await store.delete("b")
    await add(store, "b2")
    another = entry("b")
    await store.add([type(another)(
        rollout=another.rollout, registration=another.registration, secret=b"other", tools_secret=b"others"
    )])  # fmt: skip
    await store.summarise([(a, made("a")), (b, made("b", findings=(Found("drift", 0, 1),)))])
    assert await row(store, "b") is None
    rows = await count(place)
    assert (rows["summary"], rows["summary_finding"]) == (0, 0)


async def test_it_goes_with_its_rollout(store, place):
    await add(store, "a")
    await keep(store, "a", findings=(Found("drift", 0, 1), Found("forks", 0, 2)))
    assert (await count(place))["summary_finding"] == 2
    await store.delete("a")
    rows = await count(place)
    assert (rows["summary"], rows["summary_finding"]) == (0, 0)


async def test_it_outlives_its_process(place):
    store = await opened(place)
    await add(store, "a")
    await keep(store, "a", until=NOW, deadline_s=2.5)
    await store.close()
    store = await opened(place)
    assert (await store.sheet(Look())).lines == (
        Line(id="a", cursor="cr1", row=b'{"id":"a","v":0}', until=NOW, deadline_s=2.5),
    )
    await store.close()


async def test_pages_in_each_order(store):
    await add(store, *"abcde")
    for name in "dbe":
        await store.change(name, {"state": "closed"})
    assert await names(store) == list("abcde")
    assert await names(store, order="-created") == list("edcba")
    assert await names(store, order="closed") == list("dbe")
    for order, whole in (("created", "abcde"), ("-created", "edcba"), ("closed", "dbe")):
        seen, after = "", None
        while len(seen) < len(whole):
            sheet = await store.sheet(Look(order=order, after=after, limit=2))
            assert [line.cursor for line in sheet.lines][-1] == (sheet.next or sheet.lines[-1].cursor)
            seen, after = seen + "".join(line.id for line in sheet.lines), sheet.next
        assert seen == whole
        assert (after is None) == (order != "closed")
    tail = await store.sheet(Look(order="closed", after=after))
    assert (tail.lines, tail.next) == ((), after)


@pytest.mark.parametrize("after", ["", "x", "cr", "cr-1", "cl1", "-c1", "cr1x", "cr" + "9" * 30])
async def test_a_cursor_of_another_order_is_refused(store, after):
    with pytest.raises(ClientError) as caught:
        await store.sheet(Look(after=after))
    assert (caught.value.code, caught.value.status) == ("bad_cursor", 400)


async def test_what_is_looked_for(store):
    await add(store, "one", group="g", labels={"split": "train"})
    await add(store, "two", group="h", labels={"split": "test"})
    await add(store, "three", group="g", labels={"split": "test", "kind": "maths"})
    await store.change("three", {"state": "closed"})
    await keep(store, "one", words="one\ng\ntrain", findings=(Found("drift", 0, 3),))
    await keep(store, "two", words="two\nh\n100%_sure\\", trouble=True, findings=(Found("no_calls", 2, 1),))
    await keep(store, "three", words="three\ng\ntest\nmaths", trouble=True)
    assert await names(store, group="g") == ["one", "three"]
    assert await names(store, state="closed") == ["three"]
    assert await names(store, labels={"split": "test"}) == ["two", "three"]
    assert await names(store, labels={"split": "test", "kind": "maths"}) == ["three"]
    assert await names(store, trouble=True) == ["two", "three"]
    assert await names(store, finding="drift") == ["one"]
    assert await names(store, finding="drift", trouble=True) == []
    assert await names(store, text="TRAIN") == ["one"]
    assert await names(store, text="t") == ["one", "two", "three"]
    # Nothing of it is a pattern.
    assert await names(store, text="100%_sure\\") == ["two"]
    assert await names(store, text="_") == ["two"]
    for text in ("1%e", "100_", "\\s"):
        assert await names(store, text=text) == []
    assert await names(store, text="nul\0") == []
    assert await names(store, text="'; --") == []


async def test_one_that_is_behind_may_be_what_is_looked_for(store):
    await add(store, "a", "b", "c", group="g")
    await keep(store, "a", findings=(Found("drift", 0, 1),))
    await keep(store, "b")
    assert await names(store, finding="drift") == ["a", "c"]
    assert await names(store, finding="drift", group="h") == []
    assert await names(store, behind=True) == ["c"]
    await store.change("b", {"reward": 0.0})
    assert await names(store, behind=True, order="-created") == ["c", "b"]
    assert await names(store, finding="drift") == ["a", "b", "c"]


async def test_sums(store):
    await add(store, "a", "b", "c", group="g", labels={"split": "train"})
    await add(store, "d", group="h", labels={"split": "test", "kind": "maths"})
    await add(store, "e")
    for name in ("a", "b", "d"):
        await store.change(name, {"state": "closed"})
    drift, none = Found("drift", 0, 3), Found("no_calls", 2, 1)
    await keep(store, "a", calls=3, sampled_tokens=30, reward=1.0, drifted=2, findings=(drift,))
    await keep(store, "b", calls=2, sampled_tokens=2**33, reward=0.5, stopped=True, findings=(drift, Found("x", 1, 1)))
    await keep(store, "c", calls=1, trouble=True, incomplete=True, findings=(Found("drift", 1, 1),))
    await keep(store, "d", trouble=True, findings=(none,))
    store.begin("e", call(0, BODY), BODY)
    await store.flush()
    found = await store.overview(Look())
    assert (found.rollouts, found.open, found.running, found.no_calls) == (5, 2, 1, 1)
    assert (found.incomplete, found.stopped, found.graded, found.drifted, found.trouble) == (1, 1, 2, 1, 2)
    assert (await names(store, graded=True), found.ungraded) == (["a", "b", "e"], 1)
    assert await names(store, graded=False) == ["d", "e"]
    assert (found.mean, found.least, found.most) == (0.75, 0.5, 1.0)
    assert (found.calls, found.sampled_tokens) == (6, 2**33 + 30)
    assert found.findings == (("no_calls", 2, 1, 1), ("drift", 1, 3, 7), ("x", 1, 1, 1))
    assert found.groups == (
        Group(group="h", rollouts=1, open=0, trouble=1, reward_mean=None),
        Group(group="g", rollouts=3, open=1, trouble=1, reward_mean=0.75),
    )
    assert found.labels == (Label(name="kind", values=("maths",)), Label(name="split", values=("test", "train")))
    assert (found.stale, found.behind) == (1, ("e",))


async def test_sums_of_some(store):
    await add(store, "a", "b", group="g")
    await add(store, "c", group="h", labels={"k": "v"})
    await store.change("a", {"state": "closed"})
    await keep(store, "a", calls=1, reward=1.0, findings=(Found("drift", 0, 1),))
    await keep(store, "b", calls=2, findings=(Found("drift", 0, 1), Found("forks", 0, 1)))
    await keep(store, "c", calls=4, words="c\nh\nv")
    for look, rollouts, calls in (
        (Look(group="g"), 2, 3),
        (Look(state="closed"), 1, 1),
        (Look(labels={"k": "v"}), 1, 4),
        (Look(finding="forks"), 1, 2),
        (Look(text="V"), 1, 4),
        (Look(text="none"), 0, 0),
    ):
        found = await store.overview(look)
        assert (found.rollouts, found.calls) == (rollouts, calls), look
        # A choice is of all that there is.
        assert found.labels == (Label(name="k", values=("v",)),)
    assert (await store.overview(Look(finding="forks"))).findings == (("drift", 0, 1, 1), ("forks", 0, 1, 1))
    none = await store.overview(Look(group="none"))
    assert (none.mean, none.least, none.calls, none.findings, none.groups) == (None, None, 0, (), ())


async def test_an_overview_has_bounds(store):
    await store.add([entry(f"r{at:03}", group=f"g{at}", labels={"task": f"{at:03}"}) for at in range(MOST_GROUPS + 5)])
    await store.change("r000", {"state": "closed"})
    found = await store.overview(Look())
    assert len(found.groups) == MOST_GROUPS
    assert found.groups[0].group == f"g{MOST_GROUPS + 4}"
    assert found.labels == (Label(name="task", values=tuple(f"{at:03}" for at in range(MOST_VALUES))),)
    assert found.stale == MOST_GROUPS + 5
    assert found.behind[:2] == ("r000", f"r{MOST_GROUPS + 4:03}")
    assert len(found.behind) == MOST_STALE


async def test_groups_and_labels_of_any_text(store):
    odd = 'é"\\ \n%'
    await add(store, "a", group=odd, labels={odd: odd})
    found = await store.overview(Look(group=odd, labels={odd: odd}))
    assert [group.group for group in found.groups] == [odd]
    assert found.labels == (Label(name=odd, values=(odd,)),)
