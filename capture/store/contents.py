"""Content stored once: values by digest, compressed where it pays.

    content   bytes by blake2b-16 digest, one row a store
    use       which rollouts a content belongs to: what nobody uses any more is swept

A content may be a list of several elements of a conversation (`chains`): its bytes are their JSON array, its digest is
that of their digests, one behind the other, and it is packed always.

Costs. Putting values: a look-up of all, and one statement over the new rows of each table: between any two steps of a
statement another thread may take the interpreter, and does where it has work, which costs both more than the step.

The functions run inside the caller's transaction and keep nothing in memory, so a rollback leaves nothing stale.
"""

from __future__ import annotations

import json
import sys
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import apsw

from capture.digests import digest
from capture.store import query

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACK_SIZE = 1024
"""Bytes from which compression is tried. It takes some 9 us, and of a smaller part saves what is an eighth of a page:
a commit waits for it, and a call's ids and logprobs, which aren't compressed, take more by far. (With 2,000 a store of
short calls is a fifth larger, for 2 % of such a call.)"""

PACK_LEVEL = 1
"""zstd's lowest: zlib takes twice to five times as long for the same size, and what is below it saves half as much."""

SMALL_SIZE = 4096
"""Bytes up to which a table of 4 KiB is enough to find what repeats. That of the level has 64, and is emptied for each
message: a third of the time, for half a percent of the size."""

Packed = Literal["zlib", "zstd", "list"] | None
"""How a content's bytes are stored: NULL as they are, `list` in a zstd frame. What is new is never `zlib`."""

_FEW = {n: " UNION ALL ".join(["SELECT digest, key FROM content WHERE digest = ?"] * n) for n in range(1, 5)}
_MANY = "SELECT digest, content.key FROM json_each(?) JOIN content ON digest = unhex(value)"

_CLAIM = {
    n: "INSERT OR IGNORE INTO use (rollout, content) VALUES " + ", ".join(f"(?1, ?{at + 2})" for at in range(n))  # noqa: S608 - question marks alone
    for n in range(1, 5)
}

_text = json.JSONEncoder(separators=(",", ":")).encode


def pack(data: bytes) -> tuple[Packed, bytes]:
    """Return how content is stored, and its bytes as they are stored."""
    if len(data) < PACK_SIZE:
        return None, data
    small = compressed(data)
    return ("zstd", small) if len(small) < len(data) * 0.9 else (None, data)


def compressed(data: bytes) -> bytes:
    """Return `data` as a zstd frame."""
    packer = _zstd.small if len(data) <= SMALL_SIZE else _zstd.packer
    return packer.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


def decompressed(data: bytes) -> bytes:
    """Return what `compressed` was given."""
    return zstd.decompress(data)


def unpack(packed: str | None, data: bytes) -> bytes:
    """Return content as it was handed in, from its columns."""
    if packed in ("zstd", "list"):
        return decompressed(data)
    return zlib.decompress(data) if packed == "zlib" else data


class _Zstd(threading.local):
    """Compressors for each thread, kept, for to make one takes longer than to compress a message."""

    def __init__(self) -> None:
        self.packer = zstd.ZstdCompressor(level=PACK_LEVEL)
        small: dict[int, int] = {
            zstd.CompressionParameter.compression_level: PACK_LEVEL,
            zstd.CompressionParameter.window_log: 12,
            zstd.CompressionParameter.hash_log: 10,
        }
        self.small = zstd.ZstdCompressor(options=small)


_zstd = _Zstd()


def known(db: apsw.Connection, names: Sequence[bytes]) -> dict[bytes, int]:
    """Return the keys of those of some contents that are there, by digest."""
    if not names:
        return {}
    if len(names) <= len(_FEW):
        return dict(query.every(db, _FEW[len(names)], names))
    return dict(query.every(db, _MANY, (_text([name.hex() for name in names]),)))


def add(
    db: apsw.Connection, keys: dict[bytes, int], wanted: Mapping[bytes, bytes], *, lists: Mapping[bytes, bytes]
) -> None:
    """Store those of some values, and of some lists as JSON arrays, that have no key yet, and note their keys."""
    new = [(name, *pack(data)) for name, data in wanted.items() if name not in keys]
    new += [(name, "list", compressed(data)) for name, data in lists.items() if name not in keys]
    if new:
        db.executemany("INSERT INTO content (digest, packed, data) VALUES (?, ?, ?)", new)
        # SQLite gives each row the number behind the highest.
        last = db.last_insert_rowid()
        keys.update(zip([name for name, _, _ in new], range(last - len(new) + 1, last + 1), strict=True))


def claim(db: apsw.Connection, rollout: int, used: Iterable[int]) -> None:
    """Note that a rollout uses contents."""
    keys = sorted(set(used))
    if len(keys) in _CLAIM:
        db.execute(_CLAIM[len(keys)], (rollout, *keys))
    elif keys:
        db.execute(
            "INSERT OR IGNORE INTO use (rollout, content) SELECT ?, value FROM json_each(?)", (rollout, _text(keys))
        )


def put(db: apsw.Connection, rollout: int, data: bytes) -> int:
    """Store `data` for a rollout unless it is there; return its key."""
    name = digest(data)
    keys = known(db, [name])
    add(db, keys, {name: data}, lists={})
    claim(db, rollout, keys.values())
    return keys[name]


def get(db: apsw.Connection, key: int) -> bytes:
    """Return the content of `key`. Raises `LookupError`."""
    row = query.first(db, "SELECT packed, data FROM content WHERE key = ?", (key,))
    if row is None:
        raise LookupError(f"content {key}")
    return unpack(*row)
