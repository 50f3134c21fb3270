"""Pinned prompts, for the calls of rollouts that asked for them: what the relay asks at each step.

A call is pinned for one engine: should it go to another before its first byte, it goes there the plain way. Ids that
come back are compared with those that were sent; a call whose prompt is not the one that it was given is recorded as
what it is, and the engine is looked at again before anything more is pinned there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from capture.dialects.base import Request
from capture.live import Live
from capture.pinning.fallback import Fallback
from capture.pinning.pinner import Pin
from capture.pinning.pinners import Pinners
from capture.rawjson import join
from capture.upstream import Engine
from graph.records import Call, IntArray

CHAT = "/v1/chat/completions"
"""The route on which an engine takes ids in the messages' place."""

QUIET = frozenset(("first-turn",))
"""Reasons that are every conversation's, and nobody's fault."""


class Try(msgspec.Struct, kw_only=True):
    """One call's pin, or why it has none."""

    engine: str
    pin: Pin | None = None
    reason: str | None = None


class Pins:
    """Pins calls."""

    def __init__(self, *, version: Callable[[str], str | None]) -> None:
        """`version` returns the version of an engine's weights, as told."""
        self._version = version
        self._pinners = Pinners()

    def __repr__(self) -> str:
        return f"<Pins {self._pinners!r}>"

    async def unable(self, engine: Engine) -> str | None:
        """Return why nothing can be pinned at an engine, a clause; None where it can."""
        pinner = await self._pinners.of(engine)
        return None if pinner.off is None else pinner.reason

    async def tried(self, live: Live, request: Request, fields: Mapping[str, bytes], engine: Engine) -> Try | None:
        """Pin a call at an engine; None for a rollout that didn't ask for it."""
        if live.memory is None:
            return None
        if request.path != CHAT or request.undecoded is not None:
            return Try(engine=engine.name, reason="no-parent")
        pinner = await self._pinners.of(engine)
        try:
            pin = await pinner.pin(
                fields,
                request.messages,
                live.memory.parents,
                live.memory.load,
                engine=engine.name,
                weights=self._version(engine.name),
            )
        except Fallback as why:
            return Try(engine=engine.name, reason=why.reason)
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            # A body whose messages have a form that nobody foresaw: the engine will say what it thinks of it.
            return Try(engine=engine.name, reason="no-parent")
        return Try(engine=engine.name, pin=pin)

    def body(self, tried: Try | None, engine: Engine, fields: Mapping[str, bytes], plain: bytes) -> bytes:
        """Return the body for an engine: with the prompt as ids, or as it is."""
        if tried is None or tried.pin is None:
            return plain
        if engine.name != tried.engine:
            tried.pin, tried.reason = None, "other-engine"
            return plain
        return join({**fields, **tried.pin.fields})

    def refused(self, tried: Try | None, body: bytes) -> bool:
        """Say whether an engine's 400 is about the pin, which is then given up: the call is to be sent as it is."""
        if tried is None or tried.pin is None:
            return False
        long = b"context length" in body or b"maximum model length" in body
        if not long and not any(name.encode() in body for name in tried.pin.fields):
            return False
        tried.pin, tried.reason = None, "overflow" if long else "engine-ignores-ids"
        return True

    def settle(self, tried: Try | None, engine: Engine, prompt: IntArray | None) -> int | None:
        """Compare the prompt that the engine had with the one that it was given; return the tokens kept, or None.

        `prompt` is None where the reply brought none. Where they differ the try gets its reason.
        """
        if tried is None or tried.pin is None:
            return None
        if prompt is None:
            # It never came to a reply.
            tried.pin = None
            return None
        if not np.array_equal(prompt, tried.pin.ids):
            tried.pin, tried.reason = None, "echo-differs"
            self._pinners.doubt(engine)
            return None
        return tried.pin.kept

    def remember(self, live: Live, calls: list[Call], sent: Mapping[str, bytes] | None) -> None:
        """Take in a call's choices that were stored."""
        if live.memory is not None:
            for call in calls:
                told = None if call.engine is None else self._version(call.engine)
                live.memory.add(call, sent, told=told)
