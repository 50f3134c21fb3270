"""Agent-loop outputs for verl: `format=verl`.

Written for verl 0.9.1, `verl/experimental/agent_loop/agent_loop.py`: each row is what `AgentLoopOutput(**row)` takes.
The class compares no lengths; `check` does.

- `response_ids` begin with the row's first trained token and hold the replies and what came between them; the mask is 1
  for trained tokens, and the logprob of the others 0.0.
- verl pads the prompt on the left to `prompt_length` and cuts what is longer, and the response on the right: set both
  to hold the rows, since a cut prompt is none that the engine scored under.
- `reward_score` is null for a rollout that was not graded; verl then asks its own reward loop. It goes on the last
  token of each row, so a rollout of several rows has it several times: one output a loop is what 0.9.1 expects.
- `extra_fields` have `min_global_steps` and `max_global_steps` where all versions of the weights are known and whole
  numbers, and all else that is known under `treering`.
"""

from __future__ import annotations

from typing import Any

from graph.formats import checks
from graph.formats.projection import Row, number, rows, tail
from graph.graph import Graph
from graph.sequences import Sequences

DRIFTS = ("split", "realign")


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return a rollout's outputs for verl. Raises `Refused`."""
    going = rows(graph, sequences)
    return going.head("verl") | {"rows": [_row(graph, row) for row in going]}


def check(output: dict[str, Any]) -> None:
    """Refuse an output that verl would pad and train on although its arrays are broken."""
    where = "AgentLoopOutput"
    checks.one_length(where, {name: output[name] for name in ("response_ids", "response_mask", "response_logprobs")})
    checks.one_length(where, {"prompt_ids": output["prompt_ids"]})
    checks.token_ids(where, output["prompt_ids"])
    checks.token_ids(where, output["response_ids"])
    checks.scored(where, output["response_mask"], output["response_logprobs"])


def _row(graph: Graph, row: Row) -> dict[str, Any]:
    parted = tail(row)
    last = graph.forest.calls[row.sequence.calls[-1]]
    output = {
        "prompt_ids": parted.prompt_ids,
        "response_ids": parted.response_ids,
        "response_mask": parted.mask,
        "response_logprobs": parted.logprobs,
        "reward_score": row.of.reward,
        # The reply is one, and the system's messages are none.
        "num_turns": sum(message.role != "system" for message in last.messages) + 1,
        "metrics": {},
        "extra_fields": _steps(row) | {"treering": row.about()},
    }
    check(output)
    return output


def _steps(row: Row) -> dict[str, int]:
    steps = [number(version) for version in row.weight_versions]
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return {}
    return {"min_global_steps": min(known), "max_global_steps": max(known)}
