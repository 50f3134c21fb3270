"""The control plane's routes, thin: read the question, ask `rollouts` and `graph`, shape the answer.

What a route may be asked stands in a table beside it; forms are `graph.view`'s, encodings `capture.answers`', and who
may ask is `capture.guard`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from capture import (
    answers,
    bulk,
    clock,
    engine_routes,
    events,
    exports,
    fork_words,
    guard,
    listing,
    mending,
    metrics,
    openapi,
    parquet,
    resume,
    site,
    token_text,
)
from capture.errors import ClientError, TreeringError
from capture.reach import Reach
from capture.settings import parse_address
from capture.store.base import Entry, Exchange
from capture.tasks import spawn
from graph import view
from graph.graph import Graph
from graph.outline import outline

if TYPE_CHECKING:
    from capture.app import Appliance

T = TypeVar("T")

MOST_CALLS = 10_000
"""Of one page of calls; long rollouts have hundreds."""

_SHOW: dict[str, answers.Reader] = {
    "wait": answers.one_of("closed", "idle"),
    "idle_s": answers.seconds,
    "timeout_s": answers.seconds,
}
_CALLS: dict[str, answers.Reader] = {
    "after": answers.whole(-1, 2**31 - 1),
    "limit": answers.whole(1, MOST_CALLS),
    "ids": answers.flag,
}


def middlewares(appliance: Appliance) -> list[Middleware]:
    """Return what every request of the control plane passes, outermost first."""
    settings = appliance.settings
    hosts = guard.hosts(parse_address(settings.admin_listen)[0], settings.admin_name)
    return [guard.errors(), hosts, guard.admin_key(lambda: appliance.admin_key)]


def routes(appliance: Appliance) -> list[web.RouteDef]:
    """Return the control plane's routes."""
    api = _Api(appliance)
    return [
        web.post("/rollouts", api.register),
        web.get("/rollouts/{id}", api.show),
        web.delete("/rollouts/{id}", api.delete),
        web.get("/rollouts/{id}/graph", api.graph),
        web.get("/rollouts/{id}/findings", api.findings),
        web.get("/rollouts/{id}/sequences", api.sequences),
        web.get("/sequences", api.bulk),
        web.get("/rollouts/{id}/replay", api.replay),
        web.get("/rollouts/{id}/replay/{k}", api.seed),
        web.get("/rollouts/{id}/state", api.state),
        web.get("/tunnels", api.tunnels),
        web.get("/rollouts/{id}/calls", api.calls),
        web.get("/rollouts/{id}/calls/{n}", api.call),
        web.post("/rollouts/{id}/close", api.close),
        web.put("/rollouts/{id}/reward", api.reward),
        web.put("/rollouts/{id}/roles", api.roles),
        *engine_routes.routes(appliance),
        *events.routes(appliance),
        *metrics.routes(appliance),
        *openapi.routes(appliance),
        *listing.routes(appliance),
        *token_text.routes(appliance),
        *fork_words.routes(appliance),
        *site.routes(),
        web.get("/health", api.health),
        web.get("/ready", api.ready),
    ]


