"""`GET /sequences`: many rollouts in one answer, as their reader gets it."""

import asyncio
import gzip
import importlib
import io
import json

import aiohttp
import msgspec
import numpy as np
import pytest

from capture import answers, bulk, exports
from capture.errors import ClientError, StoreError
from tests.plane import KEY, control_plane


@pytest.fixture
async def plane(tmp_path):
    async with control_plane(tmp_path) as plane:
        yield plane


@pytest.fixture
async def session():
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        yield session


@pytest.fixture
def ask(plane, session):
    """Return a function that asks the control plane and gives status and lines."""

    async def ask(query="", **headers):
        async with session.get(f"{plane.url}/sequences{query}", headers=headers) as answer:
            body = await answer.read()
            return answer.status, [json.loads(line) for line in body.splitlines()]

    return ask


async def rollout(plane, session, name, *, group="g", calls=1, close=True, reward=1.0, **rest):
    await session.post(plane.url + "/rollouts", json={"id": name, "group": group, **rest})
    for n in range(calls):
        await plane.call(name, n, [1, 2, 3], [4, 5])
    if close:
        body = {"wait_s": 0} | ({"reward": reward} if calls and reward is not None else {})
        await session.post(f"{plane.url}/rollouts/{name}/close", json=body)


async def test_a_line_a_rollout_and_an_end(ask, plane, session):
    for name in ("a", "b"):
        await rollout(plane, session, name)
    await rollout(plane, session, "c", group="other")
    status, (a, b, end) = await ask("?group=g")
    assert status == 200
    assert [line["rollout"] for line in (a, b)] == ["a", "b"]
    assert a["sequences"][0]["input_ids"] == [1, 2, 3, 4, 5]
    assert end == {"end": True, "rollouts": 2, "refused": 0, "next": None}


async def test_each_line_is_what_the_rollout_alone_gives(ask, plane, session):
    await rollout(plane, session, "a")
    _, (line, _) = await ask("?format=native")
    async with session.get(plane.url + "/rollouts/a/sequences") as alone:
        assert await alone.json() == line


async def test_one_that_cannot_be_exported_is_a_line_that_says_so(ask, plane, session):
    await rollout(plane, session, "good")
    await rollout(plane, session, "open", close=False)
    await rollout(plane, session, "empty", calls=0)
    await rollout(plane, session, "ungraded", reward=None)
    status, (*lines, end) = await ask("?group=g&format=skyrl")
    assert status == 200
    told = {line["rollout"]: line["refused"]["code"] for line in lines if "refused" in line}
    assert told == {"open": "rollout_open", "empty": "no_calls", "ungraded": "ungraded"}
    assert all(line["refused"]["hint"] for line in lines if "refused" in line)
    assert (end["rollouts"], end["refused"]) == (4, 3)
    assert end["reasons"] == {"rollout_open": 1, "no_calls": 1, "ungraded": 1}


async def test_open_ones_as_they_stand(ask, plane, session):
    await rollout(plane, session, "a", close=False)
    _, (line, end) = await ask("?open=1&state=open")
    assert (line["final"], end["refused"]) == (False, 0)


async def test_pages_by_limit_and_cursor(ask, plane, session, monkeypatch):
    monkeypatch.setattr(bulk, "PAGE", 2)
    for n in range(5):
        await rollout(plane, session, f"r{n}")
    _, (*lines, end) = await ask()
    assert ([line["rollout"] for line in lines], end["next"]) == ([f"r{n}" for n in range(5)], None)
    _, (*lines, end) = await ask("?limit=3")
    assert [line["rollout"] for line in lines] == ["r0", "r1", "r2"]
    _, (*lines, end) = await ask(f"?limit=3&after={end['next']}")
    assert ([line["rollout"] for line in lines], end["next"]) == (["r3", "r4"], None)


async def test_the_order_of_closing_can_be_tailed(ask, plane, session):
    await rollout(plane, session, "a", close=False)
    await rollout(plane, session, "b")
    _, (b, end) = await ask("?order=closed&group=g")
    assert b["rollout"] == "b"
    assert await ask(f"?order=closed&group=g&after={end['next']}") == (200, [{**end, "rollouts": 0}])
    await session.post(plane.url + "/rollouts/a/close", json={"wait_s": 0})
    _, (a, _) = await ask(f"?order=closed&group=g&after={end['next']}")
    assert a["rollout"] == "a"


