"""verifiers' interception server, alone: `python benchmarks/verifiers_server.py UPSTREAM`, where verifiers is.

Prints two addresses: of a control of ours, and of the server. `POST /open {"n": 3}` registers sessions and answers with
their secrets; `POST /close` drops them and answers with the calls that each has on its trace. A session is registered
as verifiers' own rollout does it, without limits, hooks or tools.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiohttp import web
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.trace import WireTrace


async def main(upstream: str) -> None:
    """Serve until the process is ended."""
    client = EvalClientConfig(base_url=f"{upstream}/v1", api_key_var="NONE")
    context = ModelContext(model="bench", client=client)
    sessions: list[tuple[Any, str, str]] = []

    async with InterceptionServer() as server:

        async def register(asked: web.Request) -> web.Response:
            for i in range((await asked.json())["n"]):
                task = {"type": "T", "data": {"idx": i, "prompt": "Say something."}}
                trace = WireTrace.model_validate({"id": f"r{i}", "task": task, "agent": {"config": {}}})
                session = RolloutSession(ctx=context, trace=trace)
                sessions.append((session, *server.register(session)))
            return web.json_response({"secrets": [secret for _, secret, _ in sessions]})

        async def drop(asked: web.Request) -> web.Response:
            del asked
            turns = [sum(call.error is None for call in session.trace.calls) for session, _, _ in sessions]
            for _, *secrets in sessions:
                server.unregister(*secrets)
            sessions.clear()
            return web.json_response({"turns": turns})

        app = web.Application()
        app.add_routes([web.post("/open", register), web.post("/close", drop)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n{server.base_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
