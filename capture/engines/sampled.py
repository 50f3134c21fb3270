"""What one choice of a reply sampled: its ids and their logprobs, as they come in, chunk by chunk.

Rules
- A logprob belongs to the ids of its own chunk. A chunk whose counts differ gives NaN for each of its ids; nothing is
  ever shifted, or cut to the shorter one.
- An absent half is None, not empty: ids are None until the engine gave a list, logprobs until it gave one.
- Ids of which a part can't be read are no ids: the array would be shorter than what was sampled, and look whole.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from capture import rawjson
from capture.engines.id_text import MAX_ID, maybe_parse
from graph.records import FloatArray, IntArray

NULL = b"null"

_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class _Entry(msgspec.Struct, gc=False):
    logprob: float | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Entry] | None = None


_ids = msgspec.json.Decoder(list[_Id])
_logprobs = msgspec.json.Decoder(_Logprobs)
_floats = msgspec.json.Decoder(list[float]).decode

decode_ids = _ids.decode
"""Decode a list of token ids. Raises ValueError, or RecursionError, where it isn't one."""


def decode_logprobs(raw: bytes) -> list[float] | None:
    """Decode OpenAI's `{"content": [{"logprob"}]}`: NaN for an entry without one, None without a list.

    Raises ValueError, or RecursionError, where it isn't that.
    """
    entries = _logprobs.decode(raw).content
    return None if entries is None else [np.nan if entry.logprob is None else entry.logprob for entry in entries]


MAX_DOUBTS = 32
"""Sentences kept about one reply: enough to see what is wrong, and a stream of garbage stays small in the record."""


class Doubts(list[str]):
    """Sentences about what could not be decoded for the record, each once."""

    def add(self, sentence: str) -> None:
        """Note a sentence."""
        if sentence not in self and len(self) < MAX_DOUBTS:
            self.append(sentence)

    def value(self, raw: bytes, name: str, *, halves: bool = False) -> Any:
        """Decode a field's value, tolerantly, noting what was not strict; None where it can't be decoded at all.

        Half a surrogate pair becomes U+FFFD, since the store holds UTF-8; with `halves` it stays, for the other half
        may come with the next chunk.
        """
        try:
            return msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            pass
        try:
            value = rawjson.loads(raw)
        except ValueError as error:
            self.add(f"{name} can't be read: {error}")
            return None
        self.add(f"{name} is not strict JSON: it holds NaN, or half a surrogate pair (recorded as U+FFFD)")
        return value if halves else rawjson.mended(value)

    def ids(self, raw: bytes, name: str) -> list[int] | None:
        """Decode a list of token ids; None, noted, where it isn't one."""
        try:
            return decode_ids(raw)
        except (ValueError, RecursionError) as error:
            self.add(f"{name} can't be read: {error}")
            return None

    def id_array(self, raw: bytes, name: str) -> IntArray | None:
        """Decode a long list of token ids, of a value known to be JSON; None, noted, where it isn't such a list.

        A prompt of 100,000 ids takes 1.1 ms, written without spaces; with them 3, and 5.2 by way of a list (numpy 2.4,
        msgspec 0.23).
        """
        body = raw[1:-1]
        if raw.startswith(b"[") and (parsed := maybe_parse(body)) is not None:
            return parsed
        if not raw.startswith(b"[") or not body.strip() or body.translate(None, b"0123456789, \t\r\n"):
            ids = self.ids(raw, name)
            return None if ids is None else np.array(ids, dtype=np.int32)
        # The list is JSON and of digits alone, so there is nothing in it that numpy could stop at.
        found = np.fromstring(body, dtype=np.int64, sep=",")
        if found.size != body.count(b",") + 1 or found.max() > MAX_ID:
            self.add(f"{name} can't be read: an id is out of range")
            return None
        return found.astype(np.int32)

    def logprobs(self, raw: bytes) -> list[float] | None:
        """Decode OpenAI's `{"content": [{"logprob"}]}`; NaN for an entry without one, None without a list."""
        try:
            return decode_logprobs(raw)
        except (ValueError, RecursionError):
            try:
                entries = msgspec.convert(self.value(raw, "logprobs"), _Logprobs).content
            except msgspec.ValidationError as error:
                self.add(f"logprobs can't be read: {error}")
                return None
        return None if entries is None else [np.nan if entry.logprob is None else entry.logprob for entry in entries]


