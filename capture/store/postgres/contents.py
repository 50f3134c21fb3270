"""Contents and chains written: what of them is there already, and then the rest, in two or three statements.

A link of a chain is never there without those before it, so it is asked for the last few, and for ever fewer the
further back, and the place where the known ones end is found: as a rule at once, for a request adds two messages to
those of the one before it. Contents are written in the order of their digests, so that two who write the same don't
wait for each other in turn.

Runs while the rollouts are locked, and under the lock that a sweep of contents excludes: what is found to be there
stays there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence
from typing import Any

from capture.store.postgres.driver import Connection, columns
from capture.store.postgres.kept import Kept, pack

PACK_ASIDE = 256 * 1024
"""Bytes from which contents are packed in a thread."""


async def put(db: Connection, kept: Kept, keys: Mapping[str, int]) -> None:
    """Store what is wanted for the rollouts that are there; `keys` are theirs, by id."""
    chains = [(keys[name], chain) for name, wanted in kept.chains.items() if name in keys for chain in wanted.values()]
    uses = {(keys[name], content) for name, used in kept.used.items() if name in keys for content in used}
    if not chains and not uses:
        return
    asked = {(key, chain.links[at]) for key, chain in chains for at in _probes(len(chain.links))}
    there = {tuple(row) for row in await _known(db, asked, {content for _, content in uses})}
    # What lies between the last that is there and the first that isn't was not asked; as a rule that is nothing.
    between = {
        (key, link) for key, chain in chains for link in chain.links[slice(*_between(key, chain.links, there, asked))]
    }
    if between:
        there |= {tuple(row) for row in await _known(db, between, set())}
    data = {name: kept.data[name] for _, name in uses if (None, name) not in there}
    new: dict[tuple[int, bytes], tuple[bytes | None, bytes]] = {}
    for key, chain in chains:
        first, _ = _between(key, chain.links, there, asked | between)
        for at in range(first, len(chain.links)):
            name = chain.names[at]
            new[key, chain.links[at]] = (chain.links[at - 1] if at else None), name
            # Sent without asking: most are new, and the rest are a rollout's first few.
            data[name] = chain.elements[at]
            uses.add((key, name))
    names, in_order = sorted(data), sorted(uses)
    packed = await _packed([data[name] for name in names])
    await db.execute(
        "WITH c AS (INSERT INTO content (digest, packed, data)"
        "  SELECT * FROM unnest($1::bytea[], $2::text[], $3::bytea[]) ON CONFLICT DO NOTHING),"
        " u AS (INSERT INTO use (rollout, content)"
        "  SELECT * FROM unnest($4::bigint[], $5::bytea[]) ON CONFLICT DO NOTHING)"
        " INSERT INTO chain (rollout, digest, parent, content)"
        " SELECT * FROM unnest($6::bigint[], $7::bytea[], $8::bytea[], $9::bytea[])",
        names,
        *columns(packed, 2),
        *columns(in_order, 2),
        *columns([(*link, *of) for link, of in new.items()], 4),
    )


async def _known(db: Connection, links: set[tuple[int, bytes]], contents: set[bytes]) -> list[Any]:
    """Return those of some links, and (None, digest) for those of some contents, that are stored."""
    return await db.fetch(
        "SELECT asked.rollout, chain.digest FROM unnest($1::bigint[], $2::bytea[]) AS asked (rollout, digest)"
        " JOIN chain ON chain.rollout = asked.rollout AND chain.digest = asked.digest"
        " UNION ALL SELECT NULL, digest FROM content WHERE digest = ANY($3::bytea[])",
        *columns(list(links), 2),
        list(contents),
    )


def _probes(length: int) -> list[int]:
    """Return the places of a list's links to ask for: the last few, then ever fewer, and the first."""
    back = [1, 2, 3, 4, 5]
    while back[-1] < length:
        back.append(2 * back[-1])
    return sorted({max(0, length - each) for each in back}) if length else []


def _between(key: int, links: Sequence[bytes], there: Container[object], asked: Container[object]) -> tuple[int, int]:
    """Return the place behind the last link that is known to be there, and that of the first known not to be.

    A link is never there without those before it.
    """
    first, until = 0, len(links)
    for at in range(len(links) - 1, -1, -1):
        if (key, links[at]) in there:
            first = at + 1
            break
        if (key, links[at]) in asked:
            until = at
    return first, until


async def _packed(data: list[bytes]) -> list[tuple[str | None, bytes]]:
    if sum(map(len, data)) < PACK_ASIDE:
        return [pack(one) for one in data]
    return await asyncio.to_thread(lambda: [pack(one) for one in data])
