"""The engines: which of them serves a call, and what is known of their health.

Rule 1: a rollout sticks to one engine, so that the engine's prefix cache stays warm. Rendezvous hashing decides which:
when the set changes, only the rollouts of an engine that came or went move (Thaler and Ravishankar, 1998).
Rule 2: a call moves to another engine only before its first byte, and only to one that serves the same model with the
same context length; the call says which engine answered.
Rule 3: an engine that comes back with another model or context length serves no rollout that began before.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable

from capture import allowlist
from capture.errors import ClientError, EngineError
from capture.upstream import Engine

CHECK_EVERY_S = 10.0
"""Between two looks at every engine: an engine that died is found out by the first call in any case."""

_log = logging.getLogger("treering")


class Fleet:
    """Engines given at the start, and those that rollouts bring along."""

    def __init__(
        self,
        engines: Iterable[Engine],
        *,
        allowed: tuple[str, ...] = (),
        open_engine: Callable[[str], Awaitable[Engine]] | None = None,
    ) -> None:
        """`allowed`: URL prefixes that a rollout's own engine must lie under; `open_engine` makes such a one ready."""
        self.engines = list(engines)
        self._allowed = allowed
        self._open = open_engine
        self._guests: dict[str, Engine] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    def __repr__(self) -> str:
        return f"<Fleet {[*self.engines, *self._guests.values()]}>"

    @property
    def first(self) -> Engine:
        """The engine named first: the one that speaks for all where only one can."""
        return self.engines[0]

    @property
    def all(self) -> list[Engine]:
        """Every engine, guests included."""
        return [*self.engines, *self._guests.values()]

    @property
    def models(self) -> tuple[str, ...]:
        """Names that any of the server's own engines serves, in their order."""
        return tuple(dict.fromkeys(name for engine in self.engines for name in engine.models))

    def order(self, rollout: str, *, model: str | None, url: str | None = None) -> list[Engine]:
        """Return the engines that may serve a rollout's call, the one that it sticks to first, dead ones last.

        Raises `ClientError` 409 `engine_changed` when it has come back as another; `EngineError` when none is left.
        """
        if url is None and len(self.engines) == 1 and self.engines[0].changed is None:
            # There is nothing to choose.
            return [self.engines[0]]
        if url is not None:
            guest = self._guests.get(_key(url))
            if guest is None:
                raise EngineError("engine_unreachable", f"The rollout's own engine {url} is not open.", status=503)
            candidates = [guest]
        else:
            fitting = [engine for engine in self.engines if model is None or model in engine.models]
            candidates = sorted(fitting or self.engines, key=lambda engine: _weight(rollout, engine), reverse=True)
        usable = [engine for engine in candidates if engine.changed is None]
        if not usable:
            raise ClientError(
                "engine_changed",
                f"The engine is not the one that this rollout began with: {candidates[0].changed}",
                hint="Register new rollouts; this one can't go on.",
                status=409,
            )
        first = usable[0]
        alike = [engine for engine in usable if engine.is_like(first)]
        return sorted(alike, key=lambda engine: not engine.healthy)

    async def admit(self, url: str) -> Engine:
        """Return a rollout's own engine, opened and probed once.

        Raises `ClientError` 422 `engine_not_allowed` for one that is on no list, `EngineError` for one that fails.
        """
        if self._open is None or not allowlist.allows(self._allowed, url):
            # Not the URL: it may hold a password, and its caller knows it.
            raise ClientError(
                "engine_not_allowed",
                "The URL in `engine` is on no list of this server's.",
                hint="The operator allows prefixes with --allow-engine.",
                status=422,
            )
        key = _key(url)
        async with self._opening.setdefault(key, asyncio.Lock()):
            if key not in self._guests:
                self._guests[key] = await self._open(url)
            return self._guests[key]

    async def watch(self) -> None:
        """Look at every engine from time to time, for ever."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            async with asyncio.TaskGroup() as looks:
                for engine in self.all:
                    looks.create_task(self._look(engine))

    async def close(self) -> None:
        """Close all connections to all engines."""
        for engine in self.all:
            await engine.close()

    async def _look(self, engine: Engine) -> None:
        was = engine.healthy
        if await engine.check() and (engine.doubted or not was):
            try:
                await engine.identify()
            except EngineError as error:
                engine.healthy, engine.reason = False, error.message
        if engine.healthy != was:
            _log.warning("engine %s is %s", engine.name, "back" if engine.healthy else f"down: {engine.reason}")


def _weight(rollout: str, engine: Engine) -> bytes:
    return hashlib.blake2b(f"{engine.url}\0{rollout}".encode(), digest_size=8).digest()


def _key(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
