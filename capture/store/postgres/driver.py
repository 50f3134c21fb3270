"""What is used of asyncpg, with types: it brings none.

Errors are looked up on `asyncpg` itself (`driver.asyncpg.DiskFullError`); connections are what `Connection` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import asyncpg  # type: ignore[import-untyped]  # it brings no types; those below stand for them

__all__ = ["Connection", "Pool", "asyncpg", "columns"]


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


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Return rows as PostgreSQL takes many at a time: an array a column, for `unnest`, and `width` of them for none."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
