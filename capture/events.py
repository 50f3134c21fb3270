"""What happens, told as it happens: server-sent events on the control plane, of one rollout or of all.

Rules
1. An event is told once it is committed, in the store's order, and kept for `KEPT_S`. Its id is the store's: who comes
   back with the last one that it saw (`Last-Event-ID`, or `?after=`) misses nothing, or is told that it did (410).
2. Nobody queues for a reader. Each reads on from the store at its own pace, a page at a time, so one that is slow, or
   asleep, holds a page and no more; one that takes nothing for `STUCK_S` is cut, and may come back.
3. What is new is looked for once for all readers, and only while there are any.

Theory. `Tide` looks at the store's newest id every `LOOK_S`, and says to whoever waits that it has changed. A reader of
one rollout moves on with the newest id too, though nothing came for it: else its own would be dropped one day. So each
`QUIET_S` a block that holds an id alone goes out; a client keeps it, and dispatches nothing for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from capture import answers, clock
from capture.errors import CaptureError, ClientError, StoreError
from capture.store.base import Event, Store
from capture.store.events import OLDEST
from capture.tasks import spawn
from graph.findings import TABLE

if TYPE_CHECKING:
    from capture.app import Appliance

_log = logging.getLogger("treering")

KEPT_S = 86_400.0
"""How long an event is kept."""

LOOK_S = 0.25
"""Between two looks at whether there is news."""

QUIET_S = 15.0
"""Without an event, after which something is sent all the same: what lies between cuts idle connections after 30 s."""

STUCK_S = 60.0
"""For a reader to take what is sent, before it is cut."""

PAGE = 200
"""Events that are read and sent at one go, some 100 KB."""

MOST_READERS = 256
"""At once; each may hold a page and a socket's buffer."""

RETRY_MS = 1_000
"""After which a browser that was cut comes back."""


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of event."""

    name: str
    means: str
    # Keys of its data, beside `at`, `rollout` and `call`, and what they hold.
    data: tuple[tuple[str, str], ...] = ()


_CALL = (
    ("choice", "the choice's index"),
    ("dialect", "what the agent spoke"),
    ("streamed", "whether it asked for a stream"),
    ("engine", "who serves it, null while nobody does"),
)
NAMES = (
    Name(
        name="rollout.registered",
        means="A rollout was registered.",
        data=(("group", "its group"), ("labels", "its labels"), ("model", "its model"), ("tier", "`train` or `eval`")),
    ),
    Name(name="rollout.graded", means="Its reward, or what goes with it, was set.", data=(("reward", "as it is now"),)),
    Name(name="rollout.closed", means="It was closed, or has expired.", data=(("reward", "as it is now"),)),
    Name(name="rollout.opened", means="It was opened again.", data=(("reward", "as it is now"),)),
    Name(name="rollout.deleted", means="It was deleted; its other events went with it."),
    Name(
        name="call.begun",
        means="A call runs. One that ended before this could be written has its end alone.",
        data=_CALL,
    ),
    Name(
        name="call.ended",
        means="A call has ended, and its record is committed. A call of several choices has one each.",
        data=(
            *_CALL,
            ("status", "`complete`, `aborted`, `error`, `stopped`"),
            ("delivered", "whether its end reached the agent, as known when this is read; null while it isn't known"),
            ("finish_reason", "as the engine said"),
            ("n_prompt, n_sampled", "tokens; null where the engine gave no ids"),
            ("usage_prompt, usage_sampled", "the engine's own counts"),
            ("queued_ms, first_token_ms, ended_ms", "from its arrival"),
        ),
    ),
    Name(
        name="finding",
        means="Something to know of a rollout: at once where capture itself met it, the rest when the rollout closes.",
        data=(("code, level, message", "see [findings](findings.md)"), ("calls", "which"), ("data", "by code")),
    ),
    Name(
        name="engine",
        means="An engine went away or came back, as this process sees it.",
        data=(("engine", "its name"), ("healthy", "whether it answers"), ("reason", "why it doesn't")),
    ),
    Name(
        name="tunnel",
        means="A tunnel was opened, was lost or came back, as this process sees it.",
        data=(("tunnel", "its name"), ("url", "where it leads from"), ("healthy", "whether"), ("reason", "why not")),
    ),
    Name(
        name="gone",
        means="The last of a stream whose reader fell too far behind: events were dropped before it read them.",
        data=(("error", "as in an answer"),),
    ),
)
"""Every kind of event."""


class Tide:
    """Whether there is news, looked at once for all who wait for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.readers = 0
        self._newest = ""
        self._risen = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Tide {self._newest or 'not looked at'}, {self.readers} readers>"

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[None]:
        """Be a reader for a block. Raises `CaptureError` 503 `too_many_readers`."""
        if self.readers >= MOST_READERS:
            raise CaptureError(
                "too_many_readers",
                f"{self.readers} read events already.",
                hint="Share a stream of GET /events, or read GET /rollouts?order=closed from time to time.",
                status=503,
                retry_after_s=10.0,
            )
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    async def beyond(self, seen: str) -> str:
        """Return the newest event's id, when it is no longer the one that was seen."""
        while True:
            risen = self._risen
            if self._newest not in ("", seen):
                return self._newest
            if self._looking is None or self._looking.done():
                self._looking = spawn(self._look(), name="look for events")
            await risen.wait()

    async def _look(self) -> None:
        while self.readers:
            with contextlib.suppress(StoreError):
                newest = await self._store.newest_event()
                if newest != self._newest:
                    self._newest = newest
                    risen, self._risen = self._risen, asyncio.Event()
                    risen.set()
            await asyncio.sleep(LOOK_S)
        self._newest = ""


