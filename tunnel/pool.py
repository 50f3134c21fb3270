"""The pool: which rollout goes through which tunnel, and what happens when one is lost.

`static`: a fixed list, each opened when it is first needed; a rollout gets the one with the fewest. `elastic`: one
description, of which as many are opened as are needed, each for `multiplex` rollouts.

Rule 1: a tunnel is given out only after a probe through its public URL reached this very process.
Rule 2: it is probed on. One whose program ended is lost at once; one that answers wrongly or not is lost after
`FAILURES` probes in a row. A lost one is closed and another opened in its place; a URL that changed serves new rollouts
only, since an agent's address can't be changed from here. What has been lost is told, with the rollouts on it.
Rule 3: tunnels close last in, first out, even if closing one of them fails; and all of them before the listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tunnel.base import Local, Tunnel
from tunnel.errors import TunnelError
from tunnel.health import Prober
from tunnel.spec import Spec

MULTIPLEX = 32
"""Rollouts that share a tunnel, unless said otherwise."""

WATCH_S = 15.0
"""Between two probes of a tunnel."""

FAILURES = 2
"""Failed probes in a row by which a tunnel counts as lost: one may fail while a line is busy."""

TRIES = 3
"""Openings tried before the error is told; the pause between them doubles."""

PAUSE_S = 1.0

READY_S = 15.0
"""For an open tunnel to carry its first probe: share servers print an address before they route it."""

_log = logging.getLogger("treering")


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A tunnel as `GET /tunnels` shows it."""

    name: str
    kind: str
    url: str | None
    healthy: bool
    # Why it is not, a sentence; "" while it is.
    reason: str
    rollouts: int
    # Openings since the start, the first included; and losses.
    opened: int
    lost: int


