"""What passed in a call, as it is stored: bodies that refer to contents and chains.

`Body.stored` is one of, as JSON:
    {"fields": [[key, sort, value], …]}
    {"without": [key, …], "with": [[key, sort, value], …]}   against the request's fields
    {"whole": content}
with sort "value" (the value itself), "content" (a key of the table) or "chain" (a key of the table, null for []).

A reply is like no other, so it isn't taken apart: it is the zero byte and its bytes, or a zstd frame of them, where the
call has one choice. Those of several repeat it, and there it is stored as a request is.

Theory of operation. All that a call refers to is noted first (`Filing.body`, `Filing.content`), then looked up and
written at once (`Filing.write`), then its own rows are made with the keys (`Filing.stored`): a call of two new messages
costs six statements here, however many bodies name them.
"""

from __future__ import annotations

import functools
from typing import Any

import apsw
import msgspec

from capture.digests import Digests, digest, digests
from capture.store import bodies, chains, contents
from capture.store.base import Parts
from capture.store.chains import Chain

_encode = msgspec.json.Encoder().encode
_decode_stored = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_parts = msgspec.json.Decoder(list[tuple[str, str, msgspec.Raw]]).decode
_decode_keys = msgspec.json.Decoder(list[str]).decode
_decode_ref = msgspec.json.Decoder(int | None).decode

MOST_RECENT = 64
"""Values whose digest is kept."""

MOST_KEPT = 256 * 1024
"""Bytes of the largest of them: it takes 0.3 ms to digest, and 10 us to compare."""

_PLAIN = b"\0"
"""Before the bytes of a reply that isn't packed."""

_FRAME = b"\x28\xb5\x2f\xfd"
"""What a zstd frame begins with."""


class Body:
    """A body on its way into the store, and what the caller may want of it."""

    __slots__ = ("apart", "chains", "fields", "whole", "without")

    def __init__(self, fields: bodies.Fields | None) -> None:
        # None when the body is kept whole.
        self.fields = fields
        # The lists in it that are kept as chains.
        self.chains: dict[str, Chain] = {}
        # The digest of one that is kept whole.
        self.whole = b""
        # Of a difference: the keys that are taken out.
        self.without: list[str] | None = None
        # Its fields (of a difference those that are set) as they are written, or what stands before a reference and
        # what is referred to: a chain, or a content by its digest.
        self.apart: list[bytes | tuple[bytes, bytes | Chain]] = []


class Filing:
    """What one call wants stored, for its rollout: noted, then written, then referred to."""

    def __init__(self, db: apsw.Connection, rollout: int) -> None:
        self._db = db
        self._rollout = rollout
        self._wanted: dict[bytes, bytes] = {}
        self._chains: list[Chain] = []
        self._keys: dict[bytes, int] = {}

    def content(self, data: bytes) -> bytes:
        """Note that `data` is wanted; return its digest."""
        name = _digest(data)
        self._wanted[name] = data
        return name

    def body(
        self,
        body: bytes,
        *,
        base: bodies.Fields | None = None,
        fields: bodies.Fields | None = None,
        parts: Parts | None = None,
    ) -> Body:
        """Note a body; with `base` (the request's fields) as its difference from that, where it has one.

        `fields` are the body's, or `parts` the whole of it, where somebody has taken it apart already.
        """
        if fields is None:
            fields = bodies.fields(body) if parts is None else parts.fields
        out = Body(fields)
        if fields is None:
            out.whole = self.content(body)
            return out
        if base is not None and (change := bodies.difference(base, fields)) is not None:
            out.without, fields = change
        # The request's list and the engine's each go on from their own last.
        sort = "sent " if base is not None else ""
        for key, value in fields.items():
            if key in bodies.LISTS and (chain := self._chain(sort + key, key, value, parts)) is not None:
                out.chains[key] = chain
                out.apart.append((_head(key, "chain"), chain))
            elif len(value) >= bodies.CONTENT_SIZE:
                out.apart.append((_head(key, "content"), self.content(value)))
            else:
                out.apart.append(_head(key, "value") + value + b"]")
        return out

    def _chain(self, sort: str, key: str, value: bytes, parts: Parts | None) -> Chain | None:
        if parts is not None and key == parts.key:
            chain = Chain(parts.elements, parts.names, sort=sort)
        elif (elements := bodies.elements(value)) is not None:
            chain = Chain(elements, Digests(digests(elements)), sort=sort)
        else:
            return None
        self._chains.append(chain)
        return chain

    def write(self) -> None:
        """Store all that was noted, but for what is there."""
        db, rollout = self._db, self._rollout
        # One behind the other, for the second may go on from the first.
        for other in self._chains[1:]:
            chains.put_chain(db, rollout, other)
        chain = self._chains[0] if self._chains else None
        names = list(self._wanted)
        if chain is None:
            keys = contents.known(db, names)
            contents.add(db, keys, self._wanted, lists={})
            contents.claim(db, rollout, keys.values())
        else:
            keys = contents.known(db, chains.look(db, rollout, chain) + names)
            chains.follow(db, rollout, chain, keys)
            elements, lists = chains.wanted(chain)
            contents.add(db, keys, {**elements, **self._wanted}, lists=lists)
            contents.claim(db, rollout, [keys[name] for name in (*names, *elements, *lists)])
            chains.write(db, rollout, chain, keys)
        self._keys = keys

    def key(self, name: bytes | None) -> int | None:
        """Return the key of a content that was noted and written; None for None."""
        return None if name is None else self._keys[name]

    def stored(self, body: Body) -> bytes:
        """Return the column of a body that was noted and written."""
        if body.fields is None:
            return _encode({"whole": self.key(body.whole)})
        apart = bodies.array([each if isinstance(each, bytes) else self._reference(*each) for each in body.apart])
        if body.without is None:
            return b'{"fields":' + apart + b"}"
        return b'{"without":' + _encode(body.without) + b',"with":' + apart + b"}"

    def _reference(self, head: bytes, to: bytes | Chain) -> bytes:
        return head + _encode(to.last if isinstance(to, Chain) else self.key(to)) + b"]"


