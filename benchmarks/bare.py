"""The bare pass-through: what an aiohttp proxy costs that looks at nothing. `python -m benchmarks.bare UPSTREAM`."""

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

_OURS = {"host", "connection", "keep-alive", "transfer-encoding", "date", "server"}
_AUTO = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


async def main(upstream: str) -> None:
    """Relay every request to `upstream`; print the address first."""
    pool, limits = aiohttp.TCPConnector(limit=0, keepalive_timeout=3), aiohttp.ClientTimeout(None, sock_connect=10)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=pool, timeout=limits, cookie_jar=jar, auto_decompress=False) as engine:

        async def relay(asked: web.BaseRequest) -> web.StreamResponse:
            url, body = URL(upstream + asked.raw_path, encoded=True), await asked.content.read()
            head = CIMultiDict((k, v) for k, v in asked.headers.items() if k.lower() not in _OURS)
            async with engine.request(asked.method, url, data=body, headers=head, skip_auto_headers=_AUTO) as answer:
                kept = CIMultiDict((k, v) for k, v in answer.headers.items() if k.lower() not in _OURS)
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(asked)
                async for data in answer.content.iter_any():
                    await response.write(data)
                await response.write_eof()
                return response

        server = web.Server(relay, access_log=None, auto_decompress=False, handler_cancellation=True)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=1024)
        print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
        await listener.serve_forever()


uvloop.run(main(sys.argv[1]))
