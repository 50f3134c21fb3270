"""What the data plane has for a rollout's own tool servers: a small state, and the task.

Rule 1: the tools' secret opens it, never the agent's: a grader's state and what it expects are not the agent's to read.
Rule 2: the state is exchanged as a whole, by whoever read it last: its ETag is a number that grows with each change,
and a write that names another one (`If-Match`) is refused. Without it, a write replaces whatever is there.
Rule 3: of the task only what was registered as its text and data is shown, never `private`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from capture import answers, intake
from capture.errors import ClientError
from capture.live import Live
from capture.rollouts import Rollouts

STATE_LIMIT = 2**20
"""Bytes of a state: what a server must remember between two tool calls. Files belong where the sandbox keeps them, and
each write replaces all of it."""


async def serve(rollouts: Rollouts, incoming: web.BaseRequest, live: Live, kind: str) -> web.StreamResponse:
    """Serve `GET /task`, `GET /state` or `PUT /state`.

    Raises `ClientError`: 401 once the rollout is closed; 400 `invalid_json` or `invalid_condition`, 412
    `state_changed`, 413 `state_too_large`, and what `intake.read` raises.
    """
    if kind == "task":
        return _json(answers.encode(task(live), packed=False))
    if incoming.method == "PUT":
        body = await _read(incoming)
        kept = await rollouts.set_state(live, body, expected=expected(incoming.headers))
        return web.Response(status=204, headers={"ETag": tag(kept.version)})
    kept = await rollouts.state(live)
    headers = {"ETag": tag(kept.version)}
    if kept.version in _versions(incoming.headers.get("If-None-Match", ""), weak=True):
        return web.Response(status=304, headers=headers)
    return _json(kept.body, headers)


def task(live: Live) -> dict[str, Any]:
    """Return the public part of a rollout's task."""
    return {"text": live.entry.rollout.task, "data": live.entry.registration.task_data}


def tag(version: int) -> str:
    """Return a state's ETag."""
    return f'"{version}"'


def expected(headers: Any) -> frozenset[int] | None:
    """Return the versions of which one must be the state's, so that it may be set; None for any.

    `headers` is a request's, looked up without regard to case. `If-None-Match: *` asks for one that nobody has set.
    Raises `ClientError` 400 `invalid_condition` for a condition that can't be kept: it must not be passed over.
    """
    named, unnamed = headers.get("If-Match"), headers.get("If-None-Match")
    if unnamed is not None and unnamed.strip() != "*":
        raise ClientError(
            "invalid_condition",
            "Of If-None-Match only * is understood here.",
            hint='Send If-Match with the ETag that GET /state gave, such as "3".',
        )
    wanted = None if named is None or named.strip() == "*" else _versions(named, weak=False)
    if unnamed is None:
        return wanted
    return frozenset({0}) if wanted is None else wanted & {0}


def _versions(listed: str, *, weak: bool) -> frozenset[int]:
    """Read a list of ETags (RFC 9110, 8.8.3); one that we can't have given is left out: it matches nothing."""
    found = set()
    for each in listed.split(","):
        text = each.strip()
        if weak:
            text = text.removeprefix("W/")
        inner = text[1:-1]
        # 18 digits: more are no version, and would take long to read.
        if text == f'"{inner}"' and inner.isascii() and inner.isdigit() and len(inner) <= 18:
            found.add(int(inner))
    return frozenset(found)


async def _read(incoming: web.BaseRequest) -> bytes:
    try:
        body = await intake.read(incoming, STATE_LIMIT)
    except ClientError as error:
        if error.code != "body_too_large":
            raise
        raise ClientError(
            "state_too_large",
            f"A state has {STATE_LIMIT} bytes of JSON at most.",
            hint="Keep files where the sandbox keeps them, and their names here.",
            status=413,
        ) from error
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClientError(
            "invalid_json", f"The state is not JSON: {error}.", hint="Send one JSON value, in UTF-8."
        ) from error
    return body


def _json(body: bytes, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers=headers)
