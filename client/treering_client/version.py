"""Which treering-client this is: client/VERSION says it at build time, the distribution's metadata from then on."""

from __future__ import annotations

from importlib import metadata

UNKNOWN = "unknown"
"""Where it runs from its source and is not installed."""


def version() -> str:
    """Return the version, `UNKNOWN` where nothing is installed."""
    try:
        return metadata.version("treering-client")
    except metadata.PackageNotFoundError:
        return UNKNOWN