@functools.lru_cache(maxsize=1024)
def _head(key: str, sort: str) -> bytes:
    """Return what stands before a field's value; requests have the same few keys."""
    return b"[" + _encode(key) + b"," + _encode(sort) + b","


_recent: dict[int, tuple[bytes, bytes]] = {}


def _digest(data: bytes) -> bytes:
    """Return the digest of a value, kept by its length: an agent's tools are the same with every call."""
    size = len(data)
    if (kept := _recent.get(size)) is not None and kept[0] == data:
        return kept[1]
    name = digest(data)
    if size <= MOST_KEPT:
        if len(_recent) >= MOST_RECENT:
            _recent.clear()
        _recent[size] = data, name
    return name


def put_body(
    db: apsw.Connection,
    rollout: int,
    body: bytes,
    *,
    base: bodies.Fields | None = None,
    parts: Parts | None = None,
) -> tuple[Body, bytes]:
    """Store a body alone; return it, and its column. See `Filing.body`."""
    filing = Filing(db, rollout)
    noted = filing.body(body, base=base, parts=parts)
    filing.write()
    return noted, filing.stored(noted)


def get_body(db: apsw.Connection, stored: bytes, *, base: bytes | None = None) -> bytes:
    """Return a body as JSON; `base` is the stored request that a difference is taken against."""
    if stored.startswith(_PLAIN):
        return stored[len(_PLAIN) :]
    if stored.startswith(_FRAME):
        return contents.decompressed(stored)
    parts = _decode_stored(stored)
    if "whole" in parts:
        return contents.get(db, msgspec.json.decode(parts["whole"], type=int))
    return bodies.whole(_get_fields(db, parts, base))


def reply(body: bytes) -> bytes:
    """Return the column of a reply that is stored as it is."""
    if len(body) < contents.PACK_SIZE:
        return _PLAIN + body
    return contents.compressed(body)


def used(stored: bytes | None) -> list[int]:
    """Return the keys of the contents that a stored body names itself."""
    if stored is None or stored.startswith((_PLAIN, _FRAME)):
        return []
    parts = _decode_stored(stored)
    if "whole" in parts:
        return [msgspec.json.decode(parts["whole"], type=int)]
    named = _decode_parts(parts["fields"] if "fields" in parts else parts["with"])
    return [msgspec.json.decode(raw, type=int) for _, sort, raw in named if sort == "content"]


def _get_fields(db: apsw.Connection, parts: dict[str, msgspec.Raw], base: bytes | None) -> bodies.Fields:
    fields: bodies.Fields = {}
    for key, sort, raw in _decode_parts(parts["fields"] if "fields" in parts else parts["with"]):
        value: Any = bytes(raw)
        if sort == "content":
            value = contents.get(db, msgspec.json.decode(raw, type=int))
        elif sort == "chain":
            value = bodies.array(chains.get(db, _decode_ref(raw)))
        fields[key] = value
    if "fields" in parts:
        return fields
    assert base is not None
    return bodies.changed(_get_fields(db, _decode_stored(base), None), _decode_keys(parts["without"]), fields)
