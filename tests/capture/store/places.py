"""Where a store under test lies: a file, or a database of a real PostgreSQL. What holds of one holds of the other."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import apsw

from capture.store.base import Store
from tests.capture.store.samples import NOW, open_at

if TYPE_CHECKING:
    from tests.postgres import Server


class Place(Protocol):
    """A place of a store, and a look beneath it."""

    def store(self, **options) -> Any:
        """Return a store over this place, not yet opened; each is a process of its own, as far as the store knows."""

    async def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own, which sees what is committed."""

    async def tables(self) -> list[str]: ...


class FilePlace:
    """A file in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "t.db"

    def store(self, **options):
        return open_at(self.path, **options)

    async def sql(self, statement):
        db = apsw.Connection(str(self.path))
        try:
            db.set_busy_timeout(5_000)
            return db.execute(statement).fetchall()
        finally:
            db.close()

    async def tables(self):
        return [name for (name,) in await self.sql("SELECT name FROM sqlite_schema WHERE type = 'table'")]


class DatabasePlace:
    """A database of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def store(self, **options):
        from capture.store.postgres import PostgresStore

        return PostgresStore(self.url, **{"now": lambda: NOW} | options)

    async def sql(self, statement):
        from capture.store.postgres.driver import asyncpg

        db = await asyncpg.connect(self.url, server_settings={"search_path": "treering"})
        try:
            return [tuple(row) for row in await db.fetch(statement)]
        finally:
            await db.close()

    async def tables(self):
        found = await self.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'treering'")
        # Who is alive is no part of what is kept.
        return [name for (name,) in found if name not in ("process", "format")]


@contextlib.asynccontextmanager
async def with_database(server: "Server") -> AsyncIterator[DatabasePlace]:
    """A database of its own on a server: a copy of one that a store has made, and dropped in the end."""
    template = TEMPLATES.get(server.port)
    if template is None:
        url = await server.database()
        store = DatabasePlace(url).store()
        await store.open()
        await store.close()
        template = TEMPLATES[server.port] = url.rpartition("/")[2]
    url = await server.database(template=template)
    yield DatabasePlace(url)
    await server.drop(url)


TEMPLATES: dict[int, str] = {}
"""By the server's port."""


async def count(place: Place) -> dict[str, int]:
    """The rows of every table."""
    return {table: (await place.sql(f"SELECT count(*) FROM {table}"))[0][0] for table in await place.tables()}


async def opened(place: Place, **options) -> Store:
    """A store over a place, open."""
    store: Store = place.store(**options)
    await store.open()
    return store
