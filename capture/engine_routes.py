"""The control plane's routes about engines: who they are, holds, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from capture import answers
from capture.errors import ClientError
from capture.upstream import Engine

if TYPE_CHECKING:
    from capture.app import Appliance

MOST_VERSION = 200
"""Characters of a version's name: a step, a digest, a path."""


def routes(appliance: Appliance) -> list[web.RouteDef]:
    """Return the routes."""
    api = _Engines(appliance)
    return [
        web.get("/engines", api.list_),
        web.post("/engine/pause", api.pause),
        web.post("/engine/resume", api.resume),
        web.post("/engine/weights", api.weights),
    ]


class _Engines:
    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance

    async def list_(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        return answers.answer(request, self._shown())

    async def pause(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        body = await answers.body(request, fields=("engine", "wait_s"))
        wait_s = body.get("wait_s", 60.0)
        if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s <= answers.MOST_SECONDS:
            answers.invalid_body(f"`wait_s` must be a number of seconds from 0 to {answers.MOST_SECONDS:g}.")
        left = await self._appliance.holds.pause(self._named(body), wait_s=wait_s)
        if not left:
            return answers.answer(request, self._shown())
        running = [{"rollout": call.rollout, "n": call.n} for call in left]
        error = {
            "code": "calls_running",
            "message": f"{len(left)} call{'s' if len(left) > 1 else ''} still ran when the time was over.",
            "hint": "New calls are held all the same: pause again to wait on, or resume.",
        }
        return answers.answer(request, {"error": error, "running": running}, status=409)

    async def resume(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        await self._appliance.holds.resume(self._named(await answers.body(request, fields=("engine",))))
        return answers.answer(request, self._shown())

    async def weights(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        body = await answers.body(request, fields=("engine", "version"))
        version = body.get("version")
        if not isinstance(version, str) or not 0 < len(version) <= MOST_VERSION:
            answers.invalid_body(f"`version` must be a text of 1 to {MOST_VERSION} characters.")
        await self._appliance.holds.set_version(self._named(body), version)
        return answers.answer(request, self._shown())

    def _named(self, body: Any) -> list[str]:
        """Return the names of the engines that a body means: the one that it names, else all."""
        every = self._appliance.fleet.all
        wanted = body.get("engine")
        if wanted is None:
            return [engine.name for engine in every]
        if isinstance(wanted, str):
            url = wanted.rstrip("/").removesuffix("/v1")
            if found := [engine.name for engine in every if wanted == engine.name or url == engine.url]:
                return found
        raise ClientError(
            "engine_not_found",
            f"There is no engine {str(wanted)[:200]!r}.",
            hint=f"Name it as GET /engines does: {', '.join(engine.name for engine in every)}.",
            status=404,
        )

    def _shown(self) -> dict[str, Any]:
        return {"engines": [self._engine(one) for one in self._appliance.fleet.all], "next": None}

    def _engine(self, engine: Engine) -> dict[str, Any]:
        who, holds = engine.identity, self._appliance.holds
        queue = holds.queue(engine.name)
        return {
            "name": engine.name,
            "kind": engine.kind,
            "url": engine.url,
            "version": who.version if who else None,
            "models": list(who.models) if who else [],
            "max_model_len": who.max_model_len if who else None,
            "tier": engine.tier,
            "tier_reason": engine.tier_reason,
            "logprobs_mode": engine.logprobs_mode,
            "healthy": engine.healthy,
            "reason": engine.changed or engine.reason or None,
            "in_flight": engine.in_flight,
            "queued": queue.waiting,
            "held": queue.held,
            "weights": holds.version(engine.name),
        }
