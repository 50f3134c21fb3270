"""What would end the drift of some rollouts: settings, and what each would save.

Each rule is a function of its own; one that finds nothing to save says nothing:
1. *threshold*: the smallest threshold at which `realign` gives the fewest rows, looking at drifts that are a template's
   doing. What an agent does to its history is no small thing at a turn's border, however few tokens it costs.
2. *pinned*: the drifts that come from rendering a kept history anew are gone with `tokens=pinned`. An end token that is
   not the template's, and whatever the agent changed, are not.
3. *template*: thinking that a template drops stays with the template's own flag, where it has one.
4. *agent*: a volatile line, a pruned history: the agent's setting, where it is known.
5. *engine*: a reply that ended by another token than the template's: the model's end tokens.
6. *reason*: of rollouts that are pinned already, what ends each fallback.
A saving is what would be so if the setting ended all drifts of its causes: an upper bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, cast

import msgspec

from graph.causes import CAUSES
from graph.records import Drift
from graph.survey import Outline, measure, rows, total

Rule = Literal["threshold", "pinned", "template", "agent", "engine", "reason"]

RENDERED: frozenset[str] = frozenset(
    ("reasoning_stripped", "reasoning_inserted", "arguments_reserialised", "text_retokenised", "turn_boundary")
)
"""Causes that come from rendering anew what the agent kept: pinned prefixes end them."""

TEMPLATES_OWN: frozenset[str] = RENDERED | {"end_token"}
"""Causes that are a template's doing, or an agent's spelling: small, at a turn's border, and the same every turn."""

FLAGS: dict[str, Any] = {"preserve_thinking": True, "truncate_history_thinking": False, "clear_thinking": False}
"""Arguments by which templates keep old thinking: Qwen 3.6 and 3.8, Gemma 4 and LFM 2.5; Nemotron 3; GLM."""

SETTINGS: dict[str, str] = {
    "history_pruned": "have the agent keep old tool results (opencode: compaction.prune = false)",
    "turn_dropped": "have the agent keep every turn, those with nothing but thinking too",
    "system_changed": "take out of the system text what changes from call to call",
    "tools_changed": "have the agent offer the same tools in every call",
}
"""Cause → what to set in an agent."""

ONE_END = "ban the model's other end tokens (`logit_bias`), or leave the template's alone in generation_config.json"
"""What to set at an engine whose model ends replies in two ways."""

REASONS: dict[str, str] = {
    "stop-string": "send no `stop`: where a reply ends at a stop string, what was sampled beyond it is not known",
    "end-token-mismatch": ONE_END,
    "overflow": "raise the engine's context length, or end rollouts earlier (`max_prompt_tokens`)",
    "no-parent": "have the agent keep its history as it was (no pruning, no volatile system text)",
    "other-engine": "keep a rollout at one engine, and update weights between rollouts",
    "engine-ignores-ids": "use an engine that takes ids: vLLM 0.32 or SGLang 0.5.23",
    "no-render": "name the engine itself with --engine, not a router before it",
    "non-text": "nothing: images are rendered from messages alone",
}
"""Why a call was not pinned → what ends it."""


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting would save at most, over all rollouts looked at."""

    # Transitions that would be exact.
    transitions: int = 0
    # Rows fewer, and tokens fewer that a trainer forwards.
    rows: int = 0
    tokens: int = 0


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, and why."""

    rule: Rule
    setting: str
    because: str
    saves: Saving


def advise(outlines: Sequence[Outline], *, template: str | None = None) -> tuple[Advice, ...]:
    """Say what to set, the greatest saving first; `template` is the text of the model's chat template, if known."""
    found = [
        advice
        for rule in (_threshold, _pinned, lambda given: _template(given, template), _agent, _engine, _reasons)
        for advice in rule(outlines)
    ]
    return tuple(sorted(found, key=lambda one: (-one.saves.rows, -one.saves.transitions, one.rule, one.setting)))


