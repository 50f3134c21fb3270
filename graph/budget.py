"""What is left of a rollout's limits.

Counted as they are judged (docs/limits.md): from the calls alone, so that a rollout that is closed and one that is read
elsewhere say the same. `max_output_tokens` is no budget: each call has all of it. Of `max_prompt_tokens` it is what
main's last prompt leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from graph.records import Call, IntArray, Rollout
from graph.tokens import Trie


def budget_left(
    rollout: Rollout,
    calls: Sequence[Call],
    *,
    prompt_ids: Callable[[int], IntArray | None] | None = None,
    main: Iterable[int] = (),
    now: str | None = None,
) -> dict[str, float]:
    """Return what is left, by limit, never below 0.

    `prompt_ids` gives a call's prompt (default: the calls hold theirs), `main` are the calls of the main conversation.
    `now` (ISO 8601) is the time of an open rollout; without it, that of its last call.
    """
    limits = rollout.limits
    used: dict[str, float] = {}
    if "max_calls" in limits:
        # Of every role, running ones included; errors and stops are none, and the choices of one request are one.
        used["max_calls"] = sum(call.status not in {"error", "stopped"} and call.choice == 0 for call in calls)
    if "max_total_tokens" in limits:
        used["max_total_tokens"] = new_tokens(calls, prompt_ids)
    if "max_prompt_tokens" in limits:
        used["max_prompt_tokens"] = _last_prompt(calls, set(main), prompt_ids)
    if "deadline_s" in limits:
        until = rollout.closed_at or now or rollout.last_call_at
        used["deadline_s"] = _elapsed_s(rollout.first_call_at, until)
    return {name: max(0, limits[name] - used[name]) for name in limits if name in used}


def deadline_left(limit_s: float, first_call_at: str | None, until: str | None) -> float:
    """Return what is left of a deadline at a time, in seconds; times are ISO 8601."""
    return max(0, limit_s - _elapsed_s(first_call_at, until))


def new_tokens(calls: Iterable[Call], prompt_ids: Callable[[int], IntArray | None] | None = None) -> int:
    """Return the tokens that ended calls sampled, and those of their prompts that no earlier call had.

    Without ids the engine's usage counts for what was sampled, and the prompt, of which nobody knows what it shares,
    for nothing.
    """
    trie, total = Trie(), 0
    for call in sorted((call for call in calls if call.ended is not None), key=lambda call: (call.ended, call.n)):
        prompt = call.prompt_ids if prompt_ids is None else prompt_ids(call.n)
        sampled = call.sampled_ids
        total += (call.usage_sampled or 0) if sampled is None else len(sampled)
        if prompt is not None and sampled is not None:
            total += max(0, len(prompt) - trie.insert(call.n, prompt, sampled).shared)
    return total


def _last_prompt(calls: Sequence[Call], main: set[int], prompt_ids: Callable[[int], IntArray | None] | None) -> int:
    for call in sorted(calls, key=lambda call: call.n, reverse=True):
        if main and call.n not in main:
            continue
        prompt = call.prompt_ids if prompt_ids is None else prompt_ids(call.n)
        length = call.usage_prompt if prompt is None else len(prompt)
        if length is not None:
            return length
    return 0


def _elapsed_s(first_call_at: str | None, until: str | None) -> float:
    if first_call_at is None or until is None:
        return 0
    passed = datetime.fromisoformat(until) - datetime.fromisoformat(first_call_at)
    return max(0.0, round(passed.total_seconds(), 3))
