"""The clock: the only place that reads the time of day for records."""

from __future__ import annotations

import time
from datetime import UTC, datetime

# The last second that was asked for, and how it is written. One reference, so that threads never mix two.
_second: tuple[int, str] = (-1, "")


def now() -> str:
    """Return the time in UTC, ISO 8601 with milliseconds and `Z`."""
    global _second
    second, rest = divmod(time.time_ns(), 1_000_000_000)
    known = _second
    if known[0] != second:
        known = _second = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{known[1]}.{rest // 1_000_000:03}Z"


def text(moment: datetime) -> str:
    """Write a moment as records do. Naive moments are refused by `astimezone`'s guess, so pass aware ones only."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(written: str) -> datetime:
    """Read what `text` wrote."""
    return datetime.fromisoformat(written)
