"""How a rollout's consumers get here: the agent, and its tool servers; each may be on this machine or on another.

Rule 1: a consumer that is said to be remote never gets a loopback address. Its agent would make no calls, and the
rollout would read as a policy that can't do the task; so it is refused at registration.
Rule 2: one of which nothing is said counts as remote where a tunnel is set up, else as local.
Rule 3: a tunnel is opened when the first rollout needs one, and a registration ends with an address that was just
proved from outside, or with an error that says why there is none. Rollouts that need none never wait for one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from capture.errors import ClientError, EngineError, UsageError
from capture.settings import Settings, is_loopback
from tunnel.base import Local
from tunnel.errors import SpecError, TunnelError
from tunnel.health import Prober
from tunnel.places import Health, Hold
from tunnel.pool import Pool
from tunnel.spec import Spec, parse

Where = Literal["local", "remote"]

_log = logging.getLogger("treering")

CONSUMERS = ("agent", "tools")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout about to be registered, and where its consumers are said to be (None: nothing is said)."""

    rollout: str
    agent: Where | None
    tools: Where | None


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that a rollout's consumers are given, without a slash at the end."""

    agent: str
    tools: str
    # The tunnel's, if one of them leads through one.
    public: str | None = None


class Ways:
    """The ways of rollouts that are being registered: kept once they are, else dropped."""

    def __init__(self, ways: Mapping[str, Way], held: Sequence[tuple[Hold, list[str]]]) -> None:
        self._ways = ways
        self._held = held

    def __repr__(self) -> str:
        return f"<Ways {len(self._ways)}>"

    def __getitem__(self, rollout: str) -> Way:
        return self._ways[rollout]

    def keep(self) -> None:
        """Note that the rollouts are registered."""
        for hold, names in self._held:
            hold.keep(names)

    def drop(self) -> None:
        """Note that they are not; after `keep` this does nothing."""
        for hold, _ in self._held:
            hold.drop()