async def test_a_filter_that_nobody_has_is_an_error(ask, plane, session):
    status, (said,) = await ask()
    assert (status, said["error"]["code"]) == (404, "no_rollouts")
    await rollout(plane, session, "a", close=False, labels={"split": "train"})
    status, (said,) = await ask("?group=gg&label=split:test")
    assert (status, said["error"]["code"]) == (404, "no_rollouts")
    assert "group 'gg' and label split:test" in said["error"]["message"]
    # None has closed yet; the group is there all the same.
    assert await ask("?order=closed&group=g") == (
        200,
        [{"end": True, "rollouts": 0, "refused": 0, "next": "cl0"}],
    )


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?format=verifier", "did you mean verifiers"),
        ("?format=tree&drift=split", "no drift=split"),
        ("?state=open", "without open=1"),
        ("?state=open&open=1&order=closed", "none of them"),
        ("?label=k:a&label=k:b", "two values"),
        ("?limit=0", "limit"),
        ("?grup=g", "did you mean group"),
    ],
)
async def test_what_cannot_be_meant_is_said(ask, query, said):
    status, (error,) = await ask(query)
    assert (status, error["error"]["code"]) == (422, "invalid_query")
    assert said in error["error"]["message"]


async def test_msgpack_is_one_object_after_another(plane, session):
    await rollout(plane, session, "a")
    headers = {"Accept": "application/msgpack"}
    async with session.get(plane.url + "/sequences", headers=headers) as answer:
        assert answer.content_type == "application/msgpack"
        assert answer.headers["Treering-Version"] == answers.VERSION
        body = await answer.read()
    form = {"rollout": "a"}
    async with session.get(plane.url + "/rollouts/a/sequences", headers=headers) as alone:
        first = await alone.read()
    assert body.startswith(first)
    form, end = msgspec.msgpack.decode(first), msgspec.msgpack.decode(body[len(first) :])
    assert np.frombuffer(form["sequences"][0]["input_ids"], "<i4").tolist() == [1, 2, 3, 4, 5]
    assert end["rollouts"] == 1
    async with session.get(plane.url + "/sequences?format=parquet", headers=headers) as answer:
        assert answer.status == 422


async def test_lines_are_compressed_on_request(plane):
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        headers = {"Authorization": f"Bearer {KEY}", "Accept-Encoding": "gzip"}
        await session.post(plane.url + "/rollouts", json={"id": "a"}, headers=headers)
        async with session.get(plane.url + "/sequences?open=1&format=native", headers=headers) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            lines = gzip.decompress(await answer.read()).splitlines()
    assert json.loads(lines[-1])["end"] is True


async def test_parquet_has_the_refused_too_and_the_end_in_its_footer(plane, session):
    pq = importlib.import_module("pyarrow.parquet")
    await rollout(plane, session, "a")
    await rollout(plane, session, "b", calls=0)
    async with session.get(plane.url + "/sequences?format=parquet") as answer:
        assert answer.content_type == "application/vnd.apache.parquet"
        file = pq.ParquetFile(io.BytesIO(await answer.read()))
    a, b = file.read().to_pylist()
    assert (a["rollout"], a["input_ids"], a["refused"]) == ("a", [1, 2, 3, 4, 5], None)
    assert (b["rollout"], json.loads(b["refused"])["code"]) == ("b", "no_calls")
    end = json.loads(file.metadata.metadata[b"treering"])
    assert end == {"end": True, "rollouts": 2, "refused": 1, "next": None, "reasons": {"no_calls": 1}}
    async with session.get(plane.url + "/rollouts/a/sequences?format=parquet") as answer:
        (alone,) = pq.ParquetFile(io.BytesIO(await answer.read())).read().to_pylist()
    assert alone == a


