"""Checks of an installation: each a line with a level and what to do.

Rules:
- Nothing is changed: no store is made, no migration climbed, no key written; the engine is sent what the probe sends,
  and two turns of a conversation.
- What is said is safe to paste: no key, no secret, and no password of a URL.
- A check that can't be made says so as a warning; it never passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import resource
import shutil
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import apsw

from capture import addresses, database
from capture.checks import Check
from capture.checks import fail as _fail
from capture.checks import ok as _ok
from capture.checks import warn as _warn
from capture.client import read_key
from capture.dialects.chat import Chat
from capture.errors import TreeringError, UsageError
from capture.exposure import exposed
from capture.onboarding import ADAPTERS, engine_key, given_engines
from capture.pinning.pins import Pins
from capture.probe import probe
from capture.round_trip import round_trip
from capture.scripted import ScriptedEngine, load_rules
from capture.settings import Settings, is_loopback, key_path, parse_address, store_path
from capture.store.base import FORMAT_VERSION
from capture.tunnel_trial import attempt
from capture.upstream import Engine, whole
from capture.version import version
from tunnel.errors import SpecError, TunnelError
from tunnel.spec import parse

ENGINE_S = 90.0
"""For all that is asked of the engine: its identity, and the probe's tiny calls, the first of which may compile."""

SPACE_WARN, SPACE_FAIL = 5 * 2**30, 256 * 2**20
"""Bytes free where the store lies: a day of long rollouts is a few GiB; below the second, a full disk is near."""

SHORT_CONTEXT = 16_384
"""Tokens: coding agents send some 10,000 before the first turn, tools included."""

SKEW_S = 3.0
"""Between two machines' clocks, of which one is read to the second."""

DESCRIPTORS = 4_096
"""Two a call in flight (agent and engine), for two thousand at once."""


_UNREACHED = "does it run, is this its address, does its log say more? --proxy-from-env asks it through a proxy"


async def examine(settings: Settings) -> list[Check]:
    """Make all checks, in the order in which to mend what they find."""
    checks = [_itself()]
    for check in (_keys, _exposure, _descriptors, _limits):
        checks += check(settings)
    checks += await addresses.look(settings)
    checks += _store(settings)
    if store_path(settings.store) is None:
        checks += await database.look(settings.store)
    return checks + await _engines(settings) + await _tunnels(settings)


def _itself() -> Check:
    """Say what is looked at: whoever is shown all this asks that first."""
    return _ok("treering", f"{version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")


def _keys(settings: Settings) -> list[Check]:
    """Are the key files there, readable, and nobody else's to read?"""
    files = [("admin key", Path(settings.admin_key_file))] if settings.admin_key_file else []
    beside = key_path(settings.store)
    if not files and not settings.admin_key and beside.exists():
        files.append(("admin key", beside))
    for item in settings.engine_key_file:
        name, _, file = item.partition("=")
        files.append((f"key of {name}", Path(file)))
    checks = []
    for name, path in files:
        try:
            read_key(path)
        except UsageError as error:
            checks.append(_fail(name, str(error), error.hint or "write the key into that file, readable by you alone"))
            continue
        checks.append(_ok(name, f"in {path}"))
    if not files and not settings.no_admin_key:
        where = "in TREERING_ADMIN_KEY" if settings.admin_key else f"none yet; one is made at start, in {beside}"
        checks.append(_ok("admin key", where))
    return checks


def _exposure(settings: Settings) -> list[Check]:
    """What can be reached, or read, by others?"""
    found = exposed(settings)
    named = {one.name for one in found}
    checks = [_warn(one.name, one.message, one.todo) for one in found]
    if "control plane" not in named:
        checks.append(_ok("control plane", f"on loopback ({settings.admin_listen}), with a key"))
    if "data plane" not in named:
        alone = is_loopback(parse_address(settings.listen)[0])
        reach = "from this machine alone" if alone else "by TLS; each call needs a rollout's secret"
        checks.append(_ok("data plane", f"on {settings.listen}: reached {reach}"))
    return checks


def _descriptors(settings: Settings) -> list[Check]:
    """How many connections may be open?"""
    del settings
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    if soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS:
        return [
            _ok(
                "descriptors", f"{shown}, for about {'any number' if shown == 'unlimited' else soft // 2} calls at once"
            )
        ]
    todo = f"ulimit -n {DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, 65_536)} before starting"
    return [_warn("descriptors", f"{shown}: about {max(0, soft - 64) // 2} calls at once, then connections fail", todo)]


