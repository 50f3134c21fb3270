"""Which request is a retry, and of which call. Pure but for what it is told of.

Rules
1. A request is a retry of a call of its rollout when their canonical bodies are equal and the agent of that call hung
   up before the reply's end was delivered; or when it names the same `Idempotency-Key`; or when it carries a retry
   count of 1 or more and the latest call with that body was neither delivered nor failed.
2. An equal body while the first agent is still connected, or behind a delivered reply, is a new sample.
3. A call that was aborted or failed has nothing to give: its retry is a new call, and the graph says what became of the
   first. A retry that differs is a new call too.
4. By its key a request may ask for the same reply in another mode: whole, or as a stream.
5. In the ordinary case nothing is compared: only where the rollout has an undelivered call of the same dialect with as
   many messages, or the request says itself that it may be a retry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from capture import rawjson
from capture.dialects.base import Request
from graph.records import Call

if TYPE_CHECKING:
    from capture.draft import Draft

KEPT_KEYS = 256
"""Keys that a rollout's calls named, and that are remembered: far more than an agent has calls in doubt at once."""

_MODE = ("stream", "stream_options")
"""Fields of a body that say how the reply is to come, and not what it is to be."""


class Claim(NamedTuple):
    """What a request says of itself."""

    # Its Idempotency-Key.
    key: str | None = None
    # How often it was sent before, by its own account.
    retry: int = 0


NO_CLAIM = Claim()


def claim(headers: Mapping[str, str]) -> Claim:
    """Read what a request claims to be: `Idempotency-Key`, and the retry count of the Stainless SDKs."""
    key, count = headers.get("Idempotency-Key"), headers.get("x-stainless-retry-count", "0")
    if key is None and count == "0":
        return NO_CLAIM
    return Claim(key=key or None, retry=int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0)


class Retried(Exception):  # noqa: N818 - no error: what is found out where a request would else become a call
    """A request is a retry of a call."""

    def __init__(self, tried: Try, request: Request, *, by_key: bool) -> None:
        """`by_key`: its Idempotency-Key says so, whatever became of the reply."""
        super().__init__(f"a retry of call {tried.n}")
        self.tried = tried
        self.request = request
        self.by_key = by_key


class Try:
    """A call that a later request may be a retry of."""

    def __init__(self, n: int, *, dialect: str, messages: int, body: str | None, draft: Draft | None = None) -> None:
        """`messages` is their number; `draft` is the call while it runs in this process."""
        self.n = n
        self.dialect = dialect
        self.messages = messages
        self.body = body
        self.draft = draft
        # Of its choices, the first one included.
        self.numbers = [n]
        self.delivered: bool | None = None
        # Sampled in full.
        self.complete = False

    def __repr__(self) -> str:
        return f"<Try {self.n} {self.dialect} {'runs' if self.draft else f'delivered {self.delivered}'}>"


