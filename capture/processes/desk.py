"""The desk: where the supervisor answers what one worker asks of the store.

One desk a worker. It knows which calls its worker runs, by what passes, so that they can be ended when the worker has
died: nobody else would know that they run no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from capture.processes import exchanges, records
from capture.processes.channel import Handler, Hearer
from capture.processes.exchanges import PackedExchange
from capture.processes.records import PackedCall, PackedEntry, PackedRecord, PackedSpool
from capture.processes.remote import PackedArrival, PackedPage
from capture.store.base import Query, State, Store, Telling
from capture.store.canonical import Canonical
from capture.store.summary import Look, Summary

_log = logging.getLogger("treering")

T = TypeVar("T")


class Desk:
    """What one worker asks and tells of the store, answered."""

    def __init__(self, store: Store, canonical: Canonical) -> None:
        """`canonical` is shared by all desks: workers serve the same conversations."""
        self._store = store
        self._canonical = canonical
        # (rollout, n) of the calls that the worker was given a number for and has not ended.
        self.running: set[tuple[str, int]] = set()

    def __repr__(self) -> str:
        return f"<Desk {len(self.running)} calls running>"

    @property
    def answers(self) -> Mapping[str, Handler]:
        """What is asked, and how it is answered."""
        store = self._store
        return {
            "add": _typed(tuple[list[PackedEntry], str | None, bytes | None], self._add),
            "answered": _typed(tuple[str, str], lambda asked: store.answered(*asked)),
            "get": _typed(str, self._get),
            "by_secret": _typed(bytes, self._by_secret),
            "page": _typed(Query, self._page),
            "change": _typed(tuple[str, str], self._change),
            "delete": _typed(str, store.delete),
            "arrive": _typed(tuple[str, int, str], self._arrive),
            "seal": _typed(tuple[str, bool], lambda asked: store.seal(asked[0], cut=asked[1])),
            "sealed": _typed(type(None), lambda _: store.sealed()),
            "running": _typed(tuple[str | None, str | None], lambda asked: store.running(asked[0], engine=asked[1])),
            "abort": _typed(list[tuple[str, int]], self._abort),
            "stop": _typed(tuple[str, int, str], lambda asked: store.stop(*asked)),
            "engines": _typed(type(None), lambda _: store.engines()),
            "set_engine": _typed(
                tuple[str, bool | None, str | None],
                lambda asked: store.set_engine(asked[0], held=asked[1], version=asked[2]),
            ),
            "finish": _typed(tuple[str, list[PackedExchange], list[PackedRecord]], self._finish),
            "calls": _typed(tuple[str, int, int | None], self._calls),
            "exchange": _typed(tuple[str, int], self._exchange),
            "notices": _typed(str, self._notices),
            "state": _typed(str, store.state),
            "set_state": _typed(tuple[str, bytes, str, bytes | None, list[int] | None], self._set_state),
            "summarise": _typed(list[tuple[PackedEntry, Summary]], self._summarise),
            "sheet": _typed(Look, store.sheet),
            "overview": _typed(Look, store.overview),
            "events": _typed(
                tuple[str, str | None, int], lambda asked: store.events(asked[0], rollout=asked[1], limit=asked[2])
            ),
            "newest_event": _typed(type(None), lambda _: store.newest_event()),
            "tell": _typed(list[Telling], store.tell),
            "drop_events": _typed(str, store.drop_events),
            "flush": _typed(type(None), lambda _: store.flush()),
        }

    @property
    def hears(self) -> Mapping[str, Hearer]:
        """What is told, and what is done at it."""
        return {"begin": self._begin, "spool": self._spool, "deliver": self._deliver, "notice": self._notice}

    async def _add(self, asked: tuple[list[PackedEntry], str | None, bytes | None]) -> None:
        entries, key, answer = asked
        await self._store.add([records.entry(each) for each in entries], key=key, answer=answer)

    async def _get(self, rollout: str) -> PackedEntry | None:
        entry = await self._store.get(rollout)
        return None if entry is None else records.pack_entry(entry)

    async def _by_secret(self, digest: bytes) -> tuple[PackedEntry, Literal["agent", "tools"]] | None:
        found = await self._store.by_secret(digest)
        return None if found is None else (records.pack_entry(found[0]), found[1])

    async def _page(self, query: Query) -> PackedPage:
        page = await self._store.page(query)
        return PackedPage([records.pack_entry(each) for each in page.entries], page.next)

    async def _change(self, asked: tuple[str, str]) -> PackedEntry | None:
        entry = await self._store.change(asked[0], records.changes(asked[1]))
        return None if entry is None else records.pack_entry(entry)

    async def _arrive(self, asked: tuple[str, int, str]) -> PackedArrival | None:
        rollout, choices, started_at = asked
        found = await self._store.arrive(rollout, choices=choices, started_at=started_at)
        if found is None:
            return None
        self.running.add((rollout, found.n))
        return PackedArrival(found.n, found.arrived, records.pack_entry(found.entry), found.spent, found.engines)

    async def _abort(self, calls: list[tuple[str, int]]) -> None:
        self.running.difference_update(calls)
        await self._store.abort(calls)

    async def _finish(self, asked: tuple[str, list[PackedExchange], list[PackedRecord]]) -> None:
        rollout, exchanges, packed = asked
        given = records.records(exchanges, packed, self._canonical)
        await self._store.finish(rollout, given)
        self.running.difference_update((rollout, record.call.n) for record in given)

    async def _calls(self, asked: tuple[str, int, int | None]) -> tuple[bytes, list[PackedCall]]:
        rollout, after, limit = asked
        found = await self._store.calls(rollout, after=after, limit=limit)
        # In a thread: a long rollout takes tens of milliseconds, and all workers wait for this loop.
        return await asyncio.to_thread(records.pack_calls, found) if found else (b"[]", [])

    async def _exchange(self, asked: tuple[str, int]) -> PackedExchange | None:
        found = await self._store.exchange(*asked)
        return None if found is None else exchanges.pack_exchange(found)

    async def _notices(self, rollout: str) -> list[str]:
        return [records.pack_notice(each) for each in await self._store.notices(rollout)]

    async def _summarise(self, made: list[tuple[PackedEntry, Summary]]) -> None:
        await self._store.summarise([(records.entry(entry), summary) for entry, summary in made])

    async def _set_state(self, asked: tuple[str, bytes, str, bytes | None, list[int] | None]) -> State | None:
        rollout, body, at, owner, versions = asked
        expected = None if versions is None else frozenset(versions)
        return await self._store.set_state(rollout, body, at=at, owner=owner, expected=expected)

    def _begin(self, body: msgspec.Raw) -> None:
        rollout, call, passed = msgspec.msgpack.decode(body, type=tuple[str, PackedCall, PackedExchange])
        exchange = exchanges.exchange(passed, self._canonical)
        self._store.begin(rollout, records.call(call, exchange), exchange.request, parts=exchange.parts)

    def _spool(self, body: msgspec.Raw) -> None:
        rollout, n, spool = msgspec.msgpack.decode(body, type=tuple[str, int, PackedSpool])
        self._store.spool(rollout, n, records.spool(spool))

    def _deliver(self, body: msgspec.Raw) -> None:
        rollout, numbers, delivered, at = msgspec.msgpack.decode(body, type=tuple[str, list[int], bool, str])
        self._store.deliver(rollout, numbers, delivered=delivered, at=at)

    def _notice(self, body: msgspec.Raw) -> None:
        rollout, notice = msgspec.msgpack.decode(body, type=tuple[str, str])
        self._store.notice(rollout, records.notice(notice))


def _typed(sort: Any, answer: Callable[[Any], Awaitable[Any]]) -> Handler:
    decode = msgspec.msgpack.Decoder(sort).decode

    def handler(body: msgspec.Raw) -> Awaitable[Any]:
        return answer(decode(body))

    return handler
