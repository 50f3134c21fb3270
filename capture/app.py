"""Wiring: settings → store → engine → rollouts → two listeners.

The data plane is what agents see, and all that a tunnel may ever publish; the control plane is on a port of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiohttp import web

from capture import api, certificates, clock, exposure, guard, keys, listener, logs, mending, paths, relay, tools
from capture.calls import Calls
from capture.client import find_key
from capture.dialects import repeats
from capture.dialects.base import Dialect, Target
from capture.dialects.chat import Chat
from capture.dialects.completions import Completions
from capture.dialects.gemini import Gemini
from capture.dialects.messages import Messages
from capture.dialects.responses import Responses, retrieved
from capture.errors import CaptureError, ClientError, EngineError, StoreError, TreeringError, UsageError
from capture.events import Tide
from capture.fleet import Fleet
from capture.gate import Gate
from capture.holds import Holds
from capture.live import Live
from capture.lookout import Lookout
from capture.metrics import Metrics
from capture.news import News
from capture.onboarding import given_engines, onboard, scripted_engine
from capture.reach import Reach
from capture.registration import Defaults, Place
from capture.rollouts import Rollouts
from capture.settings import Settings, is_loopback, key_path, parse_address
from capture.store import open_store, retention
from capture.store.base import Entry, Store
from capture.tasks import spawn
from capture.tracing import Tracing
from capture.upstream import HEADER_LIMIT, Engine
from graph.records import Notice
from tunnel.base import Local, url_at

if TYPE_CHECKING:
    from capture.scripted import ScriptedEngine

KEEPALIVE_S = 3600.0
"""How long an agent's idle connection is kept: agents run tools for minutes between turns, and a POST on a connection
that closes just then fails."""

BACKLOG = 1024
"""Connections waiting to be accepted: a batch of rollouts starts within one second."""

LAST_BYTES_S = 0.5
"""For the end of what was served last to pass through a tunnel, which is cut where it stands when it closes."""

SHUTDOWN_GRACE_S = 5.0
"""For what was cut at shutdown to write its record."""

_log = logging.getLogger("treering")


class Appliance:
    """One running Treering."""

    keeps_house = True
    """Whether it drops what is old; of several processes over one store one does."""

    def __init__(self, settings: Settings, *, store: Store | None = None) -> None:
        """`store` is the one to use in place of that of the settings; not yet opened."""
        self.settings = settings
        self.nonce = secrets.token_hex(16)
        self.admin_key: str | None = None
        self.tls = certificates.serving(settings)
        self.data_url = ""
        self.control_url = ""
        self.news = News()
        self.store = store or open_store(settings.store, durability=settings.durability)
        spoken: tuple[Dialect, ...] = (Chat(), Completions(), Responses(), Messages(), Gemini())
        self.dialects = {dialect.name: dialect for dialect in spoken}
        self.fleet: Fleet
        self.reach = Reach(settings)
        self.rollouts = Rollouts(
            self.store,
            place=self._place,
            defaults=Defaults(sampling=settings.sampling, limits=settings.limits, tokens=settings.tokens),
            reach=self.reach,
            witness=self._witness,
            unpinnable=self._unpinnable,
            on_closed=lambda name: self.lookout.examine(name),
            on_judged=lambda name: self.lookout.refresh([name]),
            sleep_after_s=settings.sleep_after,
            rest=repeats.rest,
        )
        self.tide = Tide(self.store)
        self.metrics = Metrics()
        self._tracing = Tracing() if settings.otel else None
        self.lookout = Lookout(self, closed=self.metrics.closed)
        self._gate = Gate(self.rollouts)
        self.holds = Holds(self.store, places=settings.max_in_flight, longest=settings.max_queued)
        self._scripted: list[ScriptedEngine] = []
        self._watches: list[asyncio.Task[None]] = []
        self._calls: Calls
        self._runners: list[web.BaseRunner] = []
        # While what runs has its time, and the listener is still there for it.
        self._leaving = False

    @property
    def engine(self) -> Engine:
        """The engine named first."""
        return self.fleet.first

    def __repr__(self) -> str:
        return f"<Appliance {self.data_url} {self.control_url} {self.store.where}>"

    async def start(self) -> None:
        """Start everything, in the order of dependence; on failure nothing is left running.

        Raises `StoreError`, `UsageError`, or `EngineError`: `engine_unreachable`, `engine_refused`, `wrong_model`,
        `tier_too_low`.
        """
        began = clock.now()
        try:
            exposure.make_private(self.settings)
            await self.store.open()
            # A tunnel, or a balancer, that leads to any of them leads here.
            self.nonce = self.store.identity or self.nonce
            await self.holds.load()
            self.fleet = await self._start_fleet()
            self.metrics.know(self.fleet.engines)
            self._calls = Calls(
                rollouts=self.rollouts,
                store=self.store,
                fleet=self.fleet,
                relay_abort=self.settings.relay_abort,
                on_store_failure=self.settings.on_store_failure,
                log=logs.call_line,
                holds=self.holds,
                silence_s=self.settings.engine_silence,
                metrics=self.metrics,
                tracing=self._tracing,
            )
            if self.settings.tokens == "pinned":
                await self._need_pins()
            self.admin_key = self._find_admin_key()
            await self._open_planes()
            self._lead()
            if self.keeps_house and self.settings.store.startswith("sqlite:"):
                # Rollouts in a database may be another server's, on a tunnel of its own.
                self._watches.append(spawn(self._resume_ways(began), name="take up rollouts on tunnels"))
            self._watches += [
                spawn(self.reach.watch(), name="watch the tunnels"),
                spawn(self.fleet.watch(), name="watch the engines"),
                spawn(self.rollouts.watch(), name="watch rollouts at rest"),
                spawn(mending.watch(self.store, self.rollouts), name="watch a store that is down"),
                spawn(self.lookout.read(), name="examine what has closed"),
            ]
            if self.keeps_house:
                self._watches += [
                    spawn(self.lookout.watch(), name="tell of engines and tunnels"),
                    spawn(self.lookout.drop(), name="drop old events"),
                    spawn(self.lookout.catch_up(), name="summarise what was closed before"),
                ]
            if self.store.shared:
                self._watches += [
                    spawn(self.rollouts.heed(), name="heed what is sealed elsewhere"),
                    spawn(self.holds.watch(), name="heed what is held elsewhere"),
                ]
            if self.keeps_house and (policy := self._policy()).on:
                sweeping = retention.watch(self.store, policy, drop=self.rollouts.delete)
                self._watches.append(spawn(sweeping, name="drop what is old"))
        except BaseException:  # cancelled or not, nothing is left running
            await self.close()
            raise

    @property
    def held_bytes(self) -> int:
        """Bytes of requests in hand in this process."""
        return self._calls.held_bytes

    @property
    def serving(self) -> int:
        """How many processes serve agents."""
        return 1

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return what else `/ready` looks at, each with `ok` and `reason`."""
        return {}

    async def close(self) -> None:
        """Stop accepting, let streams finish within `shutdown_timeout`, then close the engine and, last, the store."""
        await self._close_tunnels()
        self.news.end()
        # Nobody new comes in by either door, before anybody is waited for.
        for site in [site for runner in self._runners for site in runner.sites]:
            await site.stop()
        async with asyncio.TaskGroup() as closing:
            for runner in self._runners:
                closing.create_task(runner.cleanup())
        self._runners.clear()
        try:
            async with asyncio.timeout(SHUTDOWN_GRACE_S):
                await self.rollouts.drained()
        except TimeoutError:
            _log.warning("calls were still being recorded when the time for shutting down was over")
        for watch in self._watches:
            watch.cancel()
        if self._watches:
            await asyncio.wait(self._watches)
            self._watches.clear()
        if self._tracing is not None:
            # In a thread: it sends what is queued, within the exporter's own time.
            await asyncio.to_thread(self._tracing.close)
        if hasattr(self, "fleet"):
            await self.fleet.close()
        for scripted in self._scripted:
            await scripted.close()
        self._scripted.clear()
        if (reason := await mending.mend(self.store, self.rollouts)) is not None:
            _log.error("the store is down at the end: %s; the marks of lost calls go with this process", reason)
        await self.store.close()

    # Start-up

    async def _start_fleet(self) -> Fleet:
        settings = self.settings
        engines: list[Engine] = []
        try:
            for kind, where in given_engines(settings):
                url = await self._start_scripted(where) if kind == "scripted" else where
                assert url is not None
                engines.append(await onboard(settings, kind, url, wait_s=settings.engine_wait))
        except BaseException:  # cancelled or not, no engine stays open
            for engine in engines:
                await engine.close()
            raise
        return Fleet(engines, allowed=settings.allow_engine, open_engine=self._open_guest)

    async def _start_scripted(self, rules: str | None) -> str:
        engine = scripted_engine(rules)
        self._scripted.append(engine)
        return await engine.start()

    async def _open_guest(self, url: str) -> Engine:
        # A rollout's own engine is of the kind of the server's first: its URL says where, not what.
        kind = self.fleet.first.kind
        return await onboard(self.settings, "vllm" if kind == "scripted" else kind, url)

    def _policy(self) -> retention.Policy:
        settings = self.settings
        archive = None if settings.archive is None else Path(settings.archive)
        return retention.Policy(keep_days=settings.keep_days, keep_gib=settings.keep_gib, archive=archive)

    def _find_admin_key(self) -> str | None:
        settings = self.settings
        if settings.no_admin_key:
            if not is_loopback(parse_address(settings.admin_listen)[0]):
                raise UsageError(
                    "--no-admin-key works on loopback only.", hint="Leave it out, or set --admin-listen 127.0.0.1:8401."
                )
            _log.warning("the control plane takes requests without a key (--no-admin-key)")
            return None
        for one in exposure.files(settings):
            _log.warning("%s (%s)", one.message, one.todo)
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

    def _lead(self) -> None:
        """Let tunnels lead to the data plane, once it listens."""
        host, _ = parse_address(self.settings.listen)
        parts = urlsplit(self.data_url)
        assert parts.port is not None
        self.reach.start(
            Local(host=host, port=parts.port, scheme=parts.scheme),
            url=self.data_url,
            loopback=is_loopback(host),
            nonce=self.nonce,
            on_lost=self._tunnel_lost,
        )

    def _tunnel_lost(self, rollouts: frozenset[str], known: dict[str, Any]) -> None:
        for name in rollouts:
            self.store.notice(name, Notice(code="tunnel_lost", at=clock.now(), data=known))

    async def _resume_ways(self, before: str) -> None:
        """Take up the rollouts that an earlier run gave a tunnel's address."""
        told = await self.rollouts.led(before)
        if told:
            await self.reach.resume(told)
        for name in told:
            # One that closed meanwhile was released before it was taken up.
            if (entry := await self.store.get(name)) is None or entry.rollout.state == "closed":
                self.reach.release(name)

    async def _close_tunnels(self) -> None:
        """Close the tunnels before their listener, after what comes through them has had its time.

        A tunnel that outlived its listener would lead to whatever listens on that port next.
        """
        if self.reach.open:
            await self.leave()
            try:
                async with asyncio.timeout(self.settings.shutdown_timeout):
                    await self._served()
                await asyncio.sleep(LAST_BYTES_S)
            except (TimeoutError, StoreError):
                pass
        await self.reach.close()

    async def leave(self) -> None:
        """Take no more requests on the data plane, though it listens."""
        self._leaving = True

    async def _served(self) -> None:
        """Return when no call runs."""
        await self.rollouts.drained()

    async def _need_pins(self) -> None:
        """See that prompts can be pinned at every engine. Raises `EngineError` `pins_unsupported`."""
        for engine in self.fleet.engines:
            if (why := await self._calls.pins.unable(engine)) is not None:
                raise EngineError(
                    "pins_unsupported",
                    f"Prompts can't be pinned at {engine.name}: {why}.",
                    hint="Leave --tokens pinned out, or see docs/pinned.md for what an engine must do.",
                )

    async def _unpinnable(self, own: str | None) -> str | None:
        engine = self.fleet.first if own is None else await self.fleet.admit(own)
        return await self._calls.pins.unable(engine)

    def _witness(self, entry: Entry) -> dict[str, Any]:
        """Say what is known of why a rollout made no calls."""
        own = entry.registration.engine
        engines = [engine for engine in self.fleet.all if own is None or engine.url == own.rstrip("/")]
        down = [f"{engine.name}: {engine.reason}" for engine in engines if not engine.healthy]
        reachable = len(down) < len(engines)
        known: dict[str, Any] = {"engine": "reachable" if reachable else "; ".join(down) or "unknown"}
        if (tunnel := self.reach.told(entry.rollout.id)) is not None:
            known["tunnel"] = "up" if tunnel["healthy"] else f"down: {tunnel['reason']}"
        return known

    async def _place(self, own: str | None) -> Place:
        engine = self.fleet.first if own is None else await self.fleet.admit(own)
        return Place(
            model=self.settings.model or next(iter(engine.models), None),
            tier=engine.tier,
            tier_reason=engine.tier_reason,
            logprobs_mode=engine.logprobs_mode,
        )

    # The listeners

    async def _open_planes(self) -> None:
        self.data_url = await self._listen(await self._data_runner(), self.settings.listen)
        await self._open_control_plane()

    async def _open_control_plane(self) -> None:
        runner = await self._set_up(listener.Runner(self._control_app(), refuse=guard.refusal, **self._serving()))
        self.control_url = await self._listen(runner, self.settings.admin_listen)

    async def _data_runner(self) -> web.BaseRunner:
        return await self._set_up(
            listener.Plain(
                self._data,
                refuse=lambda error: relay.error_response(error, self.dialects["chat"]),
                **self._serving(),
            )
        )

    def _control_app(self) -> web.Application:
        app = web.Application(middlewares=api.middlewares(self), client_max_size=64 * 2**20)
        app.add_routes(api.routes(self))
        app.on_response_prepare.append(guard.protect)
        return app

    def _serving(self) -> dict[str, Any]:
        """Return how both planes are served, as aiohttp's server takes it."""
        return {
            "access_log": None,
            "handler_cancellation": True,
            "keepalive_timeout": KEEPALIVE_S,
            "shutdown_timeout": self.settings.shutdown_timeout,
            "max_line_size": HEADER_LIMIT,
            "max_field_size": HEADER_LIMIT,
        }

    async def _set_up(self, runner: web.BaseRunner) -> web.BaseRunner:
        """Make ready to serve; it is cleaned up with the appliance."""
        await runner.setup()
        self._runners.append(runner)
        return runner

    async def _listen(self, runner: web.BaseRunner, address: str) -> str:
        host, port = parse_address(address)
        try:
            await web.TCPSite(runner, host, port, backlog=BACKLOG, ssl_context=self.tls).start()
        except OSError as error:
            raise UsageError(
                f"Can't listen on {address}: {error.strerror or error}.",
                hint="Choose another port; 0 takes a free one.",
            ) from error
        return shown_url(address, runner.addresses[0][1], tls=self.tls is not None)

    async def _data(self, incoming: web.BaseRequest) -> web.StreamResponse:
        headers, path = incoming.headers, incoming.rel_url.raw_path
        route = paths.locate(incoming.method, path, headers=headers, allowed=self.settings.allow_path)
        dialect = self.dialects.get(route.dialect, self.dialects["chat"])
        if incoming.headers.get("Upgrade", "").lower() == "websocket":
            # Said at once, before the key is looked at: codex then uses plain HTTP at once.
            error = ClientError("no_websocket", "There is no WebSocket here.", hint="Use plain HTTP.", status=426)
            refusal = relay.error_response(error, dialect)
            refusal.headers["Connection"] = "close"
            refusal.force_close()
            return refusal
        try:
            if self._leaving:
                raise CaptureError("shutting_down", "Treering is shutting down.", status=503, retry_after_s=5.0)
            if route.kind == "health":
                return web.json_response({"ok": True, "nonce": self.nonce})
            secret = paths.find_secret(headers, incoming.query_string, route)
            for_tools = route.kind in ("state", "task")
            live = await self._gate.admit(secret, incoming.remote, whose="tools" if for_tools else "agent")
            with live.visited():
                listener.prove(incoming)
                return await self._serve(incoming, live, route, dialect)
        except TreeringError as error:
            refusal = relay.error_response(error, dialect)
            if error.status == 401 and error.retry_after_s is not None:
                refusal.force_close()
            return refusal
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:  # noqa: BLE001  whatever it is, the agent gets an error in its dialect and the log the rest
            _log.exception("a request to %s failed", route.kind)
            ours = CaptureError("internal", "Treering failed.", hint="Its log says where; please report it.")
            return relay.error_response(ours, dialect)

    async def _serve(
        self, incoming: web.BaseRequest, live: Live, route: paths.Route, dialect: Dialect
    ) -> web.StreamResponse:
        limit = self.settings.max_body_mib * 2**20
        if route.kind != "call":
            # A call is judged by the store when it arrives.
            await self.rollouts.fresh(live)
        if route.kind in ("call", "count") and route.dialect in self.dialects:
            target = Target(
                model=route.target or None,
                streamed=route.streamed,
                sse=incoming.query.get("alt") == "sse",
                headers={name.lower(): value for name, value in incoming.headers.items()},
            )
            if route.kind == "call":
                return await relay.serve(self._calls, incoming, live, dialect, target, max_body=limit)
            return await relay.count(self._calls, incoming, live, dialect, target, max_body=limit)
        if route.kind == "stored" and route.dialect in self.dialects:
            return _json(retrieved(await self._calls.stored(live, route.target)))
        if route.kind == "relay":
            query = paths.without_key(incoming.rel_url.raw_query_string)
            where = f"{route.target}?{query}" if query else route.target
            return await relay.forward(self._calls, incoming, live, where, max_body=limit)
        if route.kind in ("state", "task"):
            return await tools.serve(self.rollouts, incoming, live, route.kind)
        if route.kind == "models":
            names = dict.fromkeys([*filter(None, [live.rules.model]), *self.fleet.models])
            return _json(dialect.models([self._card(name) for name in names]))
        if route.kind == "model":
            if live.rules.strict_model and route.target not in (live.rules.model, *self.fleet.models):
                raise ClientError("model_not_found", f"There is no model {route.target!r} here.", status=404)
            return _json(dialect.model(self._card(route.target)))
        raise ClientError(
            "not_found",
            f"{incoming.method} {keys.masked(incoming.path)} is not served here.",
            hint="Treering serves the model routes that it can capture; --allow-path lets others through.",
            status=404,
        )

    def _card(self, name: str) -> dict[str, Any]:
        identity = self.fleet.first.identity
        length = identity.max_model_len if identity else None
        return {"id": name, "created": 0, "max_model_len": length}


def shown_url(address: str, port: int, *, tls: bool = False) -> str:
    """Return the URL of a listener on `address`, for people; `port` is the one that it got."""
    host, _ = parse_address(address)
    shown = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104  a comparison, not a bind
    return url_at(shown, port, scheme="https" if tls else "http")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
