"""Errors with the blame in the type, and the one place that maps them to HTTP.

`ClientError`: the agent's or caller's request can't be served as it stands. `EngineError`: the engine misbehaved or
can't be reached. `CaptureError`: we did. Each has a code that programs test, a message for people, and a hint that says
what to do. Nothing here knows a dialect: `capture.dialects` gives an error its wire shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from capture.keys import masked

HINTS: Mapping[str, str] = {
    # What was asked for.
    "bad_request": "docs/api.md has the routes and what they take.",
    "body_incomplete": "Send it whole, with a true Content-Length and Content-Encoding.",
    "id_taken": "Choose another id, or leave it out: one is made.",
    "invalid_query": "docs/api.md has the options, docs/export.md those of sequences.",
    "model_not_found": "GET /v1/models lists what there is.",
    "previous_response_not_found": "Send the conversation so far as input.",
    "response_not_found": "Only replies of this very rollout can be read.",
    "rollout_not_found": "`treering rollout list` has them.",
    # The engine's.
    "count_unsupported": "Count with the model's own tokeniser, or ask an engine that counts.",
    "engine_cut": "Begin another rollout.",
    "engine_garbled": "Is it the kind of engine that --engine says? `treering doctor` asks it.",
    "engine_refused": "What it answered says why; `treering doctor` asks it too.",
    "engine_unreachable": "Is it up, and is this its address? `treering doctor` asks it.",
    "engine_untranslatable": "Ask for it in OpenAI's chat dialect, which is passed on as it is.",
    "pins_unsupported": "Leave --tokens pinned out, or serve by an engine that can (docs/pinned.md).",
    "rescoring_unreadable": "`treering verify` needs an engine that scores prompts, as vLLM does.",
    # The store's, and our own.
    "internal": "The log says where; please report it.",
    "shutting_down": "Ask again in a moment.",
    "store_failed": "`treering doctor` looks at the store; the log says what went before.",
    "store_full": "Make room on its disk; it goes on by itself.",
    "store_newer": "Update Treering.",
}
"""What to do about an error of a code, where whoever raises it knows no better."""


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
        self.hint = hint or HINTS.get(code, "")
        self.status = status
        # The request's field at fault, as the dialect names it.
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def told(self) -> str:
        """Message and hint as one text, for those whose form of an error has no place for a hint."""
        if not self.hint:
            return self.message
        end = "" if self.message[-1:] in (".", "!", "?") else "."
        return f"{self.message}{end} {self.hint[:1].upper()}{self.hint[1:]}"

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
