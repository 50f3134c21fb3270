"""Who may talk to the control plane: `Host`, `Origin`, the admin key; and the shape of every refusal.

Rules, in order:
1. `Host` must be a name of this listener: its own, a loopback name, one that the operator gave it (`--admin-name`), or
   (listening on every interface) this machine's name or an address. A page of someone else's site whose name was made
   to resolve to this machine (DNS rebinding) carries that site's name here, and is refused before any key is looked at.
2. `Origin`, where there is one, must be this very listener: browsers send it, and no other site's page has business
   here.
3. The admin key, compared in constant time, for every path but `OPEN_PATHS`, known or not: what exists is
   told to nobody without it. Wrong keys are throttled by address; a right one is never refused (`capture.throttle`).
4. Every answer says how a browser may treat it (`HEADERS`): one policy, the strictest that the page can live with.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from capture import answers, keys, listener
from capture.errors import CaptureError, ClientError, TreeringError
from capture.settings import is_loopback, is_wildcard
from capture.throttle import Throttle

_log = logging.getLogger("treering")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_PATHS = ("/health", "/ready", "/", "/page/*")
"""Answered without a key: load balancers and health checks ask, and they hold none; and a browser asks for the page's
own files before it knows of a key. A star stands for one name."""

HEADERS = {
    # Our own files alone: no inline script or style, nothing of another site's, no frame around it, no form.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
    "Cache-Control": "no-store",
    "Treering-Version": answers.VERSION,
    "Vary": "Accept, Accept-Encoding",
}
"""On every answer of the control plane: an agent's words are shown there, to someone who holds the admin key."""


def errors() -> Middleware:
    """Return the one place where an error of the control plane becomes an answer."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except TreeringError as error:
            response = answers.failure(request, error)
            if error.code == "too_many_wrong_keys":
                response.force_close()
        except web.HTTPException as error:
            response = answers.failure(request, _routing(request, error))
            if isinstance(error, web.HTTPMethodNotAllowed):
                # RFC 9110, 15.5.6.
                response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        except Exception:  # noqa: BLE001 -- the edge: whatever it was is our fault, and the log alone says what
            _log.exception("%s %s failed", request.method, keys.masked(request.path))
            unexpected = CaptureError("internal", "Treering failed at this request.", hint="Its log says more.")
            response = answers.failure(request, unexpected)
        if not response.prepared:
            _put_headers(response)
        return response

    return middleware


async def protect(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Put `HEADERS` on an answer, just before its head leaves (aiohttp's signal): on one that is streamed, too."""
    del request
    _put_headers(response)
    # aiohttp says here what we are made of, and in which version.
    response.headers.popall("Server", None)


def hosts(listen_host: str, names: Sequence[str] = ()) -> Middleware:
    """Return the check of `Host` and `Origin` for a listener on this host, which is asked by further names."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        if not is_ours(host, listen_host, names):
            raise ClientError(
                "host_refused",
                f"The control plane is not called {_shown(host)!r}.",
                hint="Ask by the address that it listens on (--admin-listen), by 127.0.0.1, or by a name that it was "
                "given (--admin-name).",
                status=403,
            )
        origin = request.headers.get("Origin")
        if origin is not None and not same_origin(origin, host):
            raise ClientError(
                "origin_refused",
                f"Pages of {_shown(origin)!r} may not use the control plane.",
                hint="Programs send no Origin; browsers send the page's own.",
                status=403,
            )
        return await handler(request)

    return middleware


def admin_key(key: Callable[[], str | None]) -> Middleware:
    """Return the check of the admin key; `key` gives it, None when none is asked for."""
    throttle = Throttle()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = key()
        if wanted is None:
            listener.prove(request)
        elif not is_open(request.path):
            scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
            given = shown.strip() if scheme.lower() == "bearer" else ""
            if not keys.same(given, wanted):
                raise _wrong_key(throttle, request.remote, shown=bool(given))
            listener.prove(request)
        return await handler(request)

    return middleware


def is_open(path: str) -> bool:
    """Say whether a path is answered without a key."""
    folder, _, name = path.rpartition("/")
    return path in OPEN_PATHS or (bool(name) and f"{folder}/*" in OPEN_PATHS)


def _put_headers(response: web.StreamResponse) -> None:
    """Put `HEADERS` on an answer; how long it may be kept is its route's to say, where that says so."""
    kept = response.headers.get("Cache-Control")
    response.headers.update(HEADERS)
    if kept is not None:
        response.headers["Cache-Control"] = kept


def _shown(name: str) -> str:
    # Without what stands before an at sign: a user, and perhaps a password.
    return name.rpartition("@")[2][:80]


def refusal(error: TreeringError) -> web.Response:
    """Return an error's answer to what was no request: nothing is known of what the caller reads but JSON."""
    form = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    headers = {**HEADERS, **error.headers(), "Content-Type": "application/json"}
    return web.Response(body=answers.encode(form, packed=False), status=error.status, headers=headers)


def _wrong_key(throttle: Throttle, address: str | None, *, shown: bool) -> ClientError:
    now = time.monotonic()
    again_s = throttle.failed(address, now)
    if again_s is None:
        return ClientError(
            "unauthorized",
            "The admin key is wrong." if shown else "This request shows no admin key.",
            hint="Send Authorization: Bearer with the key of --admin-key-file, TREERING_ADMIN_KEY, or the file "
            "beside the store.",
            status=401,
        )
    if failures := throttle.to_note(address, now):
        _log.warning("%d requests from %s showed a wrong admin key, or none", failures, address or "a local socket")
    error = ClientError(
        "too_many_wrong_keys",
        "Too many requests from this address showed a wrong admin key, or none.",
        hint="A request with the right key is answered at once.",
        status=429,
    )
    error.retry_after_s = again_s
    return error


def is_ours(host: str, listen_host: str, names: Sequence[str] = ()) -> bool:
    """Say whether a `Host` header names a listener on `listen_host`; the port is not compared (forwarded ports).

    `names` are those that the operator gave it.
    """
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not name or parts.username is not None or parts.path:
        return False
    if is_loopback(name) or name == listen_host.lower() or name in (given.lower() for given in names):
        return True
    if is_wildcard(listen_host):
        # An address can't be rebound, a name can: of names only this machine's own.
        return _is_address(name) or name == socket.gethostname().lower()
    return False


def same_origin(origin: str, host: str) -> bool:
    """Say whether an `Origin` is the listener that was asked."""
    scheme, separator, rest = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and rest.lower() == host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _routing(request: web.Request, error: web.HTTPException) -> TreeringError:
    if error.status == 405 and isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ClientError(
            "method_not_allowed", f"{request.method} is not taken here.", hint=f"Use {allowed}.", status=405
        )
    if error.status == 413:
        return ClientError(
            "body_too_large", "The body is too large.", hint="--max-body-mib sets the limit.", status=413
        )
    if error.status == 404:
        return ClientError(
            "not_found",
            f"There is nothing at {keys.masked(request.path[:200])}.",
            hint="docs/api.md lists the routes.",
            status=404,
        )
    return ClientError("bad_request", error.reason or "The request can't be served.", status=error.status)
