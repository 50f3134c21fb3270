"""All rollouts: which secret opens which, registration, rewards, waiting, closing."""

from __future__ import annotations

import asyncio
import functools
import hmac
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal

import msgspec

from capture import clock, elsewhere, heap, keys, verdicts
from capture.enrolment import Enrolment
from capture.errors import ClientError, StoreError
from capture.graphs import Graphs
from capture.live import Live
from capture.pinning.memory import Memory
from capture.reach import Reach
from capture.registration import Defaults, Place
from capture.store.base import Arrival, Entry, Page, Query, State, Store
from graph import graph
from graph.records import Notice, Stop

Owner = Literal["agent", "tools"]
"""Whose secret one is."""

LOOK_EVERY_S = 5.0
"""Between two looks at rollouts at rest."""

_MINUTE = len("2026-01-01T00:00:")

GRAPHS_KEPT_S = 60.0
"""For readers that ask again; what is read later is read from the store."""

FORGET_AFTER_S = 600.0
"""Without a call in this process, after which it forgets a rollout that others may serve."""

STRANGERS = 10_000
"""Requests with a key that opens nothing, whose times are remembered for rollouts whose own agent never came."""

STOPS_BEFORE_REFUSAL = 3
"""Replies that say "the limit is reached" before an agent that goes on gets an error instead."""


