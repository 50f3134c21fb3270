"""Resume points and seeds of a stored rollout: what the control plane's `replay` routes answer.

A seed is cut from what was sent to the engine, which is chat in every dialect, with its media and its tools; where that
isn't stored or can't be read, from the canonical messages.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from capture.errors import ClientError
from capture.store.base import Store
from graph import saved, surgery
from graph.graph import Graph
from graph.saved import REPLAY_OF, Request
from graph.surgery import WHOLE, Seed


def listed(graph: Graph) -> dict[str, Any]:
    """Return the resume points of a rollout, and whether it has an end to go on from."""
    end = surgery.whole(graph)
    found = [*surgery.points(graph), *([] if end is None else [end])]
    return {
        "rollout": graph.rollout.id,
        "points": [
            {
                "k": WHOLE if point.k is None else point.k,
                "kinds": list(point.kinds),
                "call": point.call,
                "n_messages": point.n_messages + point.reply,
                "awaits": point.awaits,
            }
            for point in found
        ],
        "next": None,
    }


async def seed(store: Store, graph: Graph, k: str, *, instruction: str | None = None) -> dict[str, Any]:
    """Return the seed at point `k`, or at "whole".

    Raises `ClientError` 404 `point_not_found`.
    """
    end = surgery.whole(graph)
    points = {str(point.k): point for point in surgery.points(graph)}
    point = end if k == WHOLE else points.get(k)
    if point is None:
        raise ClientError(
            "point_not_found", f"This rollout has no resume point {k!r}.", hint="GET …/replay lists them.", status=404
        )
    asked = await _asked(store, graph, point.call)
    reply = graph.forest.calls[point.call].reply
    made = surgery.cut(
        graph.rollout.id,
        point,
        messages=asked.messages,
        reply=None if reply is None else surgery.to_chat(reply),
        tools=asked.tools,
        instruction=instruction,
    )
    return form(made)


async def line(store: Store, graph: Graph) -> dict[str, Any]:
    """Return a rollout as it is saved for later replays: one line's object."""
    end = surgery.whole(graph)
    points = [*surgery.points(graph), *([] if end is None else [end])]
    asked = {n: await _asked(store, graph, n) for n in sorted({point.call for point in points})}
    made = await asyncio.to_thread(saved.line, graph, asked.get)
    told: dict[str, Any] = msgspec.to_builtins(made)
    return told


def form(made: Seed) -> dict[str, Any]:
    """Return a seed's JSON form. Its `labels` belong on the rollout that starts from it: they store the lineage."""
    return {
        "version": saved.VERSION,
        "rollout": made.rollout,
        "k": WHOLE if made.k is None else made.k,
        "kinds": list(made.kinds),
        "awaits": made.awaits,
        "messages": list(made.messages),
        "tools": made.tools,
        "labels": {REPLAY_OF: made.rollout},
    }


async def _asked(store: Store, graph: Graph, n: int) -> Request:
    call = graph.forest.calls[n]
    exchange = await store.exchange(graph.rollout.id, n)
    if exchange is not None and (found := _read(exchange.sent)) is not None:
        # A repair may have joined messages: then places in the one are not places in the other.
        if len(found.messages) == len(call.messages):
            return found
        return Request(messages=[surgery.to_chat(message) for message in call.messages], tools=found.tools)
    return Request(messages=[surgery.to_chat(message) for message in call.messages])


def _read(sent: bytes | None) -> Request | None:
    if sent is None:
        return None
    try:
        told = msgspec.json.decode(sent)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    messages = told.get("messages") if isinstance(told, dict) else None
    return Request(messages=messages, tools=told.get("tools")) if isinstance(messages, list) else None
