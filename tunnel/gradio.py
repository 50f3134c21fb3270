"""A share link of gradio's, through the library's own FRP client: no account, and no port open anywhere.

Either gradio's share servers (a link ends after some days, and sooner without warning: the pool's probe notices), or an
FRP server of the user's own with gradio's fork of frp (`gradio=HOST:PORT`).
"""

from __future__ import annotations

import importlib.util
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from tunnel.base import Local
from tunnel.errors import TunnelError
from tunnel.process import Program

START_S = 75.0
"""Limit for a link: the library's import, its API, perhaps frpc's download, and 30 s that the library itself waits."""

_SCRIPT = Path(__file__).with_name("gradio_share.py")
_URL = re.compile(r"^treering: url (https?://\S+)$")


class Gradio:
    """One share link."""

    kind = "gradio"

    def __init__(
        self,
        server: str | None = None,
        *,
        limit_s: float = START_S,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """`server` is `host:port` of one's own. `python` runs the library, with `environment` over our own."""
        self._server = server
        self._python = python
        self._limit_s = limit_s
        self._environment = dict(environment or {})
        self._running: Program | None = None
        self.name = f"gradio={server}" if server else "gradio"

    def __repr__(self) -> str:
        return f"<Gradio {self.name} {self._running!r}>"

    @property
    def ended(self) -> str | None:
        """Why its client runs no more, None while it does."""
        return self._running.ended if self._running is not None else None

    @property
    def hint(self) -> str:
        """What to do about its end."""
        return "" if self.ended is None or self._running is None else _hint("\n".join(self._running.lines))

    async def open(self, local: Local) -> str:
        """Return the link's address. Raises `TunnelError` with all that the client printed."""
        if self._python == sys.executable and importlib.util.find_spec("gradio") is None:
            raise TunnelError("gradio is not installed", hint="pip install 'treering[gradio]'")
        if local.scheme != "http":
            raise TunnelError(
                "a share link of gradio's carries plain HTTP to a listener, and this one speaks TLS",
                hint="leave --tls-cert out: the link itself is TLS from outside",
            )
        # Not a secret of ours: the share server tells links apart by it. It is in no line all the same.
        # In hex: one that begins with "-" would read as an option to a client's parser.
        token = secrets.token_hex(32)
        # `-P`: this folder, where the script lies, has a `gradio` of its own.
        argv = [self._python, "-P", str(_SCRIPT), local.host, str(local.port), token, self._server or "-"]
        if self._environment:
            argv = ["env", *(f"{name}={value}" for name, value in self._environment.items()), *argv]
        running = self._running = await Program.start(self.name, argv, hidden=(token,))
        try:
            return await running.find(_address, limit_s=self._limit_s, what="give an address")
        except TunnelError as error:
            await self.close()
            raise TunnelError(error.message, hint=_hint("\n".join(error.lines)), lines=error.lines) from None
        except BaseException:  # cancelled or not, no client stays
            await self.close()
            raise

    async def close(self) -> None:
        """End its client; a second time does nothing."""
        if self._running is not None:
            await self._running.close()


def _address(line: str) -> str | None:
    found = _URL.match(line)
    return found[1].rstrip("/") if found else None


def _hint(text: str) -> str:
    if "Could not get share link" in text:
        return "gradio's API for share servers can't be reached from here; give a server of your own: gradio=HOST:PORT"
    if "ChecksumMismatch" in text or "Could not download" in text or "ConnectError" in text:
        return "frpc can't be fetched from here: put one on the path, or name it in TREERING_FRPC"
    if "login to server failed" in text:
        return "the share server refused or can't be reached; try again, or give a server of your own: gradio=HOST:PORT"
    return "what its client printed is above; a tunnel through ssh (ssh=USER@HOST) needs no third party"
