"""Training sequences of many rollouts in one answer: `GET /sequences`.

Rules:
- One rollout at a time is read, shaped, written and forgotten: what is held at once is one rollout's graph and form
  and the next one's, however many come. No graph made here is kept (`Rollouts.aside`), or a pass over ten thousand
  would push out those that a page or a trainer asks for again.
- One rollout is one line, of JSON or of msgpack. One that can't be exported is a line that says so, `{"rollout",
  "refused": {"code", "message", "hint"}}`, so that none is absent without a word.
- The last line counts them: `{"end": true, "rollouts", "refused", "next"}`, and where some were refused, `reasons` by
  code. An answer without it was cut, whatever its status said: once the first byte is out there is no other way to
  say so, and the connection is cut too.
- A reader that takes nothing for `STUCK_S` is cut; one that reads slowly is waited for.

Theory: while a line is being written, the next rollout is read and shaped, so the store, the shaping (in a thread) and
the reader's network each wait for the slowest of them and not for their sum.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol

import msgspec
from aiohttp import web

from capture import answers, exports, parquet
from capture.errors import ClientError, StoreError, TreeringError
from capture.exports import Export
from capture.store.base import Page, Query
from capture.tasks import spawn
from graph.formats.parquet import refusal
from graph.graph import Graph

_log = logging.getLogger("treering")

Shape = Callable[[Any], Any]

PAGE = 50
"""Rollouts whose entries are read at once; an entry holds a registration, no tokens."""

STUCK_S = 300.0
"""Without a byte taken. A trainer that loads a batch may stop reading for a minute."""

MOST = 1_000_000
"""The highest `limit`: of one answer, not of a run."""

LINES = "application/x-ndjson"

ASKED: dict[str, answers.Reader] = {
    **exports.ASKED,
    "open": answers.flag,
    "state": answers.one_of("open", "closed"),
    "group": answers.text,
    "label": answers.label,
    "order": answers.one_of("created", "closed"),
    "after": answers.text,
    "limit": answers.whole(1, MOST),
}


class Readable(Protocol):
    """All rollouts, as far as they are read here (`capture.rollouts.Rollouts`)."""

    async def page(self, query: Query) -> Page:
        """Return a page of rollouts."""

    async def aside(self, name: str) -> Graph:
        """Return a rollout's graph that nobody keeps. Raises `ClientError` 404."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Which rollouts, in which form."""

    wanted: Export
    query: Query
    # Open rollouts as they stand; without it each is refused.
    opened: bool = False
    # Of rollouts in this answer; None for all.
    limit: int | None = None


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What one rollout gave, as it goes out: its form, or the line that says why there is none."""

    piece: Any
    # The code of the error that says why there is none.
    refused: str | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an answer: how many rollouts it told of, how many of them it refused, and where the next begins."""

    rollouts: int
    # Code → how many.
    reasons: dict[str, int]
    next: str | None

    def line(self) -> dict[str, Any]:
        """Return the last line."""
        refused = sum(self.reasons.values())
        told = {"end": True, "rollouts": self.rollouts, "refused": refused, "next": self.next}
        return {**told, "reasons": self.reasons} if refused else told


def read(given: Mapping[str, Any]) -> Asked:
    """Return what a query asks for, as `ASKED` has read it. Raises `ClientError` 422 `invalid_query`."""
    asked = dict(given)
    pairs = asked.pop("label", [])
    labels = dict(pairs)
    if len(labels) < len(pairs):
        raise _conflict("One label is asked for with two values.", "No rollout has both.")
    opened = asked.pop("open", False)
    filters = {name: asked.pop(name) for name in ("state", "group", "order", "after") if name in asked}
    if filters.get("state") == "open" and not opened:
        raise _conflict("state=open asks for rollouts that are refused without open=1.", "Add open=1, or leave it out.")
    if filters.get("state") == "open" and filters.get("order") == "closed":
        raise _conflict("order=closed lists closed rollouts, and state=open none of them.", "Leave one of them out.")
    limit = asked.pop("limit", None)
    return Asked(
        wanted=exports.export(asked),
        query=Query(labels=labels, **filters),
        opened=opened,
        limit=limit,
    )


async def pieces(rollouts: Readable, asked: Asked, shape: Shape) -> AsyncGenerator[Made | Ended, None]:
    """Yield what each rollout gave, in order, and the end.

    `shape` makes of a form, or of the object that says why there is none, what goes out; it is called in a thread.
    Raises `ClientError` 404 `no_rollouts` before the first piece when no rollout was ever registered that the filters
    mean: a group misspelt would otherwise read as one that is empty.
    """
    total = 0
    reasons: Counter[str] = Counter()
    after: str | None = asked.query.after
    left = asked.limit
    ahead: asyncio.Task[Made] | None = None
    try:
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = await rollouts.page(msgspec.structs.replace(asked.query, after=after, limit=size))
            if not page.entries and after is None:
                await _somebody(rollouts, asked)
            for entry in page.entries:
                last, ahead = ahead, spawn(_made(rollouts, entry.rollout.id, asked, shape), name="export a rollout")
                if last is not None:
                    made = await last
                    total += 1
                    reasons.update([made.refused] if made.refused else [])
                    yield made
            left = None if left is None else left - len(page.entries)
            # `order=closed` always has a next, for who tails; here an empty or short page is the end all the same.
            after = page.next
            if after is None or len(page.entries) < size:
                break
        if ahead is not None:
            made = await ahead
            ahead = None
            total += 1
            reasons.update([made.refused] if made.refused else [])
            yield made
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead])
    yield Ended(rollouts=total, reasons=dict(reasons), next=after)


