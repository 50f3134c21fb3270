"""The clock: the only place that reads the time of day for records."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Return the time in UTC, ISO 8601 with milliseconds and `Z`."""
    return text(datetime.now(UTC))


def text(moment: datetime) -> str:
    """Write a moment as records do. Naive moments are refused by `astimezone`'s guess, so pass aware ones only."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(written: str) -> datetime:
    """Read what `text` wrote."""
    return datetime.fromisoformat(written)
