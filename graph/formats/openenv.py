"""OpenEnv's training trace, which TRL's loop-owning worker reads: `format=openenv`.

Written for openenv 0.10.0, `openenv/core/harness/training.py`: the object is a `TrainingTrace`, strict and without a
key of our own; what is known beside it stands in each turn's `metadata.treering`, and what was left out in the first
turn's.

- Turns come row by row, so conversation by conversation, depth first. TRL makes rows of neighbours alone: interleaved
  turns of two agents would become one row each.
- Each trained call is one turn, once. A call that is context alone is in none: it stands in the next turn's prompt.
- A turn's prompt is the engine's own whole prompt, so the size of a trace grows with the square of its turns.
- Rows that cross drifts are refused: a trace says what the engine was given, and its reader decides about drift.
- `tools` has names alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.formats import checks
from graph.formats.chat import replied, tools
from graph.formats.projection import Row, rows
from graph.formats.refused import Refused
from graph.graph import Graph
from graph.records import Call
from graph.sequences import Sequences
from graph.surgery import to_chat

DRIFTS = ("split",)


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return the training trace of a rollout. Raises `Refused`."""
    going = rows(graph, sequences)
    turns: list[dict[str, Any]] = []
    taken: set[str] = set()
    for row in going:
        if row.sequence.drift_crossed or sequences.realign_masked is not None:
            raise Refused("A training trace has no rows that cross drifts.", hint="Ask for drift=split.")
        about = row.about()
        for call in row.calls:
            known = about | {"call": call.n, "left_out": going.absent()} if not turns else about | {"call": call.n}
            turns.append(_turn(graph, row, call, known, _name(call, taken)))
    trace = {"schema_version": 1, "turns": turns}
    check(trace)
    return trace


def check(trace: dict[str, Any]) -> None:
    """Refuse what OpenEnv's `TrainingTrace` and `validate_training_turn` (harness/capture/validate.py) refuse."""
    names = [turn["node_id"] for turn in trace["turns"]]
    if not all(names) or len(set(names)) != len(names):
        raise Refused("Two turns of a training trace have one node_id, or one has none.", hint=checks.FAULT)
    for turn in trace["turns"]:
        where = f"Turn {turn['node_id']}"
        prompt, sampled, mask = turn["prompt_token_ids"], turn["completion_token_ids"], turn["loss_mask"]
        if not len(prompt):
            raise Refused(f"{where} has an empty prompt.", hint="Give the call a prompt of one token or more.")
        checks.token_ids(where, prompt)
        checks.token_ids(where, sampled)
        checks.one_length(where, {"completion_token_ids": sampled, "per_token_logps": turn["per_token_logps"]})
        if len(mask) != len(prompt) + len(sampled):
            raise Refused(f"{where}: the loss mask does not cover prompt and completion.", hint=checks.FAULT)
        if np.asarray(mask[: len(prompt)]).any():
            raise Refused(f"{where}: a prompt's token is trained.", hint=checks.FAULT)
        # All of a turn's logprobs are real ones, trained or not.
        checks.scored(where, np.ones(len(sampled), np.uint8), turn["per_token_logps"])
        if (np.asarray(turn["per_token_logps"]) > 0.0).any():
            raise Refused(
                f"{where} has a logprob above 0, which OpenEnv refuses, noise or not.",
                hint="See the finding positive_logprob; other formats take the row as it is.",
            )


def _name(call: Call, taken: set[str]) -> str:
    """Name a turn by the id that the agent saw, and by more where that is not enough."""
    name = call.id or f"call-{call.n}"
    if call.choice:
        name += f"#{call.choice}"
    if name in taken:
        name += f"@{call.n}"
    taken.add(name)
    return name


def _turn(graph: Graph, row: Row, call: Call, known: dict[str, Any], name: str) -> dict[str, Any]:
    sequence = row.sequence
    first, sampled = graph.forest.n_prompt(call.n), graph.forest.n_sampled(call.n)
    assert first is not None, "a trained call has a prompt"
    assert sampled is not None, "a trained call has sampled ids"
    end = first + sampled
    mask = np.zeros(end, np.uint8)
    mask[first:] = 1
    choices = [{"index": 0, "message": reply, "finish_reason": call.finish_reason} for reply in replied(call)]
    return {
        "node_id": name,
        "prompt_token_ids": sequence.input_ids[:first],
        "completion_token_ids": sequence.input_ids[first:end],
        "per_token_logps": sequence.logprobs[first:end],
        "loss_mask": mask,
        "request": {"messages": [to_chat(message) for message in call.messages], "tools": tools(call)},
        "response": {"choices": choices},
        "metadata": {"sampling_params": dict(call.sampling_sent), "treering": known},
    }
