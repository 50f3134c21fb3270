"""A tunnel tried out: opened to a listener of our own, proved from outside, and closed again.

What the doctor does before the first rollout would. The listener stands where the data plane will, so that an address
that leads there by a fixed port is tried as well; where a Treering runs there already, such an address must lead to it.
"""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from aiohttp import web

from capture import certificates
from capture.settings import Settings, parse_address
from tunnel.base import Local, url_at
from tunnel.errors import TunnelError
from tunnel.given import LOOPBACK, WILDCARDS
from tunnel.health import READY_S, Prober, carried
from tunnel.spec import Spec


async def attempt(spec: Spec, settings: Settings, *, ready_s: float = READY_S) -> str:
    """Return the public URL that was proved. Raises `TunnelError`, within the tunnel's own time, saying what is wrong.

    Nothing is left open.
    """
    nonce = secrets.token_hex(16)
    runner = web.AppRunner(_app(nonce), access_log=None)
    await runner.setup()
    host, port = parse_address(settings.listen)
    tls = certificates.serving(settings)
    scheme = "http" if tls is None else "https"
    try:
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
        except OSError as error:
            if spec.fixed:
                nonce = await _nonce(url_at(_near(host), port, scheme=scheme), error)
            else:
                # It is taken; a tunnel that is made for the occasion can lead anywhere.
                await web.TCPSite(runner, host, 0, ssl_context=tls).start()
        if runner.addresses:
            port = runner.addresses[0][1]
        return await _proved(spec, Local(host=host, port=port, scheme=scheme), nonce, settings, ready_s)
    finally:
        await runner.cleanup()


async def _proved(spec: Spec, local: Local, nonce: str, settings: Settings, ready_s: float) -> str:
    tunnel = spec.make()
    prober = Prober((nonce,), trust_env=settings.proxy_from_env)
    try:
        url = await tunnel.open(local)
        await carried(prober, tunnel, url, limit_s=ready_s)
    finally:
        await tunnel.close()
        await prober.close()
    return url


async def _nonce(url: str, taken: OSError) -> str:
    """Return what answers where our own listener couldn't be, if it is a Treering."""
    prober = Prober(())
    try:
        return await prober.ask(url)
    except TunnelError as error:
        raise TunnelError(
            f"{urlsplit(url).netloc} is taken ({taken.strerror or taken}) by something that is no Treering",
            hint="choose another --listen, or stop what runs there",
        ) from error
    finally:
        await prober.close()


def _near(host: str) -> str:
    return "127.0.0.1" if host in WILDCARDS | LOOPBACK else host


def _app(nonce: str) -> web.Application:
    async def health(request: web.Request) -> web.Response:
        del request
        return web.json_response({"ok": True, "nonce": nonce})

    app = web.Application()
    app.router.add_get("/healthz", health)
    return app
