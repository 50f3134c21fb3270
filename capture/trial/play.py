"""Plays scripts to an engine, through an appliance that lives as long as that takes.

The appliance is a whole one, on free ports of this machine and over a store of its own, so that what is measured is
what a rollout of an agent would be.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec

from capture.app import Appliance
from capture.errors import EngineError
from capture.settings import Settings
from capture.trial.scenarios import Ask, Script

Json = dict[str, Any]

LIMIT_S = 600.0
"""For one reply: a small machine may take minutes for a first one."""

KEPT = ("engine", "engine_key_file", "engine_wait", "model", "logprobs_mode")
"""Settings that a trial has from its user."""

More = Callable[[Ask], Json]


def _nothing(_: Ask) -> Json:
    return {}


class Trial:
    """An appliance of its own before an engine, and hands for both its planes."""

    def __init__(self, appliance: Appliance, session: aiohttp.ClientSession) -> None:
        self._appliance = appliance
        self._session = session

    @property
    def engine(self) -> str:
        """The engine's name, its kind and address."""
        return self._appliance.engine.name

    async def control(self, method: str, path: str, body: Json | None = None) -> Json:
        """Ask the control plane. Raises `EngineError` with its words where it refuses."""
        headers = {"Authorization": f"Bearer {self._appliance.admin_key}"}
        url = self._appliance.control_url + path
        async with self._session.request(method, url, json=body, headers=headers) as answer:
            form: Json = await answer.json()
        if answer.status >= 300:
            raise EngineError(form["error"]["code"], form["error"]["message"], hint=form["error"].get("hint"))
        return form

    async def unpinnable(self) -> str | None:
        """Say why nothing can be pinned at the engine, None where it can."""
        try:
            await self.control("POST", "/rollouts", {"tokens": "pinned", "labels": {"trial": "look"}})
        except EngineError as error:
            return error.message
        return None

    async def play(self, script: Script, *, tokens: str = "engine", more: More = _nothing) -> str:
        """Play a script in a rollout of its own, plain and streamed in turn; return the rollout's id.

        `more` are further fields of each request. Raises `EngineError` for a reply that is none.
        """
        rollout = await self.control("POST", "/rollouts", {"tokens": tokens, "require_tier": "eval"})
        with contextlib.suppress(StopIteration):
            asked = next(script)
            while True:
                reply = await self.say(rollout, asked, more(asked))
                asked = script.send(reply)
        return str(rollout["id"])

    async def say(self, rollout: Json, asked: Ask, more: Json) -> Json:
        """Have one call of a rollout; return the reply's message. Raises `EngineError` for a reply that is none."""
        body: Json = {"model": "m", "messages": asked.messages, "max_tokens": asked.max_tokens}
        if asked.tools:
            body["tools"] = asked.tools
        if asked.arguments:
            body["chat_template_kwargs"] = asked.arguments
        headers = {"Authorization": f"Bearer {rollout['secret']}"}
        url = f"{rollout['base_url']}/chat/completions"
        try:
            async with (
                asyncio.timeout(LIMIT_S),
                self._session.post(url, json={**body, **more}, headers=headers) as answer,
            ):
                text = await answer.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise EngineError("engine_unreachable", f"{self.engine} does not answer: {error}") from error
        if answer.status != 200:
            said = text[:300].decode("utf-8", "replace")
            raise EngineError("engine_refused", f"{self.engine} answered {answer.status}: {said}")
        await self.control("GET", f"/rollouts/{rollout['id']}?wait=idle&idle_s=0&timeout_s=10")
        if text.startswith(b"data:"):
            # What a stream came to is in the record.
            graph = await self.control("GET", f"/rollouts/{rollout['id']}/graph")
            call = await self.control("GET", f"/rollouts/{rollout['id']}/calls/{graph['calls'][-1]['n']}")
            text = msgspec.json.encode(call["reply"])
        message: Json = msgspec.json.decode(text)["choices"][0]["message"]
        return message


@contextlib.asynccontextmanager
async def trial(given: Settings) -> AsyncIterator[Trial]:
    """Run an appliance before the engine of some settings for a block.

    Raises `EngineError` where the engine is not there, as `treering serve` does.
    """
    kept = {name: getattr(given, name) for name in KEPT}
    with tempfile.TemporaryDirectory() as folder:
        appliance = Appliance(
            Settings(
                **kept,
                listen="127.0.0.1:0",
                admin_listen="127.0.0.1:0",
                store=f"sqlite:///{folder}/trial.db",
                durability="none",
                require_tier="eval",
                shutdown_timeout=1.0,
            )
        )
        await appliance.start()
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
                yield Trial(appliance, session)
        finally:
            await appliance.close()
