"""What was each conversation for, and does anything contradict it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graph.finders.statements import make
from graph.records import Conversation, Finding
from graph.roles import ROLE_HINT, VERDICTS, Judged, parent_hint


def find(judged: Judged) -> Iterator[Finding]:
    """Yield auxiliary_calls, subagents, ambiguous_main, role_hint_disagrees."""
    auxiliary = [found for found in judged.conversations if found.role == "auxiliary"]
    if auxiliary:
        kinds = Counter(found.kind or "other" for found in auxiliary)
        yield make("auxiliary_calls", judged.calls_of("auxiliary"), kinds=dict(sorted(kinds.items())))
    subagents = [found for found in judged.conversations if found.role == "subagent"]
    if subagents:
        parents = sorted({found.parent_call for found in subagents if found.parent_call is not None})
        yield make("subagents", judged.calls_of("subagent"), conversations=len(subagents), parents=parents)
    if judged.tie is not None:
        tie = judged.tie
        yield make("ambiguous_main", tie.roots, by=tie.by, roots=list(tie.roots), kept=list(tie.kept))
    for found in judged.conversations:
        yield from _disagreements(judged, found)


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
