"""What is used of asyncpg, with types: it brings none.

Errors are looked up on `asyncpg` itself (`driver.asyncpg.DiskFullError`); connections are what `Connection` says.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import asyncpg  # type: ignore[import-untyped]  # it brings no types; those below stand for them

__all__ = ["Connection", "Pool", "asyncpg"]


class Connection(Protocol):
    """A connection: one statement at a time, values bound as $1, $2, …, rows as sequences."""

    async def execute(self, sql: str, *values: Any) -> str: ...

    async def executemany(self, sql: str, values: list[tuple[Any, ...]]) -> None: ...

    async def fetch(self, sql: str, *values: Any) -> list[Any]: ...

    async def fetchrow(self, sql: str, *values: Any) -> Any: ...

    async def fetchval(self, sql: str, *values: Any) -> Any: ...

    def transaction(self, *, isolation: str = ..., readonly: bool = ...) -> AbstractAsyncContextManager[None]: ...

    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...


class Pool(Protocol):
    """Some connections, each made when it is needed."""

    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Connection]: ...

    async def close(self) -> None: ...

    def terminate(self) -> None: ...
