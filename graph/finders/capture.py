"""Was everything recorded, and did it come from the agent that the rollout is for?"""

from __future__ import annotations

from collections.abc import Iterator

from graph.finders.statements import make
from graph.records import Finding
from graph.roles import Judged


def find(judged: Judged) -> Iterator[Finding]:
    """Yield no_calls, capture_incomplete, parent_lost, graded_without_calls, request_repaired, reply_id_reused."""
    forest = judged.forest
    rollout = forest.rollout
    noticed = {notice.code for notice in forest.notices}
    if not forest.calls and rollout.state == "closed":
        # What only capture can know of it: how the tunnel and the engine stood at the end.
        known = next((notice.data for notice in forest.notices if notice.code == "no_calls"), {})
        yield make("no_calls", **known, near=sorted(noticed - {"no_calls"}))
    if rollout.incomplete:
        if "capture_incomplete" not in noticed:
            yield make("capture_incomplete")
        orphans = [found.root for found in judged.conversations if _continues_unknown(judged, found.root)]
        if orphans:
            yield make("parent_lost", orphans)
    sampled = any(call.status in {"complete", "aborted"} for call in forest.calls.values())
    if rollout.reward is not None and not sampled:
        yield make("graded_without_calls", reward=rollout.reward)
    repaired = [call for call in forest.calls.values() if call.repairs]
    if repaired:
        repairs = sorted({repair for call in repaired for repair in call.repairs})
        yield make("request_repaired", [call.n for call in repaired], repairs=repairs)
    # The choices of one request share an id; they are told by their first one's number.
    bearers: dict[str, dict[int, list[int]]] = {}
    for n, call in sorted(forest.calls.items()):
        if call.id is not None:
            bearers.setdefault(call.id, {}).setdefault(n - call.choice, []).append(n)
    reused = {id_: requests for id_, requests in bearers.items() if len(requests) > 1}
    if reused:
        calls = [n for requests in reused.values() for several in requests.values() for n in several]
        yield make("reply_id_reused", calls, ids=sorted(reused))


def _continues_unknown(judged: Judged, root: int) -> bool:
    """Say whether a root's prompt holds an assistant message that no recorded call produced.

    Alone that shows nothing: agents put in greetings and examples of their own.
    """
    calls = judged.forest.calls
    replies = {call.reply.digest for call in calls.values() if call.reply is not None}
    return any(message.role == "assistant" and message.digest not in replies for message in calls[root].messages)
