"""The rollout that lies in `files/v….sql` and `files/postgres-v….sql`, one file a version of each stored format.

    python -m tests.capture.store.old > tests/capture/store/files/v1.sql
    python -m tests.capture.store.old postgres > tests/capture/store/files/postgres-v1.sql

writes the file of the present version. It is run once a version, when that version is released, and never again: what
a later version reads is what the earlier one wrote.
"""

import asyncio
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw.shell
import numpy as np

from capture.store.base import Delta, Exchange, Record
from capture.store.summary import Found, Summary
from graph.records import Notice
from tests.capture.store.samples import NOW, call, ended, entry, ids, open_at, request

if TYPE_CHECKING:
    from tests.postgres import Server

TOOLS = [{"type": "function", "function": {"name": "f", "description": "d" * 300}}]
FIRST = request("hi", tools=TOOLS, seed=10**20)
SECOND = request("hi", "hello", "more", tools=TOOLS)
STATE = b'{"board": [1, 2.50]}'
ROW = b'{"id":"old","state":"closed","n_calls":2,"reward":1.0,"health":{"findings":{"engine_errors":1}}}'
SUMMARY = Summary(
    version=5, row=ROW, words="old\ng\ntrain", trouble=True, calls=2, sampled_tokens=2,
    reward=1.0, findings=(Found("engine_errors", 1, 1),),
)  # fmt: skip
"""Of the rollout as it is in the end, as far as a store reads one."""
DELIVERED_AT = "2026-01-01T00:00:01.000Z"


def records() -> list[Record]:
    """The two calls, as they are finished."""
    one = ended(
        call(0, FIRST),
        FIRST,
        id="chatcmpl-1",
        prompt_ids=ids(1, 2, 3),
        sampled_ids=ids(4, 5),
        logprobs=np.array([-0.5, np.nan], np.float32),
        finish_reason="stop",
        sent=FIRST[:-1] + b', "logprobs": true}',
        reply=json.dumps(
            {"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"content": "hello " * 50}}]}
        ).encode(),
        usage=b'{"prompt_tokens":3}',
    )
    prompt = ids(1, 2, 3, 4, 5, 6)
    two = ended(call(1, SECOND), SECOND, status="error", prompt_ids=prompt, delta=Delta(holder=0, shared=5))
    exchange = Exchange(request=SECOND, error={"blame": "engine", "status": 500, "message": "no"})
    return [one, Record(call=two.call, exchange=exchange, delta=two.delta)]


async def write(path: Path) -> None:
    """Write the rollout into a file."""
    await fill(open_at(path))


async def fill(store: Any) -> None:
    """Open a store, write the rollout into it, and close it."""
    await store.open()
    await store.add([entry("old", group="g", labels={"split": "train"}, task="say hi")])
    for record in records():
        await store.finish("old", [record])
    store.deliver("old", [0], delivered=True, at=DELIVERED_AT)
    store.notice("old", Notice(code="request_refused", at=NOW, calls=(1,), data={"field": "priority"}))
    await store.set_state("old", STATE, at=NOW)
    closed = await store.change("old", {"state": "closed", "reward": 1.0, "roles": {0: "main"}})
    await store.summarise([(closed, SUMMARY)])
    await store.close()


def dump(path: Path) -> str:
    """A store as SQL, without what differs from one machine to the next."""
    out = io.StringIO()
    db = apsw.Connection(str(path))
    shell: Any = apsw.shell.Shell(stdout=out, db=db)
    shell.process_command(".dump")
    db.close()
    lines = [
        line for line in out.getvalue().splitlines() if line and not line.startswith(("--", "DROP", "PRAGMA page"))
    ]
    return "\n".join(lines) + "\n"


def dump_database(server: "Server", url: str) -> str:
    """A database as SQL, without what differs from one machine or one version of PostgreSQL to the next."""
    out = server.run("pg_dump", "--schema=treering", "--inserts", "--no-owner", "--no-comments", url)
    left_out = ("--", "\\", "SET ", "SELECT pg_catalog.set_config")
    return "\n".join(line for line in out.splitlines() if line and not line.startswith(left_out)) + "\n"


def present_of_postgres() -> str:
    """The database of the present version."""
    from tests.capture.store.places import DatabasePlace
    from tests.postgres import Server

    with Server.running() as server:
        url = asyncio.run(server.database())
        asyncio.run(fill(DatabasePlace(url).store()))
        return dump_database(server, url)


if __name__ == "__main__":
    if sys.argv[1:] == ["postgres"]:
        sys.stdout.write(present_of_postgres())
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        asyncio.run(write(path))
        sys.stdout.write(dump(path))
