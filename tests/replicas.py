"""Treering as programs of their own over one store, and what their trainers and agents do with them.

async with replica(folder, "--engine", f"vllm={url}", "--store", store) as one:
    rollout = await one.rollout()
    await one.kill()              # kill -9
    await one.start()             # on the same ports, over the same store
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.real.orphans import end_with_parent
from tests.served import Served

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


class Replica(Served):
    """One `treering serve`; with workers its pid is the supervisor's. It keeps its ports over its lives."""

    def __init__(self, folder: Path, *words: str, **options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, *words, before=end_with_parent, **options)
        self._given = self._words
        self.http: aiohttp.ClientSession
        # Responses that a test opened by hand; closed at its end.
        self.opened: list[aiohttp.ClientResponse] = []

    async def spawn(self) -> None:
        if self.data_url:
            ports = ("--listen", self.data_url, "--admin-listen", self.control_url)
            self._words = (*(word.removeprefix("http://") for word in ports), *self._given)
        await super().spawn()

    async def control(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        """Ask its control plane; fails unless it answers with `status`."""
        async with self.http.request(method, self.control_url + path, headers=self.headers, **options) as answer:
            body = await answer.read()
            assert answer.status == status, (answer.status, body[:500])
        return json.loads(body) if body else None

    async def rollout(self, **body: Any) -> dict[str, Any]:
        """Register a rollout."""
        return await self.control("POST", "/rollouts", json=body, status=201)

    async def graph(self, rollout: dict[str, Any]) -> dict[str, Any]:
        return await self.control("GET", f"/rollouts/{rollout['id']}/graph")

    def chat(self, rollout: dict[str, Any], *, url: str | None = None, **body: Any) -> Any:
        """Send an agent's chat request to it, or to `url`: an async context manager that gives the response."""
        headers = {"Authorization": f"Bearer {rollout['secret']}"}
        where = (url or self.data_url) + "/v1/chat/completions"
        return self.http.post(where, json={**ASK, **body}, headers=headers)


@contextlib.asynccontextmanager
async def replica(folder: Path, *words: str, **options: Any) -> AsyncIterator[Replica]:
    """Run `treering serve` with these words on free ports for a block; killed at its end."""
    one = Replica(folder, *words, **options)
    timeout, connector = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as one.http:
        try:
            await one.start()
            yield one
        finally:
            for response in one.opened:
                response.close()
            await one.close()
