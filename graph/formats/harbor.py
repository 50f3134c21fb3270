"""Harbor's agent context with its rollout details: `format=harbor`.

Written for harbor 0.25.0: the object is an `AgentContext` (`harbor/models/agent/context.py`), whose `rollout_details`
is a list of `RolloutDetail` (`harbor/models/agent/rollout_detail.py`). Neither checks a length, and keys that they
don't know are dropped, so what is known beside stands where they have room: per turn in `extra`, of the rollout in
`metadata`.

- A detail is one chat: main is the first, whatever came first, since readers take that for the agent; then each other
  conversation that is trained. Several conversations that are main are one detail.
- A turn is a trained call, with the engine's own whole prompt. There is no mask: all of a completion is trained, so a
  call that is context alone is no turn. It stands in the next turn's prompt.
- A turn whose prompt does not go on from the turn before it is the rule after a drift or a compaction, as in Harbor's
  own agents.
- The size of a detail grows with the square of its turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.formats import checks
from graph.formats.projection import Row, Rows, rows, temperature
from graph.formats.refused import Refused
from graph.graph import Graph
from graph.records import Call
from graph.sequences import Sequences

DRIFTS = ("split",)

_LISTS = ("prompt_token_ids", "completion_token_ids", "logprobs")


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return the agent context of a rollout. Raises `Refused`."""
    going = rows(graph, sequences)
    chats: dict[tuple[bool, int], list[dict[str, Any]]] = {}
    for row in going:
        if row.sequence.drift_crossed or sequences.realign_masked is not None:
            raise Refused("Rollout details have no rows that cross drifts.", hint="Ask for drift=split.")
        main = row.sequence.role == "main"
        chat = chats.setdefault((not main, 0 if main else row.sequence.conversation), [])
        chat += [_turn(row, call, graph) for call in row.calls]
    if (False, 0) not in chats:
        raise Refused(
            f"Rollout {sequences.rollout} trains nothing of main, whose chat must be the first of its details.",
            hint="Ask for main too (roles=main,…), or for a format without that rule: native, verifiers, openenv.",
        )
    details = [_detail(chat) for _, chat in sorted(chats.items())]
    check(details)
    turns = [turn for chat in chats.values() for turn in chat]
    return {
        "n_input_tokens": sum(len(turn["prompt_token_ids"]) for turn in turns),
        "n_output_tokens": sum(len(turn["completion_token_ids"]) for turn in turns),
        "rollout_details": details,
        "metadata": {"treering": _known(going)},
    }


def check(details: list[dict[str, Any]]) -> None:
    """Refuse details whose lists differ in turns, or a turn whose lists differ in tokens: Harbor takes both."""
    for place, detail in enumerate(details):
        where = f"Rollout detail {place}"
        checks.one_length(where, {name: detail[name] for name in _LISTS} | detail["extra"])
        for n, (prompt, sampled, logprobs) in enumerate(zip(*(detail[name] for name in _LISTS), strict=True)):
            turn = f"{where}, turn {n}"
            checks.one_length(turn, {"prompt_token_ids": prompt})
            checks.token_ids(turn, prompt)
            checks.token_ids(turn, sampled)
            checks.one_length(turn, {"completion_token_ids": sampled, "logprobs": logprobs})
            checks.scored(turn, np.ones(len(sampled), np.uint8), logprobs)


def _turn(row: Row, call: Call, graph: Graph) -> dict[str, Any]:
    prompt = graph.forest.n_prompt(call.n)
    sampled = graph.forest.n_sampled(call.n)
    assert prompt is not None, "a trained call has a prompt"
    assert sampled is not None, "a trained call has sampled ids"
    sequence, end = row.sequence, prompt + sampled
    return {
        "prompt_token_ids": sequence.input_ids[:prompt],
        "completion_token_ids": sequence.input_ids[prompt:end],
        "logprobs": sequence.logprobs[prompt:end],
        "extra": {
            "call": call.n,
            "id": call.id,
            "conversation": sequence.conversation,
            "role": sequence.role,
            "row": row.row,
            "weights": [
                {"version": span.weights, "start": span.start - prompt, "end": span.end - prompt}
                for span in sequence.spans
                if span.call == call.n and span.kind == "sampled"
            ],
            "temperature": temperature(call),
            "finish_reason": call.finish_reason,
            "status": call.status,
            "reward": sequence.call_rewards.get(call.n),
        },
    }


def _detail(chat: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{name: [turn[name] for turn in chat] for name in _LISTS},
        "extra": {name: [turn["extra"][name] for turn in chat] for name in chat[0]["extra"]},
    }


def _known(going: Rows) -> dict[str, Any]:
    return {**going.head("harbor"), "truncated": [row.sequence.truncated for row in going]}
