"""The two addresses of the settings: free, taken by a Treering that runs already, or taken by something else.

Nothing is sent to what listens there but two requests that need no key, and nothing of what it says is believed but
who it is and how it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from capture import certificates
from capture.checks import Check, fail, ok, warn
from capture.client import control_url
from capture.errors import UsageError
from capture.settings import Settings, is_wildcard, parse_address

ASK_S = 5.0
"""For each answer: `/ready` asks the engine and the store in its turn."""

MOST_BYTES = 65_536
"""Of an answer; ours has some 300."""

PARTS = ("engine", "store", "tunnel")


async def look(settings: Settings) -> list[Check]:
    """Say of each address whether it is free, and how the Treering does that has it."""
    return await asyncio.to_thread(_look, settings)


def _look(settings: Settings) -> list[Check]:
    running = _running(settings)
    checks = []
    for name, flag, address in (
        ("agents' address", "--listen", settings.listen),
        ("control address", "--admin-listen", settings.admin_listen),
    ):
        host, port = parse_address(address)
        try:
            _bind(host, port)
        except OSError as error:
            why = error.strerror or str(error)
            if running is not None:
                checks.append(ok(name, f"{address}: taken by the Treering that runs here"))
            else:
                todo = f"if no Treering of yours runs there, choose another {flag}"
                checks.append(warn(name, f"{address}: {why}", todo))
        else:
            checks.append(ok(name, f"{address} is free"))
    return checks if running is None else [*checks, running]


def _running(settings: Settings) -> Check | None:
    """Say how the Treering does that has both addresses; None where none has."""
    with contextlib.suppress(OSError, http.client.HTTPException, UsageError, KeyError, TypeError, ValueError):
        nonce = _asked(settings, settings.admin_listen, "/health").get("nonce")
        if nonce is None or _asked(settings, settings.listen, "/healthz").get("nonce") != nonce:
            return None
        told = _asked(settings, settings.admin_listen, "/ready")
        down = [f"{part}: {told[part].get('reason')}" for part in PARTS if not told[part]["ok"]]
        if down:
            todo = "its log says since when; below, each is looked at from here"
            return fail("running", f"{control_url(settings)} is not ready: {'; '.join(down)}", todo)
        return ok("running", f"{control_url(settings)} is ready: engine, store and tunnels can be used")
    return None


def _asked(settings: Settings, address: str, path: str) -> Mapping[str, Any]:
    """GET a path at one of our addresses; return the answer, which is an object.

    Raises OSError, `http.client.HTTPException` or ValueError where nothing of ours answers.
    """
    host, port = parse_address(address)
    host = "127.0.0.1" if is_wildcard(host) else host
    if settings.tls_cert is None:
        connection = http.client.HTTPConnection(host, port, timeout=ASK_S)
    else:
        trust = certificates.trusting(settings, host)
        connection = http.client.HTTPSConnection(host, port, timeout=ASK_S, context=trust)
    with contextlib.closing(connection):
        connection.request("GET", path)
        told = msgspec.json.decode(connection.getresponse().read(MOST_BYTES))
    if not isinstance(told, dict):
        raise ValueError("no object")
    return told


def _bind(host: str, port: int) -> None:
    family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as tried:
        # As the listener itself does: a port whose last connections still linger is free.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(where)