class _Place:
    """One place for a tunnel: what stands in it changes when it is lost, the place stays."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.tunnel: Tunnel | None = None
        self.url: str | None = None
        self.reason = "not opened yet"
        self.rollouts: set[str] = set()
        # Rollouts that were told an address which leads nowhere any more.
        self.stranded: set[str] = set()
        self.failures = 0
        self.opened = 0
        self.lost = 0
        self.lock = asyncio.Lock()

    @property
    def load(self) -> int:
        return len(self.rollouts)


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
        `tunnel` (its name), `reason`, `url`, and `new_url` (null while none took its place).
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
        self._places = [_Place(spec) for spec in specs]
        # In order of opening: closed from its end.
        self._open: list[tuple[_Place, Tunnel]] = []
        self._growing = asyncio.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {[place.spec.text for place in self._places]} of {len(self._open)} open>"

    @property
    def health(self) -> tuple[Health, ...]:
        """Every tunnel, opened or not, in order."""
        return tuple(map(_health, self._places))

    @property
    def rollouts(self) -> tuple[str, ...]:
        """Every rollout that has a tunnel."""
        return tuple(rollout for place in self._places for rollout in place.rollouts)

    def of(self, rollout: str) -> Health | None:
        """Return how a rollout's tunnel stands; None if it has none."""
        return next((_health(place) for place in self._places if rollout in place.rollouts), None)

    async def acquire(self, rollouts: Sequence[str]) -> str:
        """Give rollouts that are registered together one tunnel, opened if need be; return its URL, just probed.

        Raises `TunnelError` when none can be had, within a bounded time; nothing is held then.
        """
        if self._closed:
            raise TunnelError("this server is shutting down")
        place = await self._choose(len(rollouts))
        place.rollouts.update(rollouts)
        try:
            return await self._ready(place)
        except BaseException:
            place.rollouts.difference_update(rollouts)
            raise

    def release(self, rollout: str) -> None:
        """Note that a rollout needs its tunnel no more. An elastic pool's spare tunnels close at the next look."""
        for place in self._places:
            place.rollouts.discard(rollout)
            place.stranded.discard(rollout)

    async def watch(self) -> None:
        """Probe every open tunnel from time to time, replace lost ones, close spare ones, for ever."""
        while True:
            await asyncio.sleep(self._watch_s)
            await self.look()

    async def look(self) -> None:
        """Look at every open tunnel once."""
        places = [place for place in self._places if place.tunnel is not None]
        await asyncio.gather(*(self._look(place) for place in places))
        if self._elastic:
            await self._shrink()

    async def close(self) -> None:
        """Close all tunnels, last in, first out; a second time does nothing."""
        self._closed = True
        while self._open:
            place, tunnel = self._open.pop()
            place.tunnel, place.url, place.reason = None, None, "closed"
            await _closed(tunnel)
        await self._prober.close()

    # Inside

    async def _choose(self, n: int) -> _Place:
        async with self._growing:
            fitting = [place for place in self._places if place.load + n <= self._multiplex or not self._elastic]
            if not fitting:
                self._places.append(_Place(self._places[0].spec))
                return self._places[-1]
            # A healthy one first, then the least loaded: a rollout must not wait for a repair that others don't need.
            return min(fitting, key=lambda place: (bool(place.reason) and place.opened > 0, place.load))

    async def _ready(self, place: _Place) -> str:
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

    async def _fill(self, place: _Place) -> str:
        """Open a tunnel in a place, tried a few times. Raises `TunnelError`, the last one's."""
        pause = self._pause_s
        for tried in range(TRIES):
            try:
                return await self._open_one(place)
            except TunnelError as error:
                place.reason = error.message
                if tried == TRIES - 1 or self._closed:
                    raise
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("the last try raises")

    async def _open_one(self, place: _Place) -> str:
        tunnel = place.spec.make()
        self._open.append((place, tunnel))
        try:
            url = await tunnel.open(self._local)
            await self._carries(tunnel, url)
            if self._closed:
                raise TunnelError("this server is shutting down")
        except BaseException:
            if (place, tunnel) in self._open:
                self._open.remove((place, tunnel))
            await _closed(tunnel)
            raise
        place.tunnel, place.url, place.reason, place.failures = tunnel, url, "", 0
        place.opened += 1
        _log.info("tunnel %s is open at %s", tunnel.name, url)
        return url

    async def _carries(self, tunnel: Tunnel, url: str) -> None:
        """Return when a probe through the URL reached us. Raises `TunnelError` when none did within its time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._ready_s
        pause = 0.05
        while True:
            if tunnel.ended is not None:
                raise TunnelError(tunnel.ended)
            try:
                await self._prober.probe(url)
            except TunnelError as error:
                if loop.time() + pause >= end:
                    raise TunnelError(f"{tunnel.name} opened, but {error.message}", hint=error.hint) from None
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _look(self, place: _Place) -> None:
        async with place.lock:
            tunnel, url = place.tunnel, place.url
            if tunnel is None or url is None:
                return
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
            if not place.rollouts:
                return
            try:
                await self._fill(place)
            except TunnelError as error:
                _log.warning("tunnel %s can't be replaced: %s", tunnel.name, error)

    async def _lose(self, place: _Place, reason: str) -> None:
        tunnel, url = place.tunnel, place.url
        assert tunnel is not None
        place.tunnel, place.url, place.reason = None, None, reason
        place.lost += 1
        hit = frozenset(place.rollouts)
        place.stranded |= hit
        if (place, tunnel) in self._open:
            self._open.remove((place, tunnel))
        _log.warning("tunnel %s (%s) is lost: %s; %d rollouts were on it", tunnel.name, url, reason, len(hit))
        self._on_lost(hit, {"tunnel": tunnel.name, "url": url, "reason": reason})
        await _closed(tunnel)

    async def _shrink(self) -> None:
        """Close what nobody uses, last in, first out; the first place stays."""
        async with self._growing:
            while len(self._places) > 1 and not self._places[-1].rollouts and not self._places[-1].lock.locked():
                place = self._places.pop()
                if place.tunnel is not None:
                    self._open.remove((place, place.tunnel))
                    await _closed(place.tunnel)


def _health(place: _Place) -> Health:
    return Health(
        name=place.tunnel.name if place.tunnel else place.spec.text,
        kind=place.spec.kind,
        url=place.url,
        healthy=place.url is not None and not place.reason,
        reason=place.reason,
        rollouts=place.load,
        opened=place.opened,
        lost=place.lost,
    )


async def _closed(tunnel: Tunnel) -> None:
    try:
        await tunnel.close()
    except Exception:  # noqa: BLE001 - whatever it is, the other tunnels must be closed as well
        _log.exception("tunnel %s could not be closed properly", tunnel.name)
