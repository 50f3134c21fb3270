"""Tunnels that are somebody else's work: an address that the operator vouches for, or a URL of their own."""

from __future__ import annotations

from tunnel.base import Local, url_at
from tunnel.errors import TunnelError

WILDCARDS = frozenset(("", "0.0.0.0", "::"))  # noqa: S104 - compared, not bound
LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))


class Direct:
    """The listener's own address, or another name of it, as seen from the sandboxes. Opens nothing."""

    kind = "direct"

    def __init__(self, host: str | None = None) -> None:
        """`host` is needed where the listener is on every interface, and so on none that has a name."""
        self._host = host
        self.name = f"direct={host}" if host else "direct"

    def __repr__(self) -> str:
        return f"<Direct {self.name}>"

    @property
    def ended(self) -> str | None:
        """None: there is nothing that could end."""
        return None

    @property
    def hint(self) -> str:
        """Nothing: it has no end."""
        return ""

    async def open(self, local: Local) -> str:
        """Return the address. Raises `TunnelError` where it is loopback or has no name."""
        host = self._host or local.host
        if host in WILDCARDS:
            raise TunnelError(
                "the data plane listens on every interface, and `direct` names none that sandboxes know",
                hint="say which: --tunnel direct=ADDRESS, as the sandboxes see this machine",
            )
        if host in LOOPBACK:
            raise TunnelError(
                f"the data plane listens on loopback ({local.url}), which no other machine reaches",
                hint="listen on an address that sandboxes reach (--listen H:P), or use another --tunnel",
            )
        if local.host in LOOPBACK:
            raise TunnelError(
                f"the data plane listens on loopback ({local.url}), so {host} does not lead there",
                hint="listen on that address (--listen), or on 0.0.0.0",
            )
        return url_at(host, local.port, scheme=local.scheme)

    async def close(self) -> None:
        """Nothing is open."""


class Custom:
    """A URL that the operator has made: a reverse proxy, an ingress, a tunnel that runs already. Opens nothing."""

    kind = "custom"

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self.name = f"custom={self._url}"

    def __repr__(self) -> str:
        return f"<Custom {self.name}>"

    @property
    def ended(self) -> str | None:
        """None: its program is none of ours."""
        return None

    @property
    def hint(self) -> str:
        """Nothing: it has no end."""
        return ""

    async def open(self, local: Local) -> str:
        """Return the URL; where it leads is the probe's to find out."""
        del local
        return self._url

    async def close(self) -> None:
        """Nothing is open."""