def form(event: Event) -> dict[str, Any]:
    """Return an event's data as readers get it."""
    out: dict[str, Any] = {"at": event.at, "rollout": event.rollout, "call": event.call, **event.data}
    if event.name == "finding":
        row = TABLE.get(str(event.data.get("code")))
        out.setdefault("level", row.level if row is not None else "info")
        out.setdefault("message", row.means if row is not None else "")
    return out


def block(event: Event) -> bytes:
    """Return an event as the stream has it."""
    data = answers.encode(form(event), packed=False)
    return b"event: %s\nid: %s\ndata: %s\n\n" % (event.name.encode(), event.id.encode(), data)


def routes(appliance: Appliance) -> list[web.RouteDef]:
    """Return the routes."""
    api = _Events(appliance)
    return [web.get("/events", api.every), web.get("/rollouts/{id}/events", api.of_one)]


class _Events:
    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance

    async def every(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, None)

    async def of_one(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["id"]
        start = _start(request)
        # Of one that was deleted there is still its last event to tell, to whoever had not come so far.
        if start is None or not await self._appliance.store.events(start, rollout=name, limit=1):
            await self._appliance.rollouts.entry(name)
        return await self._serve(request, name)

    async def _serve(self, request: web.Request, rollout: str | None) -> web.StreamResponse:
        store, tide = self._appliance.store, self._appliance.tide
        start = _start(request)
        async with tide.reader():
            # Before anything is sent, so that what is wrong is an answer and no broken stream.
            cursor = await store.newest_event() if start is None else start
            await store.events(cursor, rollout=rollout, limit=1)
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
            await response.prepare(request)
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with self._appliance.news.waiting():
                    await self._send(response, b"retry: %d\nid: %s\n\n" % (RETRY_MS, cursor.encode()))
                    await self._follow(response, rollout, cursor)
            return response

    async def _follow(self, response: web.StreamResponse, rollout: str | None, cursor: str) -> None:
        store, tide = self._appliance.store, self._appliance.tide
        while True:
            try:
                # Read first: the page then holds all of this rollout up to there.
                newest = await store.newest_event()
                page = await store.events(cursor, rollout=rollout, limit=PAGE)
            except ClientError as error:
                said = {"code": error.code, "message": error.message, "hint": error.hint}
                gone = Event(id=cursor, at=clock.now(), name="gone", data={"error": said})
                await self._send(response, block(gone))
                return
            except StoreError:
                # Said elsewhere; it is tried again.
                await asyncio.sleep(LOOK_S)
                continue
            if page:
                cursor = page[-1].id
                await self._send(response, b"".join(map(block, page)))
                if rollout is not None and page[-1].name == "rollout.deleted" and len(page) < PAGE:
                    return
            if len(page) < PAGE:
                if _order(newest) > _order(cursor):
                    cursor = newest
                await self._wait(response, tide, newest, cursor)

    async def _wait(self, response: web.StreamResponse, tide: Tide, seen: str, cursor: str) -> None:
        """Wait for news; say now and then how far the reader is."""
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    await tide.beyond(seen)
                return
            except TimeoutError:
                await self._send(response, b"id: %s\n\n" % cursor.encode())

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        """Send to a reader; raises `TimeoutError` where it takes nothing."""
        async with asyncio.timeout(STUCK_S):
            await response.write(data)


def _start(request: web.Request) -> str | None:
    """Return the id to go on behind; None from now on."""
    asked = answers.query(request, {"after": answers.text})
    header = request.headers.get("Last-Event-ID")
    if header is not None and "after" in asked and asked["after"] != header:
        raise ClientError(
            "invalid_query",
            "Last-Event-ID and after name two events.",
            hint=f"Send one of them; {OLDEST} is before the oldest that is kept.",
            status=422,
        )
    return header or asked.get("after")


def _order(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split("."))) if name else ()


def render() -> str:
    """Return the table of events as Markdown."""
    lines = ["| event | means | data |", "|---|---|---|"]
    for one in NAMES:
        data = "; ".join(f"{', '.join(f'`{key}`' for key in keys.split(', '))}: {holds}" for keys, holds in one.data)
        lines.append(f"| `{one.name}` | {one.means} | {data or 'none'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
