"""Calls: what surrounds the relay of one. No socket is touched here.

In order: a number and a place in time on arrival; the rollout's rules; the note that it runs; and, when it has ended,
the record. `Calls` is what `relay` asks at each of these steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from capture import admission, clock, keys, limits, retries
from capture.aside import aside
from capture.custody import READY_S, Custody
from capture.dialects import replays
from capture.dialects.base import NO_TARGET, Dialect, Earlier, Request, Target
from capture.dialects.elements import suspects
from capture.draft import Draft
from capture.engines.base import Inquirer
from capture.engines.tips import Tips
from capture.errors import ClientError, StoreError, TreeringError
from capture.fleet import Fleet
from capture.holds import Holds
from capture.live import Live
from capture.metrics import Metrics
from capture.pinning.pins import QUIET, Pins
from capture.queue import WAIT_S
from capture.queue import Call as Place
from capture.recorder import Recorder
from capture.retries import NO_CLAIM, Claim, Try
from capture.rollouts import Rollouts, unknown_key
from capture.store.base import Arrival, Store
from capture.tasks import spawn
from capture.tracing import Tracing
from capture.upstream import Engine
from graph.records import Notice, Weights

Headers = Sequence[tuple[str, str]]


class Calls:
    """Admits calls, and records them when they have ended."""

    def __init__(
        self,
        *,
        rollouts: Rollouts,
        store: Store,
        fleet: Fleet,
        relay_abort: bool,
        on_store_failure: Literal["relay", "refuse"],
        log: Callable[[dict[str, Any]], None],
        holds: Holds | None = None,
        silence_s: float = 3600.0,
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`log` takes the fields of a call's line; without `holds` nobody is ever told to wait by hand.

        `silence_s` is how long an engine may say nothing in a call before it is given up.
        """
        self.silence_s = silence_s
        self._rollouts = rollouts
        self._store = store
        self._fleet = fleet
        self._relay_abort = relay_abort
        self._refuse_unstored = on_store_failure == "refuse"
        self._log = log
        self._custody = Custody(store)
        self._metrics = metrics or Metrics()
        self._tracing = tracing
        self._tips = Tips()
        self._holds = holds or Holds(store)
        self.pins = Pins(version=self._holds.version)

    @property
    def held_bytes(self) -> int:
        """Bytes of requests in hand whose record the store does not have yet."""
        return self._custody.held

    def engine_of(self, live: Live) -> Engine:
        """Return the engine that a rollout's calls go to at present. Raises `TreeringError`."""
        return self._order(live)[0]

    def _order(self, live: Live) -> list[Engine]:
        return self._fleet.order(live.id, model=live.rules.model, url=live.entry.registration.engine)

    async def ready(self) -> None:
        """Let new calls in only while they can be recorded. Raises `CaptureError`."""
        self._custody.admit()
        if self._store.failure is not None or self._rollouts.owed:
            try:
                async with asyncio.timeout(READY_S):
                    await self._store.flush()
                    await self._rollouts.tell_lost()
            except TimeoutError:
                raise StoreError("store_failed", f"{self._store.where} takes no writes at present.") from None

    async def arrive(
        self,
        live: Live,
        dialect: Dialect,
        body: bytes,
        headers: Headers,
        *,
        target: Target = NO_TARGET,
        said: Claim | None = None,
    ) -> Draft:
        """Give a request its number and read it.

        With `said`, what it says of itself, a retry of a call raises `Retried`, and gets no number. Raises
        `ClientError` for a request that can't be read, and records it.
        """
        started_at, start = clock.now(), time.monotonic()
        request, failure = None, None
        try:
            earlier = await self._earlier(live, dialect, body)
            request = await aside(
                len(body), lambda: dialect.read(body, target=target, earlier=earlier, rollout=live.id)
            )
        except ClientError as error:
            failure = error
        if said is not None and request is not None:
            await self._look_for_retried(live, dialect, request, body, said)
        if live.sealed:
            # Closed while the body was read: a call now would come behind the end.
            raise unknown_key()
        live.first_call_at = live.first_call_at or started_at
        choices = request.choices if request else 1

        def drafted(n: int, arrived: int) -> Draft:
            draft = Draft(
                live=live,
                n=n,
                arrived=arrived,
                started_at=started_at,
                start=start,
                dialect=dialect.name,
                body=body,
                hints=admission.hints(headers),
            )
            draft.request = request
            # From here on it must end, and is counted until it has.
            self._custody.take(len(body))
            return draft

        if self._store.shared:
            draft = await self._arrived(live, choices, started_at, drafted)
            if said is not None and request is not None:
                # Of a call that another process served, it is known only now.
                try:
                    await self._look_for_retried(live, dialect, request, body, said)
                except retries.Retried:
                    await self._store.abort([(live.id, draft.n)])
                    raise
        else:
            # Both at once, so that numbers and places in time never disagree.
            draft = drafted(arrived=live.tick(), n=live.arrive(choices))
        if failure is not None:
            await self.fail(draft, failure)
            raise failure
        return draft

    async def _arrived(self, live: Live, choices: int, started_at: str, drafted: Callable[[int, int], Draft]) -> Draft:
        """Have the store give a call its place. Raises `ClientError` 401 where the rollout takes no more calls."""
        since = asyncio.get_running_loop().time()

        async def arriving() -> Arrival | TreeringError:
            # Handed back, not raised: a task's error is logged, and this one is the agent's.
            try:
                return await self._rollouts.arrive(live, choices=choices, started_at=started_at)
            except TreeringError as error:
                return error

        def taken(arrival: Arrival) -> Draft:
            self._holds.obey(arrival.engines, since=since)
            draft = drafted(arrival.n, arrival.arrived)
            draft.arrival = arrival
            return draft

        async def give_up() -> None:
            arrival = await task
            if isinstance(arrival, Arrival):
                self._given_up(taken(arrival))

        task = spawn(arriving(), name=f"arrive at {live.id}")
        try:
            arrival = await asyncio.shield(task)
        except asyncio.CancelledError:
            # The agent hung up meanwhile: nothing was sent, but the call may have its number and its place.
            spawn(give_up(), name=f"give up an arrival at {live.id}")
            raise
        if isinstance(arrival, TreeringError):
            raise arrival
        return taken(arrival)

    def _given_up(self, draft: Draft) -> None:
        """Record a call whose agent hung up before anything was sent."""
        draft.fail(ClientError("client_gone", "The client hung up.", status=499), status="aborted")
        self.concluding(draft, delivered=False)

    async def _look_for_retried(self, live: Live, dialect: Dialect, request: Request, body: bytes, said: Claim) -> None:
        """Raise `Retried` for a request that is a retry."""
        tried = live.tries.find(dialect.name, request, said)
        if tried is None:
            return
        if tried.body != request.body:
            # Found by its key: a body that differs in more than its mode is another call.
            exchange = None if tried.draft else await self._store.exchange(live.id, tried.n)
            first = tried.draft.body if tried.draft else exchange.request if exchange is not None else b""
            if not retries.same_but_for_mode(first, body):
                return
        raise retries.Retried(tried, request, by_key=said.key is not None)

    async def recorded(
        self, live: Live, tried: Try, dialect: Dialect, request: Request, *, lost: bool
    ) -> tuple[str, bytes] | None:
        """Return content type and body of a call's reply, as a retry of it wants them; None for one without.

        With `lost`, of one that was delivered after all, by another process, there is none.
        """
        if not tried.complete:
            return None
        exchange = await self._store.exchange(live.id, tried.n)
        if exchange is None or exchange.reply is None:
            return None
        if lost and any(delivery.get("complete") for delivery in exchange.deliveries):
            return None
        if not request.streamed:
            return "application/json", exchange.reply
        return replays.stream(dialect.name, request, exchange.reply)

    def mark_again(self, live: Live, tried: Try, *, delivered: bool) -> None:
        """Mark whether a reply that was given again reached its agent.

        One that did not says nothing of the first time: where a process died before it could mark that, it stays null.
        """
        live.tries.mark(tried, delivered=delivered)
        if delivered:
            self._store.deliver(live.id, tried.numbers, delivered=True, at=clock.now())

    def leaving(self, draft: Draft, *, through: bool) -> None:
        """Note that a call's agent hung up; `through`: its reply had been sampled in full."""
        if draft.tried is not None:
            draft.live.tries.leave(draft.tried, through=through)

    async def stored(self, live: Live, reply_id: str) -> bytes:
        """Return an earlier reply of the rollout as its agent got it. Raises `ClientError` 404."""
        n = await self._rollouts.reply(live, reply_id)
        exchange = None if n is None else await self._store.exchange(live.id, n)
        if exchange is None or exchange.reply is None:
            raise ClientError("response_not_found", f"No response of this rollout has the id {reply_id!r}.", status=404)
        return exchange.reply

    async def _earlier(self, live: Live, dialect: Dialect, body: bytes) -> list[Earlier]:
        """Return the exchanges that a request goes on from, the oldest first. Raises `ClientError` 404."""
        found: list[Earlier] = []
        name = dialect.refers_to(body)
        while name is not None:
            n = await self._rollouts.reply(live, name)
            exchange = None if n is None else await self._store.exchange(live.id, n)
            if exchange is None or exchange.reply is None:
                raise ClientError(
                    "previous_response_not_found",
                    f"No earlier response of this rollout has the id {name!r}.",
                    hint="It must be one of this rollout's own, complete, and still stored.",
                    status=404,
                    param="previous_response_id" if b'"previous_response_id"' in body else "input",
                )
            found.append(Earlier(request=exchange.request, reply=exchange.reply))
            name = dialect.refers_to(exchange.request)
        return found[::-1]

    async def admit(self, draft: Draft, dialect: Dialect, headers: Headers) -> list[tuple[str, str]]:
        """Apply the rollout's rules; return the headers for the engine. Raises `TreeringError`, having recorded it."""
        assert draft.request is not None
        live, rules = draft.live, draft.live.rules
        try:
            draft.engines = self._order(live)
            engine = draft.engines[0]
            draft.admitted = await aside(draft.size, lambda: self._admitted(draft, engine))
        except asyncio.CancelledError:
            # The agent hung up meanwhile: nothing was sent, but the call has its number and its place.
            self._given_up(draft)
            raise
        except TreeringError as error:
            if error.code == "media_url_refused":
                if draft.dialect != "chat":
                    # The path is the chat request's, which this agent never wrote.
                    error.param = None
                self._notice(draft, "request_refused", {"param": error.param, "reason": error.message})
            await self.fail(draft, error)
            raise
        to_engine, removed = admission.engine_headers(headers, rules.allow)
        if names := [*draft.admitted.removed, *removed]:
            self._notice(draft, "steering_removed", {"fields": names})
        draft.engine = engine.name
        draft.reader = engine.adapter.reader(draft.request, model=draft.admitted.reply_model)
        if hasattr(draft.reader, "known"):
            draft.reader.known = self._tips.of(live.id, live.trie)
        draft.translator = dialect.translator(draft.request)
        draft.recorder = Recorder(
            draft.request, draft.reader, translator=draft.translator, relay_abort=self._relay_abort
        )
        return to_engine if self._tracing is None else self._tracing.begin(draft, to_engine)

    async def enter(self, draft: Draft, engine: Engine) -> Callable[[], None]:
        """Wait for a place at an engine; return what gives it back, to be called once.

        Raises `EngineError` 503 `engine_busy` or `engine_held`, when the time for waiting is over or the line is full.
        """
        queue, place = self._holds.queue(engine.name), Place(draft.live.id, draft.n)
        # One wait in all, where a call goes to a second engine after it.
        waited_s = (draft.queued_ms or 0.0) / 1000
        draft.in_line = draft.queued_ms is None
        may_enter = False
        if draft.arrival is not None and engine is draft.engines[0]:
            # It had arrived before the hold, if there is one: whoever holds waits for it.
            may_enter = not draft.is_told_to_wait(engine)
        elif draft.arrival is not None:
            # Nobody who holds this engine knows of it.
            await self._holds.look()
        since = time.monotonic()
        try:
            had_to_wait = await queue.enter(place, wait_s=max(0.0, WAIT_S - waited_s), despite_hold=may_enter)
        finally:
            draft.waited_s += time.monotonic() - since
        if had_to_wait:
            draft.queued_ms = round((time.monotonic() - draft.start) * 1000, 3)
        elif draft.queued_ms is None:
            draft.queued_ms = 0.0
        draft.in_line = False
        if engine.doubted:
            try:
                await engine.recognise()
            except BaseException:  # cancelled or not, the place is given back
                queue.leave(place)
                raise
        self._met(draft, engine)
        if draft.told_to_wait:
            # From now on whoever holds this engine has to wait for it.
            draft.told_to_wait = False
            draft.engine = engine.name
            self._store.begin_later(draft.live.id, draft.n, draft.starting)
        draft.engine, draft.weights = engine.name, Weights(start=self._holds.version(engine.name))
        engine.in_flight += 1

        def leave() -> None:
            engine.in_flight -= 1
            queue.leave(place)

        return leave

    def _met(self, draft: Draft, engine: Engine) -> None:
        """Note where a rollout's call meets another engine than the one before."""
        before, now = draft.live.engine, (engine.name, engine.returns)
        draft.live.engine = now
        if before is None or before == now:
            return
        why = "it had been away" if before[0] == now[0] else "the one before can't be reached, or others are nearer now"
        self._notice(draft, "engine_changed", {"engine": now[0], "before": before[0], "why": why})

    async def body(self, draft: Draft, engine: Engine) -> bytes:
        """Return the body of a call for an engine; in a rollout with pinned prompts, with its prompt as ids."""
        assert draft.admitted is not None
        assert draft.request is not None
        fields = draft.admitted.fields
        if draft.pin is None:
            draft.pin = await self.pins.tried(draft.live, draft.request, fields, engine)
        if draft.sent_after_s is None:
            draft.sent_after_s = time.monotonic() - draft.start
        return self.pins.body(draft.pin, engine, fields, draft.admitted.body)

    async def without_refused(self, draft: Draft, engine: Engine, body: bytes) -> bool:
        """Take out what the engine's refusal names of the fields that capture asked with; False if it names none.

        The agent never asked for them, so it never sees that error. The engine is not asked with them again. A pinned
        prompt that the engine does not take is given up the same way.
        """
        assert draft.admitted is not None
        if self.pins.refused(draft.pin, body):
            return True
        named = admission.refused_fields(body, draft.admitted.injected) - engine.refused
        if not named:
            return False
        engine.refused |= named
        self._notice(draft, "injection_refused", {"engine": engine.name, "fields": sorted(named)})
        draft.admitted = await aside(draft.size, lambda: self._admitted(draft, engine))
        return True

    def _admitted(self, draft: Draft, engine: Engine) -> admission.Admitted:
        assert draft.request is not None
        return admission.admit(
            draft.request,
            engine.adapter,
            draft.live.rules,
            served=engine.models,
            rollout=draft.live.id,
            n=draft.n,
            without=engine.refused,
        )

    def begin(self, draft: Draft, cut: Callable[[], object], said: Claim = NO_CLAIM) -> None:
        """Note that a call runs; `cut` ends it when its rollout is closed. `said`: what its request says of itself."""
        draft.tried = draft.live.tries.begin(draft, said)
        draft.live.begin(draft.n, cut)
        draft.told_to_wait = draft.is_told_to_wait(draft.engines[0])
        if not draft.told_to_wait:
            self._store.begin_later(draft.live.id, draft.n, draft.starting)

    def inquire(self, draft: Draft, engine: Engine) -> None:
        """Ask the engine beside the call for the prompt's ids, where its reply does not bring them."""
        # Not by `isinstance`, which looks at all that the protocol names, in some 50 us.
        if hasattr(draft.reader, "question"):
            name = f"ask of call {draft.live.id}/{draft.n}"
            draft.inquiry = spawn(engine.inquire(cast("Inquirer", draft.reader)), name=name)

    def spool(self, draft: Draft) -> None:
        """Keep what a running stream has brought so far."""
        if (spool := draft.spool()) is not None:
            self._custody.spool(draft.live.id, draft.n, spool)

    def reserve(self, draft: Draft) -> str | None:
        """Take a call's place under its rollout's limits; return the limit that leaves none, by name."""
        assert draft.request is not None
        spent = draft.arrival.spent if draft.arrival is not None else None
        limit = draft.live.reserve(draft.dialect, draft.request.messages, spent=spent)
        draft.reserved = limit is None
        return limit

    def time_limit_s(self, draft: Draft) -> float | None:
        """Return the seconds after which a call that begins now is to be broken off, None for never."""
        live = draft.live
        return limits.cut_after_s(live.entry.rollout.limits, live.first_call_at)

    async def cut(self, draft: Draft) -> None:
        """Note that a limit broke a call off whose agent has part of its reply."""
        assert draft.cut_by is not None
        await self._rollouts.stop(draft.live, draft.n, draft.cut_by)

    async def stop(self, draft: Draft, dialect: Dialect, limit: str) -> tuple[str, bytes]:
        """Answer a call at a limit; return content type and body of the last reply.

        Raises `ClientError` `rollout_limit` (400) for an agent that goes on after several of them.
        """
        # To its end although the agent hangs up: a call that has arrived must end.
        stopped = await asyncio.shield(
            spawn(self._stop(draft, dialect, limit), name=f"stop call {draft.live.id}/{draft.n}")
        )
        if isinstance(stopped, TreeringError):
            raise stopped
        return stopped

    async def _stop(self, draft: Draft, dialect: Dialect, limit: str) -> tuple[str, bytes] | TreeringError:
        assert draft.request is not None
        live = draft.live
        sentence = f"The rollout's limit {limit}={live.entry.rollout.limits[limit]:g} is reached."
        try:
            if not await self._rollouts.stop(live, draft.n, limit):
                # Nothing here may speak of the context's length: agents compact on that, and go on.
                error = ClientError(
                    "rollout_limit", sentence, hint="This rollout is over; no further step is answered."
                )
                await self.fail(draft, error, status="stopped")
                return error
            reply_id = f"chatcmpl-stop-{secrets.token_hex(8)}"
            kind, reply = dialect.last_reply(
                draft.request, reply_id=reply_id, created=int(time.time()), text=f"[{sentence} This is the end.]"
            )
            draft.stop_reply = (reply_id, reply)
            await self.conclude(draft)
        except StoreError as error:
            return error
        return kind, reply

    async def fail(self, draft: Draft, error: TreeringError, *, status: Literal["error", "stopped"] = "error") -> None:
        """Record a call that gets an error instead of a reply."""
        draft.fail(error, status=status)
        # To its end although the agent hangs up: a call that has arrived must end.
        await asyncio.shield(self.concluding(draft))

    async def conclude(self, draft: Draft, *, delivered: bool | None = None) -> StoreError | None:
        """Store an ended call; return the store's error if that failed and the agent is to get its reply all the same.

        Raises that `StoreError` if the operator chose to refuse what can't be stored.
        """
        live, reader, request = draft.live, draft.reader, draft.request
        over = time.monotonic()
        if draft.inquiry is not None:
            await draft.inquiry
        prompt = reader.prompt_ids if reader is not None else None
        draft.kept = self._settle_pin(draft)
        if draft.engine is not None and draft.queued_ms is not None:
            if self._store.shared and self._holds.tells:
                with contextlib.suppress(StoreError):
                    await self._holds.look()
            draft.weights = Weights(start=draft.weights.start, end=self._holds.version(draft.engine))
            if draft.weights.start is None and draft.weights.end is not None:
                # Told for the first time while the call ran; the stamps alone would only say that nobody knew.
                self._notice(draft, "weights_changed", {"versions": [None, draft.weights.end]})
        ended = None if self._store.shared else live.tick()
        delta = live.checked(prompt, live.delta(prompt))
        records = draft.records(ended=ended, delivered=delivered, delta=delta)
        handed = time.monotonic()
        try:
            await self._custody.finish(live.id, records, size=draft.size)
            draft.behind_s = time.monotonic() - over
            self._metrics.committed(time.monotonic() - handed)
        except StoreError as error:
            self._metrics.unrecorded()
            if draft.tried is not None:
                live.tries.end(draft.tried, numbers=draft.numbers, complete=False)
            self._rollouts.lost(live, draft.n)
            if self._refuse_unstored:
                raise
            return error
        finally:
            if draft.reserved:
                live.settle(sampled=draft.status in ("complete", "aborted"))
            live.end(draft.n)
            self._metrics.call(draft)
            if self._tracing is not None:
                self._tracing.end(draft)
        if draft.tried is not None:
            live.tries.end(draft.tried, numbers=draft.numbers, complete=draft.status == "complete")
            if delivered is False:
                live.tries.mark(draft.tried, delivered=False)
        for record in records:
            live.keep(record.call.n, prompt, record.call.sampled_ids, check=None if delta is None else delta.check)
            live.note(record.call)
        sent = draft.admitted.fields if draft.admitted is not None else None
        self.pins.remember(live, [record.call for record in records], sent)
        if records[0].call.id is not None and records[0].call.status == "complete":
            live.replies[records[0].call.id] = records[0].call.n
        # What looks like a secret is hashed and compared: nothing here holds one.
        asked = draft.body
        if request is not None and draft.translator is None:
            asked = suspects(request.fields, request.elements, asked)
        texts, secrets_ = (asked, records[0].exchange.reply), (live.entry.secret, live.entry.tools_secret)
        if await aside(len(asked), lambda: keys.shown_in(texts, secrets_)):
            self._notice(draft, "secret_in_content", {})
        missing = [*(reader.undecoded if reader is not None else ()), *filter(None, [request and request.undecoded])]
        if missing:
            self._notice(draft, "unreadable_body", {"missing": missing})
        self._log(draft.line())
        return None

    def concluding(self, draft: Draft, *, delivered: bool | None = None) -> asyncio.Task[StoreError | None]:
        """Return a task that concludes the call and outlives whoever waits for it."""
        return spawn(self.conclude(draft, delivered=delivered), name=f"record call {draft.live.id}/{draft.n}")

    def mark(self, draft: Draft, *, delivered: bool) -> None:
        """Mark whether a reply reached its agent."""
        if draft.tried is not None:
            draft.live.tries.mark(draft.tried, delivered=delivered)
        self._store.deliver(draft.live.id, draft.numbers, delivered=delivered, at=clock.now())

    def _settle_pin(self, draft: Draft) -> int | None:
        """Return how many tokens a pinned prompt kept, None for one that is none; say why where one was asked for."""
        if draft.pin is None:
            return None
        engine = next((each for each in draft.engines if each.name == draft.engine), draft.engines[0])
        prompt = draft.reader.prompt_ids if draft.reader is not None else None
        kept = self.pins.settle(draft.pin, engine, prompt)
        if (reason := draft.pin.reason) is not None and reason not in QUIET:
            self._notice(draft, "pin_fallback", {"reason": reason, "engine": engine.name})
        return kept

    def _notice(self, draft: Draft, code: str, data: dict[str, Any]) -> None:
        self._store.notice(draft.live.id, Notice(code=code, at=clock.now(), calls=(draft.n,), data=data))
