"""Small rollouts, calls and exchanges, as the store gets them; and what makes two calls the same."""

import json
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from capture.store import migrations, query
from capture.store.base import Delta, Entry, Exchange, Record, Registration
from capture.store.sqlite import SqliteStore
from graph.messages import from_chat
from graph.records import Call, FloatArray, IntArray, Rollout

NOW = "2026-01-01T00:00:00.000Z"


def open_at(path: Path, **options) -> SqliteStore:
    return SqliteStore(path, **{"now": lambda: NOW} | options)


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


def logprobs(*values: float) -> FloatArray:
    return np.array(values, np.float32)


def entry(name: str, **fields) -> Entry:
    return Entry(
        rollout=Rollout(id=name, created_at=NOW, **fields),
        registration=Registration(),
        secret=b"agent of " + name.encode(),
        tools_secret=b"tools of " + name.encode(),
    )


def request(*texts: str, **fields) -> bytes:
    """A chat request: user and assistant by turns."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def call(n: int, body: bytes, /, **fields) -> Call:
    """A running call of a chat request."""
    if "messages" not in fields:
        fields["messages"] = tuple(from_chat(message) for message in json.loads(body).get("messages", []))
    given: dict[str, Any] = {"n": n, "status": "running", "arrived": 2 * n, "started_at": NOW} | fields
    return Call(**given)


def ended(running: Call, body: bytes, /, *, delta: Delta | None = None, **fields) -> Record:
    """The record of a call that is complete, unless fields say otherwise."""
    exchange = {name: fields.pop(name) for name in Exchange.__struct_fields__ if name in fields}
    done = msgspec.structs.replace(running, **{"status": "complete", "ended": running.arrived + 1} | fields)
    return Record(call=done, exchange=Exchange(request=body, **exchange), delta=delta)


def plain(call: Call) -> dict[str, Any]:
    """A call as values that compare: arrays by type and bytes, so that NaN equals NaN, and None isn't empty."""
    out = {}
    for name in call.__struct_fields__:
        value = getattr(call, name)
        out[name] = (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value
    return out


def listed(array: IntArray | FloatArray | None) -> list[Any]:
    """The values of an array that is there."""
    assert array is not None
    values: list[Any] = array.tolist()
    return values


def as_json(exchange: Exchange | None) -> dict[str, Any]:
    """An exchange as values that compare: bodies by their parsed keys in order, numbers as they are spelt."""
    assert exchange is not None
    out = {}
    for name in exchange.__struct_fields__:
        value = getattr(exchange, name)
        out[name] = parsed(value) if name in ("request", "sent", "reply") and value is not None else value
    return out


def parsed(body: bytes) -> object:
    """JSON with the order of keys and the spelling of numbers; the bytes themselves if it isn't JSON."""
    try:
        return json.loads(body, object_pairs_hook=tuple, parse_int=str, parse_float=str)
    except ValueError:
        return body


def in_memory() -> apsw.Connection:
    """A store's tables, with the rollouts 1 and 2."""
    db = apsw.Connection(":memory:")
    migrations.climb(db)
    for key in (1, 2):
        db.execute(
            "INSERT INTO rollout (key, id, version, created, state, secret, tools_secret, record, registration)"
            " VALUES (?1, ?1, 0, ?1, 'open', ?1, ?1, '{}', '{}')",
            (key,),
        )
    return db


def count(db: apsw.Connection, table: str) -> int:
    return int(query.value(db, f"SELECT count(*) FROM {table}"))
