"""Training rows without their arrays: how long each is, and which stretches of it are trained.

For whoever draws rows, and doesn't train on them: of a rollout of 200,000 tokens the arrays are megabytes, the outline
is a few numbers a call. Costs one pass over each row's mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

ARRAYS = ("input_ids", "loss_mask", "logprobs")
"""The keys of a row that an outline leaves out."""


def outline(form: dict[str, Any]) -> dict[str, Any]:
    """Return the native form (`graph.formats.native.to_json`) with each row's arrays replaced.

    In their place: `n_ids`, how many ids it has, and `trained`, the stretches `[start, end]` whose mask is 1, as
    positions in the row, end exclusive.
    """
    return {**form, "sequences": [_row(row) for row in form["sequences"]]}


def runs(mask: npt.NDArray[np.uint8]) -> list[list[int]]:
    """Return the stretches of a mask (uint8, 0 or 1) that are 1: `[start, end]`, end exclusive."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return [[int(start), int(end)] for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name not in ARRAYS}
    return {**kept, "n_ids": len(row["input_ids"]), "trained": runs(row["loss_mask"])}
