"""What a tunnel says when it can't carry."""

from __future__ import annotations


class TunnelError(Exception):
    """A tunnel that did not open, or that leads elsewhere. `str` is a sentence that names it.

    `hint` says what to do; `lines` are the last that its program printed, without secrets.
    """

    def __init__(self, message: str, *, hint: str = "", lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.lines = lines


class SpecError(ValueError):
    """A tunnel's description that can't be read; the text says what is accepted."""
