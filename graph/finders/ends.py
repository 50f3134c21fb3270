"""How did the calls end, and how did the rollout?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from graph.eligibility import reason
from graph.finders.statements import make
from graph.records import Call, Finding, Weights
from graph.roles import Judged

SAME_MS, SAME_SHARE = 500.0, 0.05
"""Times that differ by no more than this, or by this share of the longest, are one time limit on a busy machine."""


def find(judged: Judged) -> Iterator[Finding]:
    """Yield truncated_reply, aborted_calls, undelivered_calls, delivery_unknown, engine_errors, limit_stop.

    And time_limit, weights_changed, weights_mixed.
    """
    forest = judged.forest
    calls = [call for _, call in sorted(forest.calls.items())]

    cut = [call.n for call in calls if call.status == "complete" and call.finish_reason == "length"]
    if cut:
        yield make("truncated_reply", cut)
    aborted = [call.n for call in calls if call.status == "aborted"]
    if aborted:
        yield make("aborted_calls", aborted, used=[n for n in aborted if n in forest.proved])
    whole = [call.n for call in calls if call.status == "complete"]
    undelivered = [n for n in whole if forest.delivered(n) is False]
    if undelivered:
        yield make("undelivered_calls", undelivered)
    tried_again = {n for fork in forest.forks if fork.kind == "retry" for n in fork.children}
    left = tried_again.intersection((*aborted, *undelivered))
    yield from _given_up([call for call in calls if call.n in left and call.finish_reason != "abort"])
    unknown = [n for n in whole if reason(forest, n) == "delivery_unknown"]
    if unknown:
        yield make("delivery_unknown", unknown)
    errors = [call.n for call in calls if call.status == "error"]
    if errors:
        yield make("engine_errors", errors)
    straddling = [call for call in calls if call.status != "error" and len(_versions(call.weights)) > 1]
    if straddling:
        versions = dict.fromkeys(version for call in straddling for version in _versions(call.weights))
        yield make("weights_changed", [call.n for call in straddling], versions=list(versions))
    single = {call.n: found[0] for call in calls if len(found := _versions(call.weights)) == 1}
    if len(set(single.values())) > 1:
        yield make("weights_mixed", single, versions=list(dict.fromkeys(single.values())))
    stopped = forest.rollout.stopped
    if stopped is not None:
        stops = [call.n for call in calls if call.status == "stopped"]
        value = forest.rollout.limits.get(stopped.limit)
        told: dict[str, Any] = {} if value is None else {"value": value}
        why = "" if value is None else f" (it allows {_amount(stopped.limit, value)})"
        yield make(
            "limit_stop", stops, why=why, limit=stopped.limit, at_call=stopped.at_call, stops=stopped.stops, **told
        )


def _given_up(left: Sequence[Call]) -> Iterator[Finding]:
    """Yield time_limit where calls that broke off and were asked for again had all lasted the same time."""
    times = [call.ended_ms for call in left if call.ended_ms is not None]
    if len(left) < 2 or len(times) < len(left):
        return
    longest = max(times)
    if longest - min(times) <= max(SAME_MS, SAME_SHARE * longest):
        tokens = sum(0 if call.sampled_ids is None else len(call.sampled_ids) for call in left)
        yield make("time_limit", [call.n for call in left], after_s=round(longest / 1000, 1), tokens=tokens)


def _amount(limit: str, value: float) -> str:
    """Return what a limit allows, with its unit, which its name ends with."""
    unit = {"calls": "call", "tokens": "token", "s": "second"}.get(limit.rpartition("_")[2], "unit")
    return f"{int(value) if value == int(value) else value:,} {unit}{'' if value == 1 else 's'}"


def _versions(weights: Weights) -> list[str]:
    """Return the versions that a call's tokens are known to be drawn from, in order.

    A start or an end that nobody told is no other version: SGLang says the one at the end alone.
    """
    told = [weights.start, *(span.version for span in weights.spans), weights.end]
    return list(dict.fromkeys(version for version in told if version is not None))
