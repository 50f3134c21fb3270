"""Lists of messages as chains: one row a prefix, a rollout.

    chain     (prefix before it, content of what it adds); its digest is blake2b-16 of the parent's digest and the
              content's

Rules
1. A link adds one element, or, where many are new at once, several, whose content is a list of them.
2. A link is never there without those before it, nor without the content of each; a rollout that has a link uses all
   those contents.
3. What is remembered of the list that a rollout had last is believed of the file only after a look at it: a link whose
   key has that digest there is that link, whatever was rolled back meanwhile.

Theory of operation. An agent's list goes on from its last one, so the longest prefix that is stored is the whole of
that, or what a fork has in common with it: one look-up says so. Of a list that isn't remembered (after a restart, or of
more rollouts than are kept) the links are followed from the first on, 2 us each.

A conversation that nobody has seen before is written in segments of 64 KiB. A row for each of its messages in three
tables with five indexes took twice as long as all else together, and more with each such conversation: digests have no
order, so each dirties a page of its own. What it costs is that a segment's messages are stored again where they stand
in another list that has not the same beginning; the ids of such a prompt are stored again too, in three times the room.
For the same reason links are found by the one before them and not by their digest.

Costs. Writing a list: one digest and one row for each link that is new. A rollout of n calls that grow by a constant
takes O(n) rows. Reading one: a walk up the chain.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import apsw

from capture.digests import DIGEST_BYTES, Digests, digest, digests
from capture.store import bodies, contents, query

KEPT_BYTES = 32 << 20
"""Of the last lists that are kept, 16 a message and 32 a link: of some 1,700 conversations of 400 messages."""

MOST_LISTS = 10_000
"""Of those, at the most."""

MANY = 32
"""New elements of a list at once from which they are written in segments."""

SEGMENT_SIZE = 65_536
"""Bytes of a segment, at least, but for a list's last: one four times as large isn't packed better, and all of it is
written again where a list forks in it."""

FEW = 4
"""Links up to which a statement for each takes less than one for all, which reads JSON."""

# Of a rollout's lists: those of requests, and those of what engines were sent.
_SORTS = tuple(body + key for body in ("", "sent ") for key in bodies.LISTS)

_ADD_ONE = "INSERT INTO chain (rollout, parent, content, digest) VALUES (?, ?, ?, ?)"

# Each link's key is one more than that of the link before it, the first one's one more than the highest.
_ADD = (
    "INSERT INTO chain (key, rollout, parent, content, digest)"
    " SELECT last + 1 + new.key, ?1, iif(new.key = 0, ?2, last + new.key), value, substr(?4, 16 * new.key + 1, 16)"
    " FROM (SELECT coalesce(max(key), 0) AS last FROM chain), json_each(?3) AS new ORDER BY new.key"
)


class Chain:
    """A list on its way into the store: its raw elements, their digests, and the links of it that are there."""

    __slots__ = ("elements", "ends", "keys", "last", "links", "names", "new", "sort")

    def __init__(self, elements: Sequence[bytes], names: Digests, *, sort: str = "messages") -> None:
        """`sort`: which of its rollout's lists it goes on from."""
        self.elements = elements
        self.names = names
        self.sort = sort
        # Of the links that are there: the number of elements up to each, its key, its digest.
        self.ends: array[int] = array("q")
        self.keys: array[int] = array("q")
        self.links: list[bytes] = []
        # What is to be added behind them.
        self.new: list[Piece] = []
        # The key of the last link, once it is written; None for an empty list.
        self.last: int | None = None

    def __repr__(self) -> str:
        return f"<Chain of {len(self.elements)}, {self.known} known, last {self.last}>"

    @property
    def known(self) -> int:
        """The number of elements that are there."""
        return self.ends[-1] if self.ends else 0

    def cut(self, links: int) -> None:
        """Forget all links but the first ones."""
        del self.ends[links:], self.keys[links:], self.links[links:]


class Piece(NamedTuple):
    """What one link adds: its content's digest, and the number of elements up to its end."""

    name: bytes
    end: int


