"""From a store's URL to the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capture.errors import UsageError
from capture.store.base import Store
from capture.store.sqlite import SqliteStore

_ACCEPTED = (
    "a store is sqlite:///relative/path, sqlite:////absolute/path, or postgresql://user:password@host:5432/database"
)

POSTGRES = ("postgresql", "postgres")
"""Schemes of a PostgreSQL store."""


def open_store(url: str, **options: Any) -> Store:
    """Return the store at a URL, not yet opened; `options` go to its constructor.

    Raises `UsageError` naming what is accepted.
    """
    scheme, separator, path = url.partition("://")
    if scheme in POSTGRES and separator:
        return _postgres(url, options)
    if scheme != "sqlite" or not separator:
        # What is before a colon alone: the rest may hold a password.
        raise UsageError(f"can't use a store whose URL begins with {url.partition(':')[0][:20]!r}", hint=_ACCEPTED)
    if not path.startswith("/") or path in ("/", "//") or path.endswith("/"):
        raise UsageError(f"the store {url!r} names no file", hint=_ACCEPTED)
    if "?" in path or "#" in path:
        raise UsageError(f"the store {url!r} has a query or a fragment; a path alone is taken", hint=_ACCEPTED)
    return SqliteStore(Path(path[1:]), **options)


def _postgres(url: str, options: dict[str, Any]) -> Store:
    try:
        # Only here, so that who has SQLite alone needs no asyncpg.
        from capture.store.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise UsageError(
            "a PostgreSQL store needs asyncpg, which isn't installed", hint="pip install 'treering[postgres]'"
        ) from error
    return PostgresStore(url, **options)
