"""What the look at a whole store finds, each kind of damage by its name and the rollout it hit."""

import json
from pathlib import Path

import apsw
import pytest

from capture.errors import StoreError
from capture.store import check as checked
from capture.store import contents
from capture.store.base import FORMAT_VERSION, Delta, Spool
from capture.store.check import check
from capture.store.faults import FAULTS, WASTE
from capture.store.summary import Found, Summary
from graph.records import Notice
from tests.capture.store.samples import call, ended, entry, ids, logprobs, open_at, request

TOOLS = [{"type": "function", "function": {"name": "f", "description": "d" * 400}}]


async def filled(path: Path) -> None:
    """A store with one rollout of every kind of row, and a second that shares its content."""
    store = open_at(path)
    await store.open()
    await store.add([entry("a", group="g", labels={"split": "train"}), entry("b")])
    for name in "ab":
        first, second = request("hi", tools=TOOLS), request("hi", "hello " * 200, "more", tools=TOOLS)
        one = ended(
            call(0, first), first, id="x", prompt_ids=ids(1, 2, 3), sampled_ids=ids(4, 5), logprobs=logprobs(-1, -2),
            sent=first[:-1] + b', "logprobs": true}', reply=b'{"choices": []}', top_logprobs=b"[" + b" " * 300 + b"]",
        )  # fmt: skip
        prompt = ids(1, 2, 3, 4, 5, 6)
        two = ended(call(1, second), second, prompt_ids=prompt, delta=Delta(holder=0, shared=5))
        # Its request is none, so its messages are stored in canonical form.
        odd = ended(call(2, first), b"\xff not JSON " + b"x" * 300)
        for record in (one, two, odd):
            store.begin(name, call(record.call.n, first), first)
            await store.finish(name, [record])
    store.notice("a", Notice(code="expired"))
    body = request("endless")
    store.begin("b", call(3, body), body)
    store.spool("b", 3, Spool(prompt_ids=ids(1), sampled_ids=ids(2), logprobs=None))
    closed = await store.change("a", {"state": "closed", "reward": 0.5})
    row = {"id": "a", "state": "closed", "n_calls": 3, "reward": 0.5, "health": {"findings": {"expired": 1}}}
    summary = Summary(
        version=closed.version, row=json.dumps(row).encode(), words="a", calls=3, reward=0.5,
        findings=(Found("expired", 1, 1),),
    )  # fmt: skip
    await store.summarise([(closed, summary)])
    # As a kill would leave it: the call still runs.
    await store.close()


@pytest.fixture
async def path(tmp_path):
    await filled(tmp_path / "t.db")
    return tmp_path / "t.db"


