"""Datum inputs, shifted by one."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph.formats import tinker
from graph.formats.refused import Refused
from graph.graph import read
from graph.records import Weights, WeightSpan
from graph.sequences import ROLES, Options, cut
from tests.graph.formats.captures import parted, turns
from tests.graph.formats.readback import told, wire

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def exported(tape, **options):
    graph = tape.graph()
    return wire(tinker.to_json(graph, cut(graph, Options(**options))))


def test_what_is_asked_for_at_a_place_is_the_next_token():
    form = exported(turns())
    (row,) = form["rows"]
    assert (form["format"], row["about"]["reward"]) == ("tinker", 0.5)
    assert row["datum"] == {
        "model_input": [1, 2, 3, 4, 5, 6],
        "loss_fn_inputs": {
            "target_tokens": [2, 3, 4, 5, 6, 7],
            "logprobs": [0.0, -0.25, -0.5, 0.0, 0.0, -1.0],
            "advantages": [0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
        },
    }


def test_provenance_tiles_inputs_and_targets():
    (row,) = exported(turns())["rows"]
    assert row["provenance"] == {
        "model_input": [
            {"kind": "prompt", "sequence_id": "chatcmpl-0", "offset": 0, "length": 2},
            {"kind": "sampled", "sequence_id": "chatcmpl-0", "offset": 0, "length": 2},
            {"kind": "prompt", "sequence_id": "chatcmpl-1", "offset": 4, "length": 2},
        ],
        "loss_fn_inputs": [
            {"kind": "prompt", "sequence_id": "chatcmpl-0", "offset": 1, "length": 1},
            {"kind": "sampled", "sequence_id": "chatcmpl-0", "offset": 0, "length": 2},
            {"kind": "prompt", "sequence_id": "chatcmpl-1", "offset": 4, "length": 2},
            {"kind": "sampled", "sequence_id": "chatcmpl-1", "offset": 0, "length": 1},
        ],
    }


def test_a_reply_without_an_id_leaves_no_provenance():
    tape = turns()
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], id=None)
    assert exported(tape)["rows"][0]["provenance"] is None


def test_a_choice_has_a_name_of_its_own():
    tape = turns()
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], choice=2)
    assert exported(tape)["rows"][0]["provenance"]["model_input"][1]["sequence_id"] == "chatcmpl-0#2"


def test_a_stretch_of_new_weights_is_further_on_in_the_same_sequence():
    tape = turns()
    spans = (WeightSpan(version="7", start=0, end=1), WeightSpan(version="8", start=1, end=2))
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], weights=Weights(start="7", end="8", spans=spans))
    told = exported(tape)["rows"][0]["provenance"]["loss_fn_inputs"]
    assert [(each["sequence_id"], each["offset"], each["length"]) for each in told[1:3]] == [
        ("chatcmpl-0", 0, 1),
        ("chatcmpl-0", 1, 1),
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True), st.sampled_from(["split", "realign"]))
def test_provenance_names_the_very_tokens(story, drift):
    graph = read(story.rollout, story.calls)
    try:
        form = wire(tinker.to_json(graph, cut(graph, Options(roles=ROLES, drift=drift))))
    except Refused:
        return
    calls = {call.id: call for call in story.calls}
    for row in form["rows"]:
        datum = row["datum"]
        tiled = {"model_input": datum["model_input"], "loss_fn_inputs": datum["loss_fn_inputs"]["target_tokens"]}
        for name, ids in tiled.items():
            named = []
            for span in row["provenance"][name]:
                call = calls[span["sequence_id"]]
                of = call.prompt_ids if span["kind"] == "prompt" else call.sampled_ids
                named += of[span["offset"] : span["offset"] + span["length"]].tolist()
            assert named == ids


def test_what_a_break_cut_off_is_not_claimed():
    own, row = exported(parted(), drift="realign")["rows"]
    assert [(each["kind"], each["offset"], each["length"]) for each in row["provenance"]["loss_fn_inputs"]] == [
        ("prompt", 1, 1),
        ("sampled", 0, 1),
        ("prompt", 3, 3),
        ("sampled", 0, 1),
    ]
    assert own["datum"]["loss_fn_inputs"]["advantages"] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"advantages": [1.0]}, "6 model_input, 6 target_tokens, 6 logprobs, 1 advantages"),
        ({"logprobs": [-0.25, -0.5, 0.0, 0.0, -1.0, 0.0]}, "not trained has a logprob"),
        ({"target_tokens": [1, 2, 3, 4, 5, 6]}, "targets are not the inputs one place on"),
        ({"mask": [0, 1, 1, 0, 0, 1]}, "no list named mask"),
    ],
)
def test_a_broken_datum_is_refused(broken, says):
    (row,) = exported(turns())["rows"]
    tinker.check(row["datum"])
    with pytest.raises(Refused, match=says):
        tinker.check(row["datum"] | {"loss_fn_inputs": row["datum"]["loss_fn_inputs"] | broken})
