"""Are the logprobs those of the policy that the trainer thinks it trains?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from graph.finders.statements import make
from graph.records import Call, Finding
from graph.roles import Judged

# Parameter → does this value cut the distribution? vLLM turns top_k off with 0 and -1.
CUTS: Mapping[str, Callable[[float], bool]] = {
    "top_p": lambda value: value < 1,
    "top_k": lambda value: value > 0,
    "min_p": lambda value: value > 0,
}
# Parameter → does this value move the logits away from the model's own?
SHIFTS: Mapping[str, Callable[[float], bool]] = {
    "temperature": lambda value: value != 1,
    "presence_penalty": lambda value: value != 0,
    "frequency_penalty": lambda value: value != 0,
    "repetition_penalty": lambda value: value != 1,
}


def find(judged: Judged) -> Iterator[Finding]:
    """Yield what the values that were sent, and those that were not, mean for training."""
    forest = judged.forest
    rollout = forest.rollout
    main = [forest.calls[n] for n in judged.calls_of("main") if forest.n_sampled(n)]
    worked = [forest.calls[n] for n in judged.calls_of("main", "subagent") if forest.n_sampled(n)]

    if main and "temperature" not in rollout.pins:
        asked = sorted({value for call in main if (value := _number(call.sampling_asked, "temperature")) is not None})
        unseen = sum(call.sampling_sent.get("temperature") is None for call in main)
        yield make("sampling_unpinned", [call.n for call in main], unseen=unseen, asked=asked)

    cut, values = _matching(worked, CUTS)
    if cut:
        yield make("sampling_truncates", cut, values=values)
    changed = _changed(main)
    if changed:
        yield make("sampling_changed", [call.n for call in main], values=changed)
    constrained = [call for call in worked if call.constrained]
    if constrained:
        fields = sorted({field for call in constrained for field in call.constrained})
        yield make("constrained_sampling", [call.n for call in constrained], fields=fields)

    scored = [call for call in worked if call.logprobs is not None]
    if scored and rollout.logprobs_mode == "unknown":
        yield make("logprob_mode_unknown", [call.n for call in scored])
    if rollout.logprobs_mode == "raw":
        off, because = _matching(scored, {**CUTS, **SHIFTS})
        if off:
            yield make("logprobs_not_of_sampler", off, because=because)


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _matching(
    calls: list[Call], tests: Mapping[str, Callable[[float], bool]]
) -> tuple[list[int], dict[str, list[float]]]:
    """Return the calls of which a sent value passes its test, and those values by parameter."""
    numbers: set[int] = set()
    values: dict[str, set[float]] = {}
    for call in calls:
        for name, test in tests.items():
            value = _number(call.sampling_sent, name)
            if value is not None and test(value):
                numbers.add(call.n)
                values.setdefault(name, set()).add(value)
    return sorted(numbers), {name: sorted(found) for name, found in sorted(values.items())}


def _changed(calls: list[Call]) -> dict[str, list[Any]]:
    """Return the parameters that did not have one value in all calls. A seed is meant to change."""
    changed = {}
    for name in sorted({name for call in calls for name in call.sampling_sent} - {"seed"}):
        values = {msgspec.json.encode(call.sampling_sent.get(name), order="deterministic") for call in calls}
        if len(values) > 1:
            changed[name] = [msgspec.json.decode(value) for value in sorted(values)]
    return changed
