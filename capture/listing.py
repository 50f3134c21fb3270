"""The control plane's routes about many rollouts: the list, and the sums over it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from capture import answers, summaries
from capture.errors import ClientError
from capture.store.summary import Look

if TYPE_CHECKING:
    from capture.app import Appliance

MOST_ROLLOUTS = 1_000
"""Of one page."""

SUMMED: dict[str, answers.Reader] = {
    "state": answers.one_of("open", "closed"),
    "group": answers.text,
    "label": answers.label,
    "finding": answers.code,
    "q": answers.text,
    "trouble": answers.flag,
    "graded": answers.flag,
}
LISTED: dict[str, answers.Reader] = {
    **SUMMED,
    "order": answers.one_of("created", "closed", "-created"),
    "after": answers.text,
    "limit": answers.whole(1, MOST_ROLLOUTS),
}


def routes(appliance: Appliance) -> list[web.RouteDef]:
    """Return the routes."""

    async def list_(request: web.Request) -> web.StreamResponse:
        look = _look(answers.query(request, LISTED, repeatable=("label",)))
        listed = await summaries.page(appliance.rollouts, appliance.store, look)
        form, packed = {"rollouts": listed.rows, "next": listed.next}, answers.wants_msgpack(request)
        # A thousand rows take milliseconds.
        body = await asyncio.to_thread(lambda: answers.encode(form, packed=packed))
        return answers.encoded(request, body, packed=packed)

    async def overview(request: web.Request) -> web.StreamResponse:
        look = _look(answers.query(request, SUMMED, repeatable=("label",)))
        found = await summaries.overview(appliance.rollouts, appliance.store, look)
        # Those that are still behind are read for the next who asks.
        appliance.lookout.refresh(found.behind)
        return answers.answer(request, summaries.overview_json(found))

    return [web.get("/rollouts", list_), web.get("/overview", overview)]


def _look(asked: dict[str, Any]) -> Look:
    labels, text = _labels(asked.pop("label", [])), asked.pop("q", None)
    return Look(labels=labels, text=text, **asked)


def _labels(pairs: list[tuple[str, str]]) -> dict[str, str]:
    labels = dict(pairs)
    if len(labels) < len(pairs):
        raise ClientError(
            "invalid_query", "One label is asked for with two values.", hint="No rollout has both.", status=422
        )
    return labels
