"""The elements of chat requests, each read once: messages and tool lists.

A request repeats all that was said before, so almost every message of it was read with the call before. What reading
gives is kept by the raw bytes, least recently used out first: the canonical message, the digest by which the store
names those bytes, a digest that key order and spaces don't change, and where a medium stands that an engine would have
to fetch.

Kept by the bytes themselves, not by a digest of them: a look-up is a hash of the bytes and one comparison (some 0.1 ms
for a prompt of 16,000 tokens), a BLAKE2 of them would be four times that. Safe to use from several threads, since long
requests are read aside.

Of a long conversation even that is too much: it would be taken apart twice, into fields and into messages, and each of
hundreds be copied and looked up; and hundreds of conversations of hundreds of messages have no room. So long lists are
known again as a whole (`capture.dialects.lists`). A body whose list begins with such a text is read without it: a mark
stands in its place, as an element, and where the list then begins with the mark, it stood there. For 100,000 tokens
that is 0.1 ms in place of 0.7, and of 5 where the messages are not kept.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from capture import keys, rawjson
from capture.dialects.lists import Lists
from capture.dialects.plain import maybe_spelled, unspelled
from capture.dialects.said import NOTHING, Element, Heard, Said, Unread
from capture.digests import Digests, digest, digests
from capture.media import fetched
from graph import messages as canonical

KEPT_BYTES = 16 << 20
"""Memory that the elements may take: some two hundred conversations of up to 32 KB. Longer ones go on as lists."""

UNUSED_S = 30.0
"""After which, or up to twice as long, an element goes that no request has brought again."""

EACH_BYTES = 600
"""What an element takes beside its bytes and their text: the objects, the digests, its place."""

LARGE = 8 << 20
"""Bytes from which a message is read each time: to hash it and to hold it up to others takes the interpreter's lock."""

LONG = 32 << 10
"""Bytes of a list of messages from which it is kept: of a shorter one there is little to save."""

LEAD = 4
"""Messages that a long list begins with, by which it is seen whether anybody began so before. Where nobody did, it is
known again as a whole; its messages are kept where those first ones come again, in a fork or in another rollout of its
group. To look each of them up and to keep it takes a quarter of what reading it takes."""

_RAW = attrgetter("raw")
_SECRET = keys.PREFIX.encode()
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

_MESSAGES = b'"messages":'
# JSON, and no message that anybody sends.
_LEFT_OUT = b'"\\u0000left out"'

# In the order of use: what stands before it was not used since it was put there. No JSON is empty.
_MARK = b""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """A tool list as it came, and what is to be known of it."""

    raw: bytes
    value: bytes
    # As `graph.messages.tools_digest` and `tool_names` give them.
    digest: str | None
    names: tuple[str, ...]


