"""Which calls' sampled tokens may be trained on, and for the others, why not.

Rules: each call has exactly one reason, the first of `REASONS` that holds, or none. Nothing here looks at roles or
rows: a call that passes is trained if its conversation is asked for.

- complete, or an aborted one that was proved used (a later prompt begins with exactly its prompt and sampled ids);
- delivered; where that is not known, a later request that carries the reply or its text shows that the agent had it;
- not discarded for another branch;
- with ids, logprobs and counts that agree, and a probability for every token;
- sampled freely, unless asked otherwise.
"""

from __future__ import annotations

import numpy as np

from graph.forest import Forest
from graph.records import Call

REASONS: dict[str, str] = {
    "running": "it has not ended",
    "stopped": "a limit's last reply, which the engine did not sample",
    "error": "it ended in an error",
    "aborted": "it broke off, and no later prompt proves that the agent used it (`aborted=train` overrules)",
    "undelivered": "the client had closed before the reply's end",
    "delivery_unknown": "the process died before it could tell, and no later call goes on from it",
    "discarded": "another branch from the same place went on",
    "no_token_ids": "the engine gave no prompt ids or no sampled ids",
    "damaged_ids": "an id is none that a vocabulary could have",
    "nothing_sampled": "the reply has no tokens",
    "no_logprobs": "the engine gave no logprobs",
    "count_mismatch": "ids, logprobs and usage disagree in number",
    "invalid_logprobs": "a logprob is missing, infinite or clamped",
    "constrained": "sampled under a constraint that a trainer can't rebuild (`constrained=train` overrules)",
    "role": "its conversation's role was not asked for (`roles=`)",
}
"""Every reason in `left_out`, in the order in which they are asked."""

CLAMPED = -9000.0
"""vLLM writes -9999.0 for minus infinity (JSON has none); no model gives a token that it sampled e^-9000."""


def counts(forest: Forest, n: int) -> dict[str, int | None] | None:
    """Return the counts of a call that disagree with each other; None when all that are known agree."""
    call = forest.calls[n]
    prompt, sampled = forest.n_prompt(n), forest.n_sampled(n)
    logprobs = None if call.logprobs is None else len(call.logprobs)
    pairs = ((prompt, call.usage_prompt), (sampled, call.usage_sampled), (sampled, logprobs))
    if all(one is None or other is None or one == other for one, other in pairs):
        return None
    return {
        "prompt_ids": prompt,
        "usage_prompt": call.usage_prompt,
        "sampled_ids": sampled,
        "usage_sampled": call.usage_sampled,
        "logprobs": logprobs,
    }


def invalid(call: Call) -> int:
    """Count the logprobs of a call that are missing, infinite or clamped."""
    if call.logprobs is None:
        return 0
    return int(np.count_nonzero(~np.isfinite(call.logprobs) | (call.logprobs < CLAMPED)))


def reason(forest: Forest, n: int, *, aborted: bool = False, constrained: bool = False) -> str | None:
    """Say why the sampled tokens of call `n` may not be trained on; None when they may.

    `aborted` and `constrained` take in what is left out by default.
    """
    call = forest.calls[n]
    if call.status in {"running", "stopped", "error"}:
        return call.status
    if call.status == "complete" or n in forest.proved:
        if (missing := _not_used(forest, n)) is not None:
            return missing
    elif not aborted:
        return "aborted"
    return _of_tokens(forest, n, constrained=constrained)


def _not_used(forest: Forest, n: int) -> str | None:
    delivered = forest.delivered(n)
    if delivered is False:
        return "undelivered"
    if delivered is None and n not in forest.came_back:
        return "delivery_unknown"
    return "discarded" if n in forest.discarded else None


def _of_tokens(forest: Forest, n: int, *, constrained: bool) -> str | None:
    call = forest.calls[n]
    sampled = forest.n_sampled(n)
    if n in forest.damaged:
        return "damaged_ids"
    if forest.n_prompt(n) is None or sampled is None:
        return "no_token_ids"
    if sampled == 0:
        return "nothing_sampled"
    if call.logprobs is None:
        return "no_logprobs"
    if counts(forest, n) is not None:
        return "count_mismatch"
    if invalid(call):
        return "invalid_logprobs"
    if call.constrained and not constrained:
        return "constrained"
    return None
