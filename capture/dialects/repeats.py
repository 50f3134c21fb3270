"""What a translated request repeats: the elements of its list, each translated once.

A request repeats all that was said before, so almost every element of it was translated with the call before. What it
was translated to is kept by its raw bytes: the chat messages, each as chat itself knows it (`elements`), beside the
digest by which the store names those bytes and one that key order and spaces don't change.

Rules
1. Kept is only what follows from the bytes alone, wherever they stand in whatever request. What doesn't (which call a
   result without an id answers) is the dialect's to tell, and is translated each time.
2. Whatever can't be translated so is nothing here, a fault above all: the long way finds it, and names its place.
3. What no request has brought again for half a minute, or twice as long, goes; so does the older half where there is
   more than there is room for. Safe to use from several threads, since long requests are read aside.
"""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from capture.dialects import chat
from capture.dialects.elements import LARGE, UNUSED_S, read, value_digest
from capture.dialects.said import Element
from capture.digests import digest
from capture.errors import ClientError

KEPT_BYTES = 48 << 20
"""Memory that the elements of one dialect may take: some thirty conversations of 100,000 tokens, or two hundred of
16,000. With more at a time each is translated anew, 17 us a message."""

FEW_BYTES = 4 << 20
"""That its other values may take, which are few: tool lists, system prompts."""

EACH_BYTES = 700
"""What one takes beside its bytes and those of what it means: the objects, the digests, its place."""

