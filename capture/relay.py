"""The relay: the one file where agents' sockets and engines' sockets meet.

What each step means is decided elsewhere (`calls`, `admission`, `recorder`); here it is only carried out.

Rule 1: the reply's end leaves only after the record is committed. Everything before it leaves at once.
Rule 2: the record is shielded, not the relay. When the agent hangs up, its handler is cancelled at whatever it awaits:
the engine's connection is closed there and then, and the record is written by a task of its own.
Rule 3: a reply that broke upstream breaks downstream: the connection is closed without a proper end.
Rule 4: an error in recording changes nothing that the agent receives, unless the operator chose otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from capture import admission
from capture.calls import Calls
from capture.dialects.base import Dialect, Target
from capture.draft import Draft
from capture.errors import ClientError, EngineError, StoreError, TreeringError
from capture.live import Live
from capture.queue import FULL
from capture.recorder import Recorder
from capture.silence import Silence
from capture.tasks import spawn
from capture.upstream import REPLY_LIMIT, Engine, whole

TAIL_LIMIT_S = 2.0
"""How long the engine's stream is read on after the finish: usage, and some engines' ids, come behind it."""

SPOOL_EVERY_S = 1.0
"""How often a running stream's ids are handed to the store, so that a crash leaves at most a second unsaved."""

ABORT_RETRY_S = 2.0
"""`Retry-After` when the engine broke a reply off while pausing or shutting down."""

CODINGS = ("identity", "gzip", "deflate", "zstd")
"""Codings of a body that our HTTP library undoes, both ways (aiohttp 3.14; it would need one more package for `br`)."""

BODY_IDLE_S = 60.0
"""Without a byte of a request's body, after which it is given up; a tunnel that reconnects takes seconds."""

BODY_LEAST_RATE = 1_024.0
"""Bytes a second that a body must bring on the average, after two minutes: a modem of 1990 was faster."""

_CUT = (aiohttp.ClientPayloadError, aiohttp.ServerConnectionError)


async def serve(
    calls: Calls, incoming: web.Request, live: Live, dialect: Dialect, target: Target, *, max_body: int
) -> web.StreamResponse:
    """Serve one model call. Raises `TreeringError` for what gets an error instead."""
    await calls.ready()
    body = await read_body(incoming, max_body)
    headers = list(incoming.headers.items())
    draft = await calls.arrive(live, dialect, body, headers, target=target)
    limit = calls.reserve(draft)
    if limit is None:
        to_engine = await calls.admit(draft, dialect, headers)
        handler = asyncio.current_task()
        assert handler is not None
        calls.begin(draft, handler.cancel)
        response = await _Relay(calls, incoming, draft, keep_alive=dialect.bears_comments).run(to_engine)
        if response is not None:
            return response
        limit = draft.cut_by
    assert limit is not None
    kind, reply = await calls.stop(draft, dialect, limit)
    return web.Response(body=reply, headers={"Content-Type": kind})


async def forward(calls: Calls, incoming: web.Request, live: Live, path: str, *, max_body: int) -> web.StreamResponse:
    """Relay a request that samples nothing, unrecorded; its `model` is replaced by the rollout's."""
    engine = calls.engine_of(live)
    body = await read_body(incoming, max_body)
    headers, _ = admission.engine_headers(list(incoming.headers.items()), live.rules.allow)
    model = live.rules.model or next(iter(engine.models), None)
    body = admission.with_model(body, model) if body else body
    answer = await engine.send(incoming.method, path, body=body or None, headers=headers)
    async with answer:
        _refuse_auth(answer.status)
        reply = await whole(answer)
    return web.Response(body=reply, status=answer.status, headers=_headers(answer))


async def count(
    calls: Calls, incoming: web.Request, live: Live, dialect: Dialect, target: Target, *, max_body: int
) -> web.StreamResponse:
    """Answer how many tokens a request would have: the engine's own count of its own rendering, never an estimate."""
    engine = calls.engine_of(live)
    body = await read_body(incoming, max_body)
    request = dialect.read_count(body, target=target)
    asked = engine.adapter.count(request, model=live.rules.model or next(iter(engine.models), None))
    status, reply = await engine.ask(asked)
    _refuse_auth(status)
    if status >= 400:
        translator = dialect.translator(request)
        failed = reply if translator is None else translator.failed(status, reply)
        return web.Response(body=failed, status=status, headers={"Content-Type": "application/json"})
    return web.Response(
        body=dialect.counted(engine.adapter.counted(reply)), headers={"Content-Type": "application/json"}
    )


