"""What tool servers keep with a rollout: set as a whole, by whoever read it last, in either store."""

import asyncio

import pytest

from capture.errors import ClientError
from capture.store import retention
from capture.store.base import State
from tests.capture.store.places import FilePlace, opened
from tests.capture.store.samples import NOW, entry

LATER = "2026-01-01T00:00:05.000Z"
OWNER = b"tools of r"


@pytest.fixture
async def kept(store):
    """A store with one open rollout, `r`."""
    await store.add([entry("r")])
    return store


async def test_it_is_null_until_one_is_set_and_comes_back_as_it_was_sent(kept):
    assert await kept.state("r") == State(version=0, body=b"null", changed_at=None)
    assert await kept.state("gone") is None
    first = await kept.set_state("r", b'{"a": 1.50,  "b": "\\u0000"}', at=NOW)
    assert first == State(version=1, body=b'{"a": 1.50,  "b": "\\u0000"}', changed_at=NOW)
    assert await kept.state("r") == first
    second = await kept.set_state("r", b"[]", at=LATER)
    assert second == State(version=2, body=b"[]", changed_at=LATER)
    assert await kept.state("r") == second


async def test_it_is_set_only_from_a_version_that_was_expected(kept):
    with pytest.raises(ClientError, match='its ETag is now "0"') as refused:
        await kept.set_state("r", b"1", at=NOW, expected=frozenset({1, 2}))
    assert (refused.value.code, refused.value.status) == ("state_changed", 412)
    assert await kept.state("r") == State()
    assert (await kept.set_state("r", b"1", at=NOW, expected=frozenset({0, 7}))).version == 1
    with pytest.raises(ClientError):
        await kept.set_state("r", b"2", at=NOW, expected=frozenset({0}))
    assert (await kept.state("r")).body == b"1"


async def test_of_many_who_go_on_from_one_version_one_wins(kept):
    tries = [kept.set_state("r", b"%d" % n, at=NOW, expected=frozenset({0})) for n in range(16)]
    ends = await asyncio.gather(*tries, return_exceptions=True)
    (won,) = [end for end in ends if isinstance(end, State)]
    assert all(end.code == "state_changed" for end in ends if end is not won)
    assert await kept.state("r") == won


async def test_only_the_secret_that_still_opens_the_rollout_sets_it(kept):
    assert (await kept.set_state("r", b"1", at=NOW, owner=OWNER)).version == 1
    assert await kept.set_state("r", b"2", at=NOW, owner=b"agent of r") is None
    assert await kept.set_state("gone", b"2", at=NOW) is None
    await kept.seal("r")
    assert await kept.set_state("r", b"2", at=NOW, owner=OWNER) is None
    await kept.change("r", {"state": "closed"})
    assert await kept.set_state("r", b"2", at=NOW, owner=OWNER) is None
    assert (await kept.state("r")).body == b"1"


async def test_it_goes_with_its_rollout_and_another_of_that_name_begins_anew(kept, place):
    await kept.set_state("r", b"1", at=NOW)
    await kept.delete("r")
    assert await kept.state("r") is None
    assert await place.sql("SELECT count(*) FROM state") == [(0,)]
    await kept.add([entry("r")])
    assert await kept.state("r") == State()


async def test_it_is_no_change_to_the_rollout_itself(kept):
    before = await kept.get("r")
    await kept.set_state("r", b"1", at=NOW)
    assert await kept.get("r") == before


async def test_it_is_there_after_the_store_was_closed(kept, place):
    await kept.set_state("r", b"1", at=NOW)
    await kept.close()
    again = await opened(place)
    assert (await again.state("r")).body == b"1"
    await again.close()


async def test_it_goes_into_the_archive(kept, tmp_path):
    await kept.set_state("r", b"1", at=NOW)
    await kept.change("r", {"state": "closed"})
    folder = tmp_path / "archive"
    folder.mkdir()
    archive = await opened(FilePlace(folder))
    await retention._copy(kept, await kept.get("r"), archive)
    assert await archive.state("r") == State(version=1, body=b"1", changed_at=NOW)
    await archive.close()