class _Last(NamedTuple):
    """A list that is written, without its elements."""

    names: Digests
    ends: array[int]
    keys: array[int]
    links: Digests

    @property
    def size(self) -> int:
        """Bytes that it takes, but for the objects."""
        return DIGEST_BYTES * (len(self.names) + len(self.links) + len(self.ends))


class _Lists:
    """The list of each sort that each rollout had last: one that goes on from it shares its links."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._last: OrderedDict[tuple[int, str], _Last] = OrderedDict()
        self._room = kept_bytes
        self._lock = threading.Lock()

    def fill(self, rollout: int, chain: Chain) -> None:
        """Give a chain the links that it shares with the last list of its rollout."""
        with self._lock:
            last = self._last.get((rollout, chain.sort))
        if last is not None:
            links = bisect_right(last.ends, chain.names.shared(last.names))
            chain.ends, chain.keys = last.ends[:links], last.keys[:links]
            chain.links = last.links[:links]

    def forget(self, rollout: int) -> None:
        """Forget the lists of a rollout."""
        with self._lock:
            for sort in _SORTS:
                if (gone := self._last.pop((rollout, sort), None)) is not None:
                    self._room += gone.size

    def keep(self, rollout: int, chain: Chain) -> None:
        """Remember a list that is written, but for its elements."""
        kept = _Last(chain.names, chain.ends, chain.keys, Digests.of(chain.links))
        with self._lock:
            if (before := self._last.pop((rollout, chain.sort), None)) is not None:
                self._room += before.size
            self._last[rollout, chain.sort] = kept
            self._room -= kept.size
            while self._room < 0 or len(self._last) > MOST_LISTS:
                _, gone = self._last.popitem(last=False)
                self._room += gone.size


_lists = _Lists()


def forget(rollout: int) -> None:
    """Forget the lists that a rollout had last, which is closed: what comes behind that is read from the store."""
    _lists.forget(rollout)


def look(db: apsw.Connection, rollout: int, chain: Chain) -> list[bytes]:
    """Find out how much of a list is surely there; return the digests of which `follow` wants to know the keys."""
    _lists.fill(rollout, chain)
    if chain.keys:
        told = query.first(db, "SELECT rollout, digest FROM chain WHERE key = ?", (chain.keys[-1],))
        if told != (rollout, chain.links[-1]):
            chain.cut(0)
    rest = len(chain.names) - chain.known
    return chain.names[chain.known :] if rest < MANY else chain.names[chain.known : chain.known + 1]


def follow(db: apsw.Connection, rollout: int, chain: Chain, keys: dict[bytes, int]) -> None:
    """Go on from what `look` found, as far as links are there, and say what is `new`; note more keys on the way."""
    first = chain.known
    if len(chain.names) - first < MANY:
        pieces = _singles(chain, first, len(chain.names))
    else:
        # What it begins with and is there already (others had the same system prompt) is not stored again.
        lead = _lead(db, chain, keys)
        rest = len(chain.names) - lead
        pieces = _segments(chain, lead) if rest >= MANY else _singles(chain, lead, len(chain.names))
        keys.update(contents.known(db, [piece.name for piece in pieces]))
        pieces = _singles(chain, first, lead) + pieces
    if pieces and pieces[0].name in keys:
        _walk(db, rollout, chain, keys, pieces)
        pieces = [piece for piece in pieces if piece.end > chain.known]
    chain.new = pieces


def _lead(db: apsw.Connection, chain: Chain, keys: dict[bytes, int]) -> int:
    """Return up to which element all are there one by one, noting their keys; few are asked for before many."""
    lead, ahead = chain.known, 1
    while len(chain.names) - lead >= MANY:
        some = chain.names[lead : lead + ahead]
        if missing := [name for name in some if name not in keys]:
            keys.update(contents.known(db, missing))
        there = next((at for at, name in enumerate(some) if name not in keys), len(some))
        lead += there
        if there < len(some):
            break
        ahead *= 4
    return lead


def _singles(chain: Chain, first: int, behind: int) -> list[Piece]:
    return [Piece(name, at) for at, name in enumerate(chain.names[first:behind], start=first + 1)]


def _segments(chain: Chain, first: int) -> list[Piece]:
    pieces: list[Piece] = []
    size = 0
    for end, element in enumerate(chain.elements[first:], start=first + 1):
        size += len(element)
        if size >= SEGMENT_SIZE or end == len(chain.elements):
            pieces.append(Piece(digest(b"".join(chain.names[first:end])), end))
            first, size = end, 0
    return pieces


def _walk(db: apsw.Connection, rollout: int, chain: Chain, keys: Mapping[bytes, int], pieces: list[Piece]) -> None:
    """Go on over pieces, as far as their links are there."""
    for piece in pieces:
        content = keys.get(piece.name)
        if content is None:
            return
        parent = chain.keys[-1] if chain.keys else None
        found = query.first(
            db, "SELECT key FROM chain WHERE rollout = ? AND parent IS ? AND content = ?", (rollout, parent, content)
        )
        if found is None:
            return
        _note(chain, piece, int(found[0]))


def _note(chain: Chain, piece: Piece, key: int) -> None:
    links = chain.links
    links.append(digest(links[-1] + piece.name if links else piece.name))
    chain.keys.append(key)
    chain.ends.append(piece.end)


def wanted(chain: Chain) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return the contents that what is new needs, by digest: elements, and lists of them as JSON arrays."""
    elements: dict[bytes, bytes] = {}
    lists: dict[bytes, bytes] = {}
    first = chain.known
    for name, end in chain.new:
        if end - first == 1 and name == chain.names[first]:
            elements[name] = chain.elements[first]
        else:
            lists[name] = bodies.array(chain.elements[first:end])
        first = end
    return elements, lists


