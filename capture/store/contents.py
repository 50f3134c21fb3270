"""Content stored once: values by digest, lists of messages as chains, bodies as references to both.

    content   bytes by blake2b-16 digest, one row a store; zlib or zstd where it pays
    use       which rollouts a content belongs to: what nobody uses any more is swept
    chain     one row a prefix of a message list, a rollout: (parent prefix, last element). Its digest is
              blake2b-16 of the parent's digest and the element's, so that the longest known prefix of a list is found
              by bisection and only what is new is written

Costs. Writing a body: one pass over its bytes, one digest a message, log2(messages) look-ups, and rows for what is new
alone. A rollout of n calls that grow by a constant takes O(n) rows. Reading one: a walk up the chain.

The functions run inside the caller's transaction and keep nothing in memory, so a rollback leaves nothing stale.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections import OrderedDict
from hashlib import blake2b
from typing import Any, NamedTuple

import apsw
import msgspec

from capture.store import bodies, query
from capture.store.base import Parts

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACK_SIZE = 200
"""Bytes from which compression is tried."""

PACK_LEVEL = 1
"""zlib's fastest: a commit waits for it, and on chat JSON level 6 saves a tenth more in three times the time."""

LARGE = 4096
"""Bytes from which zstd packs, in a fifth of zlib's time and to the same size: a commit waits for it."""

MANY = 32
"""Elements of a list that are new at once from which they are written together: those of a conversation that nobody
has seen before."""

_WHICH = f"SELECT digest, key FROM content WHERE digest IN ({', '.join('?' * MANY)})"  # noqa: S608 - question marks alone

_encode = msgspec.json.Encoder().encode
_decode_stored = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_parts = msgspec.json.Decoder(list[tuple[str, str, msgspec.Raw]]).decode
_decode_keys = msgspec.json.Decoder(list[str]).decode
_decode_ref = msgspec.json.Decoder(int | None).decode


def digest(data: bytes) -> bytes:
    """Return the name under which `data` is stored: 16 bytes of BLAKE2b."""
    return blake2b(data, digest_size=16).digest()


def put(db: apsw.Connection, rollout: int, data: bytes, *, name: bytes | None = None) -> int:
    """Store `data` for a rollout unless it is there; return its key. `name` is its digest, where known."""
    name = digest(data) if name is None else name
    row = query.first(db, "SELECT key FROM content WHERE digest = ?", (name,))
    if row is not None:
        key = int(row[0])
    else:
        db.execute("INSERT INTO content (digest, packed, data) VALUES (?, ?, ?)", (name, *pack(data)))
        key = db.last_insert_rowid()
    db.execute("INSERT OR IGNORE INTO use (rollout, content) VALUES (?, ?)", (rollout, key))
    return key


def pack(data: bytes, *, hurried: bool = False) -> tuple[str | None, bytes]:
    """Return how content is stored, and its bytes as they are stored; `hurried` where there is much of it."""
    if len(data) < PACK_SIZE:
        return None, data
    if hurried or len(data) >= LARGE:
        how, small = "zstd", _zstd.packer.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    else:
        how, small = "zlib", zlib.compress(data, PACK_LEVEL)
    return (how, small) if len(small) < len(data) * 0.9 else (None, data)


def unpack(packed: str | None, data: bytes) -> bytes:
    """Return content as it was handed in, from its columns."""
    if packed == "zstd":
        return zstd.decompress(data)
    return zlib.decompress(data) if packed == "zlib" else data


class _Zstd(threading.local):
    """A compressor for each thread, kept, for to make one takes longer than to compress a message."""

    def __init__(self) -> None:
        self.packer = zstd.ZstdCompressor(level=1)


_zstd = _Zstd()


def get(db: apsw.Connection, key: int) -> bytes:
    """Return the content of `key`."""
    row = query.first(db, "SELECT packed, data FROM content WHERE key = ?", (key,))
    if row is None:
        raise LookupError(f"content {key}")
    return unpack(*row)


class Chain(NamedTuple):
    """A list as stored: the key of its last link (None for an empty list), its raw elements, and their digests."""

    last: int | None
    elements: list[bytes]
    names: list[bytes]


MOST_ROLLOUTS = 500
"""Whose last list is kept; closed ones go by this alone."""


