"""How did the calls end, and how did the rollout?"""

from __future__ import annotations

from collections.abc import Iterator

from graph.eligibility import reason
from graph.finders.statements import make
from graph.records import Finding
from graph.roles import Judged


def find(judged: Judged) -> Iterator[Finding]:
    """Yield truncated_reply, aborted_calls, undelivered_calls, delivery_unknown, engine_errors, limit_stop."""
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
    unknown = [n for n in whole if reason(forest, n) == "delivery_unknown"]
    if unknown:
        yield make("delivery_unknown", unknown)
    errors = [call.n for call in calls if call.status == "error"]
    if errors:
        yield make("engine_errors", errors)
    stopped = forest.rollout.stopped
    if stopped is not None:
        stops = [call.n for call in calls if call.status == "stopped"]
        yield make("limit_stop", stops, limit=stopped.limit, at_call=stopped.at_call, stops=stopped.stops)
