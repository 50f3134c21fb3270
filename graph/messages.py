"""Canonical messages: what is the same however an agent or an engine spells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graph.records import Message


def from_chat(obj: Mapping[str, Any]) -> Message:
    """Read one OpenAI chat message."""
    raise NotImplementedError


def canonical_json(text: str) -> str:
    """Return JSON text with sorted keys and no spaces; the text itself, stripped, where it isn't JSON."""
    raise NotImplementedError


def tools_digest(tools: Any) -> str | None:
    """Return a digest of a request's tool list; None when it has none."""
    raise NotImplementedError


def equal(a: Message, b: Message) -> bool:
    """Say if two messages are the same in canonical form."""
    raise NotImplementedError


def chain(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """Return cumulative digests: item k names the first k messages, so there is one more of them than messages."""
    raise NotImplementedError
