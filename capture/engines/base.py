"""What an engine adapter gives: what to inject, where ids and logprobs are found, what to take out again.

Sans-I/O. One adapter a kind of engine; one `Reader` a reply. A reader is fed the data of each event (or the whole
body), lifts out what the engine sampled, and returns what the client may see of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from capture.dialects.base import Request
from graph.records import FloatArray, IntArray, Message, Weights


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who an engine is, as it says itself."""

    kind: str
    url: str
    version: str | None = None
    # Names it serves, the first being the default.
    models: tuple[str, ...] = ()
    max_model_len: int | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What one choice of a reply brought, so far or in all."""

    index: int
    finish_reason: str | None = None
    # The assistant message in canonical form, None while nothing came.
    reply: Message | None = None
    sampled_ids: IntArray | None = None
    # float32, as long as `sampled_ids`, NaN where a token came without one.
    logprobs: FloatArray | None = None
    # The policy version that drew it, where the engine says so.
    weights: Weights | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one event meant."""

    # What the client may see of it: the same bytes, an edited copy, or None when it is capture's alone.
    data: bytes | None
    # Choices that finished with this event, with their reasons.
    finished: tuple[tuple[int, str], ...] = ()
    # An error object in a stream: its message.
    error: str | None = None
    # `[DONE]`.
    done: bool = False
    # Sampled ids came with it.
    sampled: bool = False
    # Fields, raw, of an event that is capture's alone which the engine would else have put on the finish.
    moved: dict[str, bytes] = {}


class Reader(Protocol):
    """Reads one reply."""

    # The reply's id, model and usage as the engine gave them; None until seen.
    reply_id: str | None
    usage: dict[str, Any] | None
    prompt_ids: IntArray | None
    # A sentence for each event or body that couldn't be decoded for the record.
    undecoded: list[str]

    def event(self, data: bytes) -> Seen:
        """Read the data of one server-sent event."""

    def whole(self, body: bytes) -> Seen:
        """Read a whole reply; `Seen.data` is the body for the client."""

    def choices(self) -> list[Choice]:
        """Return what each choice brought, in order of index."""

    def reply(self) -> bytes | None:
        """Return the reply as the client got it, as JSON; of a stream the assembled whole; None when nothing came."""

    def top_logprobs(self) -> bytes | None:
        """Return the engine's logprob entries by choice as JSON, if the client asked for alternatives."""


A_FEW = 4
"""Tokens of a reply by which an engine shows what it gives."""

TO_THE_END = 64
"""Tokens within which a model that can chat has said hi and stopped."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A side question to an engine: a POST's path and body."""

    path: str
    body: bytes
    # Makes the next question of this one's answer, where one alone does not do. Raises `EngineError`.
    then: Callable[[bytes], Ask] | None = None


@runtime_checkable
class Inquirer(Reader, Protocol):
    """A reader whose engine tells the prompt's ids only when it is asked for them beside the call."""

    def question(self) -> Ask:
        """Return what to ask the engine, at any time of the call."""

    def answered(self, status: int, body: bytes) -> None:
        """Take the (last) answer; `prompt_ids` has the ids from then on, if they can be true. Never raises."""


class Adapter(Protocol):
    """One kind of engine."""

    kind: str
    # The tier that `vllm` and `sglang` must reach by default.
    require_tier: Literal["train", "eval"]
    # Why no reply of this kind brings ids, as a clause; None where one can.
    no_ids: str | None
    # Most tokens of a probe's reply: `A_FEW`, or, where an engine may lose what the end of a reply says, more.
    probe_tokens: int

    def inject(self, request: Request) -> dict[str, bytes | None]:
        """Return the request's fields to set (raw JSON) or remove (None), so that ids and logprobs come back."""

    def reader(self, request: Request, *, model: str | None = None) -> Reader:
        """Return a reader for the reply; with `model` the reply's model name is replaced by it."""

    def count(self, request: Request, *, model: str | None) -> Ask:
        """Return the question how many tokens a request's prompt has, by the engine's own template.

        Raises `EngineError` `count_unsupported` where the engine has no answer to that.
        """

    def counted(self, body: bytes) -> int:
        """Read the answer to it. Raises `EngineError` `engine_garbled`."""