class Elements:
    """Reads messages and tool lists, and keeps what it read."""

    def __init__(
        self,
        *,
        kept_bytes: int = KEPT_BYTES,
        lists: Lists | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kept: OrderedDict[bytes, Element | None] = OrderedDict()
        self._tools: OrderedDict[bytes, Tools] = OrderedDict()
        self._lists = Lists() if lists is None else lists
        self._room = kept_bytes
        self._now = now
        self._swept = now()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Elements {len(self._kept)} messages, {len(self._tools)} tool lists, room for {self._room} bytes>"

    def maybe_begun(self, body: bytes, *, rollout: str = "") -> tuple[dict[str, bytes], Said] | None:
        """Read a body whose messages begin as those of an earlier one: its fields, as `rawjson.split` gives them.

        None for any other, and for one that isn't just so: it is to be read field by field.
        """
        at = body.find(_MESSAGES) if len(body) > LONG else -1
        # Some write a space behind a colon.
        first = body.find(b"[", at + len(_MESSAGES), at + len(_MESSAGES) + 2) + 1 if at >= 0 else 0
        if not first:
            return None
        before = self._lists.maybe(rollout, body, first)
        if before is None:
            return None
        length = before.text.length
        try:
            fields = rawjson.split(body[:first] + _LEFT_OUT + body[first + length :])
            mark, *raws = _listed(fields["messages"])
            if mark != _LEFT_OUT:
                return None
            # Not kept by themselves: they go on as part of the list.
            heard = hear(raws, before=before.heard)
        except (KeyError, ValueError, msgspec.MsgspecError, RecursionError, OverflowError):
            return None
        size = len(fields["messages"]) - len(mark) + length
        fields["messages"] = raw = body[first - 1 : first - 1 + size]
        # They were read when they were new, so they can be.
        old = Unread(len(before.heard.names), lambda: _listed(raw[: 1 + length] + b"]"), self._recall)
        said = Said(unread=(old, Unread(len(raws), lambda: raws, _read_all)), heard=heard)
        if _is_long(raw):
            self._lists.keep(rollout, raw, said.heard, self._now(), before=before)
        return fields, said

    def maybe_messages(self, raw: bytes, *, rollout: str = "") -> Said | None:
        """Read a list of messages; None where strict JSON can't read it, or it is no list."""
        try:
            raws = _listed(raw)
            if _is_long(raw) and len(raws) > LEAD and self._are_new(raws[:LEAD]):
                said, n_fresh = self._hear_new(raw, raws)
            else:
                elements, n_fresh = self._read(raws)
                said = Said(elements)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError):
            return None
        if _is_long(raw):
            # What is seen for the first time may be for the last time too: its text is kept when it comes again.
            self._lists.keep(rollout, raw, said.heard, self._now(), text=n_fresh < len(said) / 2)
        return said

    def rest(self) -> bool:
        """Let go of what was not used for a while; say whether there was any."""
        with self._lock:
            if (at := self._now()) - self._swept <= UNUSED_S:
                return False
            return self._sweep(at)

    def _are_new(self, lead: Sequence[bytes]) -> bool:
        with self._lock:
            return None in map(self._kept.get, lead)

    def _hear_new(self, raw: bytes, raws: list[bytes]) -> tuple[Said, int]:
        """Hear a long list that nobody has begun so: none of its messages is looked up, and its first ones are kept."""
        lead, n_fresh = self._read(raws[:LEAD])
        rest = raws[LEAD:]
        # Searched at once.
        heard = hear(rest, before=NOTHING.more(lead), suspect=_is_suspect(raw))
        return Said(unread=(Unread(len(raws), lambda: raws, self._recall),), heard=heard), n_fresh + len(rest)

    def _recall(self, raws: Sequence[bytes]) -> Sequence[Element]:
        return self._read(raws)[0]

    def _read(self, raws: Sequence[bytes]) -> tuple[tuple[Element, ...], int]:
        """Read messages; return them, and how many were not known.

        Raises `msgspec.MsgspecError` and others where strict JSON can't read one.
        """
        with self._lock:
            if (at := self._now()) - self._swept > UNUSED_S:
                self._sweep(at)
            get = self._kept.get
            # Without a step of ours for each of hundreds, all but one or two of which are known.
            small = sum(map(len, raws)) < LARGE
            kept = list(map(get, raws)) if small else [get(one) if len(one) < LARGE else None for one in raws]
            found = [one for one in kept if one is not None]
            deque(map(self._kept.move_to_end, map(_RAW, found)), maxlen=0)
        if len(found) == len(raws):
            return tuple(found), 0
        fresh = {one: read(one) for known, one in zip(kept, raws, strict=True) if known is None}
        self._keep(fresh)
        return tuple([known or fresh[one] for known, one in zip(kept, raws, strict=True)]), len(fresh)

    def maybe_tools(self, raw: bytes) -> Tools | None:
        """Read a tool list; None where strict JSON can't read it."""
        with self._lock:
            found = self._tools.get(raw)
            if found is not None:
                self._tools.move_to_end(raw)
                return found
        try:
            value = msgspec.json.decode(raw)
            named = value_digest(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError):
            return None
        found = Tools(raw=raw, value=named, digest=canonical.tools_digest(value), names=canonical.tool_names(value))
        with self._lock:
            if raw not in self._tools:
                self._tools[raw] = found
                self._spend(_cost(raw))
        return found

    def _keep(self, fresh: dict[bytes, Element]) -> None:
        with self._lock:
            # Another thread may have read the same meanwhile.
            new = [one for one in fresh if one not in self._kept and len(one) < LARGE]
            self._kept.update([(one, fresh[one]) for one in new])
            self._spend(2 * sum(map(len, new)) + EACH_BYTES * len(new))

    def _spend(self, size: int) -> None:
        self._room -= size
        while self._room < 0 and (self._kept or self._tools):
            # Tool lists are few; they go when no message is left.
            self._drop(self._kept or self._tools)

    def _sweep(self, at: float) -> bool:
        """Drop what was not used since the last time, of messages; tool lists are few. Say whether there was any."""
        self._swept = at
        found = False
        if _MARK in self._kept:
            while self._drop(self._kept) != _MARK:
                found = True
        self._kept[_MARK] = None
        return self._lists.sweep(at) or found

    def _drop(self, kept: OrderedDict[bytes, Any]) -> bytes:
        """Drop the one that is the longest unused; return its bytes."""
        raw, _ = kept.popitem(last=False)
        if raw != _MARK:
            self._room += _cost(raw)
        return raw


