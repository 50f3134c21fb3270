"""The supervisor's end of a worker's store: what it knows of the worker, and what it does when that is gone.

What each word does is seen in test_remote, over the whole way.
"""

import pytest

from capture.errors import CaptureError
from tests.capture.processes.pairs import PairedStore
from tests.capture.store.samples import NOW, call, ended, entry, request


@pytest.fixture
async def store(tmp_path):
    paired = PairedStore(tmp_path / "t.db")
    await paired.open()
    await paired.add([entry("r"), entry("s")])
    yield paired
    await paired.close()


async def test_it_knows_what_its_worker_runs(store):
    for name in ("r", "s", "r"):
        await store.arrive(name, choices=1, started_at=NOW)
    assert store.desk.running == {("r", 0), ("s", 0), ("r", 1)}
    body = request("hi")
    await store.finish("r", [ended(call(1, body), body)])
    await store.abort([("s", 0)])
    assert repr(store.desk) == "<Desk 1 calls running>"


async def test_a_rollout_that_takes_no_call_leaves_nothing_running(store):
    await store.seal("r")
    assert await store.arrive("r", choices=1, started_at=NOW) is None
    assert store.desk.running == set()


async def test_what_it_can_not_read_is_an_error_of_the_asker(store):
    with pytest.raises(CaptureError, match="arrive failed"):
        await store.near.ask("arrive", ("r", "many", NOW))
    assert store.near.open
