"""What can go wrong on the way to a Treering, by whose it is to mend."""

from __future__ import annotations


class TreeringError(Exception):
    """Any failure of this library's. `str` is a sentence; `hint` says what to do, and may be empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.message = message
        self.hint = hint


class Unreachable(TreeringError):  # noqa: N818 - it says what Treering is; "UnreachableError" says it twice
    """No Treering answered: wrong address, not running, or the connection broke. Nothing is known of what it did."""


class RequestError(TreeringError):
    """Treering refused a request, and says why. `status` is HTTP's; `code` is one of its own (docs/api.md)."""

    def __init__(self, message: str, *, status: int, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


class CutShort(TreeringError):  # noqa: N818 - as above
    """A stream of rollouts ended before its end was said: what came is whole, and more was to come."""
