"""Content stored once: values by digest, compressed where it pays.

    content   bytes by blake2b-16 digest, one row a store
    use       which rollouts a content belongs to: what nobody uses any more is swept

Parts of a conversation that nobody has seen before come many at once, and small. They are packed together, as a block,
in a quarter of the time and half of the room that each would take by itself: the block is a content too, and a part's
own row says where in it the part lies. Who uses a part uses its block.

Costs. Putting values: a look-up of all, and one statement over the new rows of each table, in which their numbers stand
as JSON: between any two steps of a statement another thread may take the interpreter, and does where it has work, which
costs both more than the step. Getting a part: its block is unpacked, 64 KiB.

The functions run inside the caller's transaction and keep nothing in memory, so a rollback leaves nothing stale.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import zlib
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import apsw
import numpy as np

from capture.store import query

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACK_SIZE = 1024
"""Bytes from which compression is tried. It takes some 9 us, and of a smaller part saves what is an eighth of a page:
a commit waits for it, and a call's ids and logprobs, which aren't compressed, take more by far."""

PACK_LEVEL = 1
"""zstd's lowest: zlib takes twice to five times as long for the same size, and what is below it saves half as much."""

MANY = 32
"""New values at once from which small ones are packed together: those of a conversation that nobody has seen before."""

PART_SIZE = 4096
"""Bytes below which one of many is packed with others; a larger one is packed as well by itself."""

BLOCK_SIZE = 65_536
"""Bytes of a block: all of it is unpacked for any part, in some 60 us; a larger one isn't packed better."""

_KNOWN = "SELECT digest, content.key, CASE packed WHEN 'part' THEN data END FROM"
_FEW = {n: " UNION ALL ".join([f"{_KNOWN} content WHERE digest = ?"] * n) for n in range(1, 5)}
_MANY = f"{_KNOWN} json_each(?) JOIN content ON digest = unhex(value)"
_PARTS = (
    "INSERT INTO content (digest, packed, data)"
    " SELECT substr(?2, 16 * key + 1, 16), 'part', substr(?3, 16 * key + 1, 16) FROM json_each(?1)"
)

_PLACE = np.dtype([("block", "<i8"), ("start", "<i4"), ("length", "<i4")])


_text = json.JSONEncoder(separators=(",", ":")).encode


def digest(data: bytes) -> bytes:
    """Return the name under which `data` is stored: 16 bytes of BLAKE2b."""
    return blake2b(data, digest_size=16).digest()


def pack(data: bytes) -> tuple[str | None, bytes]:
    """Return how content is stored, and its bytes as they are stored."""
    if len(data) < PACK_SIZE:
        return None, data
    small = compressed(data)
    return ("zstd", small) if len(small) < len(data) * 0.9 else (None, data)


def compressed(data: bytes) -> bytes:
    """Return `data` as a zstd frame."""
    return _zstd.packer.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


def decompressed(data: bytes) -> bytes:
    """Return what `compressed` was given."""
    return zstd.decompress(data)


def unpack(packed: str | None, data: bytes) -> bytes:
    """Return content as it was handed in, from its columns; of a block all parts, one behind the other."""
    if packed in ("zstd", "block"):
        return decompressed(data)
    return zlib.decompress(data) if packed == "zlib" else data


class _Zstd(threading.local):
    """A compressor for each thread, kept, for to make one takes longer than to compress a message."""

    def __init__(self) -> None:
        self.packer = zstd.ZstdCompressor(level=PACK_LEVEL)


_zstd = _Zstd()


class Place(NamedTuple):
    """Where a part lies: in which block, from which byte on, and how many there are."""

    block: int
    start: int
    length: int


def place(data: bytes) -> Place:
    """Return where a part lies, from its column. Raises `struct.error`."""
    return Place(*struct.unpack("<qii", data))


