"""Read exports with tinker's own types: `python tests/real/read_tinker.py CASE REPORT`, in .real/tinker.

CASE is a list of exports. REPORT gets for each its datums as rows (`ids`, `mask`, `logprobs`: whole again), the types
that the client gave the inputs, and how many runs its provenance has.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tinker.types import Datum, ModelInput, PromptProvenanceSpan, SampledProvenanceSpan

SPANS = {"prompt": PromptProvenanceSpan, "sampled": SampledProvenanceSpan}


def datum(row: dict[str, Any]) -> Datum:
    """Build what the client sends."""
    given = row["datum"]
    made = Datum(model_input=ModelInput.from_ints(given["model_input"]), loss_fn_inputs=dict(given["loss_fn_inputs"]))
    if row["provenance"] is None:
        return made
    runs = {
        name: [SPANS[span.pop("kind")](**span) for span in map(dict, spans)]
        for name, spans in row["provenance"].items()
    }
    return made.with_provenance(**runs)


def read(row: dict[str, Any]) -> dict[str, Any]:
    """Return a datum as a row of full length."""
    made = datum(row)
    inputs = made.loss_fn_inputs
    ids, targets = made.model_input.to_ints(), inputs["target_tokens"].tolist()
    assert ids[1:] == targets[:-1]
    return {
        "ids": [ids[0], *targets],
        "mask": [0, *(int(value != 0.0) for value in inputs["advantages"].tolist())],
        "logprobs": [0.0, *inputs["logprobs"].tolist()],
        "types": {name: data.dtype for name, data in inputs.items()},
        "shapes": {name: data.shape for name, data in inputs.items()},
        "runs": None if made.model_input_spans is None else len(made.model_input_spans),
    }


def main() -> None:
    """Read the case, write the report."""
    report = [[read(row) for row in form["rows"]] for form in json.loads(Path(sys.argv[1]).read_text())]
    Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
