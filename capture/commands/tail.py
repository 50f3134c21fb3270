"""`treering tail`: what happens, one line each, as it happens; goes on where it was when the connection is lost."""

from __future__ import annotations

import http.client
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from capture import terminal
from capture.cli import Given
from capture.client import Client, client, decode, segment
from capture.colour import LEVELS, STATUSES, Paint
from capture.errors import ClientError, UsageError

PAUSE_S = 1.0
"""Before a lost connection is tried again."""

PATIENCE_S = 60.0
"""For which it is tried."""


class Block(NamedTuple):
    """One block of a stream; `name` is empty for one that holds an id alone."""

    name: str
    id: str
    data: bytes


def tail(given: Given) -> int:
    """Print what happens until it is interrupted, or the rollout that is followed is deleted."""
    asked, rollout = given.arguments, given.arguments["id"]
    plane = client(given.settings, asked["url"])
    path = "/events" if rollout is None else f"/rollouts/{segment(rollout)}/events"
    # Of one rollout all that is kept; else what comes.
    after = asked["after"] or ("0" if rollout is not None else None)
    paint = Paint(sys.stdout, os.environ)
    lost: float | None = None
    while True:
        try:
            for block in follow(plane, path, after):
                lost, after = None, block.id or after
                if block.name == "gone":
                    sys.stderr.write("treering: events were dropped before they were read; going on from now\n")
                    after = None
                elif block.name:
                    _print(block, asked["json"], paint, alone=rollout is not None)
                    if rollout is not None and block.name == "rollout.deleted":
                        return 0
        except ClientError as error:
            if error.code != "events_gone" or asked["after"] == after:
                raise
            sys.stderr.write(f"treering: {error.message} Going on from now.\n")
            after = None
        except UsageError:
            if lost is None:
                raise
        except (OSError, http.client.HTTPException):
            pass
        lost = _wait(lost, plane)


def _wait(lost: float | None, plane: Client) -> float:
    """Pause before the next try. Raises `UsageError` when there were enough."""
    now = time.monotonic()
    if lost is None:
        sys.stderr.write(f"treering: the stream from {plane.url} ended; trying again\n")
    elif now - lost > PATIENCE_S:
        hint = "is `treering serve` running there?"
        raise UsageError(f"no answer from {plane.url} for {PATIENCE_S:.0f} s", hint=hint)
    time.sleep(PAUSE_S)
    return now if lost is None else lost


def follow(plane: Client, path: str, after: str | None) -> Iterator[Block]:
    """Yield the blocks of a stream until it ends. Raises as `Client.stream`."""
    with plane.stream(path, query={"after": after}) as answer:
        yield from blocks(answer)


def blocks(lines: Iterable[bytes]) -> Iterator[Block]:
    """Cut the lines of a stream of ours into blocks; other servers' may be spelt otherwise."""
    fields: dict[str, bytes] = {}
    for line in lines:
        name, colon, value = line.rstrip(b"\r\n").partition(b": ")
        if colon:
            fields[name.decode("utf-8", "replace")] = value
        elif not name and fields:
            id_, data = fields.get("id", b"").decode(), fields.get("data", b"")
            yield Block(fields.get("event", b"").decode() if data else "", id_, data)
            fields = {}


def _print(block: Block, as_json: bool, paint: Paint, *, alone: bool) -> None:  # noqa: FBT001  the flag as it was given
    data = decode(block.data)
    if as_json:
        text = msgspec.json.encode({"event": block.name, "id": block.id, **data}).decode()
    else:
        text = line(block.name, data, paint, alone=alone)
    sys.stdout.write(terminal.fit(text, sys.stdout.encoding) + "\n")
    sys.stdout.flush()


def line(name: str, data: dict[str, Any], paint: Paint, *, alone: bool = False) -> str:
    """Return an event as a line; `alone`: of one rollout, which needn't be named."""
    at = str(data.get("at", ""))[11:23]
    who = "" if alone or data.get("rollout") is None else f"{terminal.clean(str(data['rollout']))}  "
    return f"{paint(at, 'dim')}  {who}{_said(name, data, paint)}".rstrip()


def _said(name: str, data: dict[str, Any], paint: Paint) -> str:
    value = terminal.value
    if name == "call.ended":
        status = str(data.get("status"))
        tokens = f"{_count(data, 'prompt')} + {_count(data, 'sampled')} tokens"
        took = [f"{(data.get('ended_ms') or 0.0) / 1000:.2f} s"]
        if data.get("streamed") and data.get("first_token_ms") is not None:
            took.append(f"first token {data['first_token_ms'] / 1000:.2f} s")
        if (data.get("queued_ms") or 0.0) >= 1:
            took.append(f"queued {data['queued_ms'] / 1000:.2f} s")
        undelivered = "" if data.get("delivered") is not False else paint("  not delivered", "warn")
        return (
            f"call {data.get('call')}  {paint(status, STATUSES.get(status))}  {tokens}  {', '.join(took)}"
            f"  {value(data.get('dialect'))}  {value(data.get('finish_reason'))}{undelivered}"
        )
    if name == "call.begun":
        return paint(f"call {data.get('call')}  begun  {value(data.get('dialect'))}", "dim")
    if name == "finding":
        level = str(data.get("level"))
        calls = ", ".join(map(str, (data.get("calls") or [])[:5]))
        where = f"  (calls {calls})" if calls else ""
        return f"{paint(level, LEVELS.get(level))}  {value(data.get('code'))}: {value(data.get('message'))}{where}"
    if name in ("engine", "tunnel"):
        state = paint("up", "good") if data.get("healthy") else paint(f"down: {value(data.get('reason'))}", "bad")
        return f"{name} {value(data.get(name))}  {state}"
    word = name.rpartition(".")[2]
    more = {key: data[key] for key in ("group", "model", "tier", "reward") if data.get(key) is not None}
    return "  ".join([paint(word, "bold"), *(f"{key} {value(each)}" for key, each in more.items())])


def _count(data: dict[str, Any], of: str) -> str:
    found = data.get(f"n_{of}")
    return terminal.value(data.get(f"usage_{of}") if found is None else found)
