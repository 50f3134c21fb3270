"""What every tunnel is: opened once, then a public URL, until it is closed or lost."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Local(msgspec.Struct, frozen=True, kw_only=True):
    """The listener that is to be reached: the data plane's, never another."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        """Its address on this machine."""
        return url_at(self.host, self.port, scheme=self.scheme)


def url_at(host: str, port: int, *, scheme: str) -> str:
    """Return the URL of a host, which may be an IPv6 address, and a port."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Tunnel(Protocol):
    """One way from outside to a listener. Opened at most once; after a loss another takes its place."""

    @property
    def kind(self) -> str:
        """The word that describes such a one: `direct`, `custom`, `gradio`, `ssh`."""

    @property
    def name(self) -> str:
        """What people call it: kind and where to, without secrets."""

    async def open(self, local: Local) -> str:
        """Open it, and return its public URL, without a slash at its end. Raises `TunnelError`, within its time."""

    @property
    def ended(self) -> str | None:
        """Why it carries no more (its program ended), a sentence; None while nothing is known against it."""

    @property
    def hint(self) -> str:
        """What to do about its end, by its program's words; "" where there is nothing to say."""

    async def close(self) -> None:
        """Close it, and leave no process behind; a second time does nothing."""
