"""Content stored once, by digest: what a group of writes wants stored, and bodies as references to it. Pure.

As `capture.store.contents`, with digests for keys:

    content   bytes by digest, one row a database        use   which rollouts a content belongs to
    chain     one row a prefix of a message list, a rollout, by a digest of the parent's and the element's

So a group's bodies are taken apart before the database is asked anything, in a thread where they are long, and then
written in two statements: which of these are there, and the rest. A link is never there without those before it, and
never without its content.

A body is stored as one of, as JSON, digests in hexadecimal:
  {"fields": [[key, sort, value], …]}
  {"without": [key, …], "with": [[key, sort, value], …]}   against the request's fields
  {"whole": content}
with sort "value" (the value itself), "content" or "chain" (null for []).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from capture.digests import Digests, digest, digests
from capture.store import bodies, contents
from capture.store.base import Parts

_encode = msgspec.json.Encoder().encode
_decode_stored = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_parts = msgspec.json.Decoder(list[tuple[str, str, msgspec.Raw]]).decode
_decode_keys = msgspec.json.Decoder(list[str]).decode
_decode_name = msgspec.json.Decoder(str | None).decode


class Chain(msgspec.Struct, frozen=True):
    """A list as stored: the digest of each prefix, the first ones first; its raw elements, and their digests."""

    links: list[bytes]
    elements: Sequence[bytes]
    names: Digests

    @property
    def last(self) -> bytes | None:
        """The name of the whole list, None for an empty one."""
        return self.links[-1] if self.links else None


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body as stored, and what the caller may want of it."""

    stored: bytes
    # None when the body is kept whole.
    fields: bodies.Fields | None
    chains: dict[str, Chain]


class Kept:
    """What some writes want stored, by rollout."""

    def __init__(self) -> None:
        # Contents by digest, without the elements of chains.
        self.data: dict[bytes, bytes] = {}
        # Those that a rollout refers to.
        self.used: dict[str, set[bytes]] = {}
        # A rollout's chains by their last link.
        self.chains: dict[str, dict[bytes, Chain]] = {}

    def __repr__(self) -> str:
        return f"<Kept {len(self.data)} contents, {sum(map(len, self.chains.values()))} chains>"

    def put(self, rollout: str, data: bytes) -> bytes:
        """Want `data` stored for a rollout; return its digest."""
        name = digest(data)
        self.data[name] = data
        self.used.setdefault(rollout, set()).add(name)
        return name

    def put_chain(self, rollout: str, elements: Sequence[bytes], *, names: Digests | None = None) -> Chain:
        """Want a list of raw elements stored; `names` are their digests, where known."""
        names = Digests(digests(list(elements))) if names is None else names
        links: list[bytes] = []
        last = b""
        for name in names:
            last = digest(last + name)
            links.append(last)
        chain = Chain(links, elements, names)
        if links:
            self.chains.setdefault(rollout, {})[last] = chain
        return chain

    def put_body(
        self,
        rollout: str,
        body: bytes,
        *,
        base: bodies.Fields | None = None,
        fields: bodies.Fields | None = None,
        parts: Parts | None = None,
    ) -> Body:
        """Want a body stored; with `base` (the request's fields) as its difference from that, where it has one.

        `fields` are the body's, or `parts` the whole of it, where somebody has taken it apart already.
        """
        if fields is None:
            fields = bodies.fields(body) if parts is None else parts.fields
        chains: dict[str, Chain] = {}
        if fields is None:
            stored = _encode({"whole": self.put(rollout, body).hex()})
        elif base is not None and (change := bodies.difference(base, fields)) is not None:
            without, changes = change
            parted = self._put_fields(rollout, changes, chains, parts)
            stored = bodies.whole({"without": _encode(without), "with": parted})
        else:
            stored = bodies.whole({"fields": self._put_fields(rollout, fields, chains, parts)})
        return Body(stored=stored, fields=fields, chains=chains)

    def _put_fields(self, rollout: str, fields: bodies.Fields, chains: dict[str, Chain], known: Parts | None) -> bytes:
        parts: list[bytes] = []
        for key, value in fields.items():
            sort, kept = "value", value
            if known is not None and key == known.key:
                chains[key] = self.put_chain(rollout, known.elements, names=known.names)
                sort, kept = "chain", _name(chains[key].last)
            elif key in bodies.LISTS and (elements := bodies.elements(value)) is not None:
                chains[key] = self.put_chain(rollout, elements)
                sort, kept = "chain", _name(chains[key].last)
            elif len(value) >= bodies.CONTENT_SIZE:
                sort, kept = "content", _name(self.put(rollout, value))
            parts.append(bodies.array((_encode(key), _encode(sort), kept)))
        return bodies.array(parts)


pack = contents.pack
unpack = contents.unpack


class References(msgspec.Struct, frozen=True, kw_only=True):
    """What bodies refer to."""

    contents: set[bytes]
    chains: set[bytes]


def references(stored: Iterable[bytes | None]) -> References:
    """Return what some stored bodies refer to."""
    out = References(contents=set(), chains=set())
    for one in stored:
        if one is None:
            continue
        parts = _decode_stored(one)
        if "whole" in parts:
            out.contents.add(bytes.fromhex(msgspec.json.decode(parts["whole"], type=str)))
            continue
        for _, sort, raw in _decode_parts(parts["fields"] if "fields" in parts else parts["with"]):
            if sort == "content":
                out.contents.add(bytes.fromhex(msgspec.json.decode(raw, type=str)))
            elif sort == "chain" and (name := _decode_name(raw)) is not None:
                out.chains.add(bytes.fromhex(name))
    return out


def body(
    stored: bytes,
    *,
    content: Callable[[bytes], bytes],
    chain: Callable[[bytes], list[bytes]],
    base: bytes | None = None,
) -> bytes:
    """Return a body as JSON; `base` is the stored request that a difference is taken against."""
    parts = _decode_stored(stored)
    if "whole" in parts:
        return content(bytes.fromhex(msgspec.json.decode(parts["whole"], type=str)))

    def fields(parts: Mapping[str, msgspec.Raw], base: bytes | None) -> bodies.Fields:
        out: bodies.Fields = {}
        for key, sort, raw in _decode_parts(parts["fields"] if "fields" in parts else parts["with"]):
            value: Any = bytes(raw)
            if sort == "content":
                value = content(bytes.fromhex(msgspec.json.decode(raw, type=str)))
            elif sort == "chain":
                name = _decode_name(raw)
                value = bodies.array([] if name is None else chain(bytes.fromhex(name)))
            out[key] = value
        if "fields" in parts:
            return out
        assert base is not None
        return bodies.changed(fields(_decode_stored(base), None), _decode_keys(parts["without"]), out)

    return bodies.whole(fields(parts, base))


def _name(name: bytes | None) -> bytes:
    return b"null" if name is None else b'"' + name.hex().encode() + b'"'
