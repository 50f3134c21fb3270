"""Small rollouts with ids that a reader can follow.

`turns`: two replies, one row.

    0   1 2 | 3 4
    1   1 2   3 4   5 6 | 7

`parted`: the second prompt has the first reply in another spelling, so there are two rows, or one that crosses it.

    0   1 2 | 3 4
    1   1 2   3 8   5 6 | 7

`branched`: two ways on from one reply, which the first of them trains.

    0   1 2 | 3 4
    1   1 2   3 4   5 | 6
    2   1 2   3 4   9 | 10
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.records import Weights
from tests.graph.tape import Tape, assistant, user

FIRST, SECOND = assistant("One."), assistant("Two.")
TOLD = [user("Go")]


def turns(*, weights: tuple[str | None, str | None] = ("7", "8"), **rollout: Any) -> Tape:
    return _two(weights, [1, 2, 3, 4, 5, 6], **rollout)


def parted(*, weights: tuple[str | None, str | None] = ("7", "8"), **rollout: Any) -> Tape:
    return _two(weights, [1, 2, 3, 8, 5, 6], **rollout)


def _two(weights: tuple[str | None, str | None], prompt: list[int], **rollout: Any) -> Tape:
    tape = Tape(**{"id": "g-3", "group": "g", "reward": 0.5} | rollout)
    say(tape, TOLD, FIRST, [1, 2], [3, 4], [-0.25, -0.5], weights[0])
    say(tape, [*TOLD, FIRST, user("On")], SECOND, prompt, [7], [-1.0], weights[1])
    return tape


def branched(**rollout: Any) -> Tape:
    tape = Tape(**{"id": "g-3", "group": "g", "reward": 0.5} | rollout)
    say(tape, TOLD, FIRST, [1, 2], [3, 4], [-0.25, -0.5], "7")
    say(tape, [*TOLD, FIRST, user("Left")], SECOND, [1, 2, 3, 4, 5], [6], [-1.0], "7")
    say(tape, [*TOLD, FIRST, user("Right")], SECOND, [1, 2, 3, 4, 9], [10], [-2.0], "7")
    return tape


def say(
    tape: Tape,
    messages: list[dict[str, Any]],
    reply: dict[str, Any],
    prompt: list[int],
    sampled: list[int],
    logprobs: list[float],
    version: str | None,
    **fields: Any,
) -> None:
    tape.say(
        messages,
        reply,
        **{
            "prompt_ids": np.array(prompt, np.int32),
            "sampled": sampled,
            "logprobs": np.array(logprobs, np.float32),
            "usage_prompt": len(prompt),
            "weights": Weights(start=version, end=version),
        }
        | fields,
    )