class _Relay:
    """One call: the engine's answer on one side, the agent's connection on the other."""

    def __init__(self, calls: Calls, incoming: web.Request, draft: Draft, *, keep_alive: bool) -> None:
        assert draft.recorder is not None
        self._keep_alive = keep_alive
        self._calls = calls
        self._incoming = incoming
        self._draft = draft
        self._recorder: Recorder = draft.recorder
        self._answer: aiohttp.ClientResponse | None = None
        # The answer's body, where it had to be looked at first.
        self._body: bytes | None = None
        self._concluding: asyncio.Task[StoreError | None] | None = None
        # Gives the place at the engine back.
        self._leave: Callable[[], None] | None = None
        # The agent has the reply's head.
        self._begun = False
        self._handler = asyncio.current_task()

    async def run(self, headers: list[tuple[str, str]]) -> web.StreamResponse | None:
        """Carry the call to its end; whatever happens, its record is written and the engine is let go.

        None when a limit broke it off before anything went out: its record, and what the agent gets, are still due.
        """
        after = self._calls.time_limit_s(self._draft)
        timer = None if after is None else asyncio.get_running_loop().call_later(after, self._expire)
        try:
            try:
                engine = await self._send(headers)
                assert self._answer is not None
                _refuse_auth(self._answer.status)
                if self._answer.status < 300:
                    self._calls.inquire(self._draft, engine)
            except TreeringError as error:
                self._draft.fail(error)
                await self._conclude()
                raise
            if self._answer.status < 300 and self._answer.content_type == "text/event-stream":
                return await self._stream(self._answer)
            return await self._whole(self._answer)
        except asyncio.CancelledError:
            if self._draft.cut_by is not None and not self._begun and self._is_cut_alone():
                self._recorder.stopped(f"the rollout's limit {self._draft.cut_by} is reached")
                if self._answer is not None:
                    self._answer.close()
                return None
            # The agent hung up, or the rollout was cut, or the server stops.
            self._let_go()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._give_back()
            if self._answer is not None and self._concluding is not None:
                self._answer.close()

    def _doubt(self) -> None:
        """The engine broke off: who answers there now is asked before its next call."""
        for engine in self._draft.engines:
            engine.doubted = engine.doubted or engine.name == self._draft.engine

    def _give_back(self) -> None:
        """Give the place at the engine back, if there is one."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def _expire(self) -> None:
        """Break the call off: its rollout's time is over."""
        if self._concluding is None and not self._recorder.finish_seen:
            self._draft.cut_by = "deadline_s"
            assert self._handler is not None
            self._handler.cancel()

    def _is_cut_alone(self) -> bool:
        """Take the limit's cancellation back; False when the agent has gone too."""
        assert self._handler is not None
        return self._handler.uncancel() == 0 and not self._gone

    async def _send(self, headers: list[tuple[str, str]]) -> Engine:
        """Send the request to the first engine that takes it; return that engine. Raises `EngineError`."""
        draft = self._draft
        assert draft.request is not None
        for engine in draft.engines:
            assert draft.admitted is not None
            try:
                self._leave = await self._calls.enter(draft, engine)
                self._answer = await engine.send("POST", draft.request.path, body=draft.admitted.body, headers=headers)
            except EngineError as error:
                # A full line is no reason to go elsewhere: there the whole history would be read anew.
                if engine is draft.engines[-1] or error.code in FULL:
                    raise
                self._give_back()
                continue
            if self._answer.status in (400, 422):
                self._body = await whole(self._answer)
                if self._calls.without_refused(draft, engine, self._body):
                    self._answer = await engine.send(
                        "POST", draft.request.path, body=draft.admitted.body, headers=headers
                    )
                    self._body = None
            return engine
        raise AssertionError("a call has at least one engine")

    async def _stream(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        recorder = self._recorder
        recorder.answered(answer.status)
        response = web.StreamResponse(status=answer.status, headers=_headers(answer, as_came=self._as_came))
        if self._draft.translator is not None:
            response.headers["Content-Type"] = self._draft.translator.stream_type
        try:
            await response.prepare(self._incoming)
            self._begun = True
            try:
                await self._relay_to_finish(answer, response)
            except _CUT as error:
                self._doubt()
                recorder.cut(str(error) or type(error).__name__)
            if recorder.finish_seen:
                await self._read_tail(answer)
            await self._conclude()
            if held := recorder.release():
                await response.write(held)
            if recorder.clean:
                await response.write_eof()
        except ConnectionError:
            self._let_go()
            return response
        except StoreError:
            self._break_off()
            return response
        if recorder.clean:
            self._calls.mark(self._draft, delivered=not self._gone)
        else:
            self._break_off()
        return response

    async def _relay_to_finish(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        recorder, start = self._recorder, self._draft.start
        spooled = start
        unfinished = 0
        read = answer.content.readany
        with Silence(response, name=f"keep alive {self._draft.live.id}/{self._draft.n}") as silence:
            while not recorder.finish_seen:
                # Only while nothing of an event is on its way, and never with a client that bears no comments.
                silence.breakable = self._keep_alive
                data = await read()
                silence.breakable = False
                if not data:
                    recorder.eof()
                    return
                silence.since = now = time.monotonic()
                if relayed := recorder.feed(data, (now - start) * 1000):
                    unfinished = 0
                    await response.write(relayed)
                elif (unfinished := unfinished + len(data)) > REPLY_LIMIT:
                    recorder.cut(f"{REPLY_LIMIT} bytes came of which no event ended")
                    return
                if now - spooled > SPOOL_EVERY_S:
                    self._calls.spool(self._draft)
                    spooled = now

    async def _read_tail(self, answer: aiohttp.ClientResponse) -> None:
        """Read what comes behind the finish, within its time; all of it is held back by the recorder."""
        tail = 0
        try:
            async with asyncio.timeout(TAIL_LIMIT_S):
                while data := await answer.content.readany():
                    if (tail := tail + len(data)) > REPLY_LIMIT:
                        break
                    self._recorder.feed(data, (time.monotonic() - self._draft.start) * 1000)
        except TimeoutError:
            pass
        except _CUT as error:
            self._recorder.cut(str(error) or type(error).__name__)
            return
        self._recorder.eof()

    async def _whole(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        recorder = self._recorder
        recorder.answered(answer.status)
        try:
            body = await whole(answer) if self._body is None else self._body
        except EngineError as error:
            recorder.cut(error.message)
            await self._conclude()
            raise
        except _CUT as error:
            self._doubt()
            recorder.cut(str(error) or type(error).__name__)
            await self._conclude()
            raise EngineError(
                "engine_cut", "The engine broke its answer off.", hint="Its log says why; try again."
            ) from error
        recorder.whole(body, (time.monotonic() - self._draft.start) * 1000)
        await self._conclude()
        if recorder.untranslatable is not None:
            raise EngineError(
                "engine_untranslatable", f"{recorder.untranslatable[:1].upper()}{recorder.untranslatable[1:]}."
            )
        if recorder.refuse:
            raise EngineError(
                "engine_aborted",
                "The engine broke this reply off: it is pausing or shutting down.",
                hint="Try again.",
                status=503,
                retry_after_s=ABORT_RETRY_S,
            )
        response = web.Response(
            body=recorder.release(), status=answer.status, headers=_headers(answer, as_came=self._as_came)
        )
        try:
            await response.prepare(self._incoming)
            await response.write_eof()
        except ConnectionError:
            self._let_go()
            return response
        self._calls.mark(self._draft, delivered=not self._gone)
        return response

    async def _conclude(self, *, delivered: bool | None = None) -> None:
        """Write the record, once, in a task that outlives this handler, and wait for it."""
        if self._concluding is None:
            self._concluding = self._calls.concluding(self._draft, delivered=delivered)
        await asyncio.shield(self._concluding)

    def _let_go(self) -> None:
        """The agent has gone: drop the engine's request unless its reply is through, and see to the record."""
        if self._answer is not None and not self._recorder.finish_seen:
            self._answer.close()
        spawn(self._wind_up(), name=f"wind up call {self._draft.live.id}/{self._draft.n}")

    async def _wind_up(self) -> None:
        if self._concluding is None:
            if self._recorder.finish_seen and self._answer is not None:
                await self._read_tail(self._answer)
                self._answer.close()
            elif self._draft.cut_by is not None:
                self._recorder.stopped(f"the rollout's limit {self._draft.cut_by} is reached")
                await self._calls.cut(self._draft)
            else:
                self._recorder.hang_up()
            await self._conclude(delivered=False)
        else:
            await self._concluding
            self._calls.mark(self._draft, delivered=False)

    def _break_off(self) -> None:
        """Close the agent's connection without a proper end: what was relayed is flushed, no last chunk comes."""
        if self._incoming.transport is not None:
            self._incoming.transport.close()
        self._calls.mark(self._draft, delivered=False)

    @property
    def _as_came(self) -> bool:
        return self._draft.translator is None

    @property
    def _gone(self) -> bool:
        return self._incoming.transport is None or self._incoming.transport.is_closing()


async def read_body(incoming: web.Request, limit: int) -> bytes:
    """Read a request's body, decompressed.

    Raises `ClientError`: 415 `coding_unknown`, 413 `body_too_large`, 408 `body_too_slow`, 400 `body_incomplete`.
    """
    if incoming.headers.get("Content-Encoding", "identity").strip().lower() not in CODINGS:
        raise ClientError(
            "coding_unknown",
            f"A body in the coding {incoming.headers['Content-Encoding'][:80]!r} can't be read.",
            hint=f"Send it as it is, or in one of these: {', '.join(CODINGS[1:])}.",
            status=415,
        )
    too_large = ClientError(
        "body_too_large",
        f"The request's body is larger than {limit} bytes.",
        hint="The limit is --max-body-mib.",
        status=413,
    )
    if incoming.content_length is not None and incoming.content_length > limit:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    now = asyncio.get_running_loop().time
    start = now()
    try:
        async with asyncio.timeout(BODY_IDLE_S) as patience:
            async for piece in incoming.content.iter_any():
                size += len(piece)
                if size > limit:
                    raise too_large
                pieces.append(piece)
                patience.reschedule(min(now() + BODY_IDLE_S, start + 2 * BODY_IDLE_S + size / BODY_LEAST_RATE))
    except TimeoutError as error:
        raise ClientError(
            "body_too_slow", "The request's body took too long to come.", hint="Send it again.", status=408
        ) from error
    except (aiohttp.ClientPayloadError, web.RequestPayloadError) as error:
        raise ClientError(
            "body_incomplete", "The request's body ended before it was complete, or can't be decompressed."
        ) from error
    return b"".join(pieces)


def error_response(error: TreeringError, dialect: Dialect) -> web.Response:
    """Return an error in a dialect's shape."""
    headers = {"Content-Type": "application/json", **error.headers()}
    return web.Response(body=dialect.error(error), status=error.status, headers=headers)


def _refuse_auth(status: int) -> None:
    if status in (401, 403):
        raise EngineError(
            "engine_refused",
            f"The engine refused Treering's own request with {status}; the agent's key was right.",
            hint="Give the engine's key with --engine-key-file.",
        )


def _headers(answer: aiohttp.ClientResponse, *, as_came: bool = True) -> CIMultiDict[str]:
    """Return the headers for the agent; `as_came`: the body's bytes are the engine's."""
    headers = CIMultiDict(admission.reply_headers(answer.headers.items()))
    coding = answer.headers.get("Content-Encoding", "identity")
    if as_came and coding.strip().lower() not in CODINGS:
        # Not undone on the way (`gzip, gzip`): the bytes go on as they are, and so does what says how to read them.
        headers["Content-Encoding"] = coding
    return headers
