"""A store for the page to be measured on: many short rollouts, and one long one; written without an engine.

- `crowd`: rollouts of one call each, in groups of eight, as a training run leaves them: most are sound, and one in ten
  has something to be found (no call at all, a drifted pair, a limit stop, a reply that broke off).
- `long`: one rollout, LONG, of 200 calls whose tokens are 200,000: a main loop whose prompt grows by a thousand tokens
  a call, with drift at every twentieth and a fork at every fiftieth, and two subagents that its tools started.

Token ids are those of the scripted engine's vocabulary, so that it has texts for them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import numpy as np

from capture.store import open_store
from capture.store.base import Delta, Entry, Exchange, Record, Registration, Store
from graph.messages import from_chat
from graph.records import Call, Message, Rollout, Stop, Weights

LONG = "long"
LONG_CALLS = 200
LONG_TOKENS = 200_000

AT_ONCE = 32
"""Rollouts that are put into the store side by side: their commits are grouped."""

WORDS = 960
"""Ids of text in the scripted engine's vocabulary; special tokens lie above."""

SAMPLED = 200
"""Ids of each reply of the long one."""

_DRIFT_EVERY, _FORK_EVERY = 20, 50
_SUBAGENTS, _SUBAGENT_CALLS = (60, 120), 15
_TOOL = {"type": "function", "function": {"name": "ask", "parameters": {"type": "object"}}}


