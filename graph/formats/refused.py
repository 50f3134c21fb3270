"""What a format says when it cannot carry a rollout honestly."""

from __future__ import annotations


class Refused(ValueError):  # noqa: N818 - an outcome, not a fault: `raise Refused(...)` says it
    """A rollout that a format cannot carry, or that its library would take although it is broken.

    Exporters raise it instead of leaving out, filling in or cutting; nothing has been written then. `str` is the
    message, a sentence that names the row or call; `hint` says what to do about it.
    """

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
