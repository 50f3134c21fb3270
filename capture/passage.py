"""One call's passage: the engine's answer on one side, the agent's connection on the other.

Rule 1: the reply's end leaves only after the record is committed. Everything before it leaves at once.
Rule 2: the record is shielded, not the passage. When the agent hangs up, its handler is cancelled at whatever it
awaits: the engine's connection is closed there and then, and the record is written by a task of its own.
Rule 3: a reply that broke upstream breaks downstream: the connection is closed without a proper end.
Rule 4: an error in recording changes nothing that the agent receives, unless the operator chose otherwise.
Rule 5: a call that a retry has joined goes on for it when the first agent leaves.

Theory of operation
The agent's handler carries its call: no task and no queue stands between a token's arrival and its leaving. What leaves
is also noted in the call's transcript, and a retry that joins (`follow`) writes it from there, in a handler of its own.
When the handler that carries is cancelled while others follow, a task carries on in its place, without an agent of its
own: `_carry` may be begun again at any step that awaits, since what has been done stands in the recorder. A reply that
comes whole is fetched by a task of its own (`asking`); a stream whose head hadn't come is asked for again, which is
still before its first byte.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from multidict import CIMultiDict

from capture import admission, intake
from capture import rush as rushes
from capture.asking import CUT, Asking
from capture.calls import Calls
from capture.content import Content
from capture.dialects.express import Lane
from capture.draft import Draft
from capture.errors import CaptureError, EngineError, StoreError, TreeringError
from capture.outlet import maybe_outlet
from capture.patience import Patience
from capture.recorder import Recorder
from capture.silence import Silence
from capture.tasks import spawn
from capture.transcripts import Transcript
from capture.upstream import REPLY_LIMIT, Reply

TAIL_LIMIT_S = 2.0
"""How long the engine's stream is read on after the finish: usage, and some engines' ids, come behind it."""

RENEW_S = 0.5
"""Between two renewals of the time that an engine may be silent in a stream; it is counted that much short."""

SPOOL_EVERY_S = 1.0
"""How often a running stream's ids are handed to the store, so that a crash leaves at most a second unsaved."""

ABORT_RETRY_S = 2.0
"""`Retry-After` when the engine broke a reply off while pausing or shutting down."""


