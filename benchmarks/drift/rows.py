"""From conversations that were had to rows of the benchmark. Pure, but for the template that re-renders.

A row of the modes `engine` and `pinned` is what the forest says of main. One of `rerender` holds the same calls against
local re-rendering, call by call and not link by link: `transitions` are the calls, `exact` those whose prompt is
rendered to the engine's very ids, `tokens_…` the ids of a call, prompt and sampled, that the rendering of its messages
and its reply doesn't begin with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.drift.standin import Had
from benchmarks.drift.templates import Renderings, Template
from capture.trial.scenarios import Ask
from graph.drift import THRESHOLD
from graph.graph import read
from graph.records import Rollout
from graph.survey import Outline, measure, outline
from graph.view import graph_json

Json = dict[str, Any]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario under one template, in one mode."""

    scenario: str
    template: str
    agent: str
    mode: str
    # "vllm 0.32.0", or "template alone".
    served_by: str
    transitions: int
    exact: int
    tokens_mean: float | None
    tokens_max: int | None
    fork_frac: float | None
    realign_frac: float | None
    samples_per_rollout: float | None
    # Drifts of main by cause.
    causes: dict[str, int]
    # Calls that were not pinned, by reason.
    fallback: dict[str, int]
    # Calls pinned to an older one than the one that they go on from: the history between was changed.
    pinned_to_older: int = 0
    # Rows of `split`, trained and forwarded tokens.
    rows: int | None = None
    trained_tokens: int | None = None
    forwarded_tokens: int | None = None
    # Of `rerender`: shares of calls whose prompt is right, and of those whose reply is right too.
    prompts_right: float | None = None
    turns_right: float | None = None
    # Why there is nothing to measure, such as a template that refuses the messages.
    note: str | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What a row is of."""

    scenario: str
    template: str
    agent: str
    served_by: str


def nothing(case: Case, mode: str, note: str) -> Row:
    """Return a row that says why there is none."""
    return Row(
        **msgspec.structs.asdict(case), mode=mode, transitions=0, exact=0, tokens_mean=None, tokens_max=None,
        fork_frac=None, realign_frac=None, samples_per_rollout=None, causes={}, fallback={}, note=note,
    )  # fmt: skip


def of_outlines(case: Case, mode: str, outlines: Sequence[Outline]) -> Row:
    """Return the row of some rollouts. Replies that a grammar forced count as any: it is the benchmark that forces."""
    found = measure(outlines, constrained=True)
    return Row(
        **msgspec.structs.asdict(case),
        mode=mode,
        transitions=found.transitions,
        exact=found.exact,
        tokens_mean=_round(found.tokens_mean),
        tokens_max=found.tokens_max,
        fork_frac=_round(found.fork_frac),
        realign_frac=_round(found.realign_frac),
        samples_per_rollout=_round(found.samples_per_rollout),
        causes={one.cause: one.transitions for one in found.causes},
        fallback=found.fallbacks,
        pinned_to_older=found.pinned_to_older,
        rows=found.split.rows,
        trained_tokens=found.split.trained,
        forwarded_tokens=found.split.forwarded,
    )


def of_had(case: Case, mode: str, had: Had) -> Row:
    """Return the row of a rollout that was had with a stand-in."""
    rollout = Rollout(id="r", state="closed", logprobs_mode="processed")
    graph = read(rollout, had.calls, had.notices)
    return of_outlines(case, mode, [outline(graph_json(graph))])


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One call beside its local re-rendering."""

    prompt_right: bool
    reply_right: bool
    # Ids of the call that the rendering doesn't begin with.
    lost: int


def rerendered(
    renderings: Renderings, template: Template, asked: Ask, reply: Json, prompt: Sequence[int], sampled: Sequence[int]
) -> Compared:
    """Render a call's messages and reply as a trainer with nothing but these would, and compare."""
    common = {"tools": asked.tools, "arguments": asked.arguments, "raw": True}
    before, whole = renderings.ask(
        template,
        [{**common, "messages": asked.messages}, {**common, "messages": [*asked.messages, reply], "closed": True}],
    )
    ids = [*prompt, *sampled]
    same = 0
    for one, other in zip(ids, whole or [], strict=False):
        if one != other:
            break
        same += 1
    right = before == list(prompt)
    return Compared(prompt_right=right, reply_right=right and same == len(ids), lost=len(ids) - same)


def of_rerendered(case: Case, compared: Sequence[Compared]) -> Row:
    """Return the row of calls that were rendered again."""
    n = len(compared)
    lost = [one.lost for one in compared]
    right = sum(one.prompt_right for one in compared)
    return Row(
        **msgspec.structs.asdict(case),
        mode="rerender",
        transitions=n,
        exact=right,
        tokens_mean=_round(sum(lost) / n) if n else None,
        tokens_max=max(lost, default=None),
        fork_frac=_round(sum(one > THRESHOLD for one in lost) / n) if n else None,
        realign_frac=_round(sum(0 < one <= THRESHOLD for one in lost) / n) if n else None,
        samples_per_rollout=None,
        causes={},
        fallback={},
        prompts_right=_round(right / n) if n else None,
        turns_right=_round(sum(one.reply_right for one in compared) / n) if n else None,
    )


def causes_of(rows: Sequence[Row]) -> Mapping[str, int]:
    """Add up the causes of rows."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update(row.causes)
    return dict(found.most_common())


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
