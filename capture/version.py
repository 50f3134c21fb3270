"""Which Treering this is.

client/VERSION says it when a distribution is built, of both; from then on its metadata says it, and is read here alone.
"""

from __future__ import annotations

UNKNOWN = "unknown (run from its source, not installed)"


def version() -> str:
    """Return the version, `UNKNOWN` where nothing is installed."""
    # Here, since it brings `email` along, and that sockets: `treering --help` answers without either.
    from importlib import metadata

    try:
        return metadata.version("treering")
    except metadata.PackageNotFoundError:
        return UNKNOWN
