"""Errors with the blame in the type, and the one place that maps them to HTTP.

`ClientError`: the agent's or caller's request can't be served as it stands. `EngineError`: the engine misbehaved or
can't be reached. `CaptureError`: we did. Each has a code that programs test, a message for people, and a hint that says
what to do. Nothing here knows a dialect: `capture.dialects` gives an error its wire shape.
"""

from __future__ import annotations

import math
from typing import ClassVar

from capture.keys import masked


class TreeringError(Exception):
    """Base of all errors that Treering raises on purpose; `status` is the HTTP status that fits."""

    blame: ClassVar[str] = "treering"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        status: int = 500,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        # Many quote what came, and an agent may put its key anywhere.
        message = masked(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.status = status
        # The request's field at fault, as the dialect names it.
        self.param = param
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        """Return the response headers that belong to this error."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


class ClientError(TreeringError):
    """The request can't be served as it stands."""

    blame = "client"

    def __init__(self, code: str, message: str, *, hint: str = "", status: int = 400, param: str | None = None) -> None:
        super().__init__(code, message, hint=hint, status=status, param=param)


class EngineError(TreeringError):
    """The engine misbehaved, refused us, or can't be reached."""

    blame = "engine"

    def __init__(
        self, code: str, message: str, *, hint: str = "", status: int = 502, retry_after_s: float | None = None
    ) -> None:
        super().__init__(code, message, hint=hint, status=status, retry_after_s=retry_after_s)


class CaptureError(TreeringError):
    """Treering itself failed: its store, its configuration, its code."""


class StoreError(CaptureError):
    """The store can't be read or written. `code` is `store_full`, `store_newer` or `store_failed`."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(code, message, hint=hint, status=507 if code == "store_full" else 503, retry_after_s=5)


class UsageError(CaptureError):
    """A flag, variable or configuration key is wrong; the command line exits with 2."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("usage", message, hint=hint)
