"""The limits of a rollout: what they are, and whether one is reached. Pure.

Rules
1. A limit is judged before a call, by what has ended and by what runs; a call that was let in ends in its own time. Of
   `deadline_s` that time is bounded: it is over at twice the deadline.
2. `max_calls` is exact whatever runs at once, since a call's place is counted from its arrival, and given back if the
   call brought nothing. Tokens of a running call aren't known: `max_total_tokens` counts those of ended ones.
3. The length of a prompt is known when the engine has read it: `max_prompt_tokens` is judged by the last call of the
   conversation that the request goes on with. The prompt that reaches the limit is served; the one after it is not.
4. `max_output_tokens` is the clamp of one call, and ends nothing (`admission`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capture import clock
from capture.store.base import Spent
from graph.records import Message

NAMES = ("max_calls", "max_output_tokens", "max_total_tokens", "max_prompt_tokens", "deadline_s")
"""Every limit that a rollout may have. Another name is refused: one that is passed over in silence limits nothing."""

_IN_PARTS = frozenset({"deadline_s"})
"""Limits that need not be whole numbers."""

CUT_AT = 2.0
"""Times the deadline at which a running reply is broken off."""


def judge(
    limits: Mapping[str, float], spent: Spent, *, prompt: int | None = None, now: str | None = None
) -> str | None:
    """Return the limit that a new call has reached, None if it may go on.

    `spent` counts the call itself among those that run. `prompt` is the length in tokens of the prompt of the
    conversation's last call (`Prompts`), None where there is none. `now` is the time, ISO 8601, by default the clock's.
    """
    if not limits:
        return None
    for name, used in (
        ("max_calls", spent.sampled + spent.running - 1),
        ("max_total_tokens", spent.new_tokens),
        ("max_prompt_tokens", prompt),
    ):
        if used is not None and name in limits and used >= limits[name]:
            return name
    since = spent.first_call_at if "deadline_s" in limits else None
    return "deadline_s" if since is not None and elapsed_s(since, now) >= limits["deadline_s"] else None


def elapsed_s(since: str, now: str | None = None) -> float:
    """Return the seconds since a time, ISO 8601; 0 for one to come, as after a clock was set back."""
    passed = clock.parse(now or clock.now()) - clock.parse(since)
    return max(0.0, passed.total_seconds())


def cut_after_s(limits: Mapping[str, float], first_call_at: str | None, now: str | None = None) -> float | None:
    """Return the seconds after which a call that begins now is broken off, None for never."""
    if "deadline_s" not in limits or first_call_at is None:
        return None
    return max(0.0, CUT_AT * limits["deadline_s"] - elapsed_s(first_call_at, now))


def fault(name: str, value: object) -> str | None:
    """Say what is wrong with a limit that is asked for, None if nothing is."""
    if name not in NAMES:
        return f"`limits.{name}` is not enforced here; these are: {', '.join(NAMES)}"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"`limits.{name}` must be a number"
    if name in _IN_PARTS:
        return None if 0 < value < float("inf") else f"`limits.{name}` must be a number of seconds above 0"
    return None if value >= 1 and value == value // 1 else f"`limits.{name}` must be a whole number of at least 1"


class Prompts:
    """The lengths of a rollout's prompts, to be found again by what goes on from them.

    A request goes on from the call whose reply is its last assistant message that any call of the rollout gave; of
    equal replies the one that answered the message before it. By the messages' digests: neither a changed system text
    nor a stripped thought hides them. A text prompt (Completions) goes on from the longest one that it begins with.
    """

    def __init__(self) -> None:
        # By the reply and what it answered, and by the reply alone.
        self._by_reply: dict[tuple[bytes, bytes | None], int] = {}
        self._texts: list[tuple[str, int]] = []

    def __repr__(self) -> str:
        return f"<Prompts {len(self._by_reply)} replies, {len(self._texts)} texts>"

    def note(self, dialect: str, messages: Sequence[Message], reply: Message | None, length: int | None) -> None:
        """Note an ended call: what it read, what it said, how long its prompt was in tokens."""
        if length is None:
            return
        if reply is not None:
            self._by_reply[reply.digest, None] = length
            if messages:
                self._by_reply[reply.digest, messages[-1].digest] = length
        if dialect == "completions" and messages:
            self._texts.append((messages[0].text, length))

    def of(self, dialect: str, messages: Sequence[Message]) -> int | None:
        """Return the prompt's length of the last call of the conversation that a request goes on with."""
        if dialect == "completions":
            return self._longest(messages[0].text) if messages else None
        for i in range(len(messages) - 1, -1, -1):
            reply = messages[i].digest
            if messages[i].role == "assistant" and (reply, None) in self._by_reply:
                before = messages[i - 1].digest if i else None
                return self._by_reply.get((reply, before), self._by_reply[reply, None])
        return None

    def _longest(self, text: str) -> int | None:
        return max((length for known, length in self._texts if text.startswith(known)), default=None)
