"""Canonical messages from the raw ones, each read once.

A request repeats its messages, so the same bytes come again with every call. What `graph.messages` makes of them is
kept by the digest of the bytes, least recently used out first. The writer fills it, the readers find it warm, and what
they have to read themselves they don't put in: a pass over many rollouts would push out those that run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from graph.messages import from_chat
from graph.records import Message

KEPT_BYTES = 32 << 20
"""Of all that is kept: some hundred long conversations, or a few with images."""

EACH_BYTES = 440
"""What a message takes beside the bytes of its text, as Python allocates: short ones are mostly this."""


class Canonical:
    """The canonical form of raw messages in the chat dialect, by digest; safe to use from several threads."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept: OrderedDict[bytes, tuple[int, Message | None]] = OrderedDict()
        self._room = kept_bytes
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Canonical {len(self._kept)} messages, room for {self._room} bytes>"

    def read(self, name: bytes, raw: bytes | None, *, keep: bool = True) -> Message | None:
        """Return the canonical form of `raw`, whose digest is `name`; None if it has none.

        With None for `raw`, raises `KeyError` if the message isn't kept. Without `keep` it isn't kept now either.
        """
        with self._lock:
            found = self._kept.get(name)
            if found is not None:
                self._kept.move_to_end(name)
                return found[1]
        if raw is None:
            raise KeyError(name)
        try:
            message = from_chat(msgspec.json.decode(raw))
        except Exception:  # noqa: BLE001 - whatever an agent sent, its call must be written and read back
            message = None
        if not keep:
            return message
        with self._lock:
            if name not in self._kept:
                size = len(raw) + EACH_BYTES
                self._kept[name] = (size, message)
                self._room -= size
            while self._room < 0 and self._kept:
                _, (size, _) = self._kept.popitem(last=False)
                self._room += size
        return message

    def says(self, names: Sequence[bytes], elements: Sequence[bytes], messages: Sequence[Message]) -> bool:
        """Tell whether raw messages, of these digests, are in canonical form what a call says."""
        if len(elements) != len(messages):
            return False
        read = (self.read(name, raw) for name, raw in zip(names, elements, strict=True))
        return all(found is message or found == message for found, message in zip(read, messages, strict=True))
