"""Long lists of messages, known again: what a rollout's requests said so far.

Rules
1. A list is kept under its rollout, the last few of each: its main conversation's, and those of subagents beside it.
   A request is held up to those alone, however many others there are.
2. What is kept is by what its text is known again (`capture.beginnings`) and what is asked of all messages at once
   (`capture.dialects.said.Heard`): some 35 bytes a message, so thousands of long conversations have room.
3. Texts are kept beside, of those lists that were used last: to compare takes a tenth of the time that hashing takes.
   They go before any list does.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from capture.beginnings import Beginning, Texts, beginning
from capture.dialects.said import Heard
from capture.digests import DIGEST_BYTES

KEPT_BYTES = 32 << 20
"""Memory that lists may take: some 2,000 of 100,000 tokens, 10,000 of 16,000."""

TEXT_BYTES = 8 << 20
"""Memory that their texts may take: some twenty of 100,000 tokens."""

MOST = 6
"""Lists of a rollout; those of more subagents at the same time are read message by message."""

LEFT_S = 60.0
"""After which a rollout's lists go where no request has brought one again."""

TEXT_LEFT_S = 30.0
"""After which their texts go."""

EACH_BYTES = 700
"""What a list takes beside its digests: the objects, the hashes of its text, its place."""


class Listed(NamedTuple):
    """A list of messages: its text inside the brackets, and what they say; what both take, without the text itself."""

    text: Beginning
    heard: Heard
    cost: int

    @classmethod
    def of(cls, text: Beginning, heard: Heard) -> Listed:
        """Return a list."""
        return cls(text, heard, 2 * len(heard.names) * DIGEST_BYTES + 40 * len(text.hashes) + EACH_BYTES)


class _Of:
    """The lists of one rollout, the latest first."""

    __slots__ = ("lists", "used")

    def __init__(self) -> None:
        self.lists: list[Listed] = []
        self.used = 0.0


class Lists:
    """Keeps lists of messages by rollout, least recently used out first; safe to use from several threads."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES, text_bytes: int = TEXT_BYTES) -> None:
        self._of: OrderedDict[str, _Of] = OrderedDict()
        self._room = kept_bytes
        self._texts = Texts(kept_bytes=text_bytes)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Lists of {len(self._of)} rollouts, room for {self._room} bytes>"

    def __len__(self) -> int:
        return sum(len(of.lists) for of in self._of.values())

    def maybe(self, rollout: str, body: bytes, at: int) -> Listed | None:
        """Return the list of a rollout that the one whose first message stands at `at` begins with; None if none."""
        of = self._of.get(rollout)
        # Copied, since another thread may be at it.
        return None if of is None else next((one for one in of.lists[:] if one.text.begins(body, at)), None)

    def keep(
        self, rollout: str, raw: bytes, heard: Heard, now: float, *, before: Listed | None = None, text: bool = True
    ) -> None:
        """Keep a list, `raw` with its brackets, in place of the one that it goes on from; its `text` too."""
        known = beginning(raw, 1, len(raw) - 1, None if before is None else before.text)
        listed = Listed.of(known, heard)
        with self._lock:
            of = self._of.get(rollout)
            if of is None:
                of = self._of[rollout] = _Of()
            of.used = now
            self._of.move_to_end(rollout)
            # Another request may have gone on from the same one meanwhile, and so it is gone.
            gone = [one for one in of.lists if one is before]
            of.lists = [listed, *[one for one in of.lists if one is not before]]
            self._room -= listed.cost
            if len(of.lists) > MOST:
                gone += of.lists[MOST:]
                del of.lists[MOST:]
            self._forget(gone)
            if text:
                self._texts.keep(known, raw, 1)
            while self._room < 0:
                self._drop(next(iter(self._of)))

    def sweep(self, now: float) -> bool:
        """Let go of what was not used for a while; say whether there was any."""
        found = False
        with self._lock:
            for rollout, of in list(self._of.items()):
                if now - of.used <= TEXT_LEFT_S:
                    # So were all behind it.
                    break
                if now - of.used > LEFT_S:
                    self._drop(rollout)
                    found = True
                    continue
                for one in of.lists:
                    found = found or one.text.text is not None
                    self._texts.let_go(one.text)
        return found

    def _drop(self, rollout: str) -> None:
        self._forget(self._of.pop(rollout).lists)

    def _forget(self, lists: Sequence[Listed]) -> None:
        for listed in lists:
            self._texts.let_go(listed.text)
            self._room += listed.cost
