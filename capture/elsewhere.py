"""Calls made elsewhere: what a process learns of a rollout's calls that other processes serve.

Where the store is shared, it gives out the numbers. A number that a process sees skipped was given to a call in another
one (`Live.elsewhere`); until that call has ended, and been read here, prompts can't lean on it, no request can refer to
its reply, and limits that look at conversations don't know it. So a call that arrives behind such numbers first fetches
them, and only them: a rollout whose requests all reach one process never fetches anything.

A number may stay without a call for ever (a choice that brought nothing, an arrival that never began): after a while
it is asked for no more. What was missed by that is found again where it matters, by `catch_up` with `beyond`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from capture import clock
from capture.live import Live
from capture.store.base import Store
from graph.graph import Graph

HEED_EVERY_S = 1.0
"""Between two looks of every process at what was sealed: a cut that was asked for elsewhere takes as long at most."""

CUT_LIMIT_S = 15.0
"""For calls that are cut elsewhere to have ended: a look, a commit, and what it takes to find that a process died."""

LOOK_EVERY_S = 1.0
"""Between two looks of one who waits for what other processes do."""

FIRST_LOOK_S, SLOWEST_LOOK_S = 0.02, 0.5
"""Between two looks at whether calls have ended: short at first, since most closes find nothing running."""

MOST_STRETCHES = 8
"""Stretches of numbers that are fetched at once, the latest first: what is gone on from is mostly recent."""

FORGET_S = 600.0
"""Seconds after which a number without a call is asked for no more."""

DOUBT_S = 30.0
"""Seconds after which it is asked no more whether a reply was delivered: its process says so with its next group, or
has died."""


async def catch_up(live: Live, store: Store, *, beyond: bool = False) -> None:
    """Fetch the calls that ended elsewhere; with `beyond` also such as nothing here tells of yet.

    Raises `StoreError`.
    """
    async with live.catching:
        now = asyncio.get_running_loop().time()
        # What still runs is not read, though it could be: it may have a long request, and says nothing yet.
        running = {n for _, n in await store.running(live.id)}
        for first, last in stretches({*live.elsewhere, *live.in_doubt} - running)[: -MOST_STRETCHES - 1 : -1]:
            for call in await store.calls(live.id, after=first - 1, limit=last - first + 1):
                if call.n in live.in_doubt and call.delivered is not None:
                    live.tries.learn(call)
                    del live.in_doubt[call.n]
                if call.n in live.elsewhere and call.status != "running":
                    live.learn(call)
                    del live.elsewhere[call.n]
                    if call.status == "complete" and call.delivered is None:
                        live.in_doubt[call.n] = now
        if beyond:
            for call in await store.calls(live.id, after=live.top - 1):
                live.skip(call.n)
                if call.status != "running":
                    live.learn(call)
                else:
                    live.elsewhere[call.n] = now
        for kept, for_s in ((live.elsewhere, FORGET_S), (live.in_doubt, DOUBT_S)):
            for n in [n for n, since in kept.items() if since < now - for_s]:
                del kept[n]


async def ended(rollout: str, store: Store, *, limit_s: float) -> bool:
    """Return True when no call of a rollout runs in any process, False when the time is over.

    Raises `StoreError`.
    """
    loop = asyncio.get_running_loop()
    end, pause = loop.time() + limit_s, FIRST_LOOK_S
    while await store.running(rollout):
        left = end - loop.time()
        if left <= 0:
            return False
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, SLOWEST_LOOK_S)
    return True


def quiet_s(graph: Graph, now: str | None = None) -> float:
    """Return the seconds since the last call of a rollout ended, of one without calls since it was made.

    By the clocks of those who served them, which may differ by as much as the machines' do. `now` is ISO 8601.
    """
    ends = [
        clock.parse(call.started_at) + timedelta(milliseconds=call.ended_ms or 0)
        for call in graph.forest.calls.values()
        if call.started_at
    ]
    since = max(ends, default=clock.parse(graph.rollout.created_at))
    return max(0.0, (clock.parse(now or clock.now()) - since).total_seconds())


def stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as stretches (first, last), in order."""
    found: list[tuple[int, int]] = []
    for n in sorted(numbers):
        if found and found[-1][1] == n - 1:
            found[-1] = found[-1][0], n
        else:
            found.append((n, n))
    return found
