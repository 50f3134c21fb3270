"""Read exports with verifiers' own model: `python tests/real/read_verifiers.py CASE REPORT`, in .real/verifiers.

CASE is a list of traces. REPORT gets for each its trainable branches as rows (`ids`, `mask`, `logprobs`), a node that
two of them share trained in the first alone, as prime-rl does; the semantic edges; the score; and if it is whole.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from verifiers.v1.trace import WireTrace


def rows(trace: Any) -> list[dict[str, Any]]:
    """Return the branches that train, each node once."""
    found = []
    taken: set[int] = set()
    for branch in trace.branches:
        ids, mask = branch.token_ids, list(branch.sampled_mask)
        logprobs = branch.logprobs
        assert len(ids) == len(mask) == len(logprobs)
        at = 0
        for node in branch.nodes:
            end = at + len(node.token_ids)
            if id(node) in taken or not branch.trainable:
                mask[at:end] = [False] * (end - at)
            if branch.trainable:
                taken.add(id(node))
            at = end
        if any(mask):
            found.append({"ids": ids, "mask": mask, "logprobs": logprobs})
    return found


def main() -> None:
    """Read the case, write the report."""
    report = []
    for form in json.loads(Path(sys.argv[1]).read_text()):
        trace = WireTrace.model_validate(form)
        led = [(place, link) for place, node in enumerate(trace.nodes) for link in node.semantic_parents]
        report.append(
            {
                "rows": rows(trace),
                "edges": [[link.type, link.node, place] for place, link in led],
                "score": {name: None if reward is None else reward.score for name, reward in trace.rewards.items()},
                "completed": trace.is_completed,
                "stop": trace.stop_condition,
            }
        )
    Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