async def test_a_close_says_why_there_are_no_sequences_and_closes_all_the_same(plane, session):
    await rollout(plane, session, "a", close=False)
    body = {"wait_s": 0, "sequences": {"format": "skyrl"}}
    async with session.post(plane.url + "/rollouts/a/close", json=body) as answer:
        assert answer.status == 200
        closed = await answer.json()
    assert (closed["rollout"]["state"], closed["sequences"], closed["refused"]["code"]) == ("closed", None, "ungraded")
    async with session.post(plane.url + "/rollouts/a/close", json=body | {"reward": 1.0}) as answer:
        closed = await answer.json()
    assert (closed["sequences"]["format"], "refused" in closed) == ("skyrl", False)


async def test_a_fault_in_one_rollout_hides_no_other(ask, plane, session, monkeypatch, caplog):
    for name in ("a", "b", "c"):
        await rollout(plane, session, name)
    shape = exports.form

    def form(graph, *rest, **options):
        if graph.rollout.id == "b":
            raise RuntimeError("odd")
        return shape(graph, *rest, **options)

    monkeypatch.setattr(exports, "form", form)
    _, (a, b, c, end) = await ask()
    assert (a["rollout"], b["refused"]["code"], c["rollout"]) == ("a", "internal", "c")
    assert end["refused"] == 1
    assert "rollout b can't be exported" in caplog.text


async def test_a_rollout_that_is_damaged_hides_no_other(ask, plane, session, monkeypatch):
    for name in ("a", "b"):
        await rollout(plane, session, name)
    aside = plane.rollouts.aside

    async def damaged(name):
        if name == "a":
            raise StoreError("store_failed", "message 0f can't be read")
        return await aside(name)

    monkeypatch.setattr(plane.rollouts, "aside", damaged)
    _, (a, b, end) = await ask()
    assert (a["refused"]["code"], b["rollout"], end["refused"]) == ("store_failed", "b", 1)


async def test_an_answer_that_cannot_go_on_is_cut_and_has_no_end(plane, session, monkeypatch, caplog):
    monkeypatch.setattr(bulk, "PAGE", 1)
    for name in ("a", "b", "c"):
        await rollout(plane, session, name)
    page, asked = plane.rollouts.page, []

    async def broken(query):
        asked.append(query)
        if len(asked) == 3:
            raise StoreError("store_failed", "the disk has gone")
        return await page(query)

    monkeypatch.setattr(plane.rollouts, "page", broken)
    async with session.get(plane.url + "/sequences") as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert "the disk has gone" in caplog.text


async def test_what_fails_before_the_first_byte_has_a_status_of_its_own(ask, plane, monkeypatch):
    async def broken(query):
        raise StoreError("store_failed", "the disk has gone")

    monkeypatch.setattr(plane.rollouts, "page", broken)
    status, (said,) = await ask()
    assert (status, said["error"]["code"]) == (503, "store_failed")


async def test_a_reader_that_goes_leaves_nothing_running(plane, session, monkeypatch):
    for n in range(4):
        await rollout(plane, session, f"r{n}")
    going = asyncio.Event()

    async def aside(name):
        if name == "r2":
            going.set()
            await asyncio.Event().wait()
        return await plane.rollouts.graph(name)

    monkeypatch.setattr(plane.rollouts, "aside", aside)
    # Compressed lines wait for each other.
    async with asyncio.timeout(10):
        async with session.get(plane.url + "/sequences", headers={"Accept-Encoding": "identity"}) as answer:
            assert json.loads(await answer.content.readline())["rollout"] == "r0"
            await going.wait()
        await plane.hung_up.wait()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "export a rollout"]


async def test_a_reader_that_takes_nothing_is_cut(plane, session, monkeypatch, caplog):
    class Stuck:
        async def write(self, piece):
            await asyncio.Event().wait()

    monkeypatch.setattr(bulk, "STUCK_S", 0.0)
    with pytest.raises(TimeoutError):
        await bulk._write(Stuck(), b"line")


def test_the_options_are_those_of_one_rollout_and_more():
    assert bulk.ASKED.keys() > exports.ASKED.keys()
    asked = bulk.read({"format": "native", "roles": ("main", "summary"), "group": "g", "limit": 3, "open": True})
    assert (asked.wanted.options.roles, asked.query.group, asked.limit) == (("main", "summary"), "g", 3)
    with pytest.raises(ClientError):
        bulk.read({"format": "tree", "drift": "split"})
