"""What training sequences may be asked for, and what one rollout gives: the form asked for, or why not.

Rules:
- The same options come as a query's parameters and as JSON values in a close's body; one table (`ASKED`) reads both.
- A rollout that can't be exported is a `ClientError` that names the rollout, says why, and what to do. No format but
  those that say so themselves (`Format.tells`) ever answers with an empty list, which would read as a rollout that had
  nothing to say.
- An ungraded rollout stays ungraded: a format whose library has a number in its place refuses, rather than give 0.0.

The refusals, by code (409, since each is about the rollout and not about the question):

    rollout_open        more calls may come, and `open` was not asked for
    no_calls            no agent ever called
    text_only           the engine gave text without ids (tier `eval`)
    nothing_trainable   calls there are, and none that may be trained
    ungraded            no reward, and the format has no place for that
    not_exportable      the format's own word (`graph.formats.refused`): it can't carry this rollout honestly
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from capture import answers
from capture.errors import ClientError, TreeringError
from capture.formats import FORMATS, Format
from capture.values import nearest
from graph import sequences, tree
from graph.eligibility import REASONS
from graph.formats.refused import Refused
from graph.graph import Graph
from graph.sequences import Sequences
from graph.tree import Tree


def _format(value: str) -> str:
    if value not in FORMATS:
        raise ValueError(f"one of {', '.join(FORMATS)}{nearest(value, FORMATS)}")
    return value


ASKED: dict[str, answers.Reader] = {
    "format": _format,
    "roles": answers.some_of(*sequences.ROLES),
    "drift": answers.one_of(*sequences.DRIFTS),
    "threshold": answers.whole(0, 2**31 - 1),
    "constrained": answers.one_of("train"),
    "aborted": answers.one_of("train"),
}
"""Every option, and what reads it."""

_REMEDIES: dict[str, str] = {
    "role": "Ask for more: roles=main,summary,subagent,auxiliary.",
    "aborted": "aborted=train takes in replies that broke off.",
    "constrained": "constrained=train takes in replies drawn under a constraint.",
    "running": "Wait for its calls to end, and close it.",
    "undelivered": "The agent never had these replies; look at its network and its time limits.",
    "no_token_ids": "Its engine gave no token ids: see GET /engines for its tier, and treering doctor.",
    "no_logprobs": "Its engine gave no logprobs: see GET /engines for its tier, and treering doctor.",
}
"""What to do where nothing is trained for this reason; for the others, the rollout's findings say it."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    format: str
    options: sequences.Options

    @property
    def kind(self) -> Format:
        """The format's row in the table."""
        return FORMATS[self.format]


def export(asked: Mapping[str, Any]) -> Export:
    """Return what these options ask for, as `ASKED` has read them.

    `drift=tree` alone means `format=tree`. Raises `ClientError` 422 `invalid_query` for a format that can't do what is
    asked for at a drift.
    """
    drift = asked.get("drift")
    format_ = asked.get("format") or next(
        (name for name, each in FORMATS.items() if drift is not None and drift in each.drifts), "native"
    )
    drifts = FORMATS[format_].drifts
    if drift is None:
        drift = drifts[0]
    elif drift not in drifts:
        raise ClientError(
            "invalid_query",
            f"format={format_} has no drift={drift}.",
            hint=f"format={format_} takes drift={' or '.join(drifts)}.",
            status=422,
        )
    left = {name: value for name, value in asked.items() if name not in ("format", "drift")}
    return Export(format=format_, options=sequences.Options(drift=drift, **left))