class _Links:
    """The digests of lists as chains, of the list that each rollout had last: one that goes on from it has them too.

    They follow from the elements alone, so nothing here goes stale.
    """

    def __init__(self, most: int = 60_000) -> None:
        """`most` links are kept, some 130 bytes each with the names: of 150 conversations of 400 messages."""
        self._last: OrderedDict[int, tuple[list[bytes], list[bytes]]] = OrderedDict()
        self._room = most
        self._lock = threading.Lock()

    def of(self, rollout: int, names: list[bytes]) -> tuple[list[bytes], int]:
        """Return the digest of each prefix of a list, and how many elements of it were known."""
        with self._lock:
            before = self._last.pop(rollout, None)
            if before is not None:
                self._room += len(before[0])
            links: list[bytes] = []
            if before is not None and len(before[0]) <= len(names) and names[: len(before[0])] == before[0]:
                links = before[1].copy()
            known = len(links)
            last = links[-1] if links else b""
            for name in names[known:]:
                last = digest(last + name)
                links.append(last)
            self._last[rollout] = names, links
            self._room -= len(names)
            while self._room < 0 or len(self._last) > MOST_ROLLOUTS:
                _, (gone, _) = self._last.popitem(last=False)
                self._room += len(gone)
        return links, known


_links = _Links()


def put_chain(db: apsw.Connection, rollout: int, elements: list[bytes], *, names: list[bytes] | None = None) -> Chain:
    """Store a list of raw elements; `names` are their digests, where known."""
    names = [digest(element) for element in elements] if names is None else names
    links, before = _links.of(rollout, names)

    def find(length: int) -> int | None:
        found = query.first(db, "SELECT key FROM chain WHERE rollout = ? AND digest = ?", (rollout, links[length - 1]))
        return None if found is None else int(found[0])

    # A link is never there without those before it, so the longest known prefix is found by halving; the list that the
    # rollout had last is the likeliest.
    known, unknown = 0, len(links) + 1
    key: int | None = None
    if before and (found := find(before)) is not None:
        known, key = before, found
        if known < len(links) and (found := find(known + 1)) is None:
            unknown = known + 1
        elif found is not None and known < len(links):
            known, key = known + 1, found
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if (found := find(middle)) is None:
            unknown = middle
        else:
            known, key = middle, found
    if len(links) - known >= MANY:
        return Chain(_put_many(db, rollout, key, links[known:], elements[known:], names[known:]), elements, names)
    for at in range(known, len(links)):
        content = put(db, rollout, elements[at], name=names[at])
        db.execute(
            "INSERT INTO chain (rollout, parent, content, digest) VALUES (?, ?, ?, ?)",
            (rollout, key, content, links[at]),
        )
        key = db.last_insert_rowid()
    return Chain(key, elements, names)


def _put_many(
    db: apsw.Connection, rollout: int, parent: int | None, links: list[bytes], elements: list[bytes], names: list[bytes]
) -> int:
    """Add many links to a chain behind `parent`, as `put_chain` would one by one; return the key of the last.

    A statement over all rows of a table, in place of five for each element. Keys are given out here as SQLite would.
    """
    keys = _known(db, names)
    fresh = {name: element for name, element in zip(names, elements, strict=True) if name not in keys}
    free = int(query.value(db, "SELECT coalesce(max(key), 0) + 1 FROM content"))
    keys.update(zip(fresh, range(free, free + len(fresh)), strict=True))
    db.executemany(
        "INSERT INTO content (key, digest, packed, data) VALUES (?, ?, ?, ?)",
        [(keys[name], name, *pack(element, hurried=True)) for name, element in fresh.items()],
    )
    db.executemany("INSERT OR IGNORE INTO use (rollout, content) VALUES (?, ?)", [(rollout, keys[n]) for n in names])
    free = int(query.value(db, "SELECT coalesce(max(key), 0) + 1 FROM chain"))
    places = range(free, free + len(links))
    db.executemany(
        "INSERT INTO chain (key, rollout, parent, content, digest) VALUES (?, ?, ?, ?, ?)",
        [
            (place, rollout, above, keys[name], link)
            for place, above, name, link in zip(places, (parent, *places), names, links, strict=False)
        ],
    )
    return places[-1]


