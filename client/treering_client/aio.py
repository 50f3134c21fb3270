"""The same, for asyncio: each request in a thread of a pool of its own.

An HTTP client of asyncio's own was rejected: the standard library has none, and the control plane gets a handful of
requests a rollout. Cancelling a method returns at once; its request goes on in its thread, up to its time limit.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal, TypeVar

from treering_client.client import Client
from treering_client.rollout import WAIT_S, Rollout

T = TypeVar("T")

THREADS = 64
"""Requests at once; waiting for a rollout takes one of them."""


class _Pool:
    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="treering-client")

    async def run(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(work, *args, **named))

    def close(self) -> None:
        self._threads.shutdown(wait=False)


class AsyncClient:
    """As `Client`, with `async` methods; `async with` closes it."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, threads: int = THREADS, **options: Any
    ) -> None:
        self._client = Client(url, key, **options)
        self._pool = _Pool(threads)

    def __repr__(self) -> str:
        return f"<Async{repr(self._client)[1:]}"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that it keeps; requests under way end by themselves."""
        self._pool.close()
        self._client.close()

    async def health(self) -> None:
        """Return when a Treering answers."""
        await self._pool.run(self._client.health)

    def rollout(self, task: str | Mapping[str, Any] | None = None, **fields: Any) -> _Registering:
        """Register a rollout: `async with client.rollout(…) as r`, or `r = await client.rollout(…)`."""
        return _Registering(self._pool, functools.partial(self._client.rollout, task, **fields))

    async def rollouts(self, n: int, task: str | Mapping[str, Any] | None = None, **fields: Any) -> list[AsyncRollout]:
        """Register `n` rollouts of one task as one group, all or none."""
        made = await self._pool.run(self._client.rollouts, n, task, **fields)
        return [AsyncRollout(self._pool, one) for one in made]

    async def attach(self, id: str) -> AsyncRollout:  # noqa: A002 - as in `Client`
        """Return a rollout that is registered already, without its secrets."""
        return AsyncRollout(self._pool, await self._pool.run(self._client.attach, id))

    async def sequences(self, format: str = "native", **asked: Any) -> AsyncIterator[dict[str, Any]]:  # noqa: A002 - as in `Client`
        """Yield the sequences of many closed rollouts, one object a rollout."""
        lines = self._client.sequences(format, **asked)
        while (line := await self._pool.run(next, lines, None)) is not None:
            yield line


class AsyncRollout:
    """As `Rollout`, with `async` methods; its fields are the same."""

    def __init__(self, pool: _Pool, rollout: Rollout) -> None:
        self._pool = pool
        self._rollout = rollout
        self.id, self.tier, self.model = rollout.id, rollout.tier, rollout.model
        self.secret, self.tools_secret = rollout.secret, rollout.tools_secret
        self.url, self.base_url, self.tools_url, self.env = (
            rollout.url,
            rollout.base_url,
            rollout.tools_url,
            rollout.env,
        )

    def __repr__(self) -> str:
        return f"<Async{repr(self._rollout)[1:]}"

    @property
    def closed(self) -> bool:
        """Whether it was closed from here, or was closed when it was attached to."""
        return self._rollout.closed

    async def __aenter__(self) -> AsyncRollout:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shielded: a cancelled block is when a rollout most needs closing.
        await asyncio.shield(self._pool.run(self._rollout.__exit__, kind, error, trace))

    async def show(self) -> dict[str, Any]:
        """As `Rollout.show`."""
        return await self._pool.run(self._rollout.show)

    async def wait(self, until: Literal["closed", "idle"] = "idle", **limits: float) -> bool:
        """As `Rollout.wait`."""
        return await self._pool.run(self._rollout.wait, until, **limits)

    async def graph(self) -> dict[str, Any]:
        """As `Rollout.graph`."""
        return await self._pool.run(self._rollout.graph)

    async def findings(self) -> list[dict[str, Any]]:
        """As `Rollout.findings`."""
        return await self._pool.run(self._rollout.findings)

    async def calls(self, *, ids: bool = False) -> list[dict[str, Any]]:
        """As `Rollout.calls`."""
        return await self._pool.run(self._rollout.calls, ids=ids)

    async def reward(self, reward: float | None, **more: Any) -> None:
        """As `Rollout.reward`."""
        await self._pool.run(self._rollout.reward, reward, **more)

    async def role(self, conversation: int, role: str) -> None:
        """As `Rollout.role`."""
        await self._pool.run(self._rollout.role, conversation, role)

    async def sequences(self, format: str = "native", *, wait_s: float = WAIT_S, **options: Any) -> Any:  # noqa: A002 - as in `Rollout`
        """As `Rollout.sequences`."""
        return await self._pool.run(self._rollout.sequences, format, wait_s=wait_s, **options)

    async def close(self, *, wait_s: float = WAIT_S) -> None:
        """As `Rollout.close`."""
        await self._pool.run(self._rollout.close, wait_s=wait_s)

    async def delete(self) -> None:
        """As `Rollout.delete`."""
        await self._pool.run(self._rollout.delete)


class _Registering:
    """A registration under way: awaited, or entered."""

    def __init__(self, pool: _Pool, register: Callable[[], Rollout]) -> None:
        self._pool = pool
        self._register = register
        self._made: AsyncRollout | None = None

    def __await__(self) -> Any:
        return self._run().__await__()

    async def _run(self) -> AsyncRollout:
        return AsyncRollout(self._pool, await self._pool.run(self._register))

    async def __aenter__(self) -> AsyncRollout:
        self._made = await self._run()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._made is not None
        await self._made.__aexit__(kind, error, trace)