class Tries:
    """The calls of one rollout that may be retried."""

    def __init__(self) -> None:
        self._running: dict[int, Try] = {}
        # Sampled in full, and not known to be delivered, by dialect and number of messages; the latest last.
        self._waiting: dict[tuple[str, int], list[Try]] = {}
        self._keys: OrderedDict[str, Try] = OrderedDict()
        # By body, while another call with it runs: the latest that was delivered, or has nothing to give.
        self._over: dict[str, int] = {}

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return f"<Tries {len(self._running)} running, {waiting} undelivered, {len(self._keys)} keys>"

    def find(self, dialect: str, request: Request, said: Claim) -> Try | None:
        """Return the call that a request is a retry of, None for a new one.

        One that is found by its key alone may differ from the request in more than its mode: see `same_but_for_mode`.
        """
        if said.key is not None and (known := self._keys.get(said.key)) is not None and known.dialect == dialect:
            return known
        if said.retry > 0 and (latest := self._latest(dialect, request)) is not None:
            return latest
        for waiting in reversed(self._waiting.get((dialect, len(request.messages)), ()) if self._waiting else ()):
            if waiting.body == request.body and waiting.delivered is False:
                return waiting
        return None

    def begin(self, draft: Draft, said: Claim) -> Try:
        """Note that a call runs; return it."""
        assert draft.request is not None
        tried = Try(
            draft.n,
            dialect=draft.dialect,
            messages=len(draft.request.messages),
            body=draft.request.body,
            draft=draft,
        )
        self._running[draft.n] = tried
        if said.key is not None:
            self._keys[said.key] = tried
            while len(self._keys) > KEPT_KEYS:
                self._keys.popitem(last=False)
        return tried

    def leave(self, tried: Try, *, through: bool) -> None:
        """Note that the agent of a running call hung up; `through`: its reply had been sampled in full."""
        if tried.delivered:
            # Another of its agents has it.
            return
        if through:
            tried.delivered = False
            self._wait(tried)
        else:
            self._running.pop(tried.n, None)
            self._forget(tried)
            self._settle(tried)

    def end(self, tried: Try, *, numbers: list[int], complete: bool) -> None:
        """Note that a call has ended; one that isn't complete has nothing for a retry."""
        self._running.pop(tried.n, None)
        tried.draft, tried.numbers, tried.complete = None, numbers, complete
        if not complete:
            self._forget(tried)
            self._settle(tried)

    def mark(self, tried: Try, *, delivered: bool) -> None:
        """Note whether a reply reached its agent; a call that did once is delivered."""
        if not tried.complete:
            return
        if delivered:
            tried.delivered = True
            self._settle(tried)
            # Those before it with the same body are retried no more.
            if waiting := self._waiting.get((tried.dialect, tried.messages)):
                self._set(tried, [one for one in waiting if one.n > tried.n or one.body != tried.body])
        elif not tried.delivered:
            tried.delivered = False
            self._wait(tried)

    def learn(self, call: Call) -> None:
        """Take in an ended call that was stored."""
        if call.status != "complete":
            return
        place = call.dialect, len(call.messages)
        if call.choice:
            for tried in self._waiting.get(place, ()):
                if tried.n == call.n - call.choice:
                    tried.numbers.append(call.n)
            return
        tried = Try(call.n, dialect=call.dialect, messages=len(call.messages), body=call.body)
        tried.delivered, tried.complete = call.delivered, True
        if call.delivered:
            self.mark(tried, delivered=True)
        else:
            self._wait(tried)

    def _latest(self, dialect: str, request: Request) -> Try | None:
        """Return the latest call with a request's body that may be retried."""
        place = dialect, len(request.messages)
        found = [
            tried
            for tried in (*self._running.values(), *self._waiting.get(place, ()))
            if tried.body == request.body and tried.dialect == dialect
        ]
        latest = max(found, key=lambda tried: tried.n, default=None)
        if latest is not None and self._over.get(latest.body or "", -1) > latest.n:
            # A later one with this body is meant: equal calls may run side by side.
            return None
        return latest

    def _settle(self, tried: Try) -> None:
        """Note that a call can't be joined any more, as long as an earlier one with its body can."""
        body = tried.body or ""
        if any(one.body == tried.body for one in self._running.values() if one is not tried):
            self._over[body] = max(tried.n, self._over.get(body, -1))
        else:
            self._over.pop(body, None)

    def _wait(self, tried: Try) -> None:
        waiting = self._waiting.setdefault((tried.dialect, tried.messages), [])
        if tried not in waiting:
            waiting.append(tried)
            waiting.sort(key=lambda one: one.n)

    def _forget(self, tried: Try) -> None:
        waiting = self._waiting.get((tried.dialect, tried.messages), [])
        self._set(tried, [one for one in waiting if one is not tried])
        for key in [key for key, known in self._keys.items() if known is tried]:
            del self._keys[key]

    def _set(self, tried: Try, waiting: list[Try]) -> None:
        place = tried.dialect, tried.messages
        if waiting:
            self._waiting[place] = waiting
        else:
            self._waiting.pop(place, None)


def same_but_for_mode(one: bytes, other: bytes) -> bool:
    """Say whether two bodies ask for the same, whole or as a stream."""
    if one == other:
        return True
    try:
        read = [rawjson.loads(body) for body in (one, other)]
    except ValueError:
        return False
    if not all(isinstance(each, dict) for each in read):
        return False
    left, right = ({name: value for name, value in each.items() if name not in _MODE} for each in read)
    return bool(left == right)