UNTRANSLATED = (ClientError, msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
"""What the translation of a value may raise, or its reading."""

_RAW = attrgetter("raw")
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Meaning = TypeVar("Meaning")


class Kept(Generic[Key, Value]):
    """Values by key, in two halves: those used since the last turn, and those used before."""

    def __init__(self, *, room: int, now: Callable[[], float] = time.monotonic) -> None:
        self._young: dict[Key, tuple[Value, int]] = {}
        self._old: dict[Key, tuple[Value, int]] = {}
        self._half = room // 2
        self._size = 0
        self._now = now
        self._turned = now()
        self._lock = threading.Lock()
        _every.add(self)

    def __repr__(self) -> str:
        return f"<Kept {len(self._young)} and {len(self._old)}, {self._size} bytes>"

    def rest(self) -> bool:
        """Let go of what was not used for a while; say whether there was any."""
        with self._lock:
            if (at := self._now()) - self._turned <= UNUSED_S:
                return False
            gone = bool(self._old)
            self._turn(at)
            return gone

    def find(self, keys: Sequence[Key]) -> list[Value | None]:
        """Return the values of keys, None for one that isn't kept."""
        with self._lock:
            if (at := self._now()) - self._turned > UNUSED_S:
                self._turn(at)
            # Without a step of ours for each of hundreds, all but one or two of which are known.
            found = list(map(self._young.get, keys))
            for i, one in enumerate(found) if None in found else ():
                if one is None and (older := self._old.pop(keys[i], None)) is not None:
                    found[i] = older
                    self._put(keys[i], older)
        return [None if one is None else one[0] for one in found]

    def keep(self, key: Key, value: Value, size: int) -> None:
        """Keep a value that takes so many bytes."""
        with self._lock:
            if key not in self._young:
                self._put(key, (value, size))

    def _put(self, key: Key, entry: tuple[Value, int]) -> None:
        if self._size + entry[1] > self._half:
            self._turn(self._now())
        self._young[key] = entry
        self._size += entry[1]

    def _turn(self, at: float) -> None:
        self._old, self._young, self._size, self._turned = self._young, {}, 0, at


_every: weakref.WeakSet[Kept[Any, Any]] = weakref.WeakSet()


def rest() -> bool:
    """Let go of what no request has brought for a while, in whatever dialect; say whether there was any."""
    return any([chat.rest(), *[kept.rest() for kept in list(_every)]])


class Repairs(list[str]):
    """The names of repairs, each once."""

    def note(self, repair: str) -> None:
        """Note a repair."""
        if repair not in self:
            self.append(repair)


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What a part of a conversation means: chat messages, and the repairs that it took."""

    elements: tuple[Element, ...]
    repairs: tuple[str, ...] = ()
    # See `is_open`.
    is_open: bool = False


class ToolList(msgspec.Struct, frozen=True, kw_only=True):
    """A body's tools as the engine gets them: raw JSON, None where it gets none; their names, and the repairs."""

    raw: bytes | None = None
    names: frozenset[str] = frozenset()
    repairs: tuple[str, ...] = ()


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What was translated before of a body: its system prompt and messages, and its tools."""

    # The chat messages as raw JSON, and the repairs that they took.
    messages: bytes
    repairs: list[str]
    is_open: bool
    tools: ToolList


class Piece(msgspec.Struct, Generic[Meaning], frozen=True, kw_only=True):
    """A value of a request as it came, and what it means to the dialect."""

    raw: bytes
    # The digest of `raw` (`capture.store.contents`), and that of its value, whatever its order of keys.
    name: bytes
    value: bytes
    meaning: Meaning


class Repeats(Generic[Meaning]):
    """Reads values, and keeps what they mean."""

    def __init__(self, mean: Callable[[Any], Meaning], *, room: int = KEPT_BYTES) -> None:
        """`mean` says what a value means, as parsed from JSON; it may raise `UNTRANSLATED`. `room` is in bytes."""
        self._mean = mean
        self._kept: Kept[bytes, Piece[Meaning]] = Kept(room=room)

    def __repr__(self) -> str:
        return f"<Repeats {self._kept!r}>"

    def elements(self, raw: bytes) -> list[Piece[Meaning]]:
        """Read the elements of a list. Raises `UNTRANSLATED`."""
        return self.read(list(map(bytes, _ARRAY.decode(raw))))

    def read(self, raws: Sequence[bytes]) -> list[Piece[Meaning]]:
        """Read values. Raises `UNTRANSLATED`."""
        found = self._kept.find(raws)
        if None not in found:
            return found  # type: ignore[return-value]  # as the line above says
        return [known or self._read(raw) for known, raw in zip(found, raws, strict=True)]

    def _read(self, raw: bytes) -> Piece[Meaning]:
        value = msgspec.json.decode(raw)
        piece = Piece(raw=raw, name=digest(raw), value=value_digest(value), meaning=self._mean(value))
        if len(raw) < LARGE:
            self._kept.keep(raw, piece, 3 * len(raw) + EACH_BYTES)
        return piece


def unit_of(messages: Sequence[dict[str, Any]], repairs: Sequence[str]) -> Unit:
    """Return the unit of chat messages. Raises `UNTRANSLATED` where chat reads them only with doubts."""
    # Not kept among chat's own as well: what they were translated from is.
    elements = tuple([read(msgspec.json.encode(message)) for message in messages])
    return Unit(elements=elements, repairs=tuple(repairs), is_open=is_open(messages))


def is_open(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Say if chat messages end with an assistant's text and no call, to be gone on with."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and "tool_calls" not in last and bool(last["content"])


def joined(units: Sequence[Unit]) -> tuple[bytes, tuple[Element, ...], list[str]]:
    """Return the chat messages of units as one JSON list, their elements, and their repairs, each once."""
    elements = tuple([element for unit in units for element in unit.elements])
    repairs = dict.fromkeys([repair for unit in units if unit.repairs for repair in unit.repairs])
    return b"[%b]" % b",".join(map(_RAW, elements)), elements, list(repairs)


def body_digest(rest: Any, apart: Mapping[str, bytes], listed: Sequence[bytes]) -> str:
    """Return a digest of a body that key order and spaces don't change.

    `listed` are the digests of its list's elements, `apart` those of other values that were read apart, by name; `rest`
    is all else, as parsed from JSON.
    """
    state = hashlib.blake2b(msgspec.json.encode(rest, order="sorted"), digest_size=16)
    for name in sorted(apart):
        state.update(b"\0%b\0%b" % (name.encode(), apart[name]))
    state.update(b"\0\0" + b"".join(listed))
    return state.hexdigest()
