"""`treering verify`: hand captured sequences back to the engine, and compare its scores with the captured logprobs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import numpy as np

from capture.cli import Given
from capture.client import Client, client, decode, segment
from capture.errors import EngineError, UsageError
from capture.onboarding import ADAPTERS, engine_key
from capture.rescore import rescore
from capture.settings import Settings, parse_engine
from capture.upstream import Engine
from graph.rescoring import Now, compare
from graph.sequences import Sequence, Span

LIMIT_S = 600.0
"""For one row: a prefill of 100,000 tokens takes minutes on a CPU."""


def verify(given: Given) -> int:
    """Rescore rollouts; 1 if one differs by more than is allowed, or gave nothing to compare."""
    asked = given.arguments
    plane = client(given.settings, asked["url"])
    mean, largest = asked["mean"], asked["largest"]
    engines = decode(plane.request("GET", "/engines"))["engines"]
    told = []
    for name in asked["id"]:
        one = _one(plane, name, asked, given.settings, engines)
        one["ok"] = one["tokens"] > 0 and one["missing"] == 0 and one["mean"] <= mean and one["largest"] <= largest
        told.append(one)
        if not asked["json"]:
            sys.stdout.write(_said(one))
    if asked["json"]:
        sys.stdout.buffer.write(msgspec.json.encode({"rollouts": told}) + b"\n")
    return int(not all(one["ok"] for one in told))


def _one(
    plane: Client, name: str, asked: Mapping[str, Any], settings: Settings, engines: list[dict[str, Any]]
) -> dict[str, Any]:
    query = {"roles": asked["roles"], "open": 1 if asked["open"] else None}
    form = decode(plane.request("GET", f"/rollouts/{segment(name)}/sequences", query=query))
    graph = decode(plane.request("GET", f"/rollouts/{segment(name)}/graph"))
    sampled_by = {call["n"]: call["engine"] for call in graph["calls"]}
    rows = [_row(row) for row in form["sequences"]]
    trained = {n for row in rows for n in row.trained}
    known = _engine(settings, engines, {sampled_by.get(n) for n in trained}, graph["rollout"]["model"])
    scores = asyncio.run(_rescored(settings, known, rows))
    now = Now(name=known["name"], weights=known["weights"], logprobs_mode=form["logprobs_mode"])
    compared = compare(rows, scores, engines=sampled_by, now=now)
    return {"rollout": name, "engine": known["name"], **msgspec.to_builtins(compared)}


def _engine(
    settings: Settings, engines: list[dict[str, Any]], used: set[str | None], model: str | None
) -> dict[str, Any]:
    """Return the engine to ask: the one given, else the one that sampled, as the control plane knows it."""
    if settings.engine:
        kind, url = parse_engine(settings.engine[0])
        if kind == "scripted" or url is None:
            raise UsageError(
                "--engine: the scripted engine lives in the appliance, and has no address of its own",
                hint="leave --engine out: the engine that sampled is asked",
            )
        name = f"{kind}={url}"
        named = next((engine for engine in engines if engine["url"] == url.rstrip("/").removesuffix("/v1")), {})
        return {
            "name": name,
            "kind": kind,
            "url": url,
            "weights": named.get("weights"),
            "model": settings.model or model,
        }
    fitting = [engine for engine in engines if engine["name"] in used] or engines[:1]
    if not fitting:
        raise UsageError("the control plane names no engine", hint="name one: --engine vllm=http://HOST:PORT")
    chosen = fitting[0]
    served = chosen["models"]
    fits = model if model in served or not served else served[0]
    return {**chosen, "model": settings.model or fits}


async def _rescored(settings: Settings, known: Mapping[str, Any], rows: list[Sequence]) -> list[Any]:
    # The scripted engine speaks vLLM's wire.
    kind = "vllm" if known["kind"] == "scripted" else known["kind"]
    key, proxied = engine_key(settings, kind, known["url"]), settings.proxy_from_env
    engine = Engine(ADAPTERS[kind](), known["url"], key=key, proxied=proxied)
    await engine.open()

    async def ask(path: str, body: bytes) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(LIMIT_S):
                async with await engine.send("POST", path, body=body) as answer:
                    return answer.status, await answer.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            why = str(error) or f"no answer within {LIMIT_S:g} s"
            raise EngineError("engine_unreachable", f"{known['name']} does not answer: {why}.") from error

    try:
        # One after another: a batch is what makes an engine's sums differ.
        return [await rescore(ask, row.input_ids, model=known["model"] or "") for row in rows]
    finally:
        await engine.close()


def _row(row: Mapping[str, Any]) -> Sequence:
    mask = np.array(row["loss_mask"], np.uint8)
    spans = tuple(msgspec.convert(span, Span) for span in row["spans"])
    trained = {span.call for span in spans if span.kind == "sampled" and mask[span.start : span.end].any()}
    logprobs = np.array([np.nan if each is None else each for each in row["logprobs"]], np.float32)
    return Sequence(
        row=row["row"],
        conversation=row["conversation"],
        role=row["role"],
        calls=tuple(row["calls"]),
        trained=tuple(sorted(trained)),
        input_ids=np.array(row["input_ids"], np.int32),
        loss_mask=mask,
        logprobs=logprobs,
        spans=spans,
        n_trained_tokens=row["n_trained_tokens"],
        sampling=row["sampling"],
    )


def _said(one: Mapping[str, Any]) -> str:
    if not one["tokens"]:
        return f"{one['rollout']}: nothing to compare: no trained token\n"
    verdict = "ok" if one["ok"] else "DIFFERS"
    counted = f"{one['tokens']:,} trained tokens in {one['rows']} rows"
    lines = [
        f"{one['rollout']}: {verdict}: {counted}, rescored by {one['engine']}",
        f"  |difference| mean {one['mean']:.6f}, largest {one['largest']:.6f}; bias {one['bias']:+.6f} nats",
    ]
    if (worst := one["worst"]) is not None and one["largest"] > 0:
        lines.append(
            f"  largest at row {worst['row']}, position {worst['at']}, call {worst['call']}, token {worst['token']}: "
            f"captured {worst['captured']:.4f}, rescored {worst['rescored']:.4f}"
        )
    if one["missing"]:
        lines.append(f"  {one['missing']} trained tokens got no score")
    lines += [f"  {because}" for because in one["because"]]
    if not one["ok"] and not one["because"]:
        lines.append("  nothing explains it: see that this engine serves the same model, in the same precision")
    return "\n".join(lines) + "\n"
