"""From a store's URL to the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capture.errors import UsageError
from capture.store.base import Store
from capture.store.sqlite import SqliteStore

_ACCEPTED = "a store is sqlite:///relative/path or sqlite:////absolute/path"


def open_store(url: str, **options: Any) -> Store:
    """Return the store at a URL, not yet opened; `options` go to its constructor.

    Raises `UsageError` naming what is accepted.
    """
    scheme, separator, path = url.partition("://")
    if scheme != "sqlite" or not separator:
        raise UsageError(f"can't use the store {url!r}", hint=_ACCEPTED)
    if not path.startswith("/") or path in ("/", "//") or path.endswith("/"):
        raise UsageError(f"the store {url!r} names no file", hint=_ACCEPTED)
    if "?" in path or "#" in path:
        raise UsageError(f"the store {url!r} has a query or a fragment; a path alone is taken", hint=_ACCEPTED)
    return SqliteStore(Path(path[1:]), **options)
