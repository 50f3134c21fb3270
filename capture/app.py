"""Wiring: settings → store → engine → rollouts → two listeners.

The data plane is what agents see, and all that a tunnel may ever publish; the control plane is on a port of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from capture import api, logs, paths, relay
from capture.calls import Calls
from capture.client import find_key, read_key
from capture.dialects.base import Dialect, Target
from capture.dialects.chat import Chat
from capture.engines.base import Adapter
from capture.engines.vllm import Vllm
from capture.errors import CaptureError, ClientError, EngineError, TreeringError, UsageError
from capture.live import Live
from capture.probe import probe
from capture.registration import Defaults, Place
from capture.rollouts import Rollouts
from capture.settings import Settings, is_loopback, key_path, parse_address, the_engine
from capture.store import open_store
from capture.upstream import HEADER_LIMIT, Engine

if TYPE_CHECKING:
    from capture.scripted import ScriptedEngine

KEEPALIVE_S = 3600.0
"""How long an agent's idle connection is kept: agents run tools for minutes between turns, and a POST on a connection
that closes just then fails."""

BACKLOG = 1024
"""Connections waiting to be accepted: a batch of rollouts starts within one second."""

ENGINE_POLL_S = 1.0
"""Between two looks for an engine that is not up yet (`--engine-wait`)."""

SHUTDOWN_GRACE_S = 5.0
"""For what was cut at shutdown to write its record."""

_log = logging.getLogger("treering")

_ADAPTERS: dict[str, Callable[[], Adapter]] = {"vllm": Vllm}


class Appliance:
    """One running Treering."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.nonce = secrets.token_hex(16)
        self.admin_key: str | None = None
        self.data_url = ""
        self.control_url = ""
        self.store = open_store(settings.store, durability=settings.durability)
        self.dialects: dict[str, Dialect] = {dialect.name: dialect for dialect in (Chat(),)}
        self.engine: Engine
        self.rollouts = Rollouts(
            self.store,
            place=self._place,
            defaults=Defaults(sampling=settings.sampling, limits=settings.limits),
        )
        self._scripted: ScriptedEngine | None = None
        self._calls: Calls
        self._runners: list[web.AppRunner] = []

    def __repr__(self) -> str:
        return f"<Appliance {self.data_url} {self.control_url} {self.store.where}>"

    async def start(self) -> None:
        """Start everything, in the order of dependence; on failure nothing is left running.

        Raises `StoreError`, `UsageError`, or `EngineError`: `engine_unreachable`, `engine_refused`, `wrong_model`,
        `tier_too_low`.
        """
        try:
            await self.store.open()
            self.engine = await self._start_engine()
            self._calls = Calls(
                rollouts=self.rollouts,
                store=self.store,
                engine=self.engine,
                relay_abort=self.settings.relay_abort,
                on_store_failure=self.settings.on_store_failure,
                log=logs.call_line,
            )
            self.admin_key = self._find_admin_key()
            self.data_url = await self._listen(self._data_app(), self.settings.listen)
            self.control_url = await self._listen(self._control_app(), self.settings.admin_listen)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop accepting, let streams finish within `shutdown_timeout`, then close the engine and, last, the store."""
        for runner in reversed(self._runners):
            await runner.cleanup()
        self._runners.clear()
        try:
            async with asyncio.timeout(SHUTDOWN_GRACE_S):
                await self.rollouts.drained()
        except TimeoutError:
            _log.warning("calls were still being recorded when the time for shutting down was over")
        if hasattr(self, "engine"):
            await self.engine.close()
        if self._scripted is not None:
            await self._scripted.close()
            self._scripted = None
        await self.store.close()

    # Start-up

    async def _start_engine(self) -> Engine:
        kind, url = await self._locate_engine()
        # The scripted engine speaks vLLM's wire, so vLLM's adapter reads it.
        adapter = _ADAPTERS["vllm" if kind == "scripted" else kind]()
        engine = Engine(adapter, url, key=self._engine_key(kind), kind=kind)
        await engine.open()
        try:
            await self._identify(engine)
            wanted = self.settings.model
            if wanted is not None and wanted not in engine.models:
                raise EngineError(
                    "wrong_model",
                    f"The engine at {engine.url} serves {', '.join(engine.models) or 'no model'}, not {wanted}.",
                    hint="Is it the right engine? --model must be one of the names that it serves.",
                )
            verdict = await probe(engine, self.dialects["chat"], logprobs_mode=self.settings.logprobs_mode)
            engine.tier, engine.tier_reason = verdict.tier, verdict.reason
            engine.logprobs_mode = verdict.logprobs_mode
            required = self.settings.require_tier or engine.adapter.require_tier
            if required == "train" and engine.tier != "train":
                raise EngineError(
                    "tier_too_low",
                    f"The engine at {engine.url} is not good enough to train on: {engine.tier_reason}.",
                    hint="Serve a newer vLLM, or say --require-tier eval if text alone is enough.",
                )
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _locate_engine(self) -> tuple[str, str]:
        kind, where = the_engine(self.settings)
        if kind == "scripted":
            # A server of its own; loaded only where it is asked for.
            from capture.scripted import ScriptedEngine, load_rules

            try:
                self._scripted = ScriptedEngine(load_rules(Path(where)) if where else None)
            except (OSError, ValueError) as error:
                raise UsageError(f"The rules in {where} can't be used: {error}") from error
            return kind, await self._scripted.start()
        assert where is not None
        return kind, where

    async def _identify(self, engine: Engine) -> None:
        end = time.monotonic() + self.settings.engine_wait
        while True:
            try:
                await engine.identify()
            except EngineError as error:
                if error.code != "engine_unreachable" or time.monotonic() >= end:
                    raise
                await asyncio.sleep(ENGINE_POLL_S)
            else:
                return

    def _engine_key(self, kind: str) -> str | None:
        for given in self.settings.engine_key_file:
            name, _, file = given.partition("=")
            if name != kind:
                raise UsageError(f"--engine-key-file {name}=… names no engine.", hint=f"The engine's name is {kind}.")
            return read_key(Path(file))
        return None

    def _find_admin_key(self) -> str | None:
        settings = self.settings
        if settings.no_admin_key:
            if not is_loopback(parse_address(settings.admin_listen)[0]):
                raise UsageError(
                    "--no-admin-key works on loopback only.", hint="Leave it out, or set --admin-listen 127.0.0.1:8401."
                )
            _log.warning("the control plane takes requests without a key (--no-admin-key)")
            return None
        key = find_key(settings)
        if key is None:
            key = secrets.token_urlsafe(32)
            file = key_path(settings.store)
            try:
                handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except OSError as error:
                raise UsageError(
                    f"The admin key can't be written to {file}: {error.strerror}.", hint="Name one: --admin-key-file."
                ) from error
            with os.fdopen(handle, "w") as out:
                out.write(key + "\n")
        return key

    def _place(self) -> Place:
        engine = self.engine
        return Place(
            url=self.data_url,
            loopback=is_loopback(parse_address(self.settings.listen)[0]),
            model=self.settings.model or next(iter(engine.models), None),
            tier=engine.tier,
            tier_reason=engine.tier_reason,
            logprobs_mode=engine.logprobs_mode,
        )

    # The listeners

    def _control_app(self) -> web.Application:
        app = web.Application(middlewares=api.middlewares(self), client_max_size=64 * 2**20)
        app.add_routes(api.routes(self))
        return app

    def _data_app(self) -> web.Application:
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", self._data)
        app.on_response_prepare.append(_no_additions)
        return app

    async def _listen(self, app: web.Application, address: str) -> str:
        host, port = parse_address(address)
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=self.settings.shutdown_timeout,
            max_line_size=HEADER_LIMIT,
            max_field_size=HEADER_LIMIT,
        )
        await runner.setup()
        self._runners.append(runner)
        try:
            await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
        except OSError as error:
            raise UsageError(
                f"Can't listen on {address}: {error.strerror or error}.",
                hint="Choose another port; 0 takes a free one.",
            ) from error
        bound = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104  a comparison, not a bind
        return f"http://{shown}:{bound}"

    async def _data(self, incoming: web.Request) -> web.StreamResponse:
        headers, path = incoming.headers, incoming.rel_url.raw_path
        route = paths.locate(incoming.method, path, headers=headers, allowed=self.settings.allow_path)
        dialect = self.dialects.get(route.dialect, self.dialects["chat"])
        try:
            if route.kind == "health":
                return web.json_response({"ok": True, "nonce": self.nonce})
            secret = paths.find_secret(headers, incoming.query_string, route)
            live = await self.rollouts.admit(secret)
            return await self._serve(incoming, live, route, dialect)
        except TreeringError as error:
            return relay.error_response(error, dialect)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:  # noqa: BLE001  whatever it is, the agent gets an error in its dialect and the log the rest
            _log.exception("a request to %s failed", route.kind)
            ours = CaptureError("internal", "Treering failed.", hint="Its log says where; please report it.")
            return relay.error_response(ours, dialect)

    async def _serve(
        self, incoming: web.Request, live: Live, route: paths.Route, dialect: Dialect
    ) -> web.StreamResponse:
        limit = self.settings.max_body_mib * 2**20
        if route.kind in ("call", "count") and route.dialect in self.dialects:
            target = Target(
                model=route.target or None,
                streamed=route.streamed,
                sse=incoming.query.get("alt") == "sse",
                headers={name.lower(): value for name, value in incoming.headers.items()},
            )
            if route.kind == "call":
                return await relay.serve(self._calls, incoming, live, dialect, target, max_body=limit)
            return await relay.count(self.engine, incoming, live, dialect, target, max_body=limit)
        if route.kind == "stored" and route.dialect in self.dialects:
            return _json(await self._calls.stored(live, route.target))
        if route.kind == "relay":
            return await relay.forward(self.engine, incoming, live, route.target, max_body=limit)
        if route.kind == "models":
            names = dict.fromkeys([*filter(None, [live.rules.model]), *self.engine.models])
            return _json(dialect.models([self._card(name) for name in names]))
        if route.kind == "model":
            if live.rules.strict_model and route.target not in (live.rules.model, *self.engine.models):
                raise ClientError("model_not_found", f"There is no model {route.target!r} here.", status=404)
            return _json(dialect.model(self._card(route.target)))
        raise ClientError(
            "not_found",
            f"{incoming.method} {incoming.path} is not served here.",
            hint="Treering serves the model routes that it can capture; --allow-path lets others through.",
            status=404,
        )

    def _card(self, name: str) -> dict[str, Any]:
        length = self.engine.identity.max_model_len if self.engine.identity else None
        return {"id": name, "created": 0, "max_model_len": length}


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


async def _no_additions(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Keep aiohttp from adding its name to what the engine sent."""
    del request
    if "Server" in response.headers and "aiohttp" in response.headers["Server"]:
        del response.headers["Server"]