def hear(raws: list[bytes], *, before: Heard = NOTHING, suspect: bool | None = None) -> Heard:
    """Return what is asked of messages and of those `before` them; of most nothing is read for it.

    `suspect`: whether one of them is, where that is known. Raises `msgspec.MsgspecError` and others where strict JSON
    can't read one.
    """
    names = values = digests(raws)
    fetches = before.fetches
    if odd := unspelled(raws):
        each = Digests(names)
        told = list(each)
        for at in odd:
            value = _decoded(raws[at])
            told[at] = _value(raws[at], each[at], value)
            fetches = fetches or fetched(value) is not None
        values = b"".join(told)
    return Heard(
        Digests(names, before=before.names),
        Digests(values, before=before.values),
        fetches,
        before.suspect or (any(map(_is_suspect, raws)) if suspect is None else suspect),
    )


def read(raw: bytes) -> Element:
    """Read one message; nothing of it is kept. Raises `msgspec.MsgspecError` and others where strict JSON can't."""
    value, name = _decoded(raw), digest(raw)
    return Element(
        raw=raw,
        name=name,
        value=_value(raw, name, value),
        message=canonical.from_chat(value),
        fetched=fetched(value),
        suspect=_is_suspect(raw),
    )


def _read_all(raws: Sequence[bytes]) -> Sequence[Element]:
    return tuple(map(read, raws))


def _decoded(raw: bytes) -> Any:
    """Return what a message says, as parsed from JSON: of a large one each part by itself, for the reason below.

    At once, two hundred megabytes take the interpreter's lock for a quarter of a second.
    """
    if len(raw) < LARGE:
        return msgspec.json.decode(raw)
    try:
        fields = _FIELDS.decode(raw)
    except msgspec.ValidationError:
        # No object.
        return msgspec.json.decode(raw)
    return {name: _parted(value) for name, value in fields.items()}


def _parted(value: msgspec.Raw) -> Any:
    try:
        parts = _ARRAY.decode(value)
    except msgspec.ValidationError:
        return msgspec.json.decode(value)
    return [msgspec.json.decode(part) for part in parts]


def _value(raw: bytes, name: bytes, value: Any) -> bytes:
    """Return the digest of a message's value; `name` is that of its bytes."""
    if len(raw) >= LARGE:
        # To write hundreds of megabytes anew takes as many tenths of a second, and nobody else is served; and who
        # sends such a message again sends the same bytes.
        return name
    spelled = maybe_spelled(value)
    if spelled is None:
        return value_digest(value)
    return name if spelled == raw else digest(spelled)


def _listed(raw: bytes) -> list[bytes]:
    """Return the elements of a list. Raises `msgspec.MsgspecError`."""
    elements = _ARRAY.decode(raw)
    # Of large ones other threads get on between one and the next, which they don't within a `map`.
    return list(map(bytes, elements)) if len(raw) < LARGE else [bytes(one) for one in elements]


def _is_suspect(raw: bytes) -> bool:
    # `in` takes four times as long: CPython 3.11 tries first whether what it looks for is a number.
    return raw.find(_SECRET) >= 0


def _is_long(raw: bytes) -> bool:
    return LONG < len(raw) < LARGE


def _cost(raw: bytes) -> int:
    # Its bytes, and their text in the canonical message.
    return 2 * len(raw) + EACH_BYTES


def suspects(fields: Mapping[str, bytes], said: Said | None, body: bytes) -> bytes:
    """Return what of a body is to be searched for secrets: all of it, or, where no message is suspect, the rest.

    Each message was searched when it was read. A secret has no quotes and no commas, so none stands in two of them.
    """
    if said is None or said.heard.suspect:
        return body
    return rawjson.join({name: raw for name, raw in fields.items() if name != "messages"})


def value_digest(value: Any) -> bytes:
    """Return a digest of a value, as parsed from JSON, that key order and spaces don't change."""
    return digest(msgspec.json.encode(value, order="sorted"))
