"""The form of a tree, key by key."""

import msgspec
import numpy as np

from graph.formats.tree import to_json
from graph.tree import plant
from tests.graph.tape import Tape, assistant, user


def test_the_form_has_the_contract_s_keys_and_values():
    tape = Tape(group="g7", reward=1.0, per_call_rewards={"chatcmpl-0": 0.5})
    tape.say([user("Go")], assistant("Gone."), prompt_ids=np.array([1, 2], np.int32), sampled=[3], usage_prompt=None)
    form = to_json(plant(tape.graph()))
    # As it goes over the wire: arrays as lists, NaN as null.
    form = msgspec.json.decode(msgspec.json.encode(form, enc_hook=lambda array: array.tolist()))
    assert form == {
        "version": 1,
        "rollout": "r",
        "group": "g7",
        "final": True,
        "reward": 1.0,
        "n_nodes": 2,
        "n_tokens": 3,
        "n_trained_tokens": 1,
        "logprobs_mode": "processed",
        "input_ids": [1, 2, 3],
        "parents": [-1, 0, 1],
        "position_ids": [0, 1, 2],
        "loss_mask": [0, 0, 1],
        "logprobs": [None, None, -0.5],
        "nodes": [
            {"node": 0, "parent": None, "call": 0, "kind": "prompt", "trained": False, "start": 0, "end": 2,
             "weights": None},
            {"node": 1, "parent": 0, "call": 0, "kind": "sampled", "trained": True, "start": 2, "end": 3,
             "weights": None},
        ],
        "replies": [
            {"call": 0, "conversation": 0, "role": "main", "node": 1, "truncated": False,
             "sampling": {"temperature": 1.0}, "reward": 0.5},
        ],
        "left_out": [],
        "findings": [],
    }  # fmt: skip
