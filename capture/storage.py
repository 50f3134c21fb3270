"""Another's storage, by URL: what fsspec (the extra `cloud`) and the packages behind it can write.

An object there can't be cut or gone on with, and must not be seen half. So it is made on this machine's disk, in the
working folder, and sent as one when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capture.errors import ClientError, UsageError


class Storage:
    """The object that a URL names."""

    def __init__(self, url: str) -> None:
        """Raise `UsageError` without fsspec, or for a URL whose scheme it can't serve."""
        if importlib.util.find_spec("fsspec") is None:
            hint = "install Treering with the extra `cloud`: pip install 'treering[cloud]'"
            raise UsageError(f"--out: {url} is a URL, and fsspec isn't installed here", hint=hint)
        core: Any = importlib.import_module("fsspec.core")
        try:
            self._system, self._path = core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            # An unknown scheme; or one whose own package isn't there, which the message names.
            hint = "name a file, or a URL that fsspec can write: its own package for that kind has to be installed"
            raise UsageError(f"--out: {url}: {error}", hint=hint) from error
        self._url = url

    def __repr__(self) -> str:
        return f"<Storage {self._url}>"

    @property
    def local(self) -> str:
        """The name, in the working folder, under which the object is made: one for each URL."""
        return f"treering-export-{hashlib.sha256(self._url.encode()).hexdigest()[:12]}"

    def exists(self) -> bool:
        """Say whether the object is there. Raises `ClientError` `storage_failed`."""
        with self._failing():
            return bool(self._system.exists(self._path))

    def put(self, file: Path) -> None:
        """Send a file. Raises `ClientError` `storage_failed`; the file stays."""
        with self._failing():
            folder = self._path.rpartition("/")[0]
            if folder and not self._system.exists(folder):
                self._system.makedirs(folder, exist_ok=True)
            self._system.put_file(str(file), self._path)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Each storage raises what its own library does.
            raise ClientError(
                "storage_failed",
                f"{self._url}: {error or type(error).__name__}",
                hint="What was exported so far is kept; the same command tries again.",
                status=502,
            ) from error