class _Api:
    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance

    async def register(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        body = await answers.body(request)
        key = request.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key) <= 255:
            raise ClientError("invalid_idempotency_key", "An Idempotency-Key has 1 to 255 characters.", status=422)
        made = await self._appliance.rollouts.register(body, key=key, digest=answers.digest(body))
        if answers.wants_msgpack(request):
            return answers.answer(request, msgspec.json.decode(made), status=201)
        return answers.encoded(request, made, status=201)

    async def show(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["id"]
        asked = answers.query(request, _SHOW)
        if "wait" in asked:
            came, idle_s = False, asked.get("idle_s", 5.0)
            with contextlib.suppress(TimeoutError):
                async with self._appliance.news.waiting():
                    came = await self._appliance.rollouts.wait(
                        name, until=asked["wait"], idle_s=idle_s, timeout_s=asked.get("timeout_s", 60.0)
                    )
            if not came:
                return web.Response(status=204)
        elif asked:
            raise ClientError(
                "invalid_query",
                f"Query parameter {min(asked)} goes with wait.",
                hint="wait=closed or idle.",
                status=422,
            )
        return answers.answer(request, await self._rollout(await self._appliance.rollouts.entry(name)))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        await _to_the_end(self._appliance.rollouts.delete(request.match_info["id"]), "delete")
        return web.Response(status=204)

    async def graph(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        return await self._shaped(request, await self._graph(request), lambda of: view.graph_json(of, now=clock.now()))

    async def findings(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        graph = await self._graph(request)
        return answers.answer(request, {"findings": view.findings_json(graph), "next": None})

    async def sequences(self, request: web.Request) -> web.StreamResponse:
        asked = answers.query(request, {**exports.ASKED, "open": answers.flag, "ids": answers.flag})
        opened, ids = asked.pop("open", False), asked.pop("ids", True)
        wanted = exports.export(asked)
        if not ids and wanted.format != "native":
            raise ClientError(
                "invalid_query", "ids=0 goes with format=native.", hint="Leave ids, or format, away.", status=422
            )
        graph = await self._graph(request)
        if wanted.format == "parquet":
            body = await asyncio.to_thread(lambda: parquet.whole(exports.form(graph, wanted, opened=opened)))
            return web.Response(body=body, content_type=wanted.kind.content_type)

        def shape(graph: Graph) -> Any:
            form = exports.form(graph, wanted, opened=opened)
            return form if ids else outline(form)

        return await self._shaped(request, graph, shape)

    async def bulk(self, request: web.Request) -> web.StreamResponse:
        return await bulk.serve(request, self._appliance.rollouts)

    async def calls(self, request: web.Request) -> web.StreamResponse:
        asked = answers.query(request, _CALLS)
        after, limit = asked.get("after", -1), asked.get("limit", 1_000)
        graph = await self._graph(request)
        numbers = [n for n in sorted(graph.forest.calls) if n > after]
        more = str(numbers[limit - 1]) if len(numbers) > limit else None

        def form(graph: Graph) -> dict[str, Any]:
            shown = (
                {**view.call_json(graph, n), **(_arrays(graph, n) if asked.get("ids") else {})} for n in numbers[:limit]
            )
            return {"calls": list(shown), "next": more}

        return await self._shaped(request, graph, form)

    async def call(self, request: web.Request) -> web.StreamResponse:
        asked = answers.query(request, {"ids": answers.flag})
        name, given = request.match_info["id"], request.match_info["n"]
        graph = await self._graph(request)
        n = answers.number(given)
        kept = graph.forest.calls.get(n)
        if kept is None:
            raise ClientError("call_not_found", "This rollout has no such call.", hint="GET …/calls.", status=404)
        exchange = await self._appliance.store.exchange(name, n)
        text = kept.reply.text if kept.reply is not None else None
        return await self._shaped(request, graph, lambda of: _whole(of, n, text, exchange, ids=asked.get("ids", True)))

    async def replay(self, request: web.Request) -> web.StreamResponse:
        asked = answers.query(request, {"saved": answers.flag})
        graph = await self._graph(request)
        if not asked.get("saved"):
            return await self._shaped(request, graph, resume.listed)
        line = await resume.line(self._appliance.store, graph)
        return answers.answer(request, line)

    async def seed(self, request: web.Request) -> web.StreamResponse:
        asked = answers.query(request, {"instruction": answers.text})
        graph = await self._graph(request)
        form = await resume.seed(
            self._appliance.store, graph, request.match_info["k"], instruction=asked.get("instruction")
        )
        return answers.answer(request, form)

    async def state(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        kept = await self._appliance.rollouts.state_of(request.match_info["id"])
        form = {"state": answers.passed(kept.body), "version": kept.version, "changed_at": kept.changed_at}
        return answers.answer(request, form)

    async def close(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        body = await answers.body(request, fields=("wait_s", "reward", "sequences"))
        wait_s = body.get("wait_s", 30.0)
        if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s <= answers.MOST_SECONDS:
            answers.invalid_body(f"`wait_s` must be a number of seconds from 0 to {answers.MOST_SECONDS:g}.")
        # What can be wrong is looked at before the rollout is sealed.
        wanted = exports.export_in(body["sequences"]) if body.get("sequences") is not None else None
        reward = body.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float | None):
            answers.invalid_body("`reward` must be a number, or null for ungraded.")
        name = request.match_info["id"]
        entry = await _to_the_end(self._appliance.rollouts.close_rollout(name, wait_s=wait_s), "close")
        if "reward" in body:
            entry = await self._appliance.rollouts.reward(name, {"reward": reward})
        form: dict[str, Any] = {"rollout": await self._rollout(entry), "sequences": None}
        if wanted is not None:
            graph = await self._appliance.rollouts.graph(name)
            try:
                form["sequences"] = await asyncio.to_thread(exports.form, graph, wanted)
            except ClientError as error:
                # The rollout is closed all the same, and its caller must learn that.
                form["refused"] = exports.told(error)
        return answers.answer(request, form)

    async def reward(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        body = await answers.body(request, fields=("reward", "per_call", "details", "force"))
        if not set(body) - {"force"}:
            answers.invalid_body("Nothing to attach.", hint="Give reward (a number, or null), per_call or details.")
        entry = await self._appliance.rollouts.reward(request.match_info["id"], body)
        return answers.answer(request, await self._rollout(entry))

    async def roles(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        body = await answers.body(request, fields=("conversation", "role"))
        entry = await self._appliance.rollouts.role(request.match_info["id"], body)
        return answers.answer(request, await self._rollout(entry))

    async def health(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        return answers.answer(request, {"ok": True, "nonce": self._appliance.nonce})

    async def ready(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        engines, store = self._appliance.fleet.engines, self._appliance.store
        await asyncio.gather(*(engine.check() for engine in engines))
        broken = await mending.usable(store, self._appliance.rollouts)
        down = [f"{engine.name}: {engine.reason}" for engine in engines if not engine.healthy]
        # One that answers is enough: calls go to it.
        usable = len(down) < len(engines)
        parts: dict[str, dict[str, Any]] = {
            "engine": {"ok": usable, "reason": "; ".join(down) or None},
            "store": {"ok": broken is None, "reason": broken},
            "tunnel": _tunnels_ready(self._appliance.reach),
            **self._appliance.parts(),
        }
        fine = all(part["ok"] for part in parts.values())
        return answers.answer(request, {"ready": fine, **parts}, status=200 if fine else 503)

    async def tunnels(self, request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        shown = [msgspec.to_builtins(tunnel) for tunnel in self._appliance.reach.health]
        return answers.answer(request, {"tunnels": shown, "next": None})

    async def _graph(self, request: web.Request) -> Graph:
        graph: Graph = await self._appliance.rollouts.graph(request.match_info["id"])
        return graph

    async def _rollout(self, entry: Entry) -> dict[str, Any]:
        graph = await self._appliance.rollouts.graph(entry.rollout.id)
        return view.rollout_json(graph.rollout, graph, now=clock.now())

    async def _shaped(self, request: web.Request, graph: Graph, shape: Callable[[Graph], Any]) -> web.StreamResponse:
        """Shape and encode off the loop: a long rollout takes tens of milliseconds, and calls are relayed there."""
        packed = answers.wants_msgpack(request)
        body = await asyncio.to_thread(lambda: answers.encode(shape(graph), packed=packed))
        return answers.encoded(request, body, packed=packed)


def _arrays(graph: Graph, n: int) -> dict[str, Any]:
    """Return a call's token arrays; absent where the engine gave none."""
    forest = graph.forest
    given = {
        "prompt_ids": forest.prompt_ids(n),
        "sampled_ids": forest.sampled_ids(n),
        "logprobs": forest.calls[n].logprobs,
    }
    return {name: array for name, array in given.items() if array is not None}


def _whole(graph: Graph, n: int, text: str | None, exchange: Exchange | None, *, ids: bool) -> dict[str, Any]:
    """Return one call whole. A running call has no exchange yet."""
    return {
        **view.call_json(graph, n),
        **(_arrays(graph, n) if ids else {}),
        "top_logprobs": answers.passed(exchange.top_logprobs) if exchange else None,
        "text": text,
        "request": answers.passed(exchange.request) if exchange else None,
        "sent": answers.passed(exchange.sent) if exchange else None,
        "reply": answers.passed(exchange.reply) if exchange else None,
        "error": exchange.error if exchange else None,
        "usage": answers.passed(exchange.usage) if exchange else None,
        "deliveries": list(exchange.deliveries) if exchange else [],
        "routed_experts": None,
        "sampling_mask": None,
    }


async def _to_the_end(work: Coroutine[Any, Any, T], name: str) -> T:
    """Do work to its end although the caller hangs up: half a close would leave a rollout sealed and never closed."""

    async def done() -> T | TreeringError:
        # Handed back, not raised: a task's error is logged, and this one is the caller's.
        try:
            return await work
        except TreeringError as error:
            return error

    result = await asyncio.shield(spawn(done(), name=name))
    if isinstance(result, TreeringError):
        raise result
    return result


def _tunnels_ready(reach: Reach) -> dict[str, Any]:
    """Say whether a remote rollout could be served: one open and healthy, or none opened so far."""
    if not reach.set_up:
        return {"ok": True, "reason": "no tunnel is set up"}
    opened = [tunnel for tunnel in reach.health if tunnel.opened]
    down = [f"{tunnel.name}: {tunnel.reason}" for tunnel in opened if not tunnel.healthy]
    if not opened:
        return {"ok": True, "reason": "none is open: the first rollout that needs one opens it"}
    return {"ok": len(down) < len(opened), "reason": "; ".join(down) or None}