class Rollouts:
    """All rollouts: those that live here, and the way to the store for the rest."""

    def __init__(
        self,
        store: Store,
        *,
        place: Callable[[str | None], Awaitable[Place]],
        defaults: Defaults,
        reach: Reach,
        witness: Callable[[Entry], dict[str, Any]] = lambda _entry: {},
        unpinnable: Callable[[str | None], Awaitable[str | None]] | None = None,
        on_closed: Callable[[str], None] = lambda _name: None,
        on_judged: Callable[[str], None] = lambda _name: None,
        sleep_after_s: float = 60.0,
        rest: Callable[[], bool] = lambda: False,
    ) -> None:
        """`witness` says what is known of why a rollout made no calls: `engine`, and `tunnel` where it has one.

        `unpinnable` says why prompts can't be pinned at an engine (a clause), None where they can. `on_closed` is told
        of each rollout that this process has closed, `on_judged` of each that was given a reward or a role. A rollout
        without a call for `sleep_after_s` leaves memory. `rest` lets go of what no request has brought for a while; it
        says whether there was any.
        """
        self._rest = rest
        self._sleep_after_s = sleep_after_s
        self._on_closed = on_closed
        self._on_judged = on_judged
        self._store = store
        self._place = place
        self._reach = reach
        self._witness = witness
        self._enrolment = Enrolment(store, place=place, defaults=defaults, reach=reach, unpinnable=unpinnable)
        self._live: dict[str, Live] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._by_secret: dict[bytes, tuple[str, Literal["agent", "tools"]]] = {}
        self._graphs = Graphs(store)
        # Whether something was served or read since the last look at what rests.
        self._touched = False
        # Rollouts whose store lost a call, until the store has been told.
        self._lost: dict[str, list[int]] = {}
        self._strangers: deque[str] = deque(maxlen=STRANGERS)
        # Set, and replaced, when a rollout is closed by this process.
        self._closing = asyncio.Event()

    # What the data plane asks

    async def admit(self, secret: str | None, whose: Owner = "agent") -> Live:
        """Return the rollout that a secret of this owner opens.

        Raises `ClientError`: 401 `invalid_api_key` for one that is missing, unknown, closed or expired; 403
        `tools_secret` for a tool server's secret, which may not sample, and `agent_secret` for an agent's, which may
        not see what tool servers keep.
        """
        if not secret:
            raise ClientError(
                "invalid_api_key",
                "This request shows no key.",
                hint="Send the rollout's secret as the API key (Authorization: Bearer, x-api-key, …).",
                status=401,
            )
        digest = keys.digest(secret)
        known = self._by_secret.get(digest)
        if known is None:
            found = await self._store.by_secret(digest)
            if found is None or found[0].rollout.state == "closed":
                raise unknown_key()
            known = found[0].rollout.id, found[1]
            self._by_secret[digest] = known
        name, kind = known
        live = await self._load(name)
        self._touched = True
        if live is not None and live.asleep:
            with live.visited():
                await self._wake(live)
        if live is None or live.sealed or await self._expired(live):
            self._by_secret.pop(digest, None)
            raise unknown_key()
        mine = live.entry.secret if kind == "agent" else live.entry.tools_secret
        if not hmac.compare_digest(mine, digest):
            raise unknown_key()
        if kind != whose:
            if kind == "agent":
                raise ClientError(
                    "agent_secret",
                    "This key is an agent's; /state and /task are for its tool servers.",
                    hint="Give the tool server the rollout's `tools_secret`, and the agent its `secret` alone.",
                    status=403,
                )
            raise ClientError(
                "tools_secret",
                "This key is a tool server's; it can't call the model.",
                hint="Give the agent the rollout's `secret`, not its `tools_secret`.",
                status=403,
            )
        if (own := live.entry.registration.engine) is not None and kind == "agent":
            # Registered in another process, or before this one began: its engine may not be open here yet.
            await self._place(own)
        return live

    def knows(self, digest: bytes) -> bool:
        """Say whether a secret's digest is known without asking the store."""
        return digest in self._by_secret

    def stranger(self) -> None:
        """Note that a request showed a key that opens nothing."""
        self._strangers.append(clock.now())

    async def arrive(self, live: Live, *, choices: int, started_at: str) -> Arrival:
        """Have a shared store give a call its number, and learn what other processes did meanwhile.

        Raises `ClientError` 401 `invalid_api_key` when the rollout takes no more calls.
        """
        arrival = await self._store.arrive(live.id, choices=choices, started_at=started_at)
        if arrival is not None and arrival.entry.secret != live.entry.secret:
            # Deleted, and registered anew under the same id: this agent's rollout is gone.
            await self._store.abort([(live.id, arrival.n)])
            arrival = None
        if arrival is None:
            self._forget(live)
            raise unknown_key()
        live.arrived(arrival, choices)
        if live.elsewhere or live.in_doubt:
            await self._catch_up(live)
        return arrival

    async def reply(self, live: Live, reply_id: str) -> int | None:
        """Return the number of the complete call whose reply bears that id, None if there is none such."""
        if reply_id not in live.replies and self._store.shared:
            await self._catch_up(live, beyond=True)
        return live.replies.get(reply_id)

    async def fresh(self, live: Live) -> None:
        """See that a rollout is still open, whoever may have closed it. Raises `ClientError` 401."""
        if not self._store.shared:
            return
        entry = await self._store.get(live.id)
        if entry is None or entry.rollout.state == "closed" or entry.secret != live.entry.secret:
            self._forget(live)
            raise unknown_key()
        live.entry = entry

    async def state(self, live: Live) -> State:
        """Return what a rollout's tool servers keep with it. Raises `ClientError` 401 when it is closed."""
        found = await self._store.state(live.id)
        # Looked at behind the read: what was read is then this rollout's, and not that of a later one of its name.
        await self.fresh(live)
        if found is None or live.sealed:
            raise unknown_key()
        return found

    async def set_state(self, live: Live, body: bytes, *, expected: frozenset[int] | None) -> State:
        """Set it, if its version is one of those. Raises `ClientError`: 412 `state_changed`, 401 when it is closed."""
        owner = live.entry.tools_secret
        found = await self._store.set_state(live.id, body, at=clock.now(), owner=owner, expected=expected)
        if found is None:
            raise unknown_key()
        return found

    async def stop(self, live: Live, n: int, limit: str) -> bool:
        """Note that a call met a limit; True while the agent is to get a last reply, False when an error is due."""
        if self._store.shared:
            live.stopped = await self._store.stop(live.id, n, limit)
            live.stops = live.stopped.stops
            return live.stops <= STOPS_BEFORE_REFUSAL
        # Counted before anything is awaited: calls that meet it at once are told apart.
        live.stops += 1
        stops, before = live.stops, live.stopped
        live.stopped = Stop(limit=limit, at_call=before.at_call if before else n, stops=stops)
        entry = await self._store.change(live.id, {"stopped": live.stopped})
        if entry is not None:
            live.entry = entry
        return stops <= STOPS_BEFORE_REFUSAL

    def lost(self, live: Live, n: int) -> None:
        """Note that a call could not be stored: its rollout is incomplete for ever, and the call is named."""
        self._lost.setdefault(live.id, []).append(n)

    async def tell_lost(self) -> None:
        """Write the marks of lost calls, if the store takes them again. Raises `StoreError` if it doesn't."""
        for name in list(self._lost):
            entry = await self._store.change(name, {"incomplete": True})
            # Several may tell at once; and a call may have been lost meanwhile, which is told with the others.
            numbers = self._lost.pop(name, None)
            if entry is not None and numbers is not None:
                if self._store.shared:
                    # Nobody else would say that they run no more.
                    await self._store.abort([(name, n) for n in numbers])
                self._store.notice(
                    name, Notice(code="capture_incomplete", at=clock.now(), calls=tuple(numbers), data={})
                )
                if (live := self._live.get(name)) is not None:
                    live.entry = entry

    @property
    def owed(self) -> bool:
        """Whether marks of lost calls still wait for the store."""
        return bool(self._lost)

    # What the control plane asks

    async def register(self, body: Any, *, key: str | None, digest: str) -> bytes:
        """Register one rollout or several (see `Enrolment.register`)."""
        return await self._enrolment.register(body, key=key, digest=digest)

    async def led(self, before: str) -> dict[str, str]:
        """Return the open rollouts registered before a time that were told a tunnel's URL, and that URL."""
        return await self._enrolment.led(before)

    async def entry(self, name: str) -> Entry:
        """Return a rollout's entry. Raises `ClientError` 404 `rollout_not_found`."""
        live = self._live.get(name)
        if live is not None:
            await self._expired(live)
        entry = await self._store.get(name)
        if entry is None:
            raise ClientError(
                "rollout_not_found",
                f"There is no rollout {name!r}.",
                hint="GET /rollouts lists them.",
                status=404,
            )
        is_past = live is None and entry.rollout.state == "open" and _past(entry, entry.rollout.last_call_at)
        if is_past and not (self._store.shared and await self._store.running(name)):
            entry = await self._expire(entry.rollout.id) or entry
        if name in self._lost:
            entry = msgspec.structs.replace(entry, rollout=msgspec.structs.replace(entry.rollout, incomplete=True))
        return entry

    async def state_of(self, name: str) -> State:
        """Return what a rollout's tool servers keep with it, also once it is closed. Raises `ClientError` 404."""
        await self.entry(name)
        return await self._store.state(name) or State()

    async def page(self, query: Query) -> Page:
        """Return a page of rollouts."""
        return await self._store.page(query)

    async def aside(self, name: str) -> graph.Graph:
        """Return a rollout's graph that nobody keeps: for a pass over many. Raises `ClientError` 404."""
        await self._store.flush()
        entry = await self.entry(name)
        return await Graphs(self._store).of(entry, lost=self._lost.get(name, ()))

    async def seen(self, name: str, *, passing: bool = False) -> tuple[Entry, graph.Graph]:
        """Return a rollout's entry, and its graph as of that entry or later. Raises `ClientError` 404.

        `passing`: of a closed rollout nobody keeps it.
        """
        entry = await self.entry(name)
        self._touched = True
        graphs = Graphs(self._store) if passing and entry.rollout.state == "closed" else self._graphs
        return entry, await graphs.of(entry, lost=self._lost.get(name, ()))

    async def graph(self, name: str) -> graph.Graph:
        """Return a rollout's graph as it stands, also while the store takes no writes. Raises `ClientError` 404."""
        return (await self.seen(name))[1]

    def owes(self, name: str) -> bool:
        """Say whether the mark of a call that a rollout lost still waits for the store."""
        return name in self._lost

    async def wait(self, name: str, *, until: Literal["closed", "idle"], idle_s: float, timeout_s: float) -> bool:
        """Wait until a rollout is closed, or idle (nothing running, none for `idle_s`); False when the time is over.

        Raises `ClientError` 404.
        """
        if self._store.shared:
            return await self._wait_for_all(name, until=until, idle_s=idle_s, timeout_s=timeout_s)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            entry = await self.entry(name)
            if entry.rollout.state == "closed":
                return True
            live = await self._load(name)
            if live is None:
                return True
            changed = live.changed
            pause = end - loop.time()
            if until == "idle" and not live.running:
                quiet = live.idle_since + idle_s - loop.time()
                if quiet <= 0:
                    return True
                pause = min(pause, quiet)
            if end - loop.time() <= 0:
                return False
            try:
                async with asyncio.timeout(max(0.0, pause)):
                    await changed.wait()
            except TimeoutError:
                continue

    async def close_rollout(self, name: str, *, wait_s: float) -> Entry:
        """Seal a rollout: take no more calls, wait for those that run, cut what is left. Raises `ClientError` 404."""
        entry = await self.entry(name)
        if entry.rollout.state == "closed":
            return entry
        live = self._live.get(name) if self._store.shared else await self._load(name)
        if self._store.shared:
            await self._drain_all(name, live, wait_s)
        elif live is not None:
            live.seal()
            await self._drained(live, wait_s)
            for cut in list(live.running.values()):
                cut()
            # What was cut still has its record to write; that takes a commit, not a reply.
            await self._drained(live, 5.0)
        await self._tell_silence(entry)
        changed = await self._store.change(name, {"state": "closed", "closed_at": clock.now()})
        self._on_closed(name)
        self._reach.release(name)
        if live is not None:
            self._forget(live)
        self._closing.set()
        self._closing = asyncio.Event()
        return changed or entry

    async def reward(self, name: str, body: Any) -> Entry:
        """Attach a reward (see `verdicts.reward`)."""
        await self.entry(name)
        changed = await verdicts.reward(self._store, name, body)
        self._on_judged(name)
        return changed if changed is not None else await self.entry(name)

    async def role(self, name: str, body: Any) -> Entry:
        """Overrule what the graph says a conversation was for (see `verdicts.role`)."""
        changed = await verdicts.role(self._store, await self.graph(name), body)
        self._on_judged(name)
        return changed if changed is not None else await self.entry(name)

    async def delete(self, name: str) -> None:
        """Remove a rollout; what runs is cut. Raises `ClientError` 404."""
        entry = await self.entry(name)
        if entry.rollout.state == "open":
            await self.close_rollout(name, wait_s=0.0)
        await self._store.delete(name)
        self._graphs.forget(name)
        self._lost.pop(name, None)

    async def watch(self) -> None:
        """Look after rollouts at rest, for ever: spare room goes, and one that is past its time closes."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self._release_closed()
            # Calls leave holes of all sizes behind, and what falls asleep, closes or is asked for no more all it held.
            churned, self._touched = self._touched, False
            churned = self._graphs.rest(GRAPHS_KEPT_S) or churned
            churned = self._rest() or churned
            for live in list(self._live.values()):
                churned = live.sleep(self._sleep_after_s) or churned
                if self._store.shared and live.is_idle(FORGET_AFTER_S) and not live.is_visited:
                    # Others may serve it by now, or have closed it; its next call here reads it again.
                    self._live.pop(live.id, None)
                    continue
                try:
                    await self._expired(live)
                except StoreError:
                    # Said elsewhere; it is tried again at the next look.
                    break
            if churned:
                await asyncio.to_thread(heap.trim)

    async def heed(self) -> None:
        """Look every second at what was sealed by any process, for ever; cut what is to be cut.

        Needed where the store is shared: a close may come in elsewhere, and its cut is obeyed within a second.
        """
        while True:
            await asyncio.sleep(elsewhere.HEED_EVERY_S)
            try:
                sealed = await self._store.sealed()
            except StoreError:
                # Said elsewhere; it is tried again at the next look.
                continue
            for name, cut in sealed.items():
                if (live := self._live.get(name)) is not None:
                    live.seal()
                    for each in list(live.running.values()) if cut else ():
                        each()

    async def drained(self) -> None:
        """Return when no call runs in this process."""
        while busy := [live for live in self._live.values() if live.running]:
            await busy[0].changed.wait()

    # Inside

    async def _load(self, name: str) -> Live | None:
        if (live := self._live.get(name)) is not None:
            return live
        lock = self._loading.setdefault(name, asyncio.Lock())
        async with lock:
            if (live := self._live.get(name)) is not None:
                return live
            entry = await self._store.get(name)
            if entry is None or entry.rollout.state == "closed":
                self._loading.pop(name, None)
                return None
            calls = await self._store.calls(name)
            live = Live(entry, calls)
            if entry.registration.tokens == "pinned":
                live.memory = Memory(live.trie, functools.partial(self._store.exchange, name))
                for call in calls:
                    live.memory.add(call)
            self._live[name] = live
            self._loading.pop(name, None)
            return live

    async def _wake(self, live: Live) -> None:
        """Have a rollout's calls back from the store. Raises `StoreError`."""
        async with self._loading.setdefault(live.id, asyncio.Lock()):
            if live.asleep:
                live.wake(await self._store.calls(live.id))
            self._loading.pop(live.id, None)

    async def _drained(self, live: Live, limit_s: float) -> None:
        async def empty() -> None:
            while live.running:
                await live.changed.wait()

        await _within(empty(), limit_s)

    async def _catch_up(self, live: Live, *, beyond: bool = False) -> None:
        try:
            await elsewhere.catch_up(live, self._store, beyond=beyond)
        except StoreError:
            # Said elsewhere. What is not known here costs room in the store, and a look-up that finds nothing.
            return

    async def _drain_all(self, name: str, live: Live | None, wait_s: float) -> None:
        """Seal a rollout in every process, wait for what runs in any, cut what is left; `live` is it here, if it is."""
        await self._store.seal(name)
        if live is not None:
            live.seal()
        if await elsewhere.ended(name, self._store, limit_s=wait_s):
            return
        await self._store.seal(name, cut=True)
        for cut in list(live.running.values()) if live is not None else ():
            cut()
        if not await elsewhere.ended(name, self._store, limit_s=elsewhere.CUT_LIMIT_S):
            await self._store.abort(await self._store.running(name))

    async def _wait_for_all(
        self, name: str, *, until: Literal["closed", "idle"], idle_s: float, timeout_s: float
    ) -> bool:
        """As `wait`, of what all processes do: looked at from time to time, and at once after a close in this one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            closing = self._closing
            entry = await self.entry(name)
            if entry.rollout.state == "closed":
                return True
            pause = elsewhere.LOOK_EVERY_S
            if until == "idle" and not await self._store.running(name):
                quiet_s = elsewhere.quiet_s(await self.graph(name))
                if quiet_s >= idle_s:
                    return True
                pause = min(pause, idle_s - quiet_s)
            left = end - loop.time()
            if left <= 0:
                return False
            await _within(_set(closing), min(pause, left))

    async def _expired(self, live: Live) -> bool:
        if live.running or not _past(live.entry, live.last_call_at):
            return False
        if self._store.shared:
            entry = await self._store.get(live.id)
            if entry is None or entry.rollout.state == "closed":
                self._forget(live)
                return True
            live.last_call_at = entry.rollout.last_call_at
            if not _past(entry, live.last_call_at) or await self._store.running(live.id):
                return False
        live.seal()
        await self._expire(live.id)
        self._forget(live)
        return True

    async def _tell_silence(self, entry: Entry) -> None:
        """Note what is known of why a rollout's agent never came, if it did not.

        Keys that opened nothing since it began: its agent may hold one. And how engine and tunnel stand.
        """
        if await self._store.calls(entry.rollout.id, limit=1):
            return
        now = clock.now()
        if came := sum(at >= entry.rollout.created_at for at in self._strangers):
            notice = Notice(code="unknown_secret_calls", at=now, data={"calls": came})
            self._store.notice(entry.rollout.id, notice)
        if known := self._witness(entry):
            self._store.notice(entry.rollout.id, Notice(code="no_calls", at=now, data=known))

    async def _release_closed(self) -> None:
        """Give back the tunnels of rollouts that another process has closed."""
        if not self._store.shared:
            return
        for name in self._reach.held:
            try:
                entry = await self._store.get(name)
            except StoreError:
                return
            if entry is None or entry.rollout.state == "closed":
                self._reach.release(name)

    async def _expire(self, name: str) -> Entry | None:
        if (entry := await self._store.get(name)) is not None:
            await self._tell_silence(entry)
        self._reach.release(name)
        self._store.notice(name, Notice(code="expired", at=clock.now()))
        changed = await self._store.change(name, {"state": "closed", "closed_at": clock.now()})
        self._on_closed(name)
        return changed

    def _forget(self, live: Live) -> None:
        # Who waits for the close looks again now that the store says so.
        live.seal()
        self._live.pop(live.id, None)
        for secret in (live.entry.secret, live.entry.tools_secret):
            self._by_secret.pop(secret, None)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _within(work: Awaitable[None], limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        pass


def _past(entry: Entry, last_call_at: str | None) -> bool:
    last, now = last_call_at or entry.rollout.created_at, clock.now()
    if last[:_MINUTE] == now[:_MINUTE] and entry.registration.ttl_s >= 60:
        # Most calls come within a minute of each other, and times are written alike.
        return False
    since = clock.parse(last)
    return clock.parse(now) > since + timedelta(seconds=entry.registration.ttl_s)


def unknown_key() -> ClientError:
    """Return the error for a secret that opens nothing; it never says why."""
    return ClientError(
        "invalid_api_key",
        "This key is unknown, or its rollout is closed or expired.",
        hint="Each rollout has a secret of its own, shown when it was registered.",
        status=401,
    )
