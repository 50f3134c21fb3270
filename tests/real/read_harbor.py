"""Read exports with Harbor's own models: `python tests/real/read_harbor.py CASE REPORT`, in .real/harbor.

CASE is a list of `{"harbor", "atif"}`. REPORT gets for each the rollout details as chats of turns, each `ids`, `mask`
and `logprobs`; the trained steps of the trajectory and of all embedded in it, likewise; what Harbor's validator said;
and each trajectory with its references to others.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harbor.models.agent.context import AgentContext
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator


def turn(prompt: list[int], sampled: list[int], logprobs: list[float]) -> dict[str, Any]:
    """Return a turn as a row: all of a completion is trained."""
    assert len(sampled) == len(logprobs)
    return {
        "ids": prompt + sampled,
        "mask": [0] * len(prompt) + [1] * len(sampled),
        "logprobs": [0.0] * len(prompt) + logprobs,
    }


def chats(form: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return each rollout detail's turns."""
    context = AgentContext.model_validate(form)
    names = ("prompt_token_ids", "completion_token_ids", "logprobs")
    return [
        [turn(*parts) for parts in zip(*(detail[name] for name in names), strict=True)]
        for detail in context.rollout_details
    ]


def trajectories(trajectory: Any) -> Iterator[Any]:
    """Yield a trajectory and all embedded in it."""
    yield trajectory
    for each in trajectory.subagent_trajectories or ():
        yield from trajectories(each)


def steps(trajectory: Any) -> list[dict[str, Any]]:
    """Return the steps with token ids, as rows."""
    found = []
    for step in trajectory.steps:
        metrics = step.metrics
        if metrics is not None and metrics.completion_token_ids is not None and not step.is_copied_context:
            found.append(turn(metrics.prompt_token_ids, metrics.completion_token_ids, metrics.logprobs))
    return found


def references(trajectory: Any) -> list[str]:
    """Return the trajectories that a trajectory's own steps name."""
    return [
        reference.trajectory_id
        for step in trajectory.steps
        for result in (step.observation.results if step.observation else ())
        for reference in result.subagent_trajectory_ref or ()
    ]


def main() -> None:
    """Read the case, write the report."""
    report = []
    for one in json.loads(Path(sys.argv[1]).read_text()):
        validator = TrajectoryValidator()
        valid = validator.validate(one["atif"])
        root = Trajectory.model_validate(one["atif"])
        whole = list(trajectories(root))
        report.append(
            {
                "chats": chats(one["harbor"]),
                "valid": valid,
                "errors": [str(error) for error in validator.errors],
                "steps": [row for each in whole for row in steps(each)],
                "named": {each.trajectory_id: references(each) for each in whole},
                "embedded": {
                    each.trajectory_id: [inner.trajectory_id for inner in each.subagent_trajectories or ()]
                    for each in whole
                },
            }
        )
    Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
