"""Training samples for prime-rl: `format=prime-rl`.

Written for prime-rl 0.8.0 at commit 559b44772, `src/prime_rl/transports/rollouts/types.py`: `sample` has the fields of
`TrainingSample`, to be made `TrainingSample(**sample)`; its wire form is an array, which msgspec makes of that.

- All arrays cover the whole row; logprobs are 0.0 where nothing is trained.
- Logits are divided by `temperatures`, token by token. A row with a reply whose temperature was not seen is refused,
  and so is one at temperature 0, which leaves no distribution. Context has the temperature of the row's first trained
  reply: it is masked, but 0 there would make NaN of it all the same.
- `advantages` is left out until the group is known: the trainer refuses a sample without. It is one number a token,
  0.0 where `mask` is false. The loss is a mean over tokens, so several rows of a rollout weigh as their tokens do.
- `env_name` is the rollout's label `env_name`, else empty. "all" is reserved there, and refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.formats import checks
from graph.formats.projection import Row, full, rows, sampled
from graph.formats.refused import Refused
from graph.graph import Graph
from graph.sequences import Sequences

DRIFTS = ("split", "realign")

LABEL = "env_name"

RESERVED = "all"


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return a rollout's training samples for prime-rl. Raises `Refused`."""
    going = rows(graph, sequences)
    name = graph.rollout.labels.get(LABEL, "")
    return going.head("prime-rl") | {"rows": [_row(row, name) for row in going]}


def check(sample: dict[str, Any]) -> None:
    """Refuse what `prepare_sample` (src/prime_rl/trainer/batch.py) refuses, but for the advantages, stamped later.

    And, beyond it, logprobs and a mask that do not go together, and a temperature that logits can't be divided by.
    """
    where = "TrainingSample"
    checks.one_length(where, {name: sample[name] for name in ("token_ids", "mask", "logprobs", "temperatures")})
    checks.token_ids(where, sample["token_ids"])
    if np.asarray(sample["mask"]).dtype != np.bool_:
        raise Refused(f"{where}: its mask is of booleans.", hint=checks.FAULT)
    checks.scored(where, sample["mask"], sample["logprobs"])
    temperatures = np.asarray(sample["temperatures"], dtype=np.float64)
    if not (np.isfinite(temperatures) & (temperatures > 0.0)).all():
        raise Refused(f"{where}: temperatures are above 0.", hint=checks.FAULT)
    if sample["env_name"] == RESERVED:
        raise Refused(
            f"{where}: prime-rl keeps the name {RESERVED!r} for its totals.",
            hint=f"Give the rollout another label {LABEL}.",
        )


def _row(row: Row, name: str) -> dict[str, Any]:
    whole = full(row)
    known = {call.n: _temperature(call.n, at) for call, at in zip(row.calls, row.temperatures, strict=True)}
    temperatures = np.full(len(whole.ids), known[row.calls[0].n], np.float64)
    for stretch in sampled(row):
        temperatures[stretch.start : stretch.end] = known[stretch.call]
    sample = {
        "token_ids": whole.ids,
        "mask": whole.mask.astype(np.bool_),
        "logprobs": whole.logprobs,
        "temperatures": temperatures,
        "env_name": name,
    }
    check(sample)
    return {"sample": sample, "about": row.about()}


def _temperature(n: int, temperature: float | None) -> float:
    if temperature is None:
        raise Refused(
            f"The temperature of call {n} was not seen, and prime-rl divides logits by it.",
            hint='Pin it when the rollout is registered: {"sampling": {"temperature": 1.0}}.',
        )
    if temperature <= 0.0:
        raise Refused(
            f"Call {n} was sampled at temperature {temperature:g}, which leaves no distribution to train on.",
            hint="Sample at a temperature above 0.",
        )
    return temperature
