"""A generator output for SkyRL: `format=skyrl`.

Written for SkyRL at commit a9564572e, `skyrl/train/generators/base.py`: `output` is a `GeneratorOutput` of the one
trajectory that a rollout is, for `step_wise_trajectories=True` (with grpo, rloo or maxrl, which alone spread an
advantage over steps), and `about` has what is known of each of its rows.

- Rows of a rollout are its steps: they lie together, and `is_last_step` is true for the last alone. The trainer reads
  the reward from there, and spreads the advantage over the others; so the row of the main conversation whose reply came
  last is the last. Every row carries the same reward, as its variance filter reads them all.
- A rollout that was not graded is refused: a reward is required here, and none is not 0.0.
- `trajectory_ids` are to be made `TrajectoryID(**id)`: `instance_id` is the group (the rollout where it has none),
  `repetition_id` the number that the rollout's id ends with behind its group's name, or else a stable number made of
  the id.
- `stop_reasons`: `length` for a row that was cut short, by length or by a limit, `abort` for one whose last reply broke
  off, else `stop`. A tool call is a stop: with `zero_reward_on_non_stop`, "tool_calls" would cost the rollout its
  reward.
- Concatenate the outputs of a batch with `concatenate_generator_outputs(outputs, step_wise=True)`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from graph.chains import arrival
from graph.formats import checks
from graph.formats.projection import Row, rows, stable, tail
from graph.formats.refused import Refused
from graph.graph import Graph
from graph.sequences import Sequences

DRIFTS = ("split", "realign")

STOPS = {"stop": "stop", "length": "length", "limit": "length", "abort": "abort"}

PER_ROW = (
    "prompt_token_ids",
    "response_ids",
    "loss_masks",
    "rewards",
    "rollout_logprobs",
    "stop_reasons",
    "trajectory_ids",
    "is_last_step",
)


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return a rollout's generator output for SkyRL. Raises `Refused`."""
    going = rows(graph, sequences)
    if sequences.reward is None:
        raise Refused(
            f"Rollout {sequences.rollout} is not graded, and SkyRL has no place for a reward that is not known.",
            hint="PUT its reward first, or take another format.",
        )
    steps = _main_last(graph, going.rows)
    parts = [tail(row) for row in steps]
    output = {
        "prompt_token_ids": [part.prompt_ids for part in parts],
        "response_ids": [part.response_ids for part in parts],
        "rewards": [sequences.reward] * len(steps),
        "loss_masks": [part.mask for part in parts],
        "stop_reasons": [STOPS[row.ended] for row in steps],
        "rollout_metrics": None,
        "rollout_logprobs": [part.logprobs for part in parts],
        "trajectory_ids": [_trajectory(sequences)] * len(steps),
        "trajectory_generation_times": None,
        "trajectory_time_splits": None,
        "rollout_expert_indices": None,
        "is_last_step": [row is steps[-1] for row in steps],
        "env_metrics": None,
    }
    check(output)
    return going.head("skyrl") | {"output": output, "about": [row.about() for row in steps]}


def check(output: dict[str, Any]) -> None:
    """Refuse what `validate_generator_output(…, step_wise=True)` (skyrl/train/utils/trainer_utils.py) refuses.

    And, beyond it, logprobs and masks that do not go together, and a step without a prompt.
    """
    n = len(output["response_ids"])
    if n == 0:
        raise Refused("GeneratorOutput: no outputs.", hint=checks.FAULT)
    for name in PER_ROW:
        if len(output[name]) != n:
            raise Refused(f"GeneratorOutput: {len(output[name])} {name} for {n} responses.", hint=checks.FAULT)
    per_token = [isinstance(reward, list) for reward in output["rewards"]]
    if any(per_token) != all(per_token):
        raise Refused("GeneratorOutput: rewards are one a row or one a token, not both.", hint=checks.FAULT)
    for step in range(n):
        where = f"GeneratorOutput, step {step}"
        arrays = {name: output[name][step] for name in ("response_ids", "loss_masks", "rollout_logprobs")}
        checks.one_length(where, arrays | ({"rewards": output["rewards"][step]} if per_token[step] else {}))
        checks.one_length(where, {"prompt_token_ids": output["prompt_token_ids"][step]})
        checks.token_ids(where, output["prompt_token_ids"][step])
        checks.token_ids(where, output["response_ids"][step])
        checks.scored(where, output["loss_masks"][step], output["rollout_logprobs"][step])
        if not np.isfinite(np.asarray(output["rewards"][step], dtype=np.float64)).all():
            raise Refused(f"{where}: its reward is no number.", hint="PUT the rollout's reward first.")
    _bounded(output["trajectory_ids"], output["is_last_step"])


def _bounded(ids: list[dict[str, Any]], last: list[bool]) -> None:
    """Refuse steps of a trajectory that do not lie together, or that do not end where it says."""
    seen: set[tuple[Any, ...]] = set()
    for step, each in enumerate(ids):
        key = (each["instance_id"], each["repetition_id"])
        ends = step + 1 == len(ids) or ids[step + 1] != each
        if last[step] is not ends:
            raise Refused(f"GeneratorOutput: is_last_step is wrong at step {step}.", hint=checks.FAULT)
        if key in seen:
            raise Refused(f"GeneratorOutput: steps of one trajectory are apart at step {step}.", hint=checks.FAULT)
        if ends:
            seen.add(key)


def _main_last(graph: Graph, going: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return rows with that of the main conversation last whose last reply came last; numbered in that order."""
    came = arrival(graph.forest)
    main = [row for row in going if row.sequence.role == "main"]
    last = max(main or going, key=lambda row: came(row.sequence.calls[-1]))
    order = [*(row for row in going if row is not last), last]
    return tuple(msgspec.structs.replace(row, row=place) for place, row in enumerate(order))


def _trajectory(sequences: Sequences) -> dict[str, Any]:
    rollout, group = sequences.rollout, sequences.group
    if group is None:
        return {"instance_id": rollout, "repetition_id": 0}
    behind = rollout.removeprefix(f"{group}-")
    known = behind != rollout and behind.isascii() and behind.isdigit() and str(int(behind)) == behind
    return {"instance_id": group, "repetition_id": int(behind) if known else stable(rollout)}
