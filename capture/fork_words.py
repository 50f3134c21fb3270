"""`GET /rollouts/{id}/forks`: forks and breaks in words, with what the agent changed.

The words are `graph.wording`'s; what passed comes from the store, for the first forks and breaks alone: a long rollout
may break at each of its calls, and its requests are megabytes.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from capture import answers
from capture.store.base import Exchange, Store
from graph.graph import Graph
from graph.wording import Passed, compared, words_json

if TYPE_CHECKING:
    from capture.app import Appliance

MOST_COMPARED = 40
"""Forks and breaks whose requests are compared; of the others the graph alone speaks."""


def routes(appliance: Appliance) -> list[web.RouteDef]:
    """Return the route."""

    async def show(request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        graph = await appliance.rollouts.graph(request.match_info["id"])
        packed = answers.wants_msgpack(request)
        form = await told(appliance.store, graph)
        body = await asyncio.to_thread(lambda: answers.encode(form, packed=packed))
        return answers.encoded(request, body, packed=packed)

    return [web.get("/rollouts/{id}/forks", show)]


async def told(store: Store, graph: Graph) -> dict[str, Any]:
    """Return a rollout's forks and breaks in words. Raises `StoreError`."""
    passed: dict[int, Passed] = {}
    for n in compared(graph.forest, MOST_COMPARED):
        exchange = await store.exchange(graph.rollout.id, n)
        if exchange is not None:
            passed[n] = await asyncio.to_thread(_read, exchange)
    return await asyncio.to_thread(words_json, graph.forest, passed)


def _read(exchange: Exchange) -> Passed:
    request, reply = map(_decoded, (exchange.request, exchange.reply))
    return Passed(request=request, reply=reply)


def _decoded(body: bytes | None) -> Any:
    """Return a body as parsed; None where it is none, or is no JSON."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # msgspec refuses lone surrogates and NaN, which agents send.
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
