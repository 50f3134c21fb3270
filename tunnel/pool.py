"""The pool: which rollout goes through which tunnel, and what happens when one is lost.

`static`: a fixed list, each opened when it is first needed; a rollout gets the one with the fewest. `elastic`: one
description, of which as many are opened as are needed, each for `multiplex` rollouts.

Rule 1: a tunnel is given out only after a probe through its public URL reached this very process.
Rule 2: it is probed on. One whose program ended is lost within a second; one that answers wrongly or not is lost after
`FAILURES` probes in a row. A lost one is closed and another opened in its place, again and again while rollouts are on
it; a URL that changed serves new rollouts only, since an agent's address can't be changed from here. What has been lost
is told, with the rollouts on it.
Rule 3: whoever registers holds a place first, and either keeps it for rollouts or drops it. Who only asks can take
nothing away from those who have it already, and what is lost in between is told when the place is kept.
Rule 4: tunnels close last in, first out, even if closing one of them fails or hangs; and all of them before the
listener. Nothing is opened after that: what opens when the pool closes is stopped, and waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tunnel.base import Local, Tunnel
from tunnel.errors import TunnelError
from tunnel.health import READY_S, Prober, carried
from tunnel.places import Health, Hold, Place
from tunnel.spec import Spec

MULTIPLEX = 32
"""Rollouts that share a tunnel, unless said otherwise."""

WATCH_S = 15.0
"""Between two probes of a tunnel, and between two tries to replace a lost one."""

GLANCE_S = 1.0
"""Between two looks whether a tunnel's program has ended, which costs nothing."""

FAILURES = 2
"""Failed probes in a row by which a tunnel counts as lost: one may fail while a line is busy."""

TRIES = 3
"""Openings tried before the error is told; the pause between them doubles."""

PAUSE_S = 1.0

PATIENCE_S = 60.0
"""After which no further opening is tried: whoever registers waits for it."""

CLOSE_S = 15.0
"""For a tunnel to close; its program is killed well before that."""

_log = logging.getLogger("treering")

T = TypeVar("T")


