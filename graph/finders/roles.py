"""What was each conversation for, and does anything contradict it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graph.finders.statements import make, named
from graph.records import Conversation, Finding
from graph.roles import ROLE_HINT, VERDICTS, Judged, is_ruled, parent_hint

WORDS: dict[str, str] = {
    "main": "the task's own conversation",
    "subagent": "a subagent's",
    "auxiliary": "a call of the agent for itself",
    "title": "a title",
    "summary": "a summary",
    "probe": "a probe",
    "other": "something for the agent itself",
}
"""Roles and kinds of auxiliary conversations, as they are told to a reader who has met neither."""


def find(judged: Judged) -> Iterator[Finding]:
    """Yield auxiliary_calls, subagents, ambiguous_main, role_hint_disagrees, role_overruled."""
    auxiliary = [found for found in judged.conversations if found.role == "auxiliary"]
    if auxiliary:
        kinds = Counter(found.kind or "other" for found in auxiliary)
        ruled = [found.root for found in auxiliary if is_ruled(judged, found)]
        own = {found.kind or "other" for found in auxiliary if not is_ruled(judged, found)}
        words = [WORDS[kind] for kind in sorted(own)]
        if ruled:
            words.append(f"call {named(ruled)} because somebody ruled so")
        why = ", ".join(words)
        yield make("auxiliary_calls", judged.calls_of("auxiliary"), why=why, kinds=dict(sorted(kinds.items())))
    subagents = [found for found in judged.conversations if found.role == "subagent"]
    if subagents:
        parents = sorted({found.parent_call for found in subagents if found.parent_call is not None})
        ruled = [found.root for found in subagents if is_ruled(judged, found)]
        why = f", or somebody ruled so (call {named(ruled)})" if ruled else ""
        yield make("subagents", judged.calls_of("subagent"), why=why, conversations=len(subagents), parents=parents)
    if judged.tie is not None:
        tie = judged.tie
        ruled = [found.root for found in judged.conversations if is_ruled(judged, found)]
        why = f"; what somebody ruled of call {named(ruled)} overrules that" if set(ruled) & set(tie.roots) else ""
        yield make("ambiguous_main", tie.roots, why=why, by=tie.by, roots=list(tie.roots), kept=list(tie.kept))
    for found in judged.conversations:
        yield from _disagreements(judged, found)
        judging = judged.flow_roles.get(found.n, found.role)
        if is_ruled(judged, found):
            said = judged.flow_kinds.get(found.n) or judging
            tokens = sum(judged.forest.n_sampled(n) or 0 for n in found.calls)
            yield make(
                "role_overruled",
                found.calls,
                why=f"{WORDS[said]}, by what it did",
                conversation=found.n,
                role=found.role,
                judged=said,
                tokens=tokens,
            )


def _disagreements(judged: Judged, found: Conversation) -> Iterator[Finding]:
    judging = judged.flow_roles.get(found.n, found.role)
    claims: dict[str, list[int]] = {}
    for n in found.calls:
        call = judged.forest.calls[n]
        word = call.hints.get(ROLE_HINT, "subagent" if parent_hint(call) else "")
        if word in VERDICTS and VERDICTS[word][0] != judging:
            claims.setdefault(word, []).append(n)
    for word, calls in sorted(claims.items()):
        yield make("role_hint_disagrees", calls, hinted=word, judged=judging, conversation=found.n)