def damage(path: Path, sql: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(sql)
    db.close()


def found(path: Path) -> list[tuple[str, str | None, int | None]]:
    return [(fault.code, fault.rollout, fault.call) for fault in check(path).faults]


async def test_a_sound_store_has_no_faults(path):
    report = check(path)
    assert report.faults == ()
    assert (report.version, report.rollouts, report.calls, report.running) == (FORMAT_VERSION, 2, 7, 1)
    assert report.contents > 5
    assert report.size_bytes == path.stat().st_size


async def test_a_store_in_use_is_looked_at_as_it_stands(tmp_path):
    store = open_at(tmp_path / "t.db")
    await store.open()
    await store.add([entry("a")])
    assert check(tmp_path / "t.db").rollouts == 1
    await store.add([entry("b")])
    assert check(tmp_path / "t.db").rollouts == 2
    await store.close()


B = "(SELECT key FROM rollout WHERE id = 'b')"


DAMAGES = {
    "a note of use": (
        f"DELETE FROM use WHERE rollout <> {B} AND content IN (SELECT content FROM chain)",
        {("content_unclaimed", "a", None)},
    ),
    "bytes of nobody": (
        "INSERT INTO content (digest, data) VALUES (x'00', x'00')",
        {("content_damaged", None, None), ("content_unused", None, None)},
    ),
    "a link's digest": (
        f"UPDATE chain SET digest = CAST(key AS BLOB) WHERE rollout = {B} AND parent IS NULL",
        {("chain_damaged", "b", None)},
    ),
    "the end of a call's messages": (
        f"UPDATE call SET chain = 999 WHERE rollout = {B} AND n = 1",
        {("reference_broken", "b", 1), ("call_damaged", "b", 1)},
    ),
    # Call 1 goes on from call 0.
    "sampled ids": (
        f"UPDATE call SET sampled = x'00' WHERE rollout = {B} AND n = 0",
        {("call_damaged", "b", 0), ("call_damaged", "b", 1)},
    ),
    "sampled ids by length alone": (
        f"UPDATE call SET sampled = x'040000000500000006000000' WHERE rollout = {B} AND n = 0",
        {("call_damaged", "b", 0)},
    ),
    "logprobs": (f"UPDATE call SET logprobs = x'00' WHERE rollout = {B} AND n = 0", {("call_damaged", "b", 0)}),
    "a call's record": (f"UPDATE call SET record = '{{' WHERE rollout = {B} AND n = 0", {("call_damaged", "b", 0)}),
    "a prompt": (
        f"UPDATE call SET tail = x'07000000' WHERE rollout = {B} AND n = 1",
        {("prompt_lost", "b", 1)},
    ),
    "a call that another goes on from": (
        f"DELETE FROM call WHERE rollout = {B} AND n = 0",
        {("prompt_lost", "b", 1), ("exchange_lost", "b", 0), ("count_wrong", "b", None)},
    ),
    "an exchange": (f"DELETE FROM exchange WHERE rollout = {B} AND n = 1", {("exchange_lost", "b", 1)}),
    "a reply that is elsewhere": (
        f"UPDATE exchange SET reply = '{{\"whole\": 999}}' WHERE rollout = {B} AND n = 0",
        {("exchange_lost", "b", 0)},
    ),
    "a request": (f"UPDATE exchange SET request = '{{' WHERE rollout = {B} AND n = 0", {("exchange_lost", "b", 0)}),
    "a state": (f"UPDATE rollout SET state = 'closed' WHERE key = {B}", {("rollout_damaged", "b", None)}),
    "a rollout's record": (f"UPDATE rollout SET record = '{{}}' WHERE key = {B}", {("rollout_damaged", "b", None)}),
    "labels": ("DELETE FROM label", {("rollout_damaged", "a", None)}),
    "a counter": ("UPDATE counter SET value = 1 WHERE name = 'created'", {("order_broken", None, None)}),
    "no counter": ("DELETE FROM counter WHERE name = 'closed'", {("order_broken", None, None)}),
    "a rollout's next number": (
        f"UPDATE rollout SET next = 1 WHERE key = {B}",
        {("order_broken", "b", None)},
    ),
    "a rollout's counter": (f"UPDATE rollout SET tick = 0 WHERE key = {B}", {("order_broken", "b", None)}),
    "what was spent": (f"UPDATE rollout SET new_tokens = 1 WHERE key = {B}", {("count_wrong", "b", None)}),
    "a summary": ("UPDATE summary_text SET data = x'7b'", {("summary_wrong", "a", None)}),
    "a summary's form": ("UPDATE summary_text SET data = '[]'", {("summary_wrong", "a", None)}),
    "a summary's version": ("UPDATE summary SET version = 99", {("summary_wrong", "a", None)}),
    "a summary's column": ("UPDATE summary SET calls = 2", {("summary_wrong", "a", None)}),
    "a summary's finding": ("DELETE FROM summary_finding", {("summary_wrong", "a", None)}),
    "a finding without a summary": ("DELETE FROM summary", {("summary_wrong", "a", None)}),
    "what a summary is of": (
        "UPDATE rollout SET record = json_set(record, '$.reward', 1.0) WHERE id = 'a'",
        {("summary_wrong", "a", None)},
    ),
    "a spool": (f"INSERT INTO spool (rollout, n) VALUES ({B}, 0)", {("spool_left", "b", 0)}),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_each_damage_is_named_with_what_it_hit(path, name):
    sql, expected = DAMAGES[name]
    damage(path, sql)
    assert set(found(path)) == expected


async def test_damaged_bytes_are_named_and_so_is_each_call_that_needs_them(path):
    packed = "SELECT content FROM chain JOIN content ON content.key = chain.content WHERE packed = 'zstd'"
    damage(path, f"UPDATE content SET data = x'00' WHERE key IN ({packed})")
    codes = found(path)
    assert ("content_damaged", None, None) in codes
    assert {(code, rollout) for code, rollout, _ in codes if rollout} == {
        (code, rollout) for code in ("call_damaged", "exchange_lost") for rollout in "ab"
    }
    # The others are still looked at, and well.
    assert ("call_damaged", "a", 0) not in codes


async def test_a_row_that_names_one_that_is_gone_is_the_files_fault(path):
    damage(path, "PRAGMA foreign_keys = OFF; INSERT INTO spool (rollout, n) VALUES (99, 0)")
    (fault,) = check(path).faults
    assert (fault.code, fault.rollout) == ("reference_broken", None)
    assert "spool" in fault.message


async def test_a_page_of_zeroes_is_found_and_the_rest_is_still_looked_at(path):
    size = path.stat().st_size
    db = apsw.Connection(str(path))
    page = db.pragma("page_size")
    (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'exchange'").fetchone()
    db.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\0" * page)
    report = check(path)
    assert "file_damaged" in {fault.code for fault in report.faults}
    assert {fault.rollout for fault in report.faults} >= {"a", "b"}
    assert (report.rollouts, report.calls, path.stat().st_size) == (2, 7, size)


@pytest.mark.parametrize("content", [b"no database " * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_sqlite_cannot_read_at_all_is_an_error(tmp_path, content):
    (tmp_path / "t.db").write_bytes(content)
    with pytest.raises(StoreError, match="can't be read"):
        check(tmp_path / "t.db")


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        check(tmp_path / "t.db")
    assert list(tmp_path.iterdir()) == []


async def test_another_version_is_not_judged_by_this_ones_rules(path):
    damage(path, f"PRAGMA user_version = {FORMAT_VERSION - 1}")
    with pytest.raises(StoreError, match="is of version"):
        check(path)
    damage(path, f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    with pytest.raises(StoreError) as caught:
        check(path)
    assert caught.value.code == "store_newer"


async def test_a_long_rollout_is_read_in_pages_and_the_damaged_call_is_the_one_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checked, "PAGE_CALLS", 4)
    store = open_at(tmp_path / "t.db")
    await store.open()
    await store.add([entry("a")])
    for n in range(10):
        body = request(*(f"turn {at}" for at in range(n)))
        await store.finish("a", [ended(call(n, body), body, prompt_ids=ids(*range(n + 1)))])
    await store.close()
    damage(tmp_path / "t.db", "UPDATE call SET record = 'no' WHERE n = 6")
    assert found(tmp_path / "t.db") == [("call_damaged", "a", 6)]


async def test_a_summary_that_is_behind_is_no_fault(path):
    damage(path, "UPDATE rollout SET version = version + 1, record = json_set(record, '$.reward', 1.0)")
    assert check(path).faults == ()


def test_every_code_is_explained():
    assert set(FAULTS) > WASTE
    source = Path(checked.__file__).read_text()
    assert all(f'code="{code}"' in source for code in FAULTS)
    assert json.dumps(FAULTS)


@pytest.fixture
async def long(tmp_path):
    """A store with one call, whose messages came all at once."""
    store = open_at(tmp_path / "t.db")
    await store.open()
    await store.add([entry("r")])
    body = request(*[f"message {n}" for n in range(100)])
    await store.finish("r", [ended(call(0, body), body)])
    await store.close()
    return tmp_path / "t.db"


async def test_a_store_of_messages_that_are_packed_together_is_sound(long):
    report = check(long)
    assert (report.faults, report.contents) == ((), 1)


@pytest.mark.parametrize("data", ["x'00'", "(SELECT data FROM content WHERE packed = 'zstd')"])
async def test_a_list_of_messages_that_is_damaged_is_named_and_the_call_that_needs_it(long, data):
    noise = contents.compressed(b'{"no": "list"}')
    damage(long, f"INSERT INTO content (digest, packed, data) VALUES (x'00', 'zstd', x'{noise.hex()}')")
    damage(long, f"UPDATE content SET data = {data} WHERE packed = 'list'")
    codes = set(found(long)) - {("content_unused", None, None)}
    assert codes == {("content_damaged", None, None), ("exchange_lost", "r", 0), ("call_damaged", "r", 0)}


async def test_a_list_of_other_messages_is_not_what_its_digest_says(long):
    other = contents.compressed(b'[{"role":"user","content":"other"}]')
    damage(long, f"UPDATE content SET data = x'{other.hex()}'")
    assert found(long) == [("content_damaged", None, None)]
