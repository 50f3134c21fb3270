"""Datum inputs for Tinker: `format=tinker`.

Written for tinker 0.38.0, `tinker/types/datum.py` and `provenance_spans.py`: `datum` is what
`Datum(ModelInput.from_ints(model_input), loss_fn_inputs)` takes, for the losses importance_sampling, ppo, cispo, gspo.

- Shifted by one: `model_input` is all but the last token, the others are about all but the first. Nothing in the client
  compares their lengths; `check` does.
- `advantages` is 1.0 where a token is trained, and else 0.0: multiply it by the advantage. It is the only mask: a list
  named `mask` is a KeyError in the client.
- Losses are sums over datums, so a rollout of more rows weighs more unless the caller scales by `about.n_rows` or by
  `about.n_rollout_trained_tokens`.
- `provenance` has the spans for `Datum.with_provenance`, named by the ids of the replies that the agent saw. It is of
  use where these were sampled by Tinker, whose sequence ids they then are; null where a reply had no id.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.formats import checks
from graph.formats.projection import Row, rows, shifted
from graph.formats.refused import Refused
from graph.graph import Graph
from graph.sequences import Sequences

DRIFTS = ("split", "realign")

KEYS = frozenset(
    {
        "target_tokens",
        "weights",
        "advantages",
        "logprobs",
        "clip_low_threshold",
        "clip_high_threshold",
        "sequence_ratio_mask",
    }
)
"""The inputs that the client takes as plain lists."""


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return a rollout's datums for Tinker. Raises `Refused`."""
    going = rows(graph, sequences)
    return going.head("tinker") | {"rows": [_row(graph, row) for row in going]}


def check(datum: dict[str, Any]) -> None:
    """Refuse a datum that the client would send although it is broken: it compares no lengths."""
    inputs = datum["loss_fn_inputs"]
    if unknown := set(inputs) - KEYS:
        raise Refused(f"Datum: the client takes no list named {', '.join(sorted(unknown))}.", hint=checks.FAULT)
    checks.one_length("Datum", {"model_input": datum["model_input"], **inputs})
    checks.token_ids("Datum", datum["model_input"])
    checks.token_ids("Datum", inputs["target_tokens"])
    # The one array twice that makes a shift visible: what comes in next is what was the target.
    if not np.array_equal(datum["model_input"][1:], inputs["target_tokens"][:-1]):
        raise Refused("Datum: targets are not the inputs one place on.", hint=checks.FAULT)
    checks.scored("Datum", inputs["advantages"], inputs["logprobs"])


def _row(graph: Graph, row: Row) -> dict[str, Any]:
    one_on = shifted(row)
    datum = {
        "model_input": one_on.input_ids,
        "loss_fn_inputs": {
            "target_tokens": one_on.target_ids,
            "logprobs": one_on.logprobs,
            "advantages": one_on.mask.astype(np.float32),
        },
    }
    check(datum)
    return {"datum": datum, "provenance": _provenance(graph, row), "about": row.about()}


def _provenance(graph: Graph, row: Row) -> dict[str, Any] | None:
    """Return spans that tile the inputs, and spans that tile the targets."""
    n = len(row.sequence.input_ids)
    begun: dict[int, int] = {}
    spans: list[dict[str, Any]] = []
    for span in row.sequence.spans:
        call = graph.forest.calls[span.call]
        if call.id is None:
            return None
        # A prompt's place in its request is its place in the row, which has that request's ids from the start.
        origin = 0 if span.kind == "prompt" else begun.setdefault(span.call, span.start)
        name = f"{call.id}#{call.choice}" if call.choice else call.id
        spans.append({"kind": span.kind, "sequence_id": name, "offset": span.start - origin, "start": span.start,
                      "end": span.end})  # fmt: skip
    return {"model_input": _tiling(spans, 0, n - 1), "loss_fn_inputs": _tiling(spans, 1, n)}


def _tiling(spans: list[dict[str, Any]], first: int, last: int) -> list[dict[str, Any]]:
    """Return what of the spans lies between two places of the row."""
    tiles = []
    for span in spans:
        start, end = max(span["start"], first), min(span["end"], last)
        if start < end:
            offset = span["offset"] + start - span["start"]
            tiles.append({"kind": span["kind"], "sequence_id": span["sequence_id"], "offset": offset,
                          "length": end - start})  # fmt: skip
    return tiles
