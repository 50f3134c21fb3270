"""A pinner for each engine, looked at again whenever the engine may be another."""

from __future__ import annotations

import asyncio

import aiohttp

from capture.errors import EngineError
from capture.pinning.pinner import Pinner
from capture.pinning.wire import WIRES
from capture.upstream import Engine, whole

ASK_S = 30.0
"""Limit of one rendering, or of one look's call."""


class Pinners:
    """Pinners by engine."""

    def __init__(self) -> None:
        self._pinners: dict[str, Pinner] = {}
        # By engine: how often it was away, and who it was, when it was looked at.
        self._seen: dict[str, tuple[int, object]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def __repr__(self) -> str:
        return f"<Pinners {self._pinners}>"

    async def of(self, engine: Engine) -> Pinner:
        """Return an engine's pinner, looked at since the engine last came up."""
        async with self._locks.setdefault(engine.name, asyncio.Lock()):
            now = (engine.returns, engine.identity)
            pinner = self._pinners.get(engine.name)
            if pinner is None:

                async def ask(path: str, body: bytes) -> tuple[int, bytes]:
                    return await _ask(engine, path, body)

                pinner = self._pinners[engine.name] = Pinner(
                    ask, model=next(iter(engine.models), None), wires=WIRES.get(engine.kind, WIRES["vllm"])
                )
            if self._seen.get(engine.name) != now:
                await pinner.look()
                self._seen[engine.name] = now
            return pinner

    def doubt(self, engine: Engine) -> None:
        """Have an engine looked at again before the next pin: it did not do as it was found to."""
        self._seen.pop(engine.name, None)


async def _ask(engine: Engine, path: str, body: bytes) -> tuple[int, bytes]:
    if engine.kind not in WIRES:
        raise EngineError("pins_unsupported", f"{engine.kind} has no route that renders messages to ids")
    try:
        async with asyncio.timeout(ASK_S):
            async with await engine.send("POST", path, body=body) as answer:
                return answer.status, await whole(answer)
    except (TimeoutError, aiohttp.ClientError) as error:
        raise EngineError("engine_unreachable", f"{engine.name} does not answer at {path}") from error