class Stored:
    """Contents that are there: their keys, and of those that are parts the keys of their blocks, by digest."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys: dict[bytes, int] = {}
        self.blocks: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"<Stored {len(self.keys)} contents, {len(self.blocks)} of them parts>"


def known(db: apsw.Connection, names: Sequence[bytes]) -> Stored:
    """Return those of some contents that are there."""
    found = Stored()
    if not names:
        return found
    if len(names) <= len(_FEW):
        rows = query.every(db, _FEW[len(names)], names)
    else:
        rows = query.every(db, _MANY, (_text([name.hex() for name in names]),))
    for name, key, part in rows:
        found.keys[name] = key
        if part is not None:
            found.blocks[name] = place(part).block
    return found


def add(db: apsw.Connection, stored: Stored, wanted: Mapping[bytes, bytes]) -> None:
    """Store those of some values, by digest, that aren't there; nobody uses them yet."""
    new = {name: data for name, data in wanted.items() if name not in stored.keys}
    if len(new) >= MANY:
        small = {name: data for name, data in new.items() if len(data) < PART_SIZE}
        new = {name: data for name, data in new.items() if len(data) >= PART_SIZE}
        _add_parts(db, stored, list(small), list(small.values()))
    if new:
        stored.keys.update(zip(new, _insert(db, [(name, *pack(data)) for name, data in new.items()]), strict=True))


def _add_parts(db: apsw.Connection, stored: Stored, names: list[bytes], values: list[bytes]) -> None:
    """Store values in blocks, each block up to the first value that makes it large enough."""
    ends = np.cumsum([len(data) for data in values])
    starts = np.concatenate([ends[:1] * 0, ends[:-1]])
    places = np.zeros(len(names), _PLACE)
    first = 0
    while first < len(names):
        behind = int(np.searchsorted(ends, starts[first] + BLOCK_SIZE)) + 1
        some = slice(first, behind)
        name = digest(b"".join(names[some]))
        # One that stands there already was left by a rollout that uses another part of it.
        block = known(db, [name]).keys.get(name)
        if block is None:
            (block,) = _insert(db, [(name, "block", compressed(b"".join(values[some])))])
        places["block"][some] = block
        places["start"][some] = starts[some] - starts[first]
        stored.blocks.update(dict.fromkeys(names[some], block))
        first = behind
    places["length"] = ends - starts
    numbers = _text(list(range(len(names))))
    db.execute(_PARTS, (numbers, b"".join(names), places.tobytes()))
    last = db.last_insert_rowid()
    stored.keys.update(zip(names, range(last - len(names) + 1, last + 1), strict=True))


def claim(db: apsw.Connection, rollout: int, stored: Stored, used: Collection[bytes]) -> None:
    """Note that a rollout uses contents, and the blocks in which they lie."""
    keys = {stored.keys[name] for name in used}
    if stored.blocks:
        keys.update({stored.blocks[name] for name in used if name in stored.blocks})
    if keys:
        db.execute(
            "INSERT OR IGNORE INTO use (rollout, content) SELECT ?, value FROM json_each(?)",
            (rollout, _text(sorted(keys))),
        )


def put(db: apsw.Connection, rollout: int, data: bytes) -> int:
    """Store `data` for a rollout unless it is there; return its key."""
    name = digest(data)
    stored = known(db, [name])
    add(db, stored, {name: data})
    claim(db, rollout, stored, [name])
    return stored.keys[name]


class Reader:
    """Reads contents of one snapshot; the block that was read last is kept, for its parts are read together."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._block: tuple[int, bytes] | None = None

    def get(self, key: int) -> bytes:
        """Return the content of `key`. Raises `LookupError`."""
        row = query.first(self._db, "SELECT packed, data FROM content WHERE key = ?", (key,))
        if row is None:
            raise LookupError(f"content {key}")
        return self.unpack(*row)

    def unpack(self, packed: str | None, data: bytes) -> bytes:
        """Return content from its columns. Raises `LookupError` for a part without its block."""
        if packed != "part":
            return unpack(packed, data)
        block, start, length = place(data)
        if self._block is None or self._block[0] != block:
            self._block = block, self.get(block)
        part = self._block[1][start : start + length]
        if len(part) != length:
            raise LookupError(f"a part of content {block}")
        return part


def get(db: apsw.Connection, key: int) -> bytes:
    """Return the content of `key`. Raises `LookupError`."""
    return Reader(db).get(key)


def _insert(db: apsw.Connection, new: Sequence[tuple[bytes, str | None, bytes]]) -> range:
    """Insert rows; return their keys. SQLite gives each row the number behind the highest."""
    db.executemany("INSERT INTO content (digest, packed, data) VALUES (?, ?, ?)", new)
    last = db.last_insert_rowid()
    return range(last - len(new) + 1, last + 1)
