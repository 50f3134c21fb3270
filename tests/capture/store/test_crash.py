"""Killed with SIGKILL at any moment, the store has every call whose finish had returned, and opens again."""

import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tests.capture.store.places import FilePlace, opened
from tests.capture.store.samples import listed

ROOT = Path(__file__).resolve().parents[3]

# Runs calls of one rollout, several at a time, for ever: start, spool, finish, delivery. Prints each number once its
# finish has returned.
WRITER = """
import asyncio, sys
import numpy as np
from capture.store.base import Delta, Spool
from capture.store import open_store
from tests.capture.store.samples import call, ended, entry, request

async def run(store, n):
    body = request(*(f"turn {at}" for at in range(n % 20)), user="u" * 300)
    prompt = np.arange(n % 50 + 1, dtype=np.int32)
    sampled = np.full(n % 7, n, dtype=np.int32)
    store.begin("r", call(n, body), body)
    await asyncio.sleep(0)
    store.spool("r", n, Spool(prompt_ids=prompt, sampled_ids=sampled[:1], logprobs=None))
    delta = Delta(holder=n - 50, shared=min(len(prompt), 3)) if n >= 50 else None
    await store.finish("r", [ended(call(n, body), body, prompt_ids=prompt, sampled_ids=sampled, delta=delta)])
    print(n, flush=True)
    store.deliver("r", [n], delivered=True, at="")

async def lane(store, first, lanes):
    n = first
    while True:
        await run(store, n)
        n += lanes

async def main():
    store = open_store(sys.argv[1], durability=sys.argv[2])
    await store.open()
    await store.add([entry("r")])
    # One call that never ends.
    body = request("endless")
    store.begin("r", call(1_000_000, body), body)
    store.spool("r", 1_000_000, Spool(prompt_ids=np.array([1, 2], np.int32), sampled_ids=None, logprobs=None))
    await asyncio.gather(*(lane(store, first, 8) for first in range(8)))

asyncio.run(main())
"""


def killed(url: str, durability: str, after: int) -> list[int]:
    """Let the writer run until it has said so many numbers, kill it, and return all that it said."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, url, durability], cwd=ROOT, stdout=subprocess.PIPE)
    with writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(after)]
        writer.kill()
        # The pipe may hold lines that were written before the kill; the last one is cut off at worst.
        said += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    assert writer.returncode == -9
    return said


@pytest.mark.parametrize(("durability", "after"), [("process", 1), ("process", 100), ("process", 457), ("none", 230)])
async def test_what_was_said_to_be_stored_is_there_after_a_kill(place, durability, after):
    url = f"sqlite:///{place.path}" if isinstance(place, FilePlace) else place.url
    said = killed(url, durability, after)

    store = await opened(place)
    found = {call.n: call for call in await store.calls("r")}
    assert set(said) <= set(found)
    for n in said:
        assert (found[n].status, listed(found[n].sampled_ids)) == ("complete", [n] * (n % 7))
        assert found[n].delivered in (True, None)
    for call in found.values():
        if call.prompt_ids is not None and call.n < 1_000_000:
            assert listed(call.prompt_ids) == list(range(call.n % 50 + 1))
        assert len(call.messages) == (call.n % 20 if call.n < 1_000_000 else 1)
    endless = found[1_000_000]
    assert (endless.status, endless.delivered, listed(endless.prompt_ids)) == ("aborted", None, [1, 2])
    assert set(store.recovered) == {("r", n) for n, call in found.items() if call.status == "aborted"}
    assert await store.notices("r") == []
    await store.close()
    if not isinstance(place, FilePlace):
        return
    db = apsw.Connection(str(place.path), flags=apsw.SQLITE_OPEN_READONLY)
    assert db.execute("PRAGMA integrity_check").get == "ok"
    db.close()
