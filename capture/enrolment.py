"""How rollouts come to be: read, checked against the engine, led a way here, stored; all of a request's or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from capture import clock, registration
from capture.errors import ClientError, TreeringError
from capture.reach import Reach, Ways, Wish
from capture.registration import Defaults, Place
from capture.store.base import Entry, Query, Store
from capture.tasks import spawn


class Enrolment:
    """Registers rollouts."""

    def __init__(
        self,
        store: Store,
        *,
        place: Callable[[str | None], Awaitable[Place]],
        defaults: Defaults,
        reach: Reach,
        unpinnable: Callable[[str | None], Awaitable[str | None]] | None,
    ) -> None:
        """`unpinnable` says why prompts can't be pinned at an engine (a clause), None where they can."""
        self._store = store
        self._place = place
        self._defaults = defaults
        self._reach = reach
        self._unpinnable = unpinnable

    async def register(self, body: Any, *, key: str | None, digest: str) -> bytes:
        """Register one rollout or several; return the JSON answer with their secrets.

        `key` is an Idempotency-Key: the same key with the same `digest` (of the body) repeats the first answer. Raises
        `ClientError`: 422 `invalid_registration` or `idempotency_key_reused`, 409 `id_taken` or `tier_too_low`.
        """
        if key is not None and (before := await self._store.answered(key, digest)) is not None:
            return before
        news, several = registration.read(body)
        now = clock.now()
        places = {engine: await self._place(engine) for engine in {new.engine for new in news}}
        news = [registration.check(new, places[new.engine]) for new in news]
        for engine in {new.engine for new in news if (new.tokens or self._defaults.tokens) == "pinned"}:
            if self._unpinnable is not None and (why := await self._unpinnable(engine)) is not None:
                raise ClientError(
                    "pins_unsupported",
                    f"Prompts can't be pinned at this engine: {why}.",
                    hint='Register with "tokens": "engine", or see docs/pinned.md for what an engine must do.',
                    status=409,
                )
        ways = await self._reach.lead(
            [Wish(rollout=str(new.id), agent=new.reach.agent, tools=new.reach.tools) for new in news]
        )
        try:
            made = [
                registration.register(new, places[new.engine], ways[str(new.id)], self._defaults, now=now, body=digest)
                for new in news
            ]
            answers = [one.answer for one in made]
            answer = msgspec.json.encode({"rollouts": answers} if several else answers[0])
        except BaseException:  # whatever fails, the tunnels' places go back
            ways.drop()
            raise
        adding = self._add([one.entry for one in made], ways, f"{key} {digest}" if key is not None else None, answer)
        # To its end, though the caller hangs up: what is stored must keep its way.
        if (error := await asyncio.shield(spawn(adding, name="add rollouts"))) is None:
            return answer
        if key is None or error.code != "idempotency_key_raced":
            raise error
        first = await self._store.answered(key, digest)
        return answer if first is None else first

    async def led(self, before: str) -> dict[str, str]:
        """Return the open rollouts registered before a time that were told a tunnel's URL, and that URL."""
        found: dict[str, str] = {}
        query: Query | None = Query(state="open")
        while query is not None:
            page = await self._store.page(query)
            for entry in page.entries:
                if entry.registration.public is not None and entry.rollout.created_at < before:
                    found[entry.rollout.id] = entry.registration.public
            query = None if page.next is None else msgspec.structs.replace(query, after=page.next)
        return found

    async def _add(self, entries: list[Entry], ways: Ways, key: str | None, answer: bytes) -> TreeringError | None:
        """Add rollouts, and keep their ways; return why that failed."""
        try:
            await self._store.add(entries, key=key, answer=answer)
            ways.keep()
        except TreeringError as error:
            return error
        finally:
            # Of those that were kept nothing is left to drop.
            ways.drop()
        return None
