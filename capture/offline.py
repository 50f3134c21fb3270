"""Pages of an export straight from a store, while no appliance holds it: the route's own code, without the route."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import TracebackType
from typing import Any

from capture import bulk
from capture.errors import ClientError
from capture.graphs import Graphs
from capture.settings import Settings
from capture.store import open_store
from capture.store.base import Page, Query, Store
from capture.store.summary import Look
from graph.graph import Graph


class Offline:
    """A store opened for one export; a context manager. Raises `StoreError` when the store can't be used, or is held by
    an appliance."""

    def __init__(self, settings: Settings) -> None:
        self._runner = asyncio.Runner()
        self._store = open_store(settings.store, durability=settings.durability)

    def __enter__(self) -> Offline:
        try:
            self._runner.run(self._store.open())
        except BaseException:  # whatever fails, the loop goes
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.closing(self._runner):
            self._runner.run(self._store.close())

    def __repr__(self) -> str:
        return f"<Offline {self._store.where}>"

    @contextlib.contextmanager
    def page(self, query: Mapping[str, Any]) -> Iterator[Pieces]:
        """Open the answer to `GET /sequences` with a query. Raises as the route does."""
        asked = bulk.read(_read(query))
        source = bulk.file if asked.wanted.format == "parquet" else bulk.lines
        answer = source(_Stored(self._store), asked)
        try:
            yield Pieces(self._runner, answer)
        finally:
            self._runner.run(answer.aclose())

    def count(self, query: Mapping[str, Any]) -> int | None:
        """Return how many rollouts a query's filters are about."""
        asked = _read(query)
        look = Look(state=asked.get("state"), group=asked.get("group"), labels=dict(asked.get("label", ())))
        return self._runner.run(self._store.overview(look)).rollouts


class Pieces:
    """An answer, piece by piece: of JSON, each is a line."""

    def __init__(self, runner: asyncio.Runner, source: AsyncGenerator[bytes, None]) -> None:
        self._runner = runner
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(0):
            yield piece

    def read(self, amount: int, /) -> bytes:
        """Return the next piece, however long; nothing at the end."""
        del amount

        async def next_piece() -> bytes:
            return await anext(self._source, b"")

        return self._runner.run(next_piece())


def _read(query: Mapping[str, Any]) -> dict[str, Any]:
    """Read a query as the route does."""
    read: dict[str, Any] = {}
    for name, value in query.items():
        if value is None:
            continue
        try:
            reader = bulk.ASKED[name]
            read[name] = [reader(str(each)) for each in value] if isinstance(value, list) else reader(str(value))
        except ValueError as error:
            raise ClientError("invalid_query", f"{name} is {value!r}; expected {error}.", status=422) from error
    return read


class _Stored:
    """What `bulk` asks of all rollouts, where none of them runs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(self, query: Query) -> Page:
        return await self._store.page(query)

    async def aside(self, name: str) -> Graph:
        entry = await self._store.get(name)
        if entry is None:
            raise ClientError("rollout_not_found", f"There is no rollout {name!r}.", status=404)
        return await Graphs(self._store).of(entry)
