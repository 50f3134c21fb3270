"""A retry that joins a running call: it gets what the call says, from the beginning, in a handler of its own.

The call's own agent is not in its way: one that takes nothing is left behind, and one that leaves hands the call over
(`passage`). Each of them has a delivery of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from aiohttp import web

from capture.calls import Calls
from capture.draft import Draft
from capture.passage import is_gone
from capture.silence import Silence

STUCK_S = 1.0
"""After which a first agent that takes nothing is left behind by a call that a retry has joined."""


async def follow(
    calls: Calls, incoming: web.BaseRequest, draft: Draft, *, keep_alive: bool, otherwise: bool = False
) -> web.StreamResponse | None:
    """Give a retry what a running call says, from the beginning; or, `otherwise`, wait for its end.

    None where it isn't to be had from here: it is wanted otherwise, its transcript isn't whole, or its first agent left
    when it was through. The record has it then, if anything has. Raises what the agent gets instead of a reply.
    """
    passage = draft.passage
    if passage is None:
        return None
    said, me, response, at = passage.said, object(), None, 0
    said.follow(me, reads=not otherwise)
    try:
        with contextlib.ExitStack() as stack:
            silence: Silence | None = None
            while True:
                if said.failure is not None:
                    raise said.failure
                if said.head is not None and response is None and not (otherwise or said.whole or said.dropped):
                    response = web.StreamResponse(status=said.head[0], headers=said.head[1])
                    await response.prepare(incoming)
                    silence = stack.enter_context(Silence(response, name=f"keep alive {draft.live.id}/{draft.n}"))
                while response is not None and at < len(said.pieces):
                    at += 1
                    if said.pieces[at - 1]:
                        await response.write(said.pieces[at - 1])
                    said.has_read(me, at)
                if said.over:
                    break
                if silence is not None:
                    silence.since, silence.breakable = time.monotonic(), keep_alive
                try:
                    async with asyncio.timeout(STUCK_S):
                        await said.changed()
                except TimeoutError:
                    passage.unseat()
                if silence is not None:
                    silence.breakable = False
        if response is None:
            if otherwise or said.dropped or not said.whole:
                return None
            assert said.head is not None
            response = web.Response(body=b"".join(said.pieces), status=said.head[0], headers=said.head[1])
            await response.prepare(incoming)
        delivered = said.through and not is_gone(incoming)
        if said.clean:
            await response.write_eof()
            delivered = not is_gone(incoming)
        elif incoming.transport is not None:
            incoming.transport.close()
        calls.mark(draft, delivered=delivered)
    except ConnectionError:
        return response
    finally:
        said.unfollow(me)
        passage.abandon()
    return response
