"""A control plane without a data plane: real store, real rollouts, and an engine in name only.

Calls are put into the store as if they had been captured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer

from capture import api, clock
from capture.engines.base import Identity
from capture.holds import Holds
from capture.lookout import Lookout
from capture.news import News
from capture.registration import Defaults, Place
from capture.rollouts import Rollouts
from capture.settings import Settings
from capture.store import open_store
from capture.store.base import Exchange, Record, Store
from graph.messages import from_chat
from graph.records import Call
from tests.leads import LEADS

KEY = "the-key"


async def _looked() -> None:
    """Leave the stand-in's health as the test set it."""


class Plane:
    """What `api` needs of an appliance, and its server's address."""

    def __init__(self, folder: Path, key: str | None, store: Store | None = None) -> None:
        self.settings = Settings(store=f"sqlite:///{folder}/t.db")
        self.admin_key = key
        self.nonce = "n0"
        self.store = store or open_store(self.settings.store, durability="none")
        self.engine = SimpleNamespace(
            name="vllm=http://e", url="http://e", kind="vllm", tier="train", tier_reason="ids",
            logprobs_mode="raw", healthy=True, reason="", changed=None, in_flight=0, check=_looked,
            identity=Identity(kind="vllm", url="http://e", version="0.32.0", models=("tiny",), max_model_len=2048),
        )  # fmt: skip
        place = Place(
            model="tiny", tier="train", tier_reason="ids",
            logprobs_mode="raw",
        )  # fmt: skip

        async def placed(engine: str | None) -> Place:
            return place

        # What the fleet is asked for: the one engine.
        self.fleet = SimpleNamespace(engines=[self.engine], all=[self.engine])
        self.holds = Holds(self.store)
        self.reach = LEADS
        self.rollouts = Rollouts(self.store, place=placed, defaults=Defaults(), reach=LEADS)
        self.lookout = Lookout(self, closed=lambda _graph: None)
        self.news = News()
        self.url = ""
        # Set when a caller hung up and its handler was cancelled.
        self.hung_up = asyncio.Event()

    def parts(self) -> dict[str, Any]:
        return {}

    async def call(self, rollout: str, n: int, prompt: list[int], sampled: list[int], **rest: Any) -> None:
        """Put one ended call into the store."""
        said = rest.pop("messages", [{"role": "user", "content": "hi"}])
        reply = {"role": "assistant", "content": rest.pop("text", f"reply {n}")}
        request = rest.pop("request", json.dumps({"model": "any", "messages": said}).encode())
        fields = {
            "n": n, "id": f"chatcmpl-{n}", "status": "complete", "delivered": True, "arrived": 2 * n,
            "ended": 2 * n + 1, "messages": tuple(from_chat(each) for each in said), "reply": from_chat(reply),
            "prompt_ids": np.array(prompt, np.int32), "sampled_ids": np.array(sampled, np.int32),
            "logprobs": np.full(len(sampled), -0.5, np.float32), "usage_prompt": len(prompt),
            "usage_sampled": len(sampled), "finish_reason": "stop", "started_at": clock.now(),
        }  # fmt: skip
        call = Call(**fields | rest)
        exchange = Exchange(
            request=request, sent=request, reply=json.dumps({"id": call.id, "choices": [{"message": reply}]}).encode(),
            usage=b'{"prompt_tokens": %d}' % len(prompt), deliveries=({"at": call.started_at, "complete": True},),
        )  # fmt: skip
        self.store.begin(rollout, call, request)
        await self.store.finish(rollout, [Record(call=call, exchange=exchange)])


@contextlib.asynccontextmanager
async def control_plane(folder: Path, *, key: str | None = KEY, store: Store | None = None) -> AsyncIterator[Plane]:
    """Run a control plane whose store lies in `folder`, or is the one given, not yet opened."""
    plane = Plane(folder, key, store)
    await plane.store.open()

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return await handler(request)
        except asyncio.CancelledError:
            plane.hung_up.set()
            raise

    app = web.Application(middlewares=[note, *api.middlewares(plane)])
    app.add_routes(api.routes(plane))
    server = TestServer(app)
    # As the appliance, it cancels the handler of a caller that hangs up.
    await server.start_server()
    plane.url = str(server.make_url("")).rstrip("/")
    try:
        yield plane
    finally:
        await server.close()
        await plane.store.close()
