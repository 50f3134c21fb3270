"""Whether a public URL leads to this very process: `GET /healthz` through it must show our nonce.

Any other answer is worse than none. A URL that somebody else's server answers would take agents' traffic, and a page of
a tunnel's own ("this share link has expired") is a 200 as often as not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection

import aiohttp

from tunnel.base import Tunnel
from tunnel.errors import TunnelError

READY_S = 15.0
"""For an open tunnel to carry its first probe: share servers print an address before they route it."""

PROBE_S = 10.0
"""Limit of one probe, whole."""

_BEHIND = "does what stands there pass requests on to --listen? docs/tunnels.md has recipes"

MOST_BYTES = 65_536
"""Of an answer; ours has some 60."""


class Prober:
    """Asks public URLs. Close it when it is not needed any more."""

    def __init__(self, nonces: Collection[str], *, limit_s: float = PROBE_S, trust_env: bool = False) -> None:
        """`nonces` are those of the processes behind the listener; proxy variables count with `trust_env` alone."""
        self._nonces = frozenset(nonces)
        self._limit_s = limit_s
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close its connections; a second time does nothing."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def probe(self, url: str) -> None:
        """Return when the URL leads here. Raises `TunnelError` saying what it does instead."""
        if await self.ask(url) not in self._nonces:
            hint = "stop the other, or have the URL lead to this one's --listen"
            raise TunnelError(f"{url} leads to another Treering, not to this one", hint=hint)

    async def ask(self, url: str) -> str:
        """Return the nonce of the Treering that a URL leads to. Raises `TunnelError` where it leads to none."""
        if self._session is None:
            # A new connection for each probe: a kept one would go on through a tunnel that takes no new ones.
            self._session = aiohttp.ClientSession(
                trust_env=self._trust_env, connector=aiohttp.TCPConnector(force_close=True)
            )
        try:
            async with asyncio.timeout(self._limit_s):
                async with self._session.get(f"{url}/healthz", allow_redirects=False) as answer:
                    text = await answer.content.read(MOST_BYTES)
                    status = answer.status
        except TimeoutError:
            raise TunnelError(
                f"{url} takes connections and carries nothing: no answer within {self._limit_s:g} s", hint=_BEHIND
            ) from None
        except aiohttp.ClientConnectorDNSError:
            raise TunnelError(f"{url} can't be looked up: its name is not known", hint="is it spelt right?") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TunnelError(f"{url} can't be reached: {error or type(error).__name__}", hint=_BEHIND) from None
        if status != 200:
            raise TunnelError(f"{url} answers {status} where this Treering would answer 200", hint=_BEHIND)
        try:
            nonce = json.loads(text)["nonce"]
        except (ValueError, KeyError, TypeError):
            raise TunnelError(f"{url} is answered by something that is no Treering", hint=_BEHIND) from None
        return str(nonce)


async def carried(prober: Prober, tunnel: Tunnel, url: str, *, limit_s: float = READY_S) -> None:
    """Return when a probe through an open tunnel's URL reached us. Raises `TunnelError` when none did within the time.

    The last probe may take its own limit beyond that.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    pause = 0.05
    while True:
        if tunnel.ended is not None:
            raise TunnelError(tunnel.ended, hint=tunnel.hint)
        try:
            await prober.probe(url)
        except TunnelError as error:
            if loop.time() + pause >= end:
                said = tunnel.ended or f"{tunnel.name} opened, but {error.message}"
                raise TunnelError(said, hint=tunnel.hint or error.hint) from None
        else:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)
