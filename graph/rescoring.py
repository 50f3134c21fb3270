"""Captured logprobs beside those that an engine gives for the same ids when they are handed back to it.

An engine that scores a row as it was sampled gives the same numbers: on vLLM's CPU build in float32 to the last digit,
on a GPU in bfloat16 to some hundredths, since batches and prefill add in another order. A larger difference says that
what was captured is not what this engine would say now, and here is looked for what explains it.

Only trained tokens are compared. Pure: ids and arrays in, numbers and words out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from graph.records import FloatArray, LogprobsMode
from graph.sequences import Sequence

SHIFTS = ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias")
"""Sampling values that change a token's processed logprob by what was drawn before it."""

CUTS = {"top_p": 1.0, "min_p": 0.0}
"""Sampling values that cut the distribution, and where they cut nothing; `top_k` cuts when it is above 0."""


class Worst(msgspec.Struct, frozen=True, kw_only=True):
    """The token that differs most. `at` is its place in the row's `input_ids`."""

    row: int
    call: int
    at: int
    token: int
    captured: float
    rescored: float


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout's rows came to."""

    rows: int
    tokens: int
    # Of |captured - rescored| over all trained tokens, in nats; None without any.
    mean: float | None
    largest: float | None
    # Of captured - rescored: a shift to one side is a policy that moved.
    bias: float | None
    worst: Worst | None
    # What may explain a difference, a sentence each; there may be some although nothing differs.
    because: tuple[str, ...]
    # Trained tokens for which the engine gave no number.
    missing: int = 0


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """The engine as it was when it rescored."""

    name: str
    weights: str | None = None
    # Whether a logprob that it samples with is the model's own, or that of the tempered and cut distribution.
    logprobs_mode: LogprobsMode = "unknown"


def compare(
    rows: Iterable[Sequence], rescored: Iterable[FloatArray], *, engines: Mapping[int, str | None], now: Now
) -> Compared:
    """Compare rows with what an engine gave for them.

    `rescored` has one array a row, float32 of its length, NaN where the engine gave nothing. `engines` are the names of
    the engines that sampled each call. Raises ValueError for an array of another length.
    """
    differences: list[FloatArray] = []
    worst: Worst | None = None
    largest = -1.0
    missing = n_rows = 0
    because: dict[str, None] = {}
    for row, scores in zip(rows, rescored, strict=True):
        if len(scores) != len(row.input_ids):
            raise ValueError(f"row {row.row} has {len(row.input_ids)} tokens and {len(scores)} scores")
        n_rows += 1
        trained = np.flatnonzero(row.loss_mask)
        gaps = row.logprobs[trained] - scores[trained]
        known = np.isfinite(gaps)
        missing += int(len(gaps) - known.sum())
        differences.append(gaps[known])
        if known.any():
            sizes = np.where(known, np.abs(gaps), -1.0)
            place = int(sizes.argmax())
            if float(sizes[place]) > largest:
                largest = float(sizes[place])
                at = int(trained[place])
                worst = Worst(
                    row=row.row,
                    call=next(span.call for span in row.spans if span.start <= at < span.end),
                    at=at,
                    token=int(row.input_ids[at]),
                    captured=float(row.logprobs[at]),
                    rescored=float(scores[at]),
                )
        because.update(dict.fromkeys(_reasons(row, engines, now)))
    gaps = np.concatenate(differences) if differences else np.empty(0, np.float32)
    return Compared(
        rows=n_rows,
        tokens=len(gaps),
        mean=float(np.abs(gaps).mean()) if len(gaps) else None,
        largest=largest if len(gaps) else None,
        bias=float(gaps.mean()) if len(gaps) else None,
        worst=worst,
        because=tuple(because),
        missing=missing,
    )


def _reasons(row: Sequence, engines: Mapping[int, str | None], now: Now) -> Iterable[str]:
    trained = set(row.trained)
    versions = {span.weights for span in row.spans if span.kind == "sampled" and span.call in trained}
    if others := sorted(str(version) for version in versions if version is not None and version != now.weights):
        yield f"weights: sampled with {', '.join(others)}, rescored with {now.weights or 'a version that is not known'}"
    elif None in versions and now.weights is not None:
        yield f"weights: it is not known with which they were sampled; rescored with {now.weights}"
    if elsewhere := sorted({str(engines[n]) for n in trained if engines.get(n) not in (None, now.name)}):
        yield f"engine: sampled by {', '.join(elsewhere)}, rescored by {now.name}"
    yield from _of_sampling(row.sampling, now.logprobs_mode)


def _of_sampling(sampling: Mapping[str, Any], mode: LogprobsMode) -> Iterable[str]:
    """Yield why processed logprobs are not the model's own, which is what a prompt is scored with."""
    if mode == "raw":
        return
    shown = "" if mode == "processed" else "if logprobs are processed: "
    if "temperature" in sampling and sampling["temperature"] != 1.0:
        yield f"sampling: {shown}temperature is {_said(sampling['temperature'])}, and a prompt is scored at 1"
    cuts = [name for name, off in CUTS.items() if sampling.get(name, off) not in (off, None)]
    if (sampling.get("top_k") or 0) > 0:
        cuts.append("top_k")
    shifts = [name for name in SHIFTS if sampling.get(name) not in (None, 0, 0.0, 1.0, {})]
    if names := [*cuts, *shifts]:
        yield f"sampling: {shown}{', '.join(names)} changed the distribution, and a prompt is scored without"


def _said(value: Any) -> str:
    return "not known" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
