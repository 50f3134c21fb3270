"""The form of sequences, key by key."""

import msgspec

from graph.formats.native import to_json
from graph.sequences import Options, cut
from tests.graph.tape import Tape, assistant, result, user


def test_the_form_has_the_contract_s_keys_and_values():
    tape = Tape(group="g7", reward=1.0, per_call_rewards={"chatcmpl-0": 0.5}, pins={"temperature": 1.0})
    tape.say([user("Go")], assistant("Gone."))
    tape.say([user("Go"), assistant("Gone."), user("Back")], assistant("Half"), status="aborted", delivered=False)
    form = to_json(cut(tape.graph()))
    # As it goes over the wire: arrays as lists, NaN as null.
    form = msgspec.json.decode(msgspec.json.encode(form, enc_hook=lambda array: array.tolist()))
    prompt, sampled = tape.calls[0].prompt_ids.tolist(), tape.calls[0].sampled_ids.tolist()
    assert form == {
        "version": 1,
        "rollout": "r",
        "group": "g7",
        "final": True,
        "reward": 1.0,
        "n_rows": 1,
        "n_trained_tokens": len(sampled),
        "logprobs_mode": "processed",
        "sequences": [
            {
                "row": 0,
                "conversation": 0,
                "role": "main",
                "calls": [0],
                "input_ids": prompt + sampled,
                "loss_mask": [0] * len(prompt) + [1] * len(sampled),
                "logprobs": [None] * len(prompt) + [-0.5] * len(sampled),
                "spans": [
                    {"call": 0, "kind": "prompt", "start": 0, "end": len(prompt), "weights": None},
                    {
                        "call": 0,
                        "kind": "sampled",
                        "start": len(prompt),
                        "end": len(prompt) + len(sampled),
                        "weights": None,
                    },
                ],
                "n_trained_tokens": len(sampled),
                "truncated": False,
                "drift_crossed": 0,
                "sampling": {"temperature": 1.0},
                "call_rewards": {"0": 0.5},
            }
        ],
        "left_out": [{"call": 1, "reason": "aborted"}],
        "findings": ["aborted_calls"],
    }


def test_rows_that_cross_drifts_say_what_they_mask():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say([user("Go")], asks, sampled=[900, 901])
    tape.say([user("Go"), asks, result("a", asks)], assistant("Gone."))
    form = to_json(cut(tape.graph(), Options(drift="realign")))
    assert form["realign_masked"] == {"tokens": 2, "rows": 1}
    assert "realign_masked" in form["findings"]
    assert [row["drift_crossed"] for row in form["sequences"]] == [0, 1]
