"""One open rollout in memory: numbers, counters, limits, and what runs.

Made from the store with its first call and dropped when it closes, so a restart loses nothing: the next number, the
counter and the limits are read off the stored calls.

Rule 1: a call's number and its place in time are given out on arrival, on the loop, without awaiting.
Rule 2: a call's place under the limits is taken on arrival, and given back if the call is not sampled, so that calls
which run at once can't exceed `max_calls` together. What the limits mean is `capture.limits`' business.
Rule 3: the trie holds committed calls only, since a stored prompt may lean on nothing else.

A rollout without a call for a while sleeps (`sleep`): what its calls left here, their ids above all, leaves memory, and
comes back from the store with its next call (`wake`). Counters, limits and what may be retried stay, some 4 KB.

Where the store is shared with other processes, it gives out numbers and places in time, and says what is spent
(`arrived`); what is here is then a copy, which `capture.elsewhere` keeps up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from capture import clock, limits
from capture.admission import Rules
from capture.checksums import Checksums
from capture.pinning.memory import Memory
from capture.retries import Tries
from capture.store.base import Arrival, Delta, Entry, Spent
from graph.records import Call, IntArray, Message
from graph.tokens import Trie


class Live:
    """One open rollout in memory."""

    def __init__(self, entry: Entry, calls: Iterable[Call]) -> None:
        """`calls` are those stored so far, prompts whole."""
        self.entry = entry
        # The rollout's public id: asked for ten times a call.
        self.id = entry.rollout.id
        # What `rules` made of an entry last.
        self._rules: tuple[Entry, Rules] | None = None
        self.trie = Trie()
        self._checks = Checksums()
        self.running: dict[int, Callable[[], object]] = {}
        self.sealed = False
        self.changed = asyncio.Event()
        self.idle_since = asyncio.get_running_loop().time()
        self.last_call_at: str | None = None
        # The id that the agent saw → the call's number, of complete calls.
        self.replies: dict[str, int] = {}
        # Calls that a later request may be a retry of.
        self.tries = Tries()
        # Whether what its calls left here is in the store alone, and since when it is not.
        self.asleep = False
        self._awake_since = self.idle_since
        self._visitors = 0
        self._next = 0
        self._tick = 0
        self._sampled = 0
        self._reserved = 0
        # Sampled tokens, and those of prompts that no earlier call had, over ended calls.
        self._new_tokens = 0
        self.first_call_at: str | None = entry.rollout.first_call_at
        # The engine that served the last call, and how often that had been away by then.
        self.engine: tuple[str, int] | None = None
        # Looked into under that limit alone.
        self.prompts = limits.Prompts() if "max_prompt_tokens" in entry.rollout.limits else None
        # How the rollout met a limit, as of the latest call that did, and how many have.
        self.stopped = entry.rollout.stopped
        self.stops = self.stopped.stops if self.stopped else 0
        # Numbers of calls that other processes serve and whose end isn't known here, and since when they are known.
        self.elsewhere: dict[int, float] = {}
        # Of those that have ended since, the ones of which it isn't known whether their reply was delivered.
        self.in_doubt: dict[int, float] = {}
        self.catching = asyncio.Lock()
        # Of a rollout that asked for pinned prompts: what later calls may be pinned to.
        self.memory: Memory | None = None
        for call in calls:
            self.skip(call.n)
            if call.status == "running":
                self.elsewhere[call.n] = self.idle_since
            else:
                self.learn(call)

    def __repr__(self) -> str:
        return f"<Live {self.id} next={self._next} running={sorted(self.running)} sampled={self._sampled}>"

    @property
    def rules(self) -> Rules:
        """What the rollout lays down for its calls."""
        known = self._rules
        if known is not None and known[0] is self.entry:
            return known[1]
        rollout, made = self.entry.rollout, self.entry.registration
        limit = rollout.limits.get("max_output_tokens")
        rules = Rules(
            pins=rollout.pins,
            max_output_tokens=None if limit is None else int(limit),
            model=rollout.model,
            strict_model=made.strict_model,
            allow=frozenset(made.allow),
        )
        self._rules = self.entry, rules
        return rules

    @property
    def top(self) -> int:
        """The number that the next call gets, as far as is known here."""
        return self._next

    def learn(self, call: Call) -> None:
        """Take in an ended call that was stored: by an earlier process, or by another one."""
        self.keep(call.n, call.prompt_ids, call.sampled_ids)
        self.note(call)
        self.tries.learn(call)
        self._refer(call)
        self._tick = max(self._tick, call.arrived + 1, (call.ended or 0) + 1)
        self._sampled += call.choice == 0 and call.status not in ("error", "stopped")
        self.last_call_at = max(self.last_call_at or "", call.started_at)
        self.first_call_at = min(self.first_call_at or call.started_at, call.started_at)

    def skip(self, n: int) -> None:
        """Note that a number has been given out."""
        self._next = max(self._next, n + 1)

    def arrived(self, arrival: Arrival, choices: int) -> None:
        """Take in what the store said when it gave a call its number."""
        now = asyncio.get_running_loop().time()
        mine = range(arrival.n, arrival.n + max(1, choices))
        self.elsewhere.update(dict.fromkeys(range(self._next, arrival.n), now))
        self.skip(mine[-1])
        for n in mine:
            # Another arrival of this process may have been told of first.
            self.elsewhere.pop(n, None)
        self.first_call_at = arrival.spent.first_call_at or self.first_call_at
        if arrival.entry.version >= self.entry.version:
            self.entry = arrival.entry

    def tick(self) -> int:
        """Return the counter and move it on: order in time, for arrivals and ends alike."""
        self._tick += 1
        return self._tick - 1

    def arrive(self, choices: int) -> int:
        """Give out numbers for a request with so many choices; return the first."""
        first = self._next
        self._next += max(1, choices)
        return first

    def reserve(self, dialect: str = "", messages: Sequence[Message] = (), *, spent: Spent | None = None) -> str | None:
        """Take a sampled call's place; return the limit that leaves none, by name, and take none then.

        `messages` are the request's, in its dialect: they say which conversation it goes on with. `spent` is what the
        store said on its arrival, where the store is shared.
        """
        if self.entry.rollout.limits:
            prompt = self.prompts.of(dialect, messages) if self.prompts is not None else None
            if (limit := limits.judge(self.entry.rollout.limits, spent or self.spent(), prompt=prompt)) is not None:
                return limit
        self._reserved += 1
        return None

    def spent(self) -> Spent:
        """Return what is spent, as a call that arrives now sees it."""
        return Spent(
            sampled=self._sampled,
            running=self._reserved + 1,
            new_tokens=self._new_tokens,
            first_call_at=self.first_call_at,
        )

    def settle(self, *, sampled: bool) -> None:
        """Turn a reserved place into a used one, or give it back."""
        self._reserved -= 1
        self._sampled += sampled

    def begin(self, n: int, cut: Callable[[], object]) -> None:
        """Note that a call runs; `cut` ends it when the rollout is sealed and its time is over."""
        self.running[n] = cut
        self.last_call_at = clock.now()
        self._tell()

    def end(self, n: int) -> None:
        """Note that a call runs no more."""
        self.running.pop(n, None)
        self.idle_since = asyncio.get_running_loop().time()
        self._tell()

    @contextlib.contextmanager
    def visited(self) -> Iterator[None]:
        """Keep it from falling asleep: a request that it was found for may bring its body slowly."""
        self._visitors += 1
        try:
            yield
        finally:
            self._visitors -= 1

    @property
    def is_visited(self) -> bool:
        """Whether a request is under way that it was found for."""
        return self._visitors > 0

    def sleep(self, after_s: float) -> bool:
        """Let go of what the store has too, if nothing has run for so many seconds; say whether that was now."""
        now = asyncio.get_running_loop().time()
        busy = self._visitors or self.elsewhere or self.in_doubt or now - self._awake_since <= after_s
        if self.asleep or busy or not self.is_idle(after_s):
            return False
        self.asleep = True
        self.trie, self._checks, self.replies = Trie(), Checksums(), {}
        if self.prompts is not None:
            self.prompts = limits.Prompts()
        if self.memory is not None:
            self.memory.clear(self.trie)
        return True

    def wake(self, calls: Iterable[Call]) -> None:
        """Take in again what the store holds, and what other processes have added to it since."""
        self.asleep, self._awake_since = False, asyncio.get_running_loop().time()
        known = self._next
        for call in calls:
            if call.n < known:
                if call.prompt_ids is not None and call.sampled_ids is not None:
                    self.trie.insert(call.n, call.prompt_ids, call.sampled_ids)
                self._note_prompt(call)
                self._refer(call)
                continue
            self.skip(call.n)
            if call.status == "running":
                self.elsewhere[call.n] = self._awake_since
            else:
                self.learn(call)

    def is_idle(self, for_s: float) -> bool:
        """Say whether nothing has run for so many seconds."""
        return not self.running and asyncio.get_running_loop().time() - self.idle_since > for_s

    def seal(self) -> None:
        """Take no more calls."""
        self.sealed = True
        self._tell()

    def delta(self, prompt: IntArray | None) -> Delta | None:
        """Return how a prompt leans on a committed call, None if it is to be stored whole."""
        if prompt is None:
            return None
        found = self.trie.locate(prompt)
        return None if found.holder is None else Delta(holder=found.holder, shared=found.shared)

    def checked(self, prompt: IntArray | None, delta: Delta | None) -> Delta | None:
        """Return what `delta` returned, with the prompt's check sum."""
        if prompt is None or delta is None:
            return delta
        holder, shared = delta.holder, delta.shared
        n_prompt, depth = self.trie.n_prompt(holder), self.trie.depth(holder)
        check = self._checks.of(prompt, holder=holder, shared=shared, n_prompt=n_prompt, depth=depth)
        return Delta(holder=holder, shared=shared, check=check)

    def keep(self, n: int, prompt: IntArray | None, sampled: IntArray | None, *, check: int | None = None) -> None:
        """Add a committed call's ids to the trie, and what of them is new to what is spent.

        `check` is the prompt's check sum, where known.
        """
        if prompt is not None and sampled is not None:
            shared = self.trie.insert(n, prompt, sampled).shared
            self._new_tokens += max(0, len(prompt) - shared) + len(sampled)
            if check is not None:
                self._checks.keep(n, check, sampled)

    def note(self, call: Call) -> None:
        """Note of a committed call what limits look at and `keep` doesn't show."""
        if call.sampled_ids is None or call.prompt_ids is None:
            # The engine gave none, or half of them: its own count is all that is known.
            known = call.usage_sampled if call.sampled_ids is None else len(call.sampled_ids)
            self._new_tokens += known or 0
        self._note_prompt(call)

    def _note_prompt(self, call: Call) -> None:
        if self.prompts is not None:
            length = call.usage_prompt if call.prompt_ids is None else len(call.prompt_ids)
            self.prompts.note(call.dialect, call.messages, call.reply, length)

    def _refer(self, call: Call) -> None:
        """Note by what later requests may go on from an ended call."""
        if self.memory is not None:
            self.memory.add(call)
        if call.id is not None and call.status == "complete" and call.choice == 0:
            self.replies[call.id] = call.n

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