def write(db: apsw.Connection, rollout: int, chain: Chain, keys: Mapping[bytes, int]) -> None:
    """Add what is new; `keys` are those of its contents."""
    if chain.new:
        parent = chain.keys[-1] if chain.keys else None
        there = len(chain.links)
        for piece in chain.new:
            # Its key is known when it is written.
            _note(chain, piece, 0)
        if len(chain.new) <= FEW:
            for at, piece in enumerate(chain.new, start=there):
                db.execute(_ADD_ONE, (rollout, parent, keys[piece.name], chain.links[at]))
                chain.keys[at] = parent = db.last_insert_rowid()
        else:
            numbers = "[" + ",".join([str(keys[piece.name]) for piece in chain.new]) + "]"
            db.execute(_ADD, (rollout, parent, numbers, b"".join(chain.links[there:])))
            last = db.last_insert_rowid()
            chain.keys[there:] = array("q", range(last - len(chain.new) + 1, last + 1))
    chain.last = chain.keys[-1] if chain.keys else None
    _lists.keep(rollout, chain)


def put_chain(db: apsw.Connection, rollout: int, chain: Chain) -> None:
    """Store a list."""
    keys = contents.known(db, look(db, rollout, chain))
    follow(db, rollout, chain, keys)
    elements, lists = wanted(chain)
    contents.add(db, keys, elements, lists=lists)
    contents.claim(db, rollout, [keys[piece.name] for piece in chain.new])
    write(db, rollout, chain, keys)


def put(db: apsw.Connection, rollout: int, elements: list[bytes], *, names: Digests | None = None) -> Chain:
    """Store a list of raw elements; `names` are their digests, where known."""
    chain = Chain(elements, Digests(digests(elements)) if names is None else names)
    put_chain(db, rollout, chain)
    return chain


def get(db: apsw.Connection, key: int | None) -> list[bytes]:
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
    return [element for packed, data in rows for element in added(packed, data)]


def added(packed: str | None, data: bytes) -> list[bytes]:
    """Return the raw elements that a link adds, from its content's columns. Raises `LookupError` for none."""
    if packed != "list":
        return [contents.unpack(packed, data)]
    found = bodies.elements(contents.unpack(packed, data))
    if found is None:
        raise LookupError("a list of messages that is none")
    return found