async def fill(url: str, *, crowd: int = 0, long: bool = False) -> None:
    """Put a crowd of so many rollouts into a store, and the long one, which is the newest."""
    store = open_store(url, durability="none")
    await store.open()
    try:
        for first in range(0, crowd, AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for number in range(first, min(first + AT_ONCE, crowd)):
                    group.create_task(_short(store, number))
        if long:
            await _long(store)
    finally:
        await store.close()


class Teller:
    """Writes one rollout's calls into a store, in order."""

    def __init__(self, store: Store, name: str, seed: int) -> None:
        self.store = store
        self.name = name
        self.n = 0
        self.drawn = np.random.default_rng(seed)

    def __repr__(self) -> str:
        return f"<Teller {self.name} {self.n} calls>"

    def ids(self, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return so many ids, drawn."""
        return self.drawn.integers(0, WORDS, count, dtype=np.int32)

    async def register(self, **fields: Any) -> None:
        """Put the rollout itself there, without a call."""
        rollout = Rollout(id=self.name, model="bench", logprobs_mode="processed", created_at=_at(0), **fields)
        secrets = [hashlib.sha256(f"{self.name} {kind}".encode()).digest() for kind in ("agent", "tools")]
        entry = Entry(rollout=rollout, registration=Registration(), secret=secrets[0], tools_secret=secrets[1])
        await self.store.add([entry])

    async def close(self, **changes: Any) -> None:
        """Close it."""
        await self.store.change(self.name, {"state": "closed", "closed_at": _at(self.n + 1), **changes})


class Talk:
    """One conversation of it: what was said so far, its ids, and the call that holds them."""

    def __init__(self, teller: Teller, opening: str) -> None:
        self._teller = teller
        self._said: list[dict[str, Any]] = []
        self._messages: tuple[Message, ...] = ()
        self._ids = np.empty(0, np.int32)
        self._holder: int | None = None
        self._hear({"role": "user", "content": opening})

    def __repr__(self) -> str:
        return f"<Talk {len(self._said)} messages {len(self._ids)} ids>"

    async def turn(
        self,
        *,
        added: int,
        sampled: int,
        lost: int = 0,
        ask: str | None = None,
        answer: str | None = None,
        status: str = "complete",
        again: bool = False,
    ) -> None:
        """Sample a reply behind all that was said, and hear the result of its tool call, if it goes on.

        `lost`: ids at the end that its prompt has no more (drift). `ask`: what the tool is asked; None: no call.
        `answer`: the result; None: nobody answers. `again`: the reply is left, and another will be drawn.
        """  # fmt: skip
        teller = self._teller
        n, teller.n = teller.n, teller.n + 1
        shared = max(0, len(self._ids) - lost)
        prompt = np.concatenate([self._ids[:shared], teller.ids(added)])
        drawn = teller.ids(sampled)
        reply: dict[str, Any] = {"role": "assistant", "content": f"Call {n} of {teller.name} thinks it over."}
        if ask is not None:
            function = {"name": "ask", "arguments": json.dumps({"prompt": ask})}
            reply["tool_calls"] = [{"id": f"t{n}", "type": "function", "function": function}]
        heard = None if status == "aborted" else from_chat(reply)
        call = Call(
            n=n, id=f"{teller.name}-{n}", status="aborted" if status == "aborted" else "complete",
            delivered=status != "aborted", arrived=2 * n, ended=2 * n + 1, model_asked="bench", dialect="chat",
            streamed=True, finish_reason=None if heard is None else "tool_calls" if ask else "stop",
            messages=self._messages, tools="ask", tool_names=("ask",), reply=heard, prompt_ids=prompt,
            sampled_ids=drawn, logprobs=-teller.drawn.random(sampled, dtype=np.float32),
            usage_prompt=len(prompt), usage_sampled=sampled, sampling_sent={"temperature": 1.0},
            sampling_asked={"temperature": 1.0}, weights=Weights(start="1", end="1"), engine="bench",
            started_at=_at(n), first_token_ms=40.0, ended_ms=40.0 + 10 * sampled,
        )  # fmt: skip
        asked = json.dumps({"model": "bench", "messages": self._said, "tools": [_TOOL]}).encode()
        told = json.dumps({"choices": [{"message": reply}]}).encode()
        teller.store.begin(teller.name, call, asked)
        delta = None if self._holder is None else Delta(holder=self._holder, shared=shared)
        exchange = Exchange(request=asked, sent=asked, reply=told)
        await teller.store.finish(teller.name, [Record(call=call, exchange=exchange, delta=delta)])
        if again or heard is None:
            return
        self._ids, self._holder = np.concatenate([prompt, drawn]), n
        self._hear(reply)
        if ask is not None and answer is not None:
            self._hear({"role": "tool", "tool_call_id": f"t{n}", "content": answer})

    def _hear(self, message: dict[str, Any]) -> None:
        self._said.append(message)
        self._messages = (*self._messages, from_chat(message))


async def _short(store: Store, number: int) -> None:
    """Write one of the crowd; what is wrong with it goes by its number."""
    teller = Teller(store, f"run-{number:05}", number)
    await teller.register(
        group=f"step-{number // 8:04}",
        labels={"split": "eval" if number % 8 == 7 else "train"},
        pins={"temperature": 1.0},
    )
    wrong = number % 40
    if wrong:
        talk = Talk(teller, f"Task {number // 8}: find the fault.")
        await talk.turn(added=40, sampled=20, ask="What is there?", answer="Nothing." if wrong == 1 else None)
        if wrong == 1:
            await talk.turn(added=30, sampled=20, lost=7)
        if wrong == 3:
            await talk.turn(added=30, sampled=10, status="aborted")
    if number % 500 == 499:
        # Still at work.
        return
    stopped = {"stopped": Stop(limit="max_calls", at_call=teller.n, stops=1)} if wrong == 2 else {}
    await teller.close(reward=None if number % 100 == 50 else float(number % 3 == 0), **stopped)


async def _long(store: Store) -> None:
    teller = Teller(store, LONG, 1)
    await teller.register(group="long", labels={"split": "train"}, pins={"temperature": 1.0})
    main = Talk(teller, "Find out why the build fails, and mend it.")
    own = LONG_CALLS - len(_SUBAGENTS) * _SUBAGENT_CALLS
    added = LONG_TOKENS // LONG_CALLS - SAMPLED
    for turn in range(own):
        if turn and turn % _FORK_EVERY == 0:
            await main.turn(added=added, sampled=SAMPLED, ask="A first guess", again=True)
        helps = turn in _SUBAGENTS
        question = f"Look into module {turn}." if helps else f"What does file {turn} say?"
        answer = f"Module {turn} is sound." if helps else f"File {turn} says nothing of it."
        lost = 90 if turn and turn % _DRIFT_EVERY == 0 else 0
        await main.turn(added=added, sampled=SAMPLED, lost=lost, ask=question, answer=answer)
        if helps:
            helper = Talk(teller, question)
            for step in range(_SUBAGENT_CALLS):
                last = step == _SUBAGENT_CALLS - 1
                await helper.turn(
                    added=added, sampled=SAMPLED, ask=None if last else f"Part {step}?", answer=None if last else "Yes."
                )
    await teller.close(reward=1.0)


def _at(second: int) -> str:
    return f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"
