"""`treering serve` and `treering scripted`: start, say where, wait for a signal, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from capture import heap, limits, logs
from capture.admission import PINNABLE
from capture.app import Appliance
from capture.cli import Given
from capture.errors import UsageError
from capture.onboarding import given_engines
from capture.scripted import Rules, ScriptedEngine, load_rules
from capture.settings import Settings, key_path, parse_address
from capture.upstream import Engine
from capture.values import nearest

_log = logging.getLogger("treering")

CLOSE_GRACE_S = 15.0
"""Beyond `shutdown_timeout`, for records to be written; after it the process ends as after a kill -9, which loses no
call that an agent saw end."""


MOST_PACE_S = 60.0
"""A minute a token is slower than any test needs."""


class Server(Protocol):
    """What can be started and closed."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def serve(given: Given) -> int:
    """Run the appliance until a signal."""
    settings = given.settings
    for kind, where in given_engines(settings):
        if kind == "scripted" and where:
            read_rules(where)
    check_defaults(settings)
    stream = None
    if settings.workers > 1:
        from capture.processes.lines import stderr

        stream = stderr()
    stop_logs = logs.setup(settings.log_format, settings.log_level, stream=stream)
    try:
        return run(_serve(settings))
    finally:
        stop_logs()


def scripted(given: Given) -> int:
    """Run the scripted engine alone until a signal."""
    asked = given.arguments
    host, port = parse_address(asked["listen"])
    if not 0 <= asked["pace"] <= MOST_PACE_S:
        hint = "give the seconds that a token takes, such as 0.02"
        raise UsageError(f"--pace: {asked['pace']} is not between 0 and {MOST_PACE_S:g} seconds", hint=hint)
    rules = read_rules(asked["rules"]) if asked["rules"] else None
    return run(_scripted(rules, host, port, asked["pace"]))


def read_rules(path: str) -> Rules:
    """Read the scripted engine's rules. Raises `UsageError` saying what is wrong with them."""
    try:
        return load_rules(Path(path))
    except OSError as error:
        hint = "name a file that you may read, or scripted alone for the built-in rules"
        raise UsageError(f"can't read the rules in {path}: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UsageError(str(error), hint="docs/scripted.md has the form of rules") from error


def check_defaults(settings: Settings) -> None:
    """Check the names of pinned values and limits, which the table of settings doesn't know. Raises `UsageError`."""
    known_of = (("--sampling", settings.sampling, PINNABLE), ("--limits", settings.limits, limits.NAMES))
    for flag, given, known in known_of:
        for name in given:
            if name not in known:
                raise UsageError(f"{flag}: unknown {name}{nearest(name, known)}", hint=f"known: {', '.join(known)}")
    for name, value in settings.limits.items():
        if (wrong := limits.fault(name, value)) is not None:
            told = wrong.removeprefix("`limits.").replace("`", "", 1)
            raise UsageError(f"--limits: {told}", hint="docs/limits.md says what each takes")


def run(work: Coroutine[Any, Any, int]) -> int:
    """Run `work` on a loop of the fastest kind that there is."""
    heap.hold()
    with asyncio.Runner(loop_factory=_loop()) as runner:
        return runner.run(work)


def first_lines(appliance: Appliance, *, keyed: bool = False) -> str:
    """Return what a person needs to know first: where agents connect, what answers them, where it is kept, the page.

    With `keyed` the page's address brings the key along, if Treering made it: for a terminal, and for no log.
    """
    key = "no admin key" if appliance.admin_key is None else _where_key(appliance.settings)
    return (
        f"agents   {appliance.data_url}/v1\n"
        + "".join(f"engine   {_told(engine, appliance.settings)}\n" for engine in appliance.fleet.engines)
        + f"control  {appliance.control_url} ({key}), store {appliance.store.where}\n"
        + f"page     {appliance.control_url}/{_behind_hash(appliance) if keyed else ''}\n"
    )


def _behind_hash(appliance: Appliance) -> str:
    # A key that the operator chose is not ours to show.
    ours = not appliance.settings.admin_key_file and not appliance.settings.admin_key
    return f"#key={appliance.admin_key}" if ours and appliance.admin_key is not None else ""


def _told(engine: Engine, settings: Settings) -> str:
    who = engine.identity
    model = settings.model or (who.models[0] if who and who.models else "no model")
    version = f" {who.version}" if who and who.version else ""
    return f"{engine.kind}{version} at {engine.url}, model {model}, tier {engine.tier}"


def _where_key(settings: Settings) -> str:
    if settings.admin_key_file:
        return f"key in {settings.admin_key_file}"
    return "key in TREERING_ADMIN_KEY" if settings.admin_key else f"key in {key_path(settings.store)}"


async def until_signal(server: Server, *, started: Callable[[], None], close_s: float) -> int:
    """Start a server, call `started`, wait for a signal, close within `close_s` seconds; return the exit code.

    0 for SIGTERM, 130 for SIGINT. A signal during the start cancels it; a second one ends the process at once.
    """
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    came: asyncio.Future[int] = loop.create_future()
    starting = True

    def on(number: int) -> None:
        if came.done():
            os._exit(128 + number)
        came.set_result(number)
        if starting:
            main.cancel()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on, each)
    try:
        try:
            await server.start()
        except asyncio.CancelledError:
            if came.done():
                return _code(came.result())
            raise
        starting = False
        try:
            started()
            number = await came
            _say("stopping; a second signal stops at once\n")
            return _code(number)
        finally:
            try:
                async with asyncio.timeout(close_s):
                    await server.close()
            except TimeoutError:
                _log.warning("closing took longer than %g s and was given up", close_s)
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)


async def _serve(settings: Settings) -> int:
    if settings.workers > 1:
        # Only here: few need it, and it brings much.
        from capture.processes.supervisor import Supervisor

        appliance: Appliance = Supervisor(settings)
    else:
        appliance = Appliance(settings)
    # Each of the two listeners may take the whole of `shutdown_timeout`.
    close_s = 2 * settings.shutdown_timeout + CLOSE_GRACE_S
    return await until_signal(
        appliance, started=lambda: _say(first_lines(appliance, keyed=sys.stderr.isatty())), close_s=close_s
    )


class _Alone:
    """The scripted engine as a server of its own."""

    def __init__(self, engine: ScriptedEngine, host: str, port: int) -> None:
        self._engine = engine
        self._host, self._port = host, port
        self.url = ""

    async def start(self) -> None:
        try:
            self.url = await self._engine.start(self._host, self._port)
        except OSError as error:
            hint = "choose another address with --listen; port 0 takes any that is free"
            raise UsageError(
                f"can't listen on {self._host}:{self._port}: {error.strerror or error}", hint=hint
            ) from error

    async def close(self) -> None:
        await self._engine.close()


async def _scripted(rules: Rules | None, host: str, port: int, pace_s: float) -> int:
    alone = _Alone(ScriptedEngine(rules, pace_s=pace_s), host, port)
    return await until_signal(alone, started=lambda: _say(f"scripted engine on {alone.url}\n"), close_s=CLOSE_GRACE_S)


def _code(number: int) -> int:
    return 130 if number == signal.SIGINT else 0


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        # Absent on some platforms.
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
