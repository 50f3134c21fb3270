"""What is old or too much goes, whole, into the archive first; what is open stays."""

import json
import random

import apsw
import msgspec
import pytest

from capture.errors import StoreError
from capture.store import retention
from capture.store.base import Query
from capture.store.check import check
from capture.store.lock import Lock
from capture.store.retention import Policy, sweep
from graph.records import Notice
from tests.capture.store.places import opened
from tests.capture.store.samples import as_json, call, ended, entry, ids, logprobs, open_at, plain, request

DAY = "2026-02-{:02d}T12:00:00.000Z"


@pytest.fixture
async def store(tmp_path):
    store = open_at(tmp_path / "t.db")
    await store.open()
    yield store
    await store.close()


def noise(size: int, seed: str) -> str:
    """Text that doesn't compress much."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))


async def rollout(store, name: str, *, closed: str | None, bulk: int = 10, calls: int = 3) -> None:
    await store.add([entry(name, group="g", labels={"name": name})])
    for n in range(calls):
        body = request(*(f"turn {at} of {name} " + noise(bulk, f"{name}{at}") for at in range(2 * n + 1)), seed=10**20)
        prompt = ids(*range(100 * (n + 1)))
        done = ended(
            call(n, body), body, id=f"{name}-{n}", prompt_ids=prompt, sampled_ids=ids(100 * (n + 1)),
            logprobs=logprobs(-0.5), reply=json.dumps({"text": name * 200}).encode(), usage=b'{"prompt_tokens":1}',
        )  # fmt: skip
        await store.finish(name, [done])
        store.deliver(name, [n], delivered=True, at=DAY.format(1))
    store.notice(name, Notice(code="expired", at=DAY.format(1)))
    await store.set_state(name, json.dumps({"of": name}).encode(), at=DAY.format(1))
    if closed is not None:
        await store.change(name, {"state": "closed", "closed_at": closed, "reward": 1.0})


async def left(store) -> list[str]:
    return [each.rollout.id for each in (await store.page(Query())).entries]


def at(day: int):
    return lambda: DAY.format(day)


async def everything(store, name: str):
    """All that a store has of a rollout, but for the version, which counts changes."""
    return (
        msgspec.structs.replace(await store.get(name), version=0),
        [plain(each) for each in await store.calls(name)],
        [as_json(await store.exchange(name, each.n)) for each in await store.calls(name)],
        await store.notices(name),
        (await store.state(name)).body,
    )


async def test_without_limits_everything_is_kept(store):
    await rollout(store, "a", closed=DAY.format(1))
    assert not Policy().on
    assert await sweep(store, Policy(), drop=store.delete, now=at(28)) == []
    assert await left(store) == ["a"]


async def test_what_closed_too_long_ago_goes_and_what_is_open_stays(store):
    for name, closed in (("a", 1), ("open", None), ("b", 5), ("c", 9)):
        await rollout(store, name, closed=None if closed is None else DAY.format(closed))
    policy = Policy(keep_days=6)
    assert policy.on
    assert await sweep(store, policy, drop=store.delete, now=at(12)) == ["a", "b"]
    assert await left(store) == ["open", "c"]
    assert await sweep(store, policy, drop=store.delete, now=at(12)) == []
    # A clock that goes back keeps longer.
    assert await sweep(store, policy, drop=store.delete, now=at(1)) == []


async def test_what_is_too_much_goes_the_first_closed_first(store):
    await rollout(store, "open", closed=None, bulk=20_000)
    for at_, name in enumerate("cab"):
        await rollout(store, name, closed=DAY.format(1 + at_), bulk=20_000)
    most = await store.size()
    assert await sweep(store, Policy(keep_gib=most / 2**30), drop=store.delete) == []
    assert await sweep(store, Policy(keep_gib=(most - 1) / 2**30), drop=store.delete) == ["c"]
    assert await sweep(store, Policy(keep_gib=0.0), drop=store.delete) == ["a", "b"]
    # What is open is not dropped for want of room.
    assert await left(store) == ["open"]


async def test_the_file_shrinks(store, tmp_path):
    for n in range(8):
        await rollout(store, f"r{n}", closed=DAY.format(1), bulk=50_000)
    await rollout(store, "kept", closed=DAY.format(9))
    await store.close()
    before = (tmp_path / "t.db").stat().st_size
    await store.open()
    assert len(await sweep(store, Policy(keep_days=1), drop=store.delete, now=at(9))) == 8
    await store.close()
    after = (tmp_path / "t.db").stat().st_size
    assert (before > 2**19, after < before / 4) == (True, True), (before, after)
    report = check(tmp_path / "t.db")
    assert (report.faults, report.rollouts) == ((), 1)
    await store.open()


async def test_what_goes_is_in_the_archive_whole(store, tmp_path):
    await rollout(store, "a", closed=DAY.format(1))
    await rollout(store, "b", closed="2026-01-31T00:00:00.000Z", calls=70)
    before = {name: await everything(store, name) for name in "ab"}
    policy = Policy(keep_days=1, archive=tmp_path / "old")
    assert sorted(await sweep(store, policy, drop=store.delete, now=at(9))) == ["a", "b"]
    assert await left(store) == []
    for name, month in (("a", "2026-02"), ("b", "2026-01")):
        path = tmp_path / "old" / f"rollouts-{month}.db"
        report = check(path)
        assert (report.faults, report.rollouts) == ((), 1)
        kept = open_at(path)
        await kept.open()
        assert await everything(kept, name) == before[name]
        await kept.close()
    # As small as it was: a prompt is stored as what it adds there too.
    db = apsw.Connection(str(tmp_path / "old" / "rollouts-2026-01.db"))
    assert db.execute("SELECT count(*), count(holder) FROM call").fetchone() == (70, 69)
    db.close()


async def test_what_goes_from_postgresql_is_in_the_archive_whole_too(database, tmp_path):
    store = await opened(database)
    await rollout(store, "a", closed=DAY.format(1), calls=40)
    await rollout(store, "open", closed=None)
    before = await everything(store, "a")
    policy = Policy(keep_days=1, archive=tmp_path / "old")
    assert await sweep(store, policy, drop=store.delete, now=at(9)) == ["a"]
    assert await left(store) == ["open"]
    await store.close()
    path = tmp_path / "old" / "rollouts-2026-02.db"
    assert check(path).faults == ()
    kept = open_at(path)
    await kept.open()
    assert await everything(kept, "a") == before
    await kept.close()


async def test_an_archive_that_cannot_be_written_drops_nothing(store, tmp_path):
    await rollout(store, "a", closed=DAY.format(1))
    (tmp_path / "old").write_text("a file")
    with pytest.raises(StoreError, match="can't be made"):
        await sweep(store, Policy(keep_days=1, archive=tmp_path / "old"), drop=store.delete, now=at(9))
    assert await left(store) == ["a"]


async def test_an_archive_in_use_drops_nothing(store, tmp_path):
    await rollout(store, "a", closed=DAY.format(1))
    (tmp_path / "old").mkdir()
    lock = Lock(tmp_path / "old" / "rollouts-2026-02.db")
    lock.take()
    with pytest.raises(StoreError, match="in use"):
        await sweep(store, Policy(keep_days=1, archive=tmp_path / "old"), drop=store.delete, now=at(9))
    lock.free()
    assert await left(store) == ["a"]


async def test_a_sweep_that_was_cut_before_the_drop_is_made_up_for(store, tmp_path):
    await rollout(store, "a", closed=DAY.format(1))
    before = await everything(store, "a")
    policy = Policy(keep_days=1, archive=tmp_path / "old")

    async def dies(name: str) -> None:
        raise StoreError("store_failed", "died")

    with pytest.raises(StoreError, match="died"):
        await sweep(store, policy, drop=dies, now=at(9))
    assert await sweep(store, policy, drop=store.delete, now=at(9)) == ["a"]
    kept = open_at(tmp_path / "old" / "rollouts-2026-02.db")
    await kept.open()
    assert await everything(kept, "a") == before
    await kept.close()
    assert check(tmp_path / "old" / "rollouts-2026-02.db").faults == ()


async def test_what_another_dropped_meanwhile_is_no_half_in_the_archive(store, tmp_path, monkeypatch):
    await rollout(store, "a", closed=DAY.format(1))
    gone = await store.get("a")
    calls = store.calls

    async def raced(name, **asked):
        found = await calls(name, **asked)
        await store.delete(name)
        return found[:1]

    async def exchange(name, n):
        return ended(call(n, request("x")), request("x")).exchange

    monkeypatch.setattr(store, "calls", raced)
    monkeypatch.setattr(store, "exchange", exchange)
    path = await retention.archive(store, gone, tmp_path / "old")
    assert check(path).rollouts == 0


async def test_it_goes_on_after_a_failure(store, monkeypatch, caplog):
    await rollout(store, "a", closed=DAY.format(1))
    monkeypatch.setattr(retention, "SWEEP_EVERY_S", 0.0)
    tries = 0

    async def drop(name: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise RuntimeError("enough")
        raise StoreError("store_failed", "not now")

    with pytest.raises(RuntimeError, match="enough"):
        await retention.watch(store, Policy(keep_days=1), drop=drop)
    assert "nothing could be dropped: not now" in caplog.text