def _saving(outlines: Sequence[Outline], causes: Collection[str]) -> Saving:
    """Return what would be saved if the drifts of some causes were not."""

    def gone(drift: Drift) -> bool:
        return drift.cause in causes

    before, after = total(map(rows, outlines)), total(rows(one, gone=gone) for one in outlines)
    return Saving(
        transitions=sum(call.drift is not None and gone(call.drift) for one in outlines for call in one.main),
        rows=before.rows - after.rows,
        tokens=before.forwarded - after.forwarded,
    )


def _threshold(outlines: Sequence[Outline]) -> Iterator[Advice]:
    sizes = sorted(
        {
            call.drift.tokens
            for one in outlines
            for call in one.main
            if call.drift is not None and call.drift.cause in TEMPLATES_OWN
        }
    )
    before = total(map(rows, outlines))
    tried = [(total(rows(one, threshold=size) for one in outlines), size) for size in sizes]
    if not tried:
        return
    best, size = min(tried, key=lambda each: (each[0].rows, each[1]))
    if best.rows >= before.rows:
        return
    yield Advice(
        rule="threshold",
        setting=f"--drift realign --threshold {size}",
        because=f"drifts of up to {size} tokens are the template's doing: a row may cross them, and what lies behind "
        "a break is trained in a row of its own",
        saves=Saving(rows=before.rows - best.rows, tokens=before.forwarded - best.forwarded),
    )


def _pinned(outlines: Sequence[Outline]) -> Iterator[Advice]:
    saves = _saving(outlines, RENDERED)
    if not saves.transitions:
        return
    causes = sorted(
        {str(d.cause) for one in outlines for call in one.main if (d := call.drift) and d.cause in RENDERED}
    )
    yield Advice(
        rule="pinned",
        setting="tokens=pinned",
        because=f"the agent keeps its history, and it is rendered anew to other ids ({', '.join(causes)})",
        saves=saves,
    )


def _template(outlines: Sequence[Outline], template: str | None) -> Iterator[Advice]:
    saves = _saving(outlines, ("reasoning_stripped",))
    if not saves.transitions:
        return
    known = [name for name in FLAGS if template is None or name in template]
    if not known:
        return
    # Of an unknown template all are named: a template leaves alone what it does not know.
    flags = msgspec.json.encode({name: FLAGS[name] for name in known}).decode()
    yield Advice(
        rule="template",
        setting=f"chat_template_kwargs: {flags}",
        because="the template drops earlier thinking, unless told to keep it; the agent must send it back"
        + ("" if template is not None else " (which of these it knows, its text says: --tokenizer)"),
        saves=saves,
    )


def _agent(outlines: Sequence[Outline]) -> Iterator[Advice]:
    volatile = [finding for one in outlines for finding in one.findings if finding.code == "volatile_prefix"]
    if volatile:
        known = next((finding.data["setting"] for finding in volatile if finding.data.get("setting")), None)
        line = next((finding.data["line"] for finding in volatile if finding.data.get("line")), None)
        where = "the prompt's beginning" if line is None else f"the line {str(line)!r}"
        yield Advice(
            rule="agent",
            setting=str(known) if known else "take out of the prompt what changes from call to call",
            because=f"{where} is another in every call, so no call goes on from the one before",
            saves=_saving(outlines, ("system_changed", "tools_changed")),
        )
    present = {str(drift.cause) for one in outlines for call in one.main if (drift := call.drift) is not None}
    for cause, setting in SETTINGS.items():
        if cause in present and not (volatile and cause in ("system_changed", "tools_changed")):
            saves = _saving(outlines, (cause,))
            yield Advice(rule="agent", setting=setting, because=CAUSES[cast("Any", cause)], saves=saves)


def _engine(outlines: Sequence[Outline]) -> Iterator[Advice]:
    saves = _saving(outlines, ("end_token",))
    if saves.transitions:
        yield Advice(rule="engine", setting=ONE_END, because=CAUSES["end_token"], saves=saves)


def _reasons(outlines: Sequence[Outline]) -> Iterator[Advice]:
    for reason, count in measure(outlines).fallbacks.items():
        if reason in REASONS:
            yield Advice(
                rule="reason",
                setting=REASONS[reason],
                because=f"{count} calls could not be pinned: {reason}",
                saves=Saving(transitions=count),
            )
