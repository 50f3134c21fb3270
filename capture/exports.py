"""What training sequences may be asked for, and in which form they go out.

The same options come as a query's parameters and as JSON values in a close's body; one table reads both. A format is
one file of `graph.formats`; each says by itself what becomes of a drift (rows, or the tree).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from capture import answers
from capture.errors import ClientError
from graph import sequences, tree
from graph.formats import native
from graph.formats import tree as tree_format
from graph.graph import Graph

FORMATS: dict[str, tuple[str, ...]] = {"native": ("split", "realign"), "tree": ("tree",)}
"""Format → what it can do at a drift, its default first."""

ASKED: dict[str, answers.Reader] = {
    "format": answers.one_of(*FORMATS),
    "roles": answers.some_of(*sequences.ROLES),
    "drift": answers.one_of(*sequences.DRIFTS),
    "threshold": answers.whole(0, 2**31 - 1),
    "constrained": answers.one_of("train"),
    "aborted": answers.one_of("train"),
}
"""Every option, and what reads it."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    format: str
    options: sequences.Options


def export(asked: Mapping[str, Any]) -> Export:
    """Return what these options ask for, as `ASKED` has read them.

    `drift=tree` alone means `format=tree`. Raises `ClientError` 422 `invalid_query` for a format that can't do what is
    asked for at a drift.
    """
    drift = asked.get("drift")
    format_ = asked.get("format") or next(
        (name for name, drifts in FORMATS.items() if drift is not None and drift in drifts), "native"
    )
    if drift is None:
        drift = FORMATS[format_][0]
    elif drift not in FORMATS[format_]:
        raise ClientError(
            "invalid_query",
            f"format={format_} has no drift={drift}.",
            hint=f"format={format_} takes drift={' or '.join(FORMATS[format_])}.",
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
            answers.invalid_body(f"Unknown field sequences.{name}.", hint=f"Accepted: {', '.join(ASKED)}.")
        text = ",".join(given) if isinstance(given, list) and all(isinstance(each, str) for each in given) else given
        try:
            asked[name] = reader(text if isinstance(text, str) else str(text))
        except ValueError as error:
            answers.invalid_body(f"`sequences.{name}` is {given!r:.80}; expected {error}.")
    try:
        return export(asked)
    except ClientError as error:
        answers.invalid_body(f"`sequences`: {error}", hint=error.hint)


def form(graph: Graph, wanted: Export) -> dict[str, Any]:
    """Return the sequences of a graph in the form that was asked for; its arrays are numpy's."""
    if wanted.format == "tree":
        return tree_format.to_json(tree.plant(graph, wanted.options))
    return native.to_json(sequences.cut(graph, wanted.options))
