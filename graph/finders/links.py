"""How do the calls hang together: drift, roots, forks, compactions?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from graph.drift import THRESHOLD
from graph.finders.statements import make, named
from graph.makers import maker, worded
from graph.records import Drift, Finding
from graph.roles import PER_TURN, Judged, is_ruled


def find(judged: Judged) -> Iterator[Finding]:
    """Yield what links, forks and roots say."""
    yield from _drift(judged)
    yield from _roots(judged)
    yield from _forks(judged)
    forest = judged.forest
    compactions = {n: link for n, link in forest.links.items() if link.kind == "compaction"}
    if compactions:
        yield make(
            "compaction", compactions, carries=sorted({n for link in compactions.values() for n in link.carries})
        )
    discarded = forest.discarded
    if discarded:
        yield make("discarded_calls", discarded, tokens=sum(forest.n_sampled(n) or 0 for n in discarded))


def _drift(judged: Judged) -> Iterator[Finding]:
    links = judged.forest.links
    drifts = {n: link.drift for n, link in sorted(links.items()) if link.drift is not None}
    if drifts:
        tokens = [drift.tokens for drift in drifts.values()]
        mean = round(sum(tokens) / len(tokens), 3)
        yield make("drift", drifts, tokens_mean=mean, tokens_max=max(tokens), **_causes(judged, drifts))
    large = {n: drift for n, drift in drifts.items() if drift.tokens > THRESHOLD}
    if large:
        yield make("drift_over_threshold", large, threshold=THRESHOLD, **_causes(judged, large))


def _causes(judged: Judged, drifts: Mapping[int, Drift]) -> dict[str, Any]:
    """Return the causes of drifts as data, and as words, the most frequent first."""
    counted = Counter(drift.cause for drift in drifts.values())
    often = sorted(counted, key=lambda cause: (-counted[cause], cause))
    forest = judged.forest

    def said(cause: str) -> str:
        return worded(cause, [maker(forest, n) for n, drift in drifts.items() if drift.cause == cause])

    return {"causes": dict(sorted(counted.items())), "why": "; ".join(f"{said(cause)} ({cause})" for cause in often)}


def _roots(judged: Judged) -> Iterator[Finding]:
    main = [found for found in judged.conversations if found.role == "main"]
    if len(main) > 1:
        ruled = [found.root for found in main if is_ruled(judged, found)]
        why = f", {len(ruled)} of them because somebody ruled so (call {named(ruled)})" if ruled else ""
        told: dict[str, Any] = {"ruled": ruled} if ruled else {}
        yield make("multiple_roots", [found.root for found in main], why=why, **told)
    single = [found.root for found in main if len(found.calls) == 1]
    if len(single) >= PER_TURN and len(single) == len(main):
        yield make("per_turn_roots", single)


def _forks(judged: Judged) -> Iterator[Finding]:
    forks = judged.forest.forks
    retried = [n for fork in forks if fork.kind == "retry" for n in fork.children]
    if retried:
        yield make("retries", retried)
    kinds = Counter(fork.kind for fork in forks if fork.kind != "retry")
    if kinds:
        children = [n for fork in forks if fork.kind != "retry" for n in fork.children]
        yield make("forks", children, forks=kinds.total(), resample=kinds["resample"], branch=kinds["branch"])