def _limits(settings: Settings) -> list[Check]:
    """What bounds calls and rollouts here?"""
    each = -(-settings.max_in_flight // settings.workers)
    bounds = [f"{settings.max_in_flight} calls at an engine", f"{settings.max_queued} in line", f"{each} a process"]
    bounds += [f"{name}={value:g} a rollout" for name, value in settings.limits.items()]
    told = ", ".join(bounds)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Two a call: the agent's connection and the engine's.
    if soft != resource.RLIM_INFINITY and 2 * each + 64 > soft:
        todo = f"ulimit -n {2 * each + 1_024}, more --workers, or a lower --max-in-flight"
        return [_warn("limits", f"{told}; more calls than {soft} descriptors are for", todo)]
    return [_ok("limits", told)]


def _store(settings: Settings) -> list[Check]:
    """Can the store be written, is there space, is it of a version that we know?"""
    path = store_path(settings.store)
    if path is None:
        return []
    folder = path.absolute().parent
    if not folder.is_dir():
        return [_fail("store", f"{folder} is no folder", f"mkdir -p {folder}")]
    checks = []
    # SQLite keeps its log beside the file, so the folder too must be writable.
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        checks.append(_fail("store", f"{path} can't be written", f"give yourself write access to it and to {folder}"))
    elif not path.exists():
        checks.append(_ok("store", f"{path} will be made at start"))
    else:
        checks.append(_version(path))
    free = shutil.disk_usage(folder).free
    shown = f"{free / 2**30:,.1f} GiB free in {folder}"
    if free < SPACE_WARN:
        todo = "make room: with a full disk new calls get 507"
        checks.append((_fail if free < SPACE_FAIL else _warn)("space", shown, todo))
    else:
        checks.append(_ok("space", shown))
    return checks


def _version(path: Path) -> Check:
    try:
        with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            version = int(str(connection.pragma("user_version")))
    except apsw.Error as error:
        return _fail("store", f"{path} can't be read: {error}", "is it a store? name another with --store")
    if version > FORMAT_VERSION:
        message = f"{path} is of version {version}; this Treering knows up to {FORMAT_VERSION}"
        return _fail("store", message, "update Treering")
    older = f", brought to {FORMAT_VERSION} at start" if version < FORMAT_VERSION else ""
    return _ok("store", f"{path}, version {version}{older}")


async def _engines(settings: Settings) -> list[Check]:
    """Is each engine there, is it the one expected, and what can it give?"""
    try:
        given = given_engines(settings)
    except UsageError as error:
        return [_fail("engine", error.message, error.hint)]
    checks = []
    for kind, where in given:
        if kind == "scripted":
            checks += await _scripted(settings, where)
        else:
            assert where is not None, "every other kind has a URL"
            checks += await _engine(settings, kind, where)
    return checks


async def _engine(settings: Settings, kind: str, where: str) -> list[Check]:
    engine = None
    try:
        adapter = ADAPTERS["vllm" if kind == "scripted" else kind]()
        key, proxied = engine_key(settings, kind, where), settings.proxy_from_env and kind != "scripted"
        engine = Engine(adapter, where, key=key, kind=kind, proxied=proxied)
        await engine.open()
        async with asyncio.timeout(ENGINE_S):
            return await _answers(engine, settings)
    except TreeringError as error:
        # Its own hint is to ask the doctor.
        todo = _UNREACHED if error.code == "engine_unreachable" else error.hint
        return [_fail("engine", error.message, todo)]
    except TimeoutError:
        return [_fail("engine", f"{where} took longer than {ENGINE_S:g} s", "look at its log and its load")]
    finally:
        if engine is not None:
            await engine.close()


async def _tunnels(settings: Settings) -> list[Check]:
    """Does each tunnel that is set up carry? Each is opened for a moment, one after the other."""
    checks = []
    for text in settings.tunnel:
        try:
            url = await attempt(parse(text), settings)
        except SpecError as error:
            checks.append(_fail("tunnel", str(error), "docs/tunnels.md has a recipe for each"))
        except TunnelError as error:
            said = f" (its program said: {' | '.join(error.lines[-5:])})" if error.lines else ""
            todo = error.hint or "docs/tunnels.md says what to do about each message"
            checks.append(_fail("tunnel", f"{text}: {error.message}{said}", todo))
        except TreeringError as error:
            checks.append(_fail("tunnel", f"{text}: {error.message}", error.hint or "see --tls-cert and --tls-key"))
        else:
            told = f"{text} carries, from {url} to here"
            if is_loopback(urlsplit(url).hostname or ""):
                todo = "if agents run on other machines, give an address that they reach"
                checks.append(_warn("tunnel", f"{told}; that is loopback, which only this machine reaches", todo))
            else:
                checks.append(_ok("tunnel", told))
    return checks


async def _scripted(settings: Settings, rules: str | None) -> list[Check]:
    """Start the engine that lives in the appliance, by its rules, and ask it as any other."""
    try:
        scripted = ScriptedEngine(load_rules(Path(rules)) if rules else None)
    except (OSError, ValueError) as error:
        return [_fail("engine", f"the rules in {rules} can't be used: {error}", "mend them, or leave them out")]
    try:
        return await _engine(settings, "scripted", await scripted.start())
    finally:
        await scripted.close()


async def _answers(engine: Engine, settings: Settings) -> list[Check]:
    who = await engine.identify()
    models = ", ".join(who.models) or "no model"
    told = f"{engine.kind} {who.version or '(no version)'} at {engine.url}, serving {models}"
    if settings.model is not None and settings.model not in who.models:
        todo = "is it the right engine? --model must be one that it serves"
        return [_fail("engine", f"{told}; expected {settings.model}", todo)]
    checks = [_ok("engine", told), *_length(engine), *await _clock(engine)]
    verdict = await probe(engine, Chat(), logprobs_mode=settings.logprobs_mode)
    wanted = settings.require_tier or engine.adapter.require_tier
    shown = f"{verdict.tier}: {verdict.reason}"
    if verdict.tier == "train" or wanted == "eval":
        checks.append(_ok("tier", shown))
    else:
        checks.append(_fail("tier", shown, "serve a newer engine, or take text alone: --require-tier eval"))
    if verdict.logprobs_mode == "unknown":
        todo = "say it with --logprobs-mode, as the engine was started (vLLM's --logprobs-mode; raw by default)"
        checks.append(_warn("logprobs", "the probe can't tell what they are of", todo))
    else:
        checks.append(_ok("logprobs", verdict.logprobs_mode))
    if verdict.tier == "train":
        checks.append(await round_trip(engine, Chat()))
    if settings.tokens == "pinned":
        checks.append(await _pins(engine))
    return checks


async def _pins(engine: Engine) -> Check:
    """Can prompts be pinned there? With --tokens pinned the start fails where they can't."""
    if (why := await Pins(version=lambda _: None).unable(engine)) is not None:
        return _fail("pinned", f"prompts can't be pinned there: {why}", "leave --tokens pinned out; docs/pinned.md")
    return _ok("pinned", "prompts can be pinned")


def _length(engine: Engine) -> list[Check]:
    """How long may a prompt be?"""
    length = engine.identity.max_model_len if engine.identity else None
    if length is None:
        return []
    if length < SHORT_CONTEXT:
        todo = "agents' prompts have 10,000 tokens before the first turn; serve it with a longer context"
        return [_warn("context", f"{length:,} tokens, prompt and reply together", todo)]
    return [_ok("context", f"{length:,} tokens, prompt and reply together")]


async def _clock(engine: Engine) -> list[Check]:
    """Do this machine and the engine's agree on the time? Records are read beside the engine's log."""
    answer = await engine.send("GET", "/v1/models")
    async with answer:
        # To its end, so that the connection is of further use.
        await whole(answer)
        said = answer.headers.get("Date")
    try:
        # It has whole seconds (RFC 9110, 5.6.7).
        skew = abs((datetime.now(UTC) - parsedate_to_datetime(said or "")).total_seconds())
    except (TypeError, ValueError):
        # Not every engine says it.
        return []
    if skew > SKEW_S:
        return [_warn("clock", f"{skew:.0f} s between this machine's and the engine's", "run NTP on both")]
    return [_ok("clock", f"within {SKEW_S:g} s of the engine's")]
