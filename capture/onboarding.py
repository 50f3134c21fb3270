"""From an `--engine` to an engine that may serve: reached, identified, probed, and good enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from capture.client import read_key
from capture.dialects.chat import Chat
from capture.engines.base import Adapter
from capture.engines.llamacpp import Llamacpp
from capture.engines.openai import OpenAI
from capture.engines.sglang import Sglang
from capture.engines.vllm import Vllm
from capture.errors import EngineError, UsageError
from capture.probe import probe
from capture.settings import Settings, parse_engine
from capture.upstream import Engine

if TYPE_CHECKING:
    from capture.scripted import ScriptedEngine

POLL_S = 1.0
"""Between two looks for an engine that is not up yet (`--engine-wait`)."""

ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "llamacpp": Llamacpp,
    "openai": OpenAI,
}
"""Kind of engine → its adapter. The scripted engine speaks vLLM's wire, so vLLM's adapter reads it."""


async def onboard(settings: Settings, kind: str, url: str, *, wait_s: float = 0.0) -> Engine:
    """Open an engine and settle what it gives; on failure nothing is left open.

    Raises `UsageError`, or `EngineError`: `engine_unreachable`, `engine_refused`, `wrong_model`, `tier_too_low`.
    """
    adapter = ADAPTERS["vllm" if kind == "scripted" else kind]()
    # The embedded engine is in this very process.
    proxied = settings.proxy_from_env and kind != "scripted"
    engine = Engine(adapter, url, key=engine_key(settings, kind, url), kind=kind, proxied=proxied)
    await engine.open()
    try:
        await _identify(engine, wait_s)
        wanted = settings.model
        if wanted is not None and wanted not in engine.models:
            raise EngineError(
                "wrong_model",
                f"The engine at {engine.url} serves {', '.join(engine.models) or 'no model'}, not {wanted}.",
                hint="Is it the right engine? --model must be one of the names that it serves.",
            )
        verdict = await probe(engine, Chat(), logprobs_mode=settings.logprobs_mode)
        engine.tier, engine.tier_reason = verdict.tier, verdict.reason
        engine.logprobs_mode = verdict.logprobs_mode
        required = settings.require_tier or adapter.require_tier
        if required == "train" and engine.tier != "train":
            raise EngineError(
                "tier_too_low",
                f"The engine at {engine.url} is not good enough to train on: {engine.tier_reason}.",
                hint="Serve a newer one, or say --require-tier eval if text alone is enough.",
            )
    except BaseException:  # cancelled or not, nothing stays open
        await engine.close()
        raise
    return engine


def scripted_engine(rules: str | None) -> ScriptedEngine:
    """Make the embedded engine, not yet started. Raises `UsageError` for rules that can't be used."""
    # A server of its own; loaded only where it is asked for.
    from capture.scripted import ScriptedEngine, load_rules

    try:
        return ScriptedEngine(load_rules(Path(rules)) if rules else None)
    except (OSError, ValueError) as error:
        hint = "docs/scripted.md has the form of rules"
        raise UsageError(f"The rules in {rules} can't be used: {error}", hint=hint) from error


def engine_key(settings: Settings, kind: str, url: str) -> str | None:
    """Return the key for an engine of that kind at that URL (`--engine-key-file NAME=FILE`), None if it has none.

    The operator's key is for the operator's engines: one that a rollout brings along gets it only if it is one of them.
    Raises `UsageError`.
    """
    places = [given[1] for given in map(parse_engine, settings.engine) if given[0] == kind]
    if url.rstrip("/").removesuffix("/v1").rstrip("/") not in places:
        return None
    for given in settings.engine_key_file:
        name, _, file = given.partition("=")
        if name == kind:
            return read_key(Path(file))
    return None


def given_engines(settings: Settings) -> list[tuple[str, str | None]]:
    """Return kind and target of each `--engine`. Raises `UsageError` when there is none, or one is named twice."""
    found = [parse_engine(text) for text in settings.engine]
    if not found:
        raise UsageError(
            "No engine is given.",
            hint="Give one: --engine vllm=http://HOST:PORT, or --engine scripted, which needs nothing else.",
        )
    if len(set(found)) < len(found):
        raise UsageError("An --engine is given twice.", hint="Name each engine once.")
    return found


async def _identify(engine: Engine, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while True:
        try:
            await engine.identify()
        except EngineError as error:
            if error.code != "engine_unreachable" or time.monotonic() >= end:
                raise
            await asyncio.sleep(POLL_S)
        else:
            return
