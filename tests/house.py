"""A whole appliance for a test: on free ports, over a store in a temporary folder, with hands for both planes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from capture.app import Appliance
from capture.errors import StoreError
from capture.settings import Settings
from tests.engine import Engine

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


class House:
    """An appliance, an admin's hand and an agent's hand."""

    def __init__(self, appliance: Appliance, session: aiohttp.ClientSession) -> None:
        self.appliance = appliance
        self.session = session
        # Responses that a test opened by hand; closed at its end.
        self.opened: list[aiohttp.ClientResponse] = []

    async def control(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        """Ask the control plane; fails unless it answers with `status`."""
        headers = {"Authorization": f"Bearer {self.appliance.admin_key}", **options.pop("headers", {})}
        url = self.appliance.control_url + path
        async with self.session.request(method, url, headers=headers, **options) as answer:
            body = await answer.read()
            assert answer.status == status, (answer.status, body[:500])
        return json.loads(body) if body else None

    async def rollout(self, **body: Any) -> dict[str, Any]:
        """Register a rollout."""
        return await self.control("POST", "/rollouts", json=body, status=201)

    async def graph(self, rollout: dict[str, Any]) -> dict[str, Any]:
        return await self.control("GET", f"/rollouts/{rollout['id']}/graph")

    async def call(self, rollout: dict[str, Any], n: int) -> dict[str, Any]:
        return await self.control("GET", f"/rollouts/{rollout['id']}/calls/{n}")

    async def idle(self, rollout: dict[str, Any]) -> None:
        """Wait until nothing of a rollout runs and all is recorded."""
        await self.control("GET", f"/rollouts/{rollout['id']}?wait=idle&idle_s=0&timeout_s=10")
        await self.appliance.store.flush()

    def chat(self, rollout: dict[str, Any], **body: Any) -> Any:
        """Send an agent's chat request: an async context manager that gives the response."""
        ask = {**ASK, **body}
        headers = {"Authorization": f"Bearer {rollout['secret']}"}
        return self.session.post(rollout["base_url"] + "/chat/completions", json=ask, headers=headers)


@contextlib.asynccontextmanager
async def house(
    engine: Engine | str, folder: Path, *, also: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[House]:
    """An appliance in front of an engine for a block; `engine` may be another `--engine`'s text, `also` are more."""
    given = Settings(
        engine=(engine if isinstance(engine, str) else f"vllm={engine.url}", *also),
        **{
            "listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "store": f"sqlite:///{folder}/treering.db",
            "shutdown_timeout": 0.2,
            **settings,
        },
    )
    appliance = Appliance(given)
    await appliance.start()
    try:
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            home = House(appliance, session)
            try:
                yield home
            finally:
                for response in home.opened:
                    response.close()
    except BaseException:
        # What the test found says more than what closing then finds.
        with contextlib.suppress(StoreError):
            await appliance.close()
        raise
    await appliance.close()