class Pool:
    """Tunnels to one listener. Nothing is opened before the first `acquire`."""

    def __init__(
        self,
        specs: Sequence[Spec],
        local: Local,
        prober: Prober,
        *,
        multiplex: int = MULTIPLEX,
        elastic: bool = False,
        on_lost: Callable[[frozenset[str], dict[str, Any]], None] = lambda _rollouts, _data: None,
        watch_s: float = WATCH_S,
        ready_s: float = READY_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`elastic` takes one description. `on_lost` gets the rollouts on a lost tunnel and what is known of it:
        `tunnel` (its name), `reason`, `url`.
        """
        assert specs, "a pool has at least one description"
        assert not elastic or len(specs) == 1, "an elastic pool has one description"
        self._local = local
        self._prober = prober
        self._multiplex = multiplex
        self._elastic = elastic
        self._on_lost = on_lost
        self._watch_s = watch_s
        self._ready_s = ready_s
        self._pause_s = pause_s
        texts = [spec.text for spec in specs]
        self._places = [Place(spec, texts[: at + 1].count(spec.text)) for at, spec in enumerate(specs)]
        # In order of opening: closed from its end.
        self._open: list[tuple[Place, Tunnel]] = []
        # What opens, looks or replaces at present.
        self._working: set[asyncio.Task[Any]] = set()
        self._growing = asyncio.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {[place.spec.text for place in self._places]} of {len(self._open)} open>"

    @property
    def closed(self) -> bool:
        """Whether it closes, or has."""
        return self._closed

    @property
    def health(self) -> tuple[Health, ...]:
        """Every tunnel, opened or not, in order."""
        return tuple(place.health for place in self._places)

    @property
    def rollouts(self) -> tuple[str, ...]:
        """Every rollout that has a tunnel, or had one that was lost."""
        return tuple(rollout for place in self._places for rollout in place.rollouts)

    def of(self, rollout: str) -> Health | None:
        """Return how a rollout's tunnel stands, at the URL that it was told; None if it has none."""
        place = next((place for place in self._places if rollout in place.rollouts), None)
        if place is None:
            return None
        health, url = place.health, place.rollouts[rollout]
        if url == place.url:
            return health
        reason = f"it was lost: {place.loss.get('reason', place.reason)}"
        return msgspec.structs.replace(health, url=url, healthy=False, reason=reason)

    async def acquire(self, n: int) -> Hold:
        """Hold a place at one tunnel, opened if need be, for so many rollouts; its URL was just probed.

        Raises `TunnelError` when none can be had, within a bounded time; nothing is held then.
        """
        return await self._proved(await self._choose(n))

    async def resume(self, told: Mapping[str, str]) -> None:
        """Take up rollouts of an earlier run, each with the URL that it was told.

        Tunnels whose URL stays the same are opened again for them; the rest is lost, and told.
        """
        left = dict(told)
        for place in self._places:
            if not left or not place.spec.fixed:
                continue
            try:
                hold = await self._proved(Hold(place, 1, self.tell))
            except TunnelError as error:
                _log.warning("tunnel %s can't be opened again: %s", place.spec.text, error)
                continue
            mine = [rollout for rollout, url in left.items() if url == hold.url]
            hold.keep(mine)
            for rollout in mine:
                del left[rollout]
        if self._closed:
            return
        for url in set(left.values()):
            rollouts = [rollout for rollout, each in left.items() if each == url]
            reason = "the server was started again, and has no tunnel at that address any more"
            self.tell(rollouts, {"tunnel": "of an earlier run", "url": url, "reason": reason})

    def release(self, rollout: str) -> None:
        """Note that a rollout needs its tunnel no more. An elastic pool's spare tunnels close at the next look."""
        for place in self._places:
            place.rollouts.pop(rollout, None)

    def tell(self, rollouts: Iterable[str], loss: Mapping[str, Any]) -> None:
        """Tell of a loss."""
        try:
            self._on_lost(frozenset(rollouts), dict(loss))
        except Exception:  # noqa: BLE001 - whoever is told may fail (a store that is down); the tunnel must be replaced
            _log.exception("the loss of a tunnel could not be told: %s", dict(loss))

    async def watch(self) -> None:
        """Probe every open tunnel from time to time, replace lost ones, close spare ones, for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._watch_s
        while not self._closed:
            await asyncio.sleep(min(GLANCE_S, self._watch_s))
            try:
                if loop.time() >= due:
                    due = loop.time() + self._watch_s
                    await self.look()
                elif any(place.tunnel is not None and place.tunnel.ended is not None for place in self._places):
                    await self.look(ended=True)
            except Exception:  # noqa: BLE001 - whatever it is, the other tunnels must be looked after
                _log.exception("looking at the tunnels failed")

    async def look(self, *, ended: bool = False) -> None:
        """Look at every tunnel once: at the open ones, and at those that rollouts still wait for.

        With `ended` only at those whose program has ended.
        """
        if self._closed:
            return
        places = [
            place
            for place in self._places
            if (place.tunnel is not None and (not ended or place.tunnel.ended is not None))
            or (place.tunnel is None and place.opened and place.needed and not ended)
        ]
        # Closed meanwhile: nothing is left to look at.
        with contextlib.suppress(TunnelError):
            await asyncio.gather(*(self._work(self._look(place), "look at a tunnel") for place in places))
            if self._elastic:
                await self._work(self._shrink(), "close spare tunnels")

    async def close(self) -> None:
        """Close all tunnels, last in, first out; a second time does nothing."""
        self._closed = True
        while self._working:
            for task in self._working:
                task.cancel()
            await asyncio.wait(self._working)
        while self._open:
            place, tunnel = self._open.pop()
            place.tunnel, place.url, place.reason = None, None, "closed"
            await _closed(tunnel)
        await self._prober.close()

    # Inside

    async def _work(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Do what `close` may stop. Raises `TunnelError` when it did."""
        if self._closed:
            work.close()
            raise _shutting_down()
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self.closed and me is not None and not me.cancelling():
                raise _shutting_down() from None
            raise

    async def _choose(self, n: int) -> Hold:
        async with self._growing:
            if self._closed:
                raise _shutting_down()
            fitting = [place for place in self._places if place.load + n <= self._multiplex or not self._elastic]
            if not fitting:
                self._places.append(Place(self._places[0].spec, len(self._places) + 1))
                fitting = self._places[-1:]
            # A healthy one first, then the least loaded: a rollout must not wait for a repair that others don't need.
            place = min(fitting, key=lambda place: (bool(place.reason) and place.opened > 0, place.load))
            return Hold(place, n, self.tell)

    async def _proved(self, hold: Hold) -> Hold:
        try:
            hold.proved(await self._work(self._ready(hold.place), "give a tunnel"))
        except BaseException:  # cancelled or not, nothing is held
            hold.drop()
            raise
        return hold

    async def _ready(self, place: Place) -> str:
        async with place.lock:
            if place.tunnel is not None and place.url is not None:
                try:
                    await self._prober.probe(place.url)
                except TunnelError as error:
                    await self._lose(place, place.tunnel.ended or error.message)
                else:
                    place.reason, place.failures = "", 0
                    return place.url
            return await self._fill(place)

    async def _fill(self, place: Place) -> str:
        """Open a tunnel in a place, tried a few times. Raises `TunnelError`, the last one's."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        pause = self._pause_s
        for tried in range(TRIES):
            try:
                return await self._open_one(place)
            except TunnelError as error:
                place.reason = error.message
                if tried == TRIES - 1 or loop.time() > end:
                    raise
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("the last try raises")

    async def _open_one(self, place: Place) -> str:
        tunnel = place.spec.make()
        self._open.append((place, tunnel))
        try:
            try:
                url = await tunnel.open(self._local)
            except OSError as error:
                # No descriptor, no memory for a process: as any other failure, it may be better in a moment.
                hint = "is its program there, and are descriptors and memory left? it is tried again"
                raise TunnelError(f"{tunnel.name} can't be started: {error.strerror or error}", hint=hint) from error
            await carried(self._prober, tunnel, url, limit_s=self._ready_s)
        except BaseException:  # cancelled or not, no tunnel stays
            self._open.remove((place, tunnel))
            await _closed(tunnel)
            raise
        place.tunnel, place.url, place.reason, place.failures = tunnel, url, "", 0
        place.opened += 1
        _log.info("tunnel %s is open at %s", tunnel.name, url)
        return url

    async def _look(self, place: Place) -> None:
        async with place.lock:
            tunnel, url = place.tunnel, place.url
            if tunnel is not None and url is not None:
                reason = tunnel.ended
                if reason is None:
                    try:
                        await self._prober.probe(url)
                    except TunnelError as error:
                        place.failures += 1
                        place.reason = error.message
                        if place.failures < FAILURES:
                            return
                        reason = error.message
                    else:
                        place.reason, place.failures = "", 0
                        return
                await self._lose(place, reason)
            # A place that nobody needs is filled again when somebody does.
            if not place.needed:
                return
            try:
                await self._fill(place)
            except TunnelError as error:
                _log.warning("tunnel %s can't be replaced: %s", place.spec.text, error)

    async def _lose(self, place: Place, reason: str) -> None:
        tunnel, url = place.tunnel, place.url
        assert tunnel is not None
        hit = frozenset(rollout for rollout, told in place.rollouts.items() if told == url)
        place.tunnel, place.url, place.reason = None, None, reason
        place.lost += 1
        place.loss = {"tunnel": tunnel.name, "url": url, "reason": reason}
        self._open.remove((place, tunnel))
        _log.warning("tunnel %s (%s) is lost: %s; %d rollouts were on it", tunnel.name, url, reason, len(hit))
        if hit:
            self.tell(hit, place.loss)
        await _closed(tunnel)

    async def _shrink(self) -> None:
        """Close what nobody uses, last in, first out; the first place stays."""
        async with self._growing:
            while len(self._places) > 1 and not self._places[-1].needed and not self._places[-1].lock.locked():
                place = self._places.pop()
                if place.tunnel is not None:
                    self._open.remove((place, place.tunnel))
                    await _closed(place.tunnel)


def _shutting_down() -> TunnelError:
    return TunnelError("this server is shutting down", hint="register again in a moment")


async def _closed(tunnel: Tunnel) -> None:
    """Close a tunnel to its end, whatever comes in between."""
    closing = asyncio.get_running_loop().create_task(_close(tunnel), name=f"close {tunnel.name}")
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await asyncio.wait([closing])
        raise


async def _close(tunnel: Tunnel) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await tunnel.close()
    except TimeoutError:
        _log.error("tunnel %s did not close within %g s", tunnel.name, CLOSE_S)
    except Exception:  # noqa: BLE001 - whatever it is, the other tunnels must be closed as well
        _log.exception("tunnel %s could not be closed properly", tunnel.name)
