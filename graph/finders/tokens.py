"""Are the ids and logprobs there, and are they what they say?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from graph.eligibility import REASONS, counts, invalid, reason
from graph.finders.statements import make, named
from graph.records import Finding
from graph.roles import Judged, is_ruled

NOISE = 1e-4
"""A logprob this much above zero is rounding: float32 sums of a softmax over 150,000 tokens stray by less."""


def find(judged: Judged) -> Iterator[Finding]:
    """Yield nothing_trainable and what is wrong with ids, logprobs and counts."""
    forest = judged.forest
    tier = forest.rollout.tier
    ended = [call for n, call in sorted(forest.calls.items()) if call.status in {"complete", "aborted"}]
    whole = [call.n for call in ended if call.status == "complete"]

    if forest.damaged:
        yield make("token_out_of_vocabulary", forest.damaged)
    bare = [n for n in whole if forest.n_prompt(n) is None or forest.n_sampled(n) is None]
    bare = [n for n in bare if n not in forest.damaged]
    if bare:
        yield make("no_token_ids", bare, tier=tier)
    mute = [
        n
        for n in whole
        if n not in bare and n not in forest.damaged and forest.n_sampled(n) and forest.calls[n].logprobs is None
    ]
    if mute:
        yield make("no_logprobs", mute, tier=tier)
    differing = {call.n: found for call in ended if (found := counts(forest, call.n)) is not None}
    if differing:
        yield make("count_mismatch", differing, counts={str(n): found for n, found in differing.items()})
    broken = {call.n: wrong for call in ended if (wrong := invalid(call))}
    if broken:
        yield make("invalid_logprobs", broken, tokens=sum(broken.values()))

    positive: Counter[int] = Counter()
    largest = 0.0
    for call in ended:
        if call.logprobs is not None and (above := call.logprobs[call.logprobs > NOISE]).size:
            positive[call.n] = int(above.size)
            finite = above[np.isfinite(above)]
            largest = max(largest, float(finite.max()) if finite.size else largest)
    if positive:
        yield make("positive_logprob", positive, largest=largest, tokens=positive.total())

    if forest.calls and forest.rollout.state == "closed":
        main = set(judged.calls_of("main"))
        reasons = {n: reason(forest, n) or ("role" if n not in main else None) for n in sorted(forest.calls)}
        if None not in reasons.values():
            numbers = Counter(found for found in reasons.values() if found is not None)
            often = sorted(numbers, key=lambda name: (-numbers[name], name))
            # Without the option that would take them in: what it says is that they are not.
            why = "; ".join(f"{REASONS[name].partition(' (')[0]} ({name})" for name in often)
            ruled = [found.root for found in judged.conversations if found.role != "main" and is_ruled(judged, found)]
            if ruled and "role" in numbers:
                why += f"; somebody ruled call {named(ruled)} to be no part of main"
            yield make("nothing_trainable", reasons, tier=tier, reasons=dict(sorted(numbers.items())), why=why)
