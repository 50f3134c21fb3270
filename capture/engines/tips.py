"""The ids of long prompts, parsed only where they are new.

An agent's prompt is the one before and something more, and so is the text of its ids: 630 KB for 100,000 of them. What
is kept of a rollout is the ids of its last few prompts, and what their text is known by again; of a new one that begins
with such a text only the rest is parsed (0.1 ms; a text that is new all through takes 1.5).

Rules
1. Equal text has equal ids, since the earlier one was parsed itself (what is held to be equal: `capture.beginnings`).
   To keep all texts would take 6.3 bytes a token beside the 4 of the ids, for every open rollout: those used last are.
2. A short text is read whole where that is compiled: it is no longer than the ways below, and nothing is kept.
3. Taken is only what is sure to be a JSON list of numbers from 0 to 2^31 - 1, written without spaces; of anything else
   `None` is said, and the ordinary reader reads.
4. The list is found by the bytes of its key. Its quotes are bare, so they are no text; that the key stands at the top
   (or in the one choice), and once, is seen on what is left when the list is taken out.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from capture import rawjson
from capture.beginnings import Beginning, Texts, beginning
from capture.engines import id_text
from capture.engines.id_text import is_list, maybe_parse
from capture.engines.sampled import NULL
from graph.records import IntArray

KEPT_BYTES = 32 << 20
"""Of all rollouts together, 4 a token: five hundred prompts of 16,000. The least recently used rollout goes first; its
next prompt is read anew, 16,000 ids in 40 us where that is compiled and in 180 where it isn't."""

TIPS = 4
"""Prompts kept of a rollout: its main conversation's last one, and those of a few subagents that run beside it."""

LONG = 2048
"""Bytes of a list from which this is worth its while."""

QUICK = 32 << 10
"""Bytes of a list up to which what is compiled reads all of it (10 us) sooner than a beginning is found and seen to;
with 100 KB that is the faster one again."""

MANY = 1 << 16
"""Ids from which a prompt is given room to grow: to copy fewer takes no longer than to see to that."""

_KEY = b'"prompt_token_ids"'
_LIST = _KEY + b":["


class Tip(NamedTuple):
    """A prompt: its ids, and their text up to the closing bracket."""

    text: Beginning
    ids: IntArray
    # What the ids are the beginning of: of a long prompt that grew, with room behind them for more.
    room: IntArray


class Known:
    """The last few prompts of one rollout."""

    def __init__(self, texts: Texts | None = None) -> None:
        """`texts` keeps the texts of those used last, of all rollouts."""
        self.tips: list[Tip] = []
        # Its size when it was last added up.
        self.counted = 0
        self._texts = Texts() if texts is None else texts

    def __repr__(self) -> str:
        return f"<Known {[tip.ids.size for tip in self.tips]}>"

    @property
    def size(self) -> int:
        """Bytes held, but for the texts."""
        return sum(tip.room.nbytes for tip in self.tips)

    def maybe_ids(self, data: bytes, start: int = 0, end: int | None = None) -> IntArray | None:
        """Return the ids of a list, and keep it; None where that is for the ordinary reader.

        It stands in `data` from its bracket at `start` up to `end`.
        """
        end = len(data) if end is None else end
        if _is_quick(start, end):
            return _maybe_read(data, start, end)
        before = self.before(data, start, end)
        if before is not None:
            return self.after(before, data, start, end)
        ids = _maybe_read(data, start, end)
        if ids is not None:
            self._note(Tip(beginning(data, start, end - 1), ids, ids), data, start)
        return ids

    def before(self, data: bytes, start: int, end: int) -> Tip | None:
        """Return the prompt that a list, which stands as `maybe_ids` says, goes on from; None for a new one."""
        if not _is_bracketed(data, start, end):
            return None
        return next((tip for tip in self.tips if tip.text.length < end - start and tip.text.begins(data, start)), None)

    def after(self, before: Tip, data: bytes, start: int, end: int) -> IntArray | None:
        """Return the ids of a list that goes on from a prompt, as `maybe_ids` does."""
        rest = data[start + before.text.length : end - 1]
        if not rest:
            self._texts.keep(before.text, data, start)
            return before.ids
        new = maybe_parse(rest[1:])
        if new is None:
            return None
        # Its room is taken once: whoever goes on from the same prompt later doesn't find it any more.
        self._let_go([before])
        ids, room = _longer(before, new)
        self._note(Tip(beginning(data, start, end - 1, before.text), ids, room), data, start)
        return ids

    def _note(self, tip: Tip, data: bytes, start: int) -> None:
        self.tips.insert(0, tip)
        self._texts.keep(tip.text, data, start)
        self._let_go(self.tips[TIPS:])

    def clear(self) -> None:
        """Forget all."""
        self._let_go(self.tips[:])

    def _let_go(self, tips: Sequence[Tip]) -> None:
        for tip in tips:
            self._texts.let_go(tip.text)
        self.tips = [tip for tip in self.tips if all(tip is not gone for gone in tips)]