class Reach:
    """Ways to the data plane: its own address, and the tunnels that the operator has set up."""

    def __init__(self, settings: Settings) -> None:
        """Read the descriptions; nothing is opened. Raises `UsageError` for one that can't be read."""
        try:
            self._specs: list[Spec] = [parse(text) for text in settings.tunnel]
        except SpecError as error:
            raise UsageError(f"--tunnel: {error}.", hint="docs/tunnels.md has a recipe for each.") from error
        self._elastic = len(self._specs) == 1 and not self._specs[0].fixed
        self._multiplex = settings.tunnel_multiplex
        self._trust_env = settings.proxy_from_env
        self._pool: Pool | None = None
        self._local_url = ""
        self._loopback = True
        self._warned: set[str] = set()
        self._on_lost: Callable[[frozenset[str], dict[str, Any]], None] = lambda _rollouts, _known: None

    def __repr__(self) -> str:
        return f"<Reach {self._pool if self._pool is not None else [spec.text for spec in self._specs]}>"

    @property
    def set_up(self) -> bool:
        """Whether the operator has set up a tunnel."""
        return bool(self._specs)

    @property
    def open(self) -> bool:
        """Whether one may lead here at present."""
        return any(tunnel.url is not None for tunnel in self.health)

    @property
    def health(self) -> tuple[Health, ...]:
        """Every tunnel as it stands."""
        return self._pool.health if self._pool is not None else ()

    def start(
        self,
        local: Local,
        *,
        url: str,
        loopback: bool,
        nonce: str,
        on_lost: Callable[[frozenset[str], dict[str, Any]], None],
    ) -> None:
        """Take note of the listener; `url` is its address as people see it, `nonce` what its processes answer with."""
        self._local_url, self._loopback = url, loopback
        self._on_lost = on_lost
        if self._specs:
            self._pool = Pool(
                self._specs,
                local,
                Prober((nonce,), trust_env=self._trust_env),
                multiplex=self._multiplex,
                elastic=self._elastic,
                on_lost=on_lost,
            )

    async def watch(self) -> None:
        """Look after open tunnels, for ever."""
        if self._pool is not None:
            await self._pool.watch()

    async def close(self) -> None:
        """Close all tunnels; the listener must still be there."""
        if self._pool is not None:
            await self._pool.close()

    async def lead(self, wishes: Sequence[Wish]) -> Ways:
        """Return a way for each rollout, all or none; whoever asks keeps or drops them.

        Raises `ClientError` 422, or `EngineError` 503 `no_tunnel`.
        """
        remote = [wish for wish in wishes if any(self._is_remote(wish, consumer) for consumer in CONSUMERS)]
        held: list[tuple[Hold, list[str]]] = []
        if self._pool is not None:
            names = [wish.rollout for wish in remote]
            try:
                for start in range(0, len(names), self._multiplex):
                    some = names[start : start + self._multiplex]
                    held.append((await self._pool.acquire(len(some)), some))
            except BaseException as error:  # cancelled or not, all that was held is given back
                for hold, _ in held:
                    hold.drop()
                if isinstance(error, TunnelError):
                    raise _no_tunnel(error) from error
                raise
        elif self._loopback and remote:
            consumer = next(each for each in CONSUMERS if self._is_remote(remote[0], each))
            raise ClientError(
                "invalid_registration",
                f"`reach.{consumer}` is remote, but the data plane listens on loopback ({self._local_url}) and no "
                "tunnel is set up: it would never be reached.",
                hint="Listen on an address that the sandbox can reach (--listen H:P), or set up a --tunnel.",
                status=422,
            )
        public = {name: hold.url for hold, some in held for name in some}
        self._warn(public.values())
        return Ways({wish.rollout: self._way(wish, public.get(wish.rollout)) for wish in wishes}, held)

    async def resume(self, told: Mapping[str, str]) -> None:
        """Take up rollouts of an earlier run, each with the public URL that it was told."""
        if self._pool is not None:
            await self._pool.resume(told)
            return
        reason = "the server was started again without a tunnel"
        for url in set(told.values()):
            hit = frozenset(rollout for rollout, each in told.items() if each == url)
            self._on_lost(hit, {"tunnel": "of an earlier run", "url": url, "reason": reason})

    def release(self, rollout: str) -> None:
        """Note that a rollout needs its way no more."""
        if self._pool is not None:
            self._pool.release(rollout)

    @property
    def held(self) -> tuple[str, ...]:
        """The rollouts that have a tunnel."""
        return self._pool.rollouts if self._pool is not None else ()

    def told(self, rollout: str) -> dict[str, Any] | None:
        """Return what is known of a rollout's tunnel now; None if it has none."""
        if self._pool is None or (health := self._pool.of(rollout)) is None:
            return None
        return {"tunnel": health.name, "url": health.url, "healthy": health.healthy, "reason": health.reason}

    def _is_remote(self, wish: Wish, consumer: str) -> bool:
        said: Where | None = getattr(wish, consumer)
        return self.set_up if said is None else said == "remote"

    def _warn(self, urls: Iterable[str]) -> None:
        """Say once of each address that it is loopback: proved it is, but from here, and the operator's word stands."""
        for url in set(urls) - self._warned:
            if is_loopback(urlsplit(url).hostname or ""):
                self._warned.add(url)
                _log.warning(
                    "a tunnel leads here from %s, which is loopback: only agents on this machine reach it", url
                )

    def _way(self, wish: Wish, public: str | None) -> Way:
        urls = {
            each: public if public is not None and self._is_remote(wish, each) else self._local_url
            for each in CONSUMERS
        }
        return Way(agent=urls["agent"], tools=urls["tools"], public=public)


def _no_tunnel(error: TunnelError) -> EngineError:
    said = f" Its program said: {' | '.join(error.lines[-5:])}" if error.lines else ""
    return EngineError(
        "no_tunnel",
        f"No tunnel can be had: {error.message}.{said}",
        hint=error.hint or "See --tunnel and GET /tunnels; `treering doctor` tries one.",
        status=503,
        retry_after_s=5.0,
    )
