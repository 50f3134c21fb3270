"""Colour in what people read: on a terminal alone, never where `NO_COLOR` is set (no-color.org) or `TERM` is dumb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TextIO

Tone = Literal["good", "warn", "bad", "dim", "bold"]

_CODES: dict[Tone, str] = {"good": "32", "warn": "33", "bad": "31", "dim": "2", "bold": "1"}

LEVELS: Mapping[str, Tone] = {"ok": "good", "info": "dim", "warn": "warn", "fail": "bad", "error": "bad"}
"""Tones of a check's and a finding's levels."""

STATUSES: Mapping[str, Tone] = {
    "complete": "good",
    "undelivered": "warn",
    "aborted": "warn",
    "error": "bad",
    "stopped": "warn",
    "running": "dim",
}
"""Tones of how a call ended."""


def is_coloured(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Say whether a stream takes colour. `NO_COLOR` counts when it is there and not empty."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class Paint:
    """Colours words, or leaves them as they are."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._coloured = is_coloured(stream, environ)

    def __repr__(self) -> str:
        return f"<Paint {'in colour' if self._coloured else 'plain'}>"

    def __call__(self, text: str, tone: Tone | None) -> str:
        """Return text in a tone; None leaves it."""
        if not self._coloured or tone is None:
            return text
        return f"\x1b[{_CODES[tone]}m{text}\x1b[0m"