def export_in(body: Any) -> Export:
    """Return what a close's `sequences` asks for. Raises `ClientError` 422."""
    if not isinstance(body, Mapping):
        answers.invalid_body("`sequences` must be a JSON object of options.")
    asked = {}
    for name, given in body.items():
        reader = ASKED.get(name)
        if reader is None:
            answers.invalid_body(
                f"Unknown field sequences.{name}{nearest(str(name), ASKED)}.", hint=f"Accepted: {', '.join(ASKED)}."
            )
        text = ",".join(given) if isinstance(given, list) and all(isinstance(each, str) for each in given) else given
        try:
            asked[name] = reader(text if isinstance(text, str) else str(text))
        except ValueError as error:
            answers.invalid_body(f"`sequences.{name}` is {given!r:.80}; expected {error}.")
    try:
        wanted = export(asked)
    except ClientError as error:
        answers.invalid_body(f"`sequences`: {error}", hint=error.hint)
    if wanted.kind.content_type != "application/json":
        answers.invalid_body(
            f"`sequences.format` is {wanted.format!r}, which is no JSON and has no place in this answer.",
            hint=f"Close first, then GET …/sequences?format={wanted.format}.",
        )
    return wanted


def form(graph: Graph, wanted: Export, *, opened: bool = False) -> Any:
    """Return the sequences of a graph in the form that was asked for; its arrays are numpy's.

    `opened` takes an open rollout as it stands. Raises `ClientError` 409 (see above).
    """
    if graph.rollout.state == "open" and not opened:
        raise ClientError(
            "rollout_open",
            f"Rollout {graph.rollout.id} is open: its sequences may still change.",
            hint="Close it first, or ask with open=1.",
            status=409,
        )
    kind = wanted.kind
    module = importlib.import_module(kind.module)
    if wanted.format == "tree":
        planted = tree.plant(graph, wanted.options)
        return {**module.to_json(planted), **_emptiness(graph, planted, wanted)}
    cut = sequences.cut(graph, wanted.options)
    if wanted.format == "native":
        return {**module.to_json(cut), **_emptiness(graph, cut, wanted)}
    nothing = None if kind.takes_text and graph.forest.calls else emptiness(graph, cut, wanted)
    if nothing is not None:
        raise nothing
    if kind.needs_reward and graph.rollout.reward is None:
        raise ClientError(
            "ungraded",
            f"Rollout {graph.rollout.id} has no reward, and {wanted.format} has no place for that.",
            hint="PUT …/reward gives it one; native, parquet and most others carry it ungraded.",
            status=409,
        )
    try:
        return module.to_json(graph, cut)
    except Refused as refused:
        raise ClientError("not_exportable", str(refused), hint=refused.hint, status=409) from refused


def emptiness(graph: Graph, made: Sequences | Tree, wanted: Export) -> ClientError | None:
    """Return why there is nothing to train, and what to do about it; None where there is something."""
    if made.n_trained_tokens:
        return None
    rollout = graph.rollout
    if not graph.forest.calls:
        return ClientError(
            "no_calls",
            f"Rollout {rollout.id} made no calls.",
            hint="Its findings say what is known: GET …/findings. Was the agent given this rollout's URL and secret?",
            status=409,
        )
    if rollout.tier == "eval":
        return ClientError(
            "text_only",
            f"Rollout {rollout.id} was captured as text: its tier is eval ({rollout.tier_reason or 'no token ids'}).",
            hint="Token ids can't be had afterwards. Serve with an engine of tier train (--require-tier train refuses"
            " others); format=atif has the messages, GET …/calls the text.",
            status=409,
        )
    counted = Counter(left.reason for left in made.left_out)
    reasons = "; ".join(f"{counted[name]} {name}: {said}" for name, said in REASONS.items() if counted[name])
    remedies = [_REMEDIES[name] for name in REASONS if counted[name] and name in _REMEDIES]
    return ClientError(
        "nothing_trainable",
        f"Rollout {rollout.id} has no trained token with roles={','.join(wanted.options.roles)} ({reasons}).",
        hint=" ".join(remedies) or "GET …/findings says what to do.",
        status=409,
    )


def told(error: TreeringError) -> dict[str, str]:
    """Return an error as an answer names it."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _emptiness(graph: Graph, made: Sequences | Tree, wanted: Export) -> dict[str, Any]:
    """Return what a form that is empty says beside `left_out`."""
    nothing = emptiness(graph, made, wanted)
    return {} if nothing is None else {"empty": told(nothing)}
