"""Read exports with OpenEnv's own model: `python tests/real/read_openenv.py CASE REPORT`, in .real/openenv.

CASE is `{"traces": […], "broken": {name: trace}}`. REPORT gets for each trace its turns as rows (`ids`, `mask`,
`logprobs`) and what a round through its entries leaves of them; and for each broken one what OpenEnv said.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from openenv.core.harness import TrainingTrace
from pydantic import ValidationError


def rows(trace: TrainingTrace) -> list[dict[str, Any]]:
    """Return the turns of a trace as rows."""
    return [
        {
            "node": turn.node_id,
            "ids": [*turn.prompt_token_ids, *turn.completion_token_ids],
            "mask": turn.loss_mask,
            "logprobs": [0.0] * len(turn.prompt_token_ids) + turn.per_token_logps,
        }
        for turn in trace.turns
    ]


def refusal(trace: dict[str, Any]) -> str | None:
    """Return what OpenEnv says to a broken trace; None where it takes it."""
    try:
        TrainingTrace.model_validate_json(json.dumps(trace))
    except ValidationError as error:
        return str(error)
    return None


def main() -> None:
    """Read the case, write the report."""
    case = json.loads(Path(sys.argv[1]).read_text())
    read = [TrainingTrace.model_validate_json(json.dumps(trace)) for trace in case["traces"]]
    report = {
        "traces": [
            {"rows": rows(trace), "again": rows(TrainingTrace.from_entries(trace.to_trace_entries()))} for trace in read
        ],
        "broken": {name: refusal(trace) for name, trace in case["broken"].items()},
    }
    Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