class Sampled:
    """The ids of one choice and their logprobs, so far."""

    def __init__(self, doubts: Doubts) -> None:
        self._doubts = doubts
        self._ids: list[int] | None = None
        # As long as the ids; `_scored` once any came.
        self._logprobs: list[float] = []
        self._scored = False
        self._torn = False
        # All of a whole reply, while nothing else has come.
        self._all: tuple[IntArray, FloatArray] | None = None
        # Ids and logprobs that came one at a time, in pairs, each checked and in place behind all else; not yet read.
        self.raw: tuple[list[bytes], list[bytes]] = ([], [])
        self._n_read = 0

    def __len__(self) -> int:
        return len(self._logprobs) + len(self.raw[0]) + (0 if self._all is None else len(self._all[0]))

    def __repr__(self) -> str:
        return f"<Sampled {len(self)} ids{'' if self._scored else ', no logprobs'}{', torn' if self._torn else ''}>"

    @property
    def swift(self) -> int:
        """How many came one at a time (`raw`)."""
        return self._n_read + len(self.raw[0])

    @property
    def ids(self) -> IntArray | None:
        """The ids, int32."""
        self._settle()
        if self._all is not None:
            return self._all[0]
        return None if self._ids is None or self._torn else np.array(self._ids, dtype=np.int32)

    @property
    def logprobs(self) -> FloatArray | None:
        """The logprobs, float32, as long as the ids, NaN where an id came without one."""
        self._settle()
        if self._all is not None:
            return self._all[1]
        if self._ids is None or self._torn or not self._scored:
            return None
        return np.array(self._logprobs, dtype=np.float32)

    def add(self, raw_ids: bytes, raw_logprobs: bytes) -> int:
        """Take a chunk's ids and logprobs, raw, `null` where absent; return how many ids came."""
        ids = None if raw_ids == NULL else self._doubts.ids(raw_ids, "token_ids")
        self._torn = self._torn or (ids is None and raw_ids != NULL)
        scores = None if raw_logprobs == NULL else self._doubts.logprobs(raw_logprobs)
        if ids is None:
            if scores:
                self._doubts.add("logprobs came without token ids")
            return 0
        if scores is not None and len(scores) != len(ids):
            self._doubts.add(f"{len(ids)} ids and {len(scores)} logprobs came in one chunk")
            scores = None
        if scores is None:
            scores = [np.nan] * len(ids)
        else:
            self._scored = True
        self._extend(ids, scores)
        return len(ids)

    def take(self, ids: list[int], logprobs: list[float]) -> None:
        """Take a chunk's ids and logprobs, decoded, as many of the one as of the other."""
        self._scored = True
        self._extend(ids, logprobs)

    def take_all(self, ids: IntArray, logprobs: FloatArray) -> None:
        """Take a whole reply's ids and logprobs, as many of the one as of the other; the arrays are kept."""
        if self._ids is None and not self.raw[0] and self._all is None:
            self._all, self._scored = (ids, logprobs), True
        else:
            self.take(ids.tolist(), logprobs.tolist())

    def take_one(self, id_: int, logprob: float) -> None:
        """Take one id and its logprob."""
        self._scored = True
        self._extend([id_], [logprob])

    def _settle(self) -> None:
        """Read what came one at a time."""
        ids, logprobs = self.raw
        if ids:
            self._n_read += len(ids)
            read = decode_ids(b"[%b]" % b",".join(ids)), _floats(b"[%b]" % b",".join(logprobs))
            ids.clear()
            logprobs.clear()
            self.take(*read)

    def _extend(self, ids: list[int], logprobs: list[float]) -> None:
        if self.raw[0]:
            self._settle()
        if self._all is not None:
            (earlier, scores), self._all = self._all, None
            self._ids, self._logprobs = earlier.tolist(), scores.tolist()
        if self._ids is None:
            self._ids = []
        self._ids += ids
        self._logprobs += logprobs
