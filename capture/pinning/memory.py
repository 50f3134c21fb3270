"""What is remembered of a rollout's calls, so that later ones can be pinned to them.

Ids come from the rollout's trie. What the requests looked like is noted as calls end; of calls that an earlier process
or another one served, it is read from the store when it is asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from capture.pinning.parents import Parents
from capture.pinning.pinner import UNKNOWN, Recorded
from capture.pinning.wire import shape
from capture.rawjson import split
from capture.store.base import Exchange
from graph.records import Call
from graph.tokens import Trie


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Of a request that the engine got: what its rendering depends on, and whether it named stops of its own."""

    shape: str
    stops: bool


class Memory:
    """The calls of one rollout that may be gone on from."""

    def __init__(self, trie: Trie, exchange: Callable[[int], Awaitable[Exchange | None]]) -> None:
        """`exchange` returns what passed in a call, as the store has it."""
        self.parents = Parents()
        self._trie = trie
        self._exchange = exchange
        self._calls: dict[int, Call] = {}
        self._asked: dict[int, _Asked] = {}
        # The version of the engine's weights as it was told when a call ended; an engine's own word may be another.
        self._told: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<Memory of {len(self._calls)} calls>"

    def add(self, call: Call, sent: Mapping[str, bytes] | None = None, *, told: str | None = None) -> None:
        """Take in a call that was stored; `sent` are its chat request's fields as the engine got them, if known.

        `told` is the version of the engine's weights as told to us, for a call that has just ended.
        """
        if call.reply is None or call.status != "complete" or call.n not in self._trie:
            return
        self.parents.add(call)
        # Its ids are in the trie, and its messages in the chain.
        self._calls[call.n] = msgspec.structs.replace(
            call, messages=(), prompt_ids=None, sampled_ids=None, logprobs=None
        )
        if sent is not None:
            self._asked[call.n] = _asked(sent)
        if told is not None:
            self._told[call.n] = told

    def clear(self, trie: Trie) -> None:
        """Forget the calls, which are to be taken in again, with their ids in another trie; what was told stays."""
        self.parents, self._trie = Parents(), trie
        self._calls.clear()
        self._asked.clear()

    async def load(self, n: int) -> Recorded | None:
        """Return a call by its number; None if it has no ids, or what passed in it is no chat request."""
        call = self._calls.get(n)
        if call is None or n not in self._trie:
            return None
        asked, passed = self._asked.get(n), None
        if asked is None or asked.stops:
            passed = await self._exchange(n)
        if asked is None:
            if passed is None:
                return None
            try:
                # One of the chat dialect whose body was sent as it came has no copy of its own.
                asked = _asked(split(passed.sent or passed.request))
            except ValueError:
                return None
            self._asked[n] = asked
            if not asked.stops:
                passed = None
        ids = self._trie.path(n)
        return Recorded(
            ids=ids,
            n_sampled=len(ids) - self._trie.n_prompt(n),
            finish_reason=call.finish_reason,
            stop_reason=_stop_reason(passed, call) if asked.stops else None,
            shape=asked.shape,
            stops=asked.stops,
            engine=call.engine,
            weights=self._told.get(n, call.weights.end),
            tool_ids=tuple(tool.id for tool in call.reply.tool_calls) if call.reply is not None else (),
        )


def _asked(sent: Mapping[str, bytes]) -> _Asked:
    stops = any(sent.get(name, b"null") not in (b"null", b"[]", b'""') for name in ("stop", "stop_token_ids"))
    return _Asked(shape=shape(sent), stops=stops)


def _stop_reason(passed: Exchange | None, call: Call) -> Any:
    """Return by which of its own stops a reply ended; None for none of them, `UNKNOWN` where the reply doesn't say."""
    if passed is None or passed.reply is None or call.dialect != "chat":
        return UNKNOWN
    try:
        choices = msgspec.json.decode(passed.reply, type=_Reply).choices
    except msgspec.DecodeError:
        return UNKNOWN
    return next((one.stop_reason for one in choices if one.index == call.choice), UNKNOWN)


class _Choice(msgspec.Struct):
    index: int = 0
    stop_reason: Any = UNKNOWN


class _Reply(msgspec.Struct):
    choices: list[_Choice]