def _longer(before: Tip, new: IntArray) -> tuple[IntArray, IntArray]:
    """Return a prompt's ids with more behind them, and what they are the beginning of. What was before stays as it is.

    Memory that nobody has written to yet takes none.
    """
    n, total = len(before.ids), len(before.ids) + len(new)
    if total < MANY:
        ids = np.concatenate((before.ids, new))
        return ids, ids
    room = before.room
    if total > len(room):
        room = np.empty(total + total // 8, np.int32)
        room[:n] = before.ids
    room[n:total] = new
    return room[:total], room


def _is_quick(start: int, end: int) -> bool:
    return end - start <= QUICK and id_text.compiled is not None


def _maybe_read(data: bytes, start: int, end: int) -> IntArray | None:
    return maybe_parse(data[start + 1 : end - 1]) if _is_bracketed(data, start, end) else None


def _is_bracketed(data: bytes, start: int, end: int) -> bool:
    return data.startswith(b"[", start) and data.endswith(b"]", start, end)


class Tips:
    """What is known of the rollouts' prompts, all together no more than so many bytes."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._room = kept_bytes
        self._texts = Texts()
        # A rollout may be collected on any thread.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<Tips of {len(self._known)} rollouts>"

    def of(self, rollout: str, owner: object) -> Known:
        """Return what is known of a rollout's prompts; it is forgotten when `owner` is collected."""
        with self._lock:
            known = self._known.get(rollout)
            if known is None:
                known = self._known[rollout] = Known(self._texts)
                weakref.finalize(owner, self._forget, rollout, known).atexit = False
            self._known.move_to_end(rollout)
            self._count(known)
            while self._room < 0:
                oldest = next(iter(self._known))
                self._known.move_to_end(oldest)
                # Its owner may still use it, and it fills again.
                self._known[oldest].clear()
                self._count(self._known[oldest])
            return known

    def _count(self, known: Known) -> None:
        size = known.size
        self._room -= size - known.counted
        known.counted = size

    def _forget(self, rollout: str, known: Known) -> None:
        with self._lock:
            if self._known.get(rollout) is known:
                self._room += self._known.pop(rollout).counted
                known.clear()


class Later(NamedTuple):
    """The text of a list of ids that is to be read when there is time."""

    text: bytes


def maybe_told(data: bytes, start: int, end: int, known: Known) -> IntArray | Later | None:
    """Return the ids of a list that goes on from a prompt, of a new one the text; None for the ordinary reader.

    It stands in `data` as `Known.maybe_ids` has it.
    """
    if _is_quick(start, end):
        return _maybe_read(data, start, end)
    before = known.before(data, start, end)
    if before is not None:
        return known.after(before, data, start, end)
    return Later(data[start:end]) if _is_bracketed(data, start, end) and is_list(data[start + 1 : end - 1]) else None


def split(data: bytes, known: Known | None) -> tuple[dict[str, bytes], IntArray | Later | None]:
    """Return the fields of a reply or of an event, as `rawjson.split` does, and its prompt's ids where they are known.

    Where the prompt is a new one, that is their text: it is a list, though an id may be out of range. Raises ValueError
    as `rawjson.split` does.
    """
    at = data.find(_LIST) if known is not None and len(data) > LONG else -1
    if at >= 0 and known is not None:
        start = at + len(_LIST) - 1
        end = data.find(b"]", start) + 1
        if end - start > LONG and data.find(_KEY, end) < 0:
            try:
                top = rawjson.split(data[:start] + NULL + data[end:])
            except ValueError:
                top = {}
            text = data[start:end]
            if top.get("prompt_token_ids") == NULL:
                top["prompt_token_ids"] = text
                ids = maybe_told(text, 0, len(text), known)
                if ids is not None:
                    return top, ids
    return rawjson.split(data), None


def split_choices(
    data: bytes, known: Known | None
) -> tuple[dict[str, bytes], list[dict[str, bytes]] | None, IntArray | None]:
    """Return the fields of a reply or an event, those of its choices, and its prompt's ids where they are known.

    For a wire on which the list stands in the (one) choice. Raises ValueError as `rawjson.split` does.
    """
    at = data.find(_KEY) if known is not None and len(data) > LONG else -1
    if at >= 0 and known is not None and data.startswith(_LIST, at):
        start = at + len(_LIST) - 1
        end = data.find(b"]", start) + 1
        if end - start > LONG and data.find(_KEY, end) < 0:
            try:
                top = rawjson.split(data[:start] + NULL + data[end:])
                choices = rawjson.objects(top.get("choices", NULL))
            except ValueError:
                choices = []
            if len(choices) == 1 and choices[0].get("prompt_token_ids") == NULL:
                text = data[start:end]
                if (ids := known.maybe_ids(text)) is not None:
                    choices[0]["prompt_token_ids"] = text
                    return top, choices, ids
    top = rawjson.split(data)
    return top, rawjson.objects(top["choices"]) if top.get("choices", NULL) != NULL else None, None
