"""A reverse forward through the system's ssh, to any sshd, with the user's own keys, agent, configuration, jump hosts.

asyncssh and paramiko were rejected: their licences are none that we ship, and neither reads all of the user's
configuration. Options are OpenSSH's (ssh_config(5), 9.2): nothing is asked on a terminal (`BatchMode`), a forward that
the server refuses ends the program (`ExitOnForwardFailure`), and a peer that falls silent is noticed within 45 s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tunnel.base import Local, url_at
from tunnel.errors import TunnelError
from tunnel.process import Program

START_S = 30.0
"""Limit for connecting and forwarding: a login node behind a jump host takes seconds."""

OPTIONS = (
    "BatchMode=yes",
    "ExitOnForwardFailure=yes",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=3",
    "ConnectTimeout=15",
    # At a lower level the line that names the allocated port is not printed.
    "LogLevel=INFO",
    # A connection that is shared with others would outlive this program, and its forwards with it.
    "ControlMaster=no",
    "ControlPath=none",
)

_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward")


class Ssh:
    """One reverse forward: `bind:port` at the server leads to the listener here."""

    kind = "ssh"

    def __init__(
        self,
        where: str,
        *,
        port: int | None = None,
        bind: str | None = None,
        remote_port: int = 0,
        url: str | None = None,
        program: str = "ssh",
        options: Sequence[str] = (),
        limit_s: float = START_S,
    ) -> None:
        """`where` is `[user@]host`, or a name of the user's configuration; `port` is sshd's.

        `bind` and `remote_port` (0: the server chooses) are where the server listens: at its loopback unless it is told
        otherwise and its `GatewayPorts` allows that. `url`: how sandboxes reach that, if not at the host's own name.
        """
        self._where = where
        self._port = port
        self._bind = bind
        self._remote_port = remote_port
        self._url = url.rstrip("/") if url else None
        self._program = program
        self._options = tuple(options)
        self._limit_s = limit_s
        self._running: Program | None = None
        self.name = f"ssh={where}"

    def __repr__(self) -> str:
        return f"<Ssh {self.name} {self._running!r}>"

    @property
    def ended(self) -> str | None:
        """Why ssh runs no more, None while it does."""
        return self._running.ended if self._running is not None else None

    @property
    def hint(self) -> str:
        """What to do about its end."""
        return "" if self.ended is None or self._running is None else _hint(self._running.lines)

    async def open(self, local: Local) -> str:
        """Connect, and return the URL at which the server listens. Raises `TunnelError` with ssh's own words."""
        running = self._running = await Program.start(self.name, self._argv(local))
        try:
            if self._remote_port:
                # Nothing is printed for a port that was asked for: the probe finds out whether it carries.
                port = self._remote_port
            else:
                port = await running.find(_allocated, limit_s=self._limit_s, what="forward a port")
        except TunnelError as error:
            await self.close()
            raise TunnelError(error.message, hint=_hint(error.lines), lines=error.lines) from None
        except BaseException:  # cancelled or not, no ssh stays
            await self.close()
            raise
        host = self._where.rpartition("@")[2]
        return self._url or url_at(host, port, scheme=local.scheme)

    async def close(self) -> None:
        """End ssh; a second time does nothing."""
        if self._running is not None:
            await self._running.close()

    def _argv(self, local: Local) -> list[str]:
        bind = f"{self._bind}:" if self._bind else ""
        host = f"[{local.host}]" if ":" in local.host else local.host
        argv = [self._program, "-N", "-T", "-R", f"{bind}{self._remote_port}:{host}:{local.port}"]
        for option in (*OPTIONS, *self._options):
            argv += ["-o", option]
        if self._port is not None:
            argv += ["-p", str(self._port)]
        # Behind `--` nothing is an option: a host's name may come from a file.
        return [*argv, "--", self._where]


def _allocated(line: str) -> int | None:
    found = _ALLOCATED.search(line)
    return int(found[1]) if found else None


def _hint(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if "Permission denied" in text:
        return "the server takes none of this user's keys: see that `ssh -o BatchMode=yes HOST true` works"
    if "Host key verification failed" in text:
        return "the server's key is not known here, or has changed: connect once by hand with `ssh HOST`"
    if "Could not resolve" in text:
        return "the host's name is not known here"
    if "remote port forwarding failed" in text or "port forwarding failed" in text:
        return "the server refuses the forward: the port is in use, or its sshd has AllowTcpForwarding off"
    if "Connection refused" in text or "timed out" in text:
        return "no sshd answers there: see host and port"
    return "see that `ssh -o BatchMode=yes HOST true` works from here"
