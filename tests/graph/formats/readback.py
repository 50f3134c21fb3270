"""What a trainer would read in each format, from its JSON alone: written from the libraries' side, and sharing nothing
with the exporters.

`told` draws rollouts whose every sampled token has a logprob of its own, so that a token that was read back says which
it is; `dealt` is what must come back.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from graph.records import Call, Weights
from tests.graph.told import Story, stories

NAMES = ("trl", "openenv", "tinker", "verl", "skyrl", "slime", "areal", "prime-rl")


def module(name: str) -> ModuleType:
    return importlib.import_module(f"graph.formats.{name.replace('-', '_')}")


def wire(form: Any) -> Any:
    """A form as it comes out of the other end of a connection."""
    return json.loads(msgspec.json.encode(form, enc_hook=lambda array: array.tolist()))


@dataclass
class Read:
    """A row as read back: its ids, the place and logprob of each trained token, and what is said of it."""

    ids: list[int]
    trained: dict[int, float]
    about: dict[str, Any] = field(default_factory=dict)


def _full(ids: list[int], mask: list[Any], logprobs: list[float], about: dict[str, Any]) -> Read:
    assert len(ids) == len(mask) == len(logprobs)
    assert all(logprob == 0.0 for on, logprob in zip(mask, logprobs, strict=True) if not on)
    return Read(ids, {place: logprobs[place] for place, on in enumerate(mask) if on}, about)


def _tail(prompt: list[int], response: list[int], mask: list[int], logprobs: list[float], about: dict) -> Read:
    assert mask[0] == 1
    return _full(prompt + response, [0] * len(prompt) + mask, [0.0] * len(prompt) + logprobs, about)


_FULL: dict[str, tuple[str, tuple[str, str, str]]] = {
    "trl": ("sample", ("input_ids", "completion_mask", "old_log_probs")),
    "prime-rl": ("sample", ("token_ids", "mask", "logprobs")),
}


def read_back(name: str, form: Any) -> list[Read]:
    """Read a form that came over the wire; of `openenv`, each turn."""
    if name in _FULL:
        within, (ids, mask, logprobs) = _FULL[name]
        return [_full(row[within][ids], row[within][mask], row[within][logprobs], row["about"]) for row in form["rows"]]
    if name == "openenv":
        return [
            _full(
                turn["prompt_token_ids"] + turn["completion_token_ids"],
                turn["loss_mask"],
                [0.0] * len(turn["prompt_token_ids"]) + turn["per_token_logps"],
                turn["metadata"]["treering"],
            )
            for turn in form["turns"]
        ]
    if name == "skyrl":
        out = form["output"]
        keys = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")
        return [
            _tail(prompt, response, mask, logprobs, about)
            for prompt, response, mask, logprobs, about in zip(*(out[key] for key in keys), form["about"], strict=True)
        ]
    return [_ROWS[name](row) for row in form["rows"]]


def _verl(row: dict[str, Any]) -> Read:
    known = row["extra_fields"]["treering"]
    return _tail(row["prompt_ids"], row["response_ids"], row["response_mask"], row["response_logprobs"], known)


def _areal(row: dict[str, Any]) -> Read:
    # A batch of one.
    ((ids,), (mask,), (logprobs,)) = (row["tensors"][key] for key in ("input_ids", "loss_mask", "logprobs"))
    return _full(ids, mask, logprobs, row["about"])


def _tinker(row: dict[str, Any]) -> Read:
    ids, inputs = row["datum"]["model_input"], row["datum"]["loss_fn_inputs"]
    targets = inputs["target_tokens"]
    assert len(ids) == len(targets)
    # What the model reads at a place, and what it is asked for there, is one token and the next.
    whole = [*ids, targets[-1]]
    assert whole[1:] == targets
    return _full(whole, [0.0, *inputs["advantages"]], [0.0, *inputs["logprobs"]], row["about"])


def _slime(row: dict[str, Any]) -> Read:
    n = row["response_length"]
    tokens = row["tokens"]
    return _tail(tokens[:-n], tokens[-n:], row["loss_mask"], row["rollout_log_probs"], row["metadata"]["treering"])


_ROWS = {"tinker": _tinker, "verl": _verl, "slime": _slime, "areal": _areal}


# -- rollouts ---------------------------------------------------------------------------------------------------------


def told(**options: Any) -> st.SearchStrategy[Story]:
    """Draw graded rollouts of a group. Each call has weights and a temperature of its own, each sampled token a logprob
    of its own."""
    return stories(**options).map(_marked)


def _marked(story: Story) -> Story:
    rollout = msgspec.structs.replace(story.rollout, id="g-3", group="g", reward=0.25)
    calls = tuple(
        msgspec.structs.replace(
            call,
            logprobs=np.array([mark(call.n, place) for place in range(len(call.sampled_ids))], np.float32),
            weights=Weights(start=str(call.n + 1), end=str(call.n + 1)),
            sampling_sent={"temperature": heat(call.n)},
        )
        for call in story.calls
    )
    return Story(rollout=rollout, calls=calls, truth=story.truth)


def mark(n: int, place: int) -> float:
    """The logprob of a call's sampled token, exact in 32 bits, and no other token's."""
    return -(n * 4096 + place + 1) / 1024


def heat(n: int) -> float:
    """The temperature of a call, and no other's."""
    return (n + 1) / 4


def of_mark(logprob: float) -> tuple[int, int]:
    number = int(-logprob * 1024) - 1
    return number // 4096, number % 4096


def dealt(story: Story) -> set[tuple[int, int]]:
    """Each token, as (call, place), that main sampled and the agent had."""
    return {
        (call.n, place)
        for call in story.calls
        if (true := story.truth[call.n]).role == "main" and true.tried_again_by is None
        for place in range(len(call.sampled_ids))
    }


def whole(call: Call) -> list[int]:
    """What the engine had read and written when a call ended."""
    return [*call.prompt_ids.tolist(), *call.sampled_ids.tolist()]