async def serve(request: web.Request, rollouts: Readable) -> web.StreamResponse:
    """Answer `GET /sequences`."""
    asked = read(answers.query(request, ASKED, repeatable=("label",)))
    packed = answers.wants_msgpack(request)
    if asked.wanted.format == "parquet":
        if packed:
            raise _conflict("format=parquet is no msgpack.", "Ask without Accept: application/msgpack.")
        return await _sent(request, file(rollouts, asked), content_type=asked.wanted.kind.content_type)
    return await _sent(
        request, lines(rollouts, asked, packed=packed), content_type=answers.MSGPACK if packed else LINES
    )


async def lines(rollouts: Readable, asked: Asked, *, packed: bool = False) -> AsyncGenerator[bytes, None]:
    """Yield the lines of an answer, or its objects of msgpack."""

    def encoded(form: Any) -> bytes:
        return answers.encode(form, packed=packed) + (b"" if packed else b"\n")

    source = pieces(rollouts, asked, encoded)
    async with contextlib.aclosing(source):
        async for piece in source:
            yield encoded(piece.line()) if isinstance(piece, Ended) else piece.piece


async def file(rollouts: Readable, asked: Asked) -> AsyncGenerator[bytes, None]:
    """Yield the parts of an answer that is one Parquet file. Raises `ClientError` 501 `extra_missing`."""
    writer = await asyncio.to_thread(parquet.Writer)
    source = pieces(rollouts, asked, _rows)
    async with contextlib.aclosing(source):
        async for piece in source:
            if isinstance(piece, Ended):
                yield await asyncio.to_thread(writer.end, piece.line())
            elif ready := await asyncio.to_thread(writer.add, piece.piece):
                yield ready


def _rows(form: Any) -> Any:
    """Return a form's rows; of a refused rollout, the one that says so."""
    return form if isinstance(form, list) else [refusal(form["rollout"], form["refused"])]


async def _sent(request: web.Request, source: AsyncGenerator[bytes, None], *, content_type: str) -> web.StreamResponse:
    """Send what a source gives. What goes wrong before its first piece is an error with a status of its own."""
    async with contextlib.aclosing(source):
        first = await anext(source)
        response = web.StreamResponse(
            headers={
                "Treering-Version": answers.VERSION,
                "Cache-Control": "no-store",
                "Vary": "Accept, Accept-Encoding",
            }
        )
        response.content_type = content_type
        if "Accept-Encoding" in request.headers and content_type == LINES:
            response.enable_compression()
        await response.prepare(request)
        try:
            await _write(response, first)
            async for piece in source:
                await _write(response, piece)
            await response.write_eof()
        except (TreeringError, TimeoutError) as error:
            # The status is out: a cut connection is the only way left to say that this is not the end.
            _log.error("GET /sequences was cut: %s", error or "its reader took nothing")
            if request.transport is not None:
                request.transport.abort()
    return response


async def _write(response: web.StreamResponse, piece: bytes) -> None:
    async with asyncio.timeout(STUCK_S):
        await response.write(piece)


async def _made(rollouts: Readable, name: str, asked: Asked, shape: Shape) -> Made:
    """Read, judge and shape one rollout."""
    try:
        graph = await rollouts.aside(name)
        return Made(
            piece=await asyncio.to_thread(lambda: shape(exports.form(graph, asked.wanted, opened=asked.opened)))
        )
    except ClientError as error:
        refusal: TreeringError = error
    except StoreError as error:
        # Damage in one rollout, if the store answers otherwise; else this raises too, and the answer is cut.
        await rollouts.page(Query(limit=1))
        refusal = error
    except Exception:  # noqa: BLE001  one rollout's fault must not hide the others; it is logged, and its line says so
        _log.exception("rollout %s can't be exported as %s", name, asked.wanted.format)
        refusal = ClientError("internal", f"Treering failed at rollout {name}.", hint="Its log says more.", status=500)
    return Made(
        piece=await asyncio.to_thread(shape, {"rollout": name, "refused": exports.told(refusal)}), refused=refusal.code
    )


async def _somebody(rollouts: Readable, asked: Asked) -> None:
    """Raise `ClientError` 404 unless some rollout has the group and labels, in whatever state."""
    query = asked.query
    if (await rollouts.page(Query(group=query.group, labels=query.labels, limit=1))).entries:
        return
    words = [f"group {query.group!r}"] if query.group is not None else []
    words += [f"label {name}:{value}" for name, value in query.labels.items()]
    raise ClientError(
        "no_rollouts",
        f"No rollout has {' and '.join(words)}." if words else "There are no rollouts.",
        hint="GET /rollouts lists those that there are." if words else "POST /rollouts registers one.",
        status=404,
    )


def _conflict(message: str, hint: str) -> ClientError:
    return ClientError("invalid_query", message, hint=hint, status=422)