def _known(db: apsw.Connection, names: list[bytes]) -> dict[bytes, int]:
    """Return the keys of the contents that are there, by digest."""
    found: dict[bytes, int] = {}
    for at in range(0, len(names), MANY):
        some = names[at : at + MANY]
        some += [b""] * (MANY - len(some))
        found.update(query.every(db, _WHICH, some))
    return found


def get_chain(db: apsw.Connection, key: int | None) -> list[bytes]:
    """Return the raw elements of the list whose last link is `key`."""
    if key is None:
        return []
    rows = query.every(
        db,
        "WITH RECURSIVE walk (parent, content, depth) AS ("
        " SELECT parent, content, 0 FROM chain WHERE key = ?"
        " UNION ALL SELECT chain.parent, chain.content, depth + 1 FROM walk JOIN chain ON chain.key = walk.parent"
        ") SELECT packed, data FROM walk JOIN content ON content.key = walk.content ORDER BY depth DESC",
        (key,),
    )
    return [unpack(packed, data) for packed, data in rows]


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body as stored, and what the caller may want of it."""

    stored: bytes
    # None when the body is kept whole.
    fields: bodies.Fields | None
    # The lists in it that are kept as chains.
    chains: dict[str, Chain]


def put_body(
    db: apsw.Connection,
    rollout: int,
    body: bytes,
    *,
    base: bodies.Fields | None = None,
    fields: bodies.Fields | None = None,
    parts: Parts | None = None,
) -> Body:
    """Store a body; with `base` (the request's fields) as its difference from that, where it has one.

    `fields` are the body's, or `parts` the whole of it, where somebody has taken it apart already.

    `Body.stored` is one of, as JSON:
      {"fields": [[key, sort, value], …]}
      {"without": [key, …], "with": [[key, sort, value], …]}   against the request's fields
      {"whole": content}
    with sort "value" (the value itself), "content" (a key of the table) or "chain" (a key of the table, null for []).
    """
    if fields is None:
        fields = bodies.fields(body) if parts is None else parts.fields
    chains: dict[str, Chain] = {}
    if fields is None:
        stored = _encode({"whole": put(db, rollout, body)})
    elif base is not None and (change := bodies.difference(base, fields)) is not None:
        without, changes = change
        stored = bodies.whole({"without": _encode(without), "with": _put_fields(db, rollout, changes, chains, parts)})
    else:
        stored = bodies.whole({"fields": _put_fields(db, rollout, fields, chains, parts)})
    return Body(stored=stored, fields=fields, chains=chains)


def get_body(db: apsw.Connection, stored: bytes, *, base: bytes | None = None) -> bytes:
    """Return a body as JSON; `base` is the stored request that a difference is taken against."""
    parts = _decode_stored(stored)
    if "whole" in parts:
        return get(db, msgspec.json.decode(parts["whole"], type=int))
    return bodies.whole(_get_fields(db, parts, base))


def _put_fields(
    db: apsw.Connection, rollout: int, fields: bodies.Fields, chains: dict[str, Chain], known: Parts | None
) -> bytes:
    parts: list[bytes] = []
    for key, value in fields.items():
        sort, kept = "value", value
        if key == "messages" and known is not None:
            chains[key] = put_chain(db, rollout, known.elements, names=known.names)
            sort, kept = "chain", _encode(chains[key].last)
        elif key in bodies.LISTS and (elements := bodies.elements(value)) is not None:
            chains[key] = put_chain(db, rollout, elements)
            sort, kept = "chain", _encode(chains[key].last)
        elif len(value) >= bodies.CONTENT_SIZE:
            sort, kept = "content", _encode(put(db, rollout, value))
        parts.append(bodies.array((_encode(key), _encode(sort), kept)))
    return bodies.array(parts)


def _get_fields(db: apsw.Connection, parts: dict[str, msgspec.Raw], base: bytes | None) -> bodies.Fields:
    fields: bodies.Fields = {}
    for key, sort, raw in _decode_parts(parts["fields"] if "fields" in parts else parts["with"]):
        value: Any = bytes(raw)
        if sort == "content":
            value = get(db, msgspec.json.decode(raw, type=int))
        elif sort == "chain":
            value = bodies.array(get_chain(db, _decode_ref(raw)))
        fields[key] = value
    if "fields" in parts:
        return fields
    assert base is not None
    return bodies.changed(_get_fields(db, _decode_stored(base), None), _decode_keys(parts["without"]), fields)