class Passage:
    """One call on its way."""

    def __init__(self, calls: Calls, incoming: web.BaseRequest, draft: Draft, *, keep_alive: bool) -> None:
        """Made in the handler of `incoming`; with `keep_alive` the agent bears comments in a stream."""
        assert draft.recorder is not None
        self._keep_alive = keep_alive
        self._calls = calls
        self._incoming = incoming
        self._draft = draft
        self._recorder: Recorder = draft.recorder
        self._headers: list[tuple[str, str]] = []
        self._asking = Asking(calls, draft)
        self._concluding: asyncio.Task[StoreError | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The agent has the reply's head.
        self._begun = False
        # It had not closed when all of the reply had been handed to its socket.
        self._served = False
        # What carries the call: the agent's handler, or who took over from it.
        self._carrier = asyncio.current_task()
        # It goes on without the agent that began it.
        self._alone = False
        # It is to end, whoever waits for it.
        self._is_cut = False
        # The agent's connection takes no more at present.
        self._writing = False
        self.said = Transcript()

    def __repr__(self) -> str:
        return f"<Passage {self._draft.live.id}/{self._draft.n} {self._recorder!r} {self.said!r}>"

    async def run(self, headers: list[tuple[str, str]]) -> web.StreamResponse | None:
        """Carry the call to its end; whatever happens, its record is written and the engine is let go.

        None when a limit broke it off before anything went out: its record, and what the agent gets, are still due.
        """
        self._headers = headers
        after = self._calls.time_limit_s(self._draft)
        if after is not None:
            self._timer = asyncio.get_running_loop().call_later(after, self._expire)
        try:
            response = await self._carry(self._incoming)
            assert response is not None
            return response
        except asyncio.CancelledError:
            if self._draft.cut_by is not None and not self._begun and self._is_cut_alone():
                self._recorder.stopped(f"the rollout's limit {self._draft.cut_by} is reached")
                self._asking.drop()
                self.said.fail(EngineError("engine_cut", "The rollout's time is over.", status=503))
                return None
            if self._is_followed() and not self._is_cut:
                self._hand_over()
                raise
            # The agent hung up, or the rollout was cut, or the server stops.
            self._let_go()
            raise
        finally:
            if not self._alone:
                self._finish()

    def cut(self) -> None:
        """End the call, whoever waits for it."""
        self._is_cut = True
        if self._carrier is not None:
            self._carrier.cancel()

    def abandon(self) -> None:
        """Note that one who followed has left: a call that nobody waits for is dropped."""
        if self._alone and not self.said.followers and self._carrier is not None:
            self._carrier.cancel()

    def unseat(self) -> None:
        """Leave a first agent behind that takes nothing, so that those who follow get on."""
        if self._writing and not self._alone and self._carrier is not None:
            self._carrier.cancel()

    # -- carrying

    async def _carry(self, incoming: web.BaseRequest | None) -> web.StreamResponse | None:
        """Carry the call on from where it stands; None without an agent of its own."""
        try:
            await self._ask()
            answer = self._asking.answer
            assert answer is not None
            carry = self._stream if self._asking.is_stream else self._whole
            return await carry(answer, incoming)
        except TreeringError as error:
            self.said.fail(error)
            raise
        except Exception:  # ours, whatever it is: the call must still end, in the record and for who follows
            await self._fail()
            raise

    def _is_followed(self) -> bool:
        return bool(self.said.followers) and not self.said.over

    def _hand_over(self) -> None:
        """Let a task of its own carry the call on, for those who follow."""
        self._alone = True
        if self._asking.is_lost_when_left:
            # It will be asked for again, and wait for a place again.
            self._asking.give_back()
        spawn(self._carry_on(), name=f"carry call {self._draft.live.id}/{self._draft.n} on")

    async def _carry_on(self) -> None:
        """Carry the call on for those who follow; the agent that began it has gone."""
        self._carrier = asyncio.current_task()
        if not self.said.followers:
            # They left meanwhile.
            self._let_go()
            self._finish()
            return
        try:
            await self._carry(None)
        except asyncio.CancelledError:
            self._let_go()
            raise
        except TreeringError:
            # Those who follow have been told.
            return
        finally:
            self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._asking.give_back()
        if self._asking.answer is not None and self._concluding is not None:
            self._asking.answer.close()
        self.said.close()

    async def _ask(self) -> None:
        """Ask the engine, until its answer's head is here, and of a whole reply the body. Raises `TreeringError`."""
        try:
            await self._asking.ask(self._headers)
        except TreeringError as error:
            # A reply that broke off has been noted by the recorder.
            if self._recorder.status == "running":
                self._draft.fail(error)
            await self._conclude()
            raise

    async def _fail(self) -> None:
        """End a call that failed for a reason of our own: whatever it was, nothing of it may run on."""
        if self._concluding is None:
            self._asking.drop()
            if self._recorder.status == "running":
                self._draft.fail(CaptureError("internal", "Treering failed."))
            await self._conclude()
        if not self.said.over:
            self.said.fail(CaptureError("internal", "Treering failed.", hint="Its log says where; please report it."))

    # -- a stream

    async def _stream(self, answer: Reply, incoming: web.BaseRequest | None) -> web.StreamResponse | None:
        recorder = self._recorder
        if recorder.state == "waiting":
            recorder.answered(answer.status)
            self._draft.slim()
        response = None
        if self.said.head is None:
            headers = reply_headers(answer, as_came=self._as_came)
            if self._draft.translator is not None:
                headers["Content-Type"] = self._draft.translator.stream_type
            self.said.begin(answer.status, headers)
        try:
            if incoming is not None:
                assert self.said.head is not None
                response = web.StreamResponse(status=self.said.head[0], headers=self.said.head[1])
                await response.prepare(incoming)
                self._begun = True
            if recorder.status == "running":
                try:
                    await self._relay_to_finish(answer, response)
                except CUT as error:
                    self._asking.doubt()
                    recorder.cut(str(error) or type(error).__name__)
            if recorder.state == "finished":
                await self._read_tail(answer)
            await self._conclude()
            held = b""
            if recorder.state == "ended":
                held = recorder.release()
                self.said.add(held)
                if self._alone:
                    # The agent that began it, and is gone.
                    self._calls.mark(self._draft, delivered=False)
                self.said.end(clean=recorder.clean, through=bool(held))
            if response is None:
                return None
            if held:
                await response.write(held)
            # Seen before anything else is awaited: who closes right behind the end (codex does) has been served.
            # An end that went out was delivered, although what should follow it broke.
            self._served = (recorder.clean or bool(held)) and not self._gone
            if recorder.clean:
                await response.write_eof()
        except ConnectionError:
            if response is None:
                raise
            # The same as a hang-up that the server notices first.
            if self._is_followed():
                self._hand_over()
            else:
                self._let_go()
            return response
        except StoreError as error:
            self.said.fail(error)
            self._break_off()
            return response
        if recorder.clean:
            self._calls.mark(self._draft, delivered=self._served)
        else:
            self._break_off(delivered=self._served)
        return response

    async def _relay_to_finish(self, answer: Reply, response: web.StreamResponse | None) -> None:
        recorder, start, said = self._recorder, self._draft.start, self.said
        spooled = start
        due = start + RENEW_S
        unfinished = 0
        lane: Lane | None = None
        monotonic, add = time.monotonic, said.add
        # Of a piece that was poured, what the agent's connection did not take.
        owed = b""
        limit = self._calls.silence_s
        content = answer.content
        pourable = content if isinstance(content, Content) else None
        outlet = maybe_outlet(response) if response is not None and pourable is not None else None
        write = outlet.write if outlet is not None else _written
        name = f"keep alive {self._draft.live.id}/{self._draft.n}"

        def attend(now: float) -> float:
            """Do what is done once in a while (with each event it would cost more than the event); say when it is due.

            It doesn't know the rush that calls it, or the two would be left to the collector.
            """
            nonlocal due, spooled
            patience.renew()
            if now - spooled > SPOOL_EVERY_S:
                self._calls.spool(self._draft)
                spooled = now
            due = min(now + RENEW_S, spooled + SPOOL_EVERY_S)
            return due

        def take(data: bytes) -> bytes:
            """Record what came; return what goes out of it."""
            nonlocal unfinished
            silence.since = now = monotonic()
            if relayed := recorder.feed(data, (now - start) * 1000):
                unfinished = 0
                # First here: who follows has it even if the agent leaves in the middle of the write.
                said.add(relayed)
            elif (unfinished := unfinished + len(data)) > REPLY_LIMIT:
                recorder.cut(f"{REPLY_LIMIT} bytes came of which no event ended")
            if now > due:
                attend(now)
            return relayed

        def pass_on(data: bytes) -> bool:
            nonlocal lane, owed
            relayed = None
            if lane is not None:
                # An ordinary token that did not come in a chunk of its own.
                try:
                    relayed = lane.event(data)
                except Exception as error:  # noqa: BLE001 - recording never decides forwarding
                    recorder.failed(error)
                if relayed is not None:
                    silence.since = now = monotonic()
                    if now > due:
                        attend(now)
                    if not relayed:
                        return True
                    add(relayed)
                    if write(relayed):
                        return True
                    owed = relayed
                    return False
            relayed = take(data)
            if relayed and not write(relayed):
                owed = relayed
                return False
            lane = recorder.maybe_lane()
            if rush is not None:
                rush.lane = lane
            return recorder.state == "relaying"

        rush = None if outlet is None else rushes.make(outlet, said, attend=attend, failed=recorder.failed)
        heard = None if rush is None else lambda: rush.since
        try:
            with Patience(limit) as patience, Silence(response, name=name, heard=heard) as silence:
                while recorder.status == "running" and not recorder.finish_seen:
                    # Only while nothing of an event is on its way, and never with a client that bears no comments.
                    silence.breakable = self._keep_alive and response is not None
                    if rush is not None and pourable is not None:
                        going = True
                        try:
                            going = await pourable.pour(pass_on, rush.take)
                        finally:
                            silence.breakable = False
                            relayed, owed = owed, b""
                            rush.settle()
                    elif data := await content.readany():
                        going, relayed = True, take(data)
                    else:
                        going, relayed = False, b""
                    silence.breakable = False
                    if relayed and response is not None:
                        self._writing = True
                        await response.write(relayed)
                        self._writing = False
                    if relayed and self._alone:
                        # Else the agent's own connection sets the pace: who joined must not hold it up.
                        await said.caught_up()
                    if not going:
                        recorder.eof()
        except TimeoutError:
            # Half-open: the connection stands, and nothing comes.
            self._asking.doubt()
            recorder.cut(f"nothing came for {limit:g} s")

    async def _read_tail(self, answer: Reply) -> None:
        """Read what comes behind the finish, within its time; all of it is held back by the recorder."""
        tail = 0
        try:
            with Patience(TAIL_LIMIT_S):
                while data := await answer.content.readany():
                    if (tail := tail + len(data)) > REPLY_LIMIT:
                        break
                    self._recorder.feed(data, (time.monotonic() - self._draft.start) * 1000)
        except TimeoutError:
            pass
        except CUT as error:
            self._recorder.cut(str(error) or type(error).__name__)
            return
        self._recorder.eof()

    # -- a whole reply

    async def _whole(self, answer: Reply, incoming: web.BaseRequest | None) -> web.StreamResponse | None:
        recorder = self._recorder
        if recorder.state == "waiting":
            try:
                body = await self._asking.read()
            except EngineError:
                await self._conclude()
                raise
            recorder.answered(answer.status)
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
        body, headers = recorder.release(), reply_headers(answer, as_came=self._as_came)
        if self._alone:
            # The agent that began it, and is gone.
            self._calls.mark(self._draft, delivered=False)
        self.said.begin(answer.status, headers, whole=True)
        self.said.add(body)
        self.said.end(clean=True, through=True)
        if incoming is None:
            return None
        response = web.Response(body=body, status=answer.status, headers=headers)
        try:
            await response.prepare(incoming)
            self._begun = True
            await response.write_eof()
        except ConnectionError:
            self._let_go()
            return response
        self._calls.mark(self._draft, delivered=not self._gone)
        return response

    # -- the end

    async def _conclude(self, *, delivered: bool | None = None) -> None:
        """Write the record, once, in a task that outlives this handler, and wait for it."""
        if self._concluding is None:
            self._concluding = self._calls.concluding(self._draft, delivered=delivered)
        await asyncio.shield(self._concluding)

    def _let_go(self) -> None:
        """The agent has gone: drop the engine's request unless its reply is through, and see to the record."""
        through = self._recorder.finish_seen or self._concluding is not None
        self._calls.leaving(self._draft, through=through)
        # What is still to come goes to nobody: a retry is answered from the record.
        self.said.dropped = True
        if not through:
            self._asking.drop()
        spawn(self._wind_up(), name=f"wind up call {self._draft.live.id}/{self._draft.n}")

    async def _wind_up(self) -> None:
        try:
            if self._concluding is None:
                answer = self._asking.answer
                if self._recorder.finish_seen and answer is not None:
                    await self._read_tail(answer)
                    answer.close()
                elif self._draft.cut_by is not None:
                    self._recorder.stopped(f"the rollout's limit {self._draft.cut_by} is reached")
                    await self._calls.cut(self._draft)
                elif self._recorder.status == "running":
                    self._recorder.hang_up()
                await self._conclude(delivered=False)
            else:
                await self._concluding
                self._calls.mark(self._draft, delivered=self._served)
        finally:
            if not self.said.over:
                self.said.end(clean=False, through=False)

    def _break_off(self, *, delivered: bool = False) -> None:
        """Close the agent's connection without a proper end: what was relayed is flushed, no last chunk comes."""
        if not self._alone and self._incoming.transport is not None:
            self._incoming.transport.close()
        self._calls.mark(self._draft, delivered=delivered)

    def _expire(self) -> None:
        """Break the call off: its rollout's time is over."""
        if self._concluding is None and not self._recorder.finish_seen:
            self._draft.cut_by = "deadline_s"
            self.cut()

    def _is_cut_alone(self) -> bool:
        """Take the limit's cancellation back; False when the agent has gone too."""
        assert self._carrier is not None
        return self._carrier.uncancel() == 0 and not self._gone

    @property
    def _as_came(self) -> bool:
        return self._draft.translator is None

    @property
    def _gone(self) -> bool:
        return is_gone(self._incoming)


def _written(piece: bytes) -> bool:
    """Stand in for an outlet where there is none: nothing is poured then."""
    raise AssertionError(f"{len(piece)} bytes were poured, and nobody takes them")


def is_gone(incoming: web.BaseRequest) -> bool:
    """Say whether a client has closed its connection."""
    return incoming.transport is None or incoming.transport.is_closing()


def reply_headers(answer: Reply, *, as_came: bool = True) -> CIMultiDict[str]:
    """Return the headers for the agent; `as_came`: the body's bytes are the engine's."""
    headers = CIMultiDict(admission.reply_headers(answer.headers.items()))
    coding = answer.headers.get("Content-Encoding", "identity")
    if as_came and coding.strip().lower() not in intake.CODINGS:
        # Not undone on the way (`gzip, gzip`): the bytes go on as they are, and so does what says how to read them.
        headers["Content-Encoding"] = coding
    return headers
