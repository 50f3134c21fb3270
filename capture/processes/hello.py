"""What a worker is told at its start: the settings, and what the supervisor made of the engines.

Engines are probed once, by the supervisor: a probe asks an engine for tokens, and its verdict is the same for all.
"""

from __future__ import annotations

import json
from typing import Literal

import msgspec

from capture.engines.base import Identity
from capture.onboarding import ADAPTERS, engine_key
from capture.settings import Settings
from capture.upstream import Engine
from graph.records import LogprobsMode


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as the supervisor found it."""

    kind: str
    url: str
    identity: Identity | None
    tier: Literal["train", "eval"]
    tier_reason: str
    logprobs_mode: LogprobsMode
    refused: tuple[str, ...]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker needs to know."""

    # As JSON, for pinned values may be what msgpack doesn't take.
    settings: str
    nonce: str
    data_url: str
    engines: tuple[Told, ...]
    # Where the store is, if the supervisor writes for all; None when each process has its own way to it.
    store: str | None


def told(engine: Engine) -> Told:
    """Return what there is to tell of an engine."""
    return Told(
        kind=engine.kind,
        url=engine.url,
        identity=engine.identity,
        tier=engine.tier,
        tier_reason=engine.tier_reason,
        logprobs_mode=engine.logprobs_mode,
        refused=tuple(sorted(engine.refused)),
    )


async def adopt(settings: Settings, known: Told) -> Engine:
    """Open an engine that was probed elsewhere. Raises `UsageError` for a key file that can't be read."""
    adapter = ADAPTERS["vllm" if known.kind == "scripted" else known.kind]()
    engine = Engine(
        adapter,
        known.url,
        key=engine_key(settings, known.kind, known.url),
        kind=known.kind,
        proxied=settings.proxy_from_env and known.kind != "scripted",
    )
    await engine.open()
    engine.identity = known.identity
    engine.tier, engine.tier_reason = known.tier, known.tier_reason
    engine.logprobs_mode = known.logprobs_mode
    engine.refused = set(known.refused)
    engine.healthy, engine.reason = True, ""
    return engine


def pack_settings(settings: Settings) -> str:
    """Return the settings that workers need, as JSON.

    The admin key and the tunnels are the supervisor's; an engine's places are shared out among the workers.
    """
    workers = settings.workers
    mine = msgspec.structs.replace(
        settings,
        admin_key=None,
        tunnel=(),
        max_in_flight=-(-settings.max_in_flight // workers),
        max_queued=-(-settings.max_queued // workers),
    )
    return json.dumps(msgspec.to_builtins(mine))


def settings(packed: str) -> Settings:
    """Return the settings."""
    return msgspec.convert(json.loads(packed), Settings)
