"""Rows for TRL, and that they are those which TRL would chain from the training trace."""

from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

from graph.formats import openenv, trl
from graph.formats.refused import Refused
from graph.graph import read
from graph.sequences import ROLES, Options, cut
from tests.graph.formats.captures import parted, turns
from tests.graph.formats.readback import told, wire
from tests.graph.tape import assistant, user

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def exported(tape, **options):
    graph = tape.graph()
    return wire(trl.to_json(graph, cut(graph, Options(**options))))


def test_a_row_has_the_fields_of_a_sample():
    form = exported(turns())
    (row,) = form["rows"]
    assert row["sample"] == {
        "prompt": [user("Go")],
        "completion": [assistant("One."), user("On"), assistant("Two.")],
        "input_ids": [1, 2, 3, 4, 5, 6, 7],
        "completion_mask": [0, 0, 1, 1, 0, 0, 1],
        "old_log_probs": [0.0, 0.0, -0.25, -0.5, 0.0, 0.0, -1.0],
        "advantage": None,
        "model_version": 7,
        "group_id": 3816197008513894,
        "metrics": {"reward": 0.5},
    }
    assert row["rollout_id"] == "g-3"
    assert (form["format"], form["n_rows"], form["n_trained_tokens"]) == ("trl", 1, 3)
    assert form["tally"] == {
        "clean": 1.0,
        "realign": 0.0,
        "fork": 0.0,
        "transitions": 1.0,
        "drift_tokens": 0.0,
        "drift_max": 0.0,
    }


def test_a_drift_is_a_fork_of_as_many_tokens():
    form = exported(parted())
    assert [row["sample"]["input_ids"] for row in form["rows"]] == [[1, 2, 3, 4], [1, 2, 3, 8, 5, 6, 7]]
    assert (form["tally"]["fork"], form["tally"]["drift_tokens"], form["tally"]["drift_max"]) == (1.0, 1.0, 1.0)


def test_a_row_that_crosses_a_drift_has_no_tally():
    form = exported(parted(), drift="realign")
    assert form["tally"] is None
    assert [row["sample"]["completion_mask"] for row in form["rows"]] == [[0, 0, 0, 1], [0, 0, 1, 0, 0, 0, 1]]


def test_a_row_is_as_old_as_its_oldest_weights_and_unknown_where_one_is():
    assert exported(turns(weights=("8", "7")))["rows"][0]["sample"]["model_version"] == 7
    assert exported(turns(weights=("8", None)))["rows"][0]["sample"]["model_version"] is None
    assert exported(turns(weights=("8", "v7")))["rows"][0]["sample"]["model_version"] is None


def test_an_ungraded_rollout_has_no_reward_in_its_metrics():
    assert exported(turns(reward=None))["rows"][0]["sample"]["metrics"] == {}


def test_rollouts_of_a_group_have_its_number_and_one_without_has_its_own():
    numbers = [
        exported(turns(id=rollout, group=group))["rows"][0]["sample"]["group_id"]
        for rollout, group in (("a", "g"), ("b", "g"), ("a", None), ("b", None))
    ]
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == 3


@pytest.mark.parametrize(
    "broken",
    [
        {"completion_mask": [0, 0, 1]},
        {"old_log_probs": [0.0]},
        {"old_log_probs": [0.0, -0.25, -0.5, 0.0, 0.0, -1.0, 0.0]},
        {"input_ids": [-1, 2, 3, 4, 5, 6, 7]},
    ],
)
def test_a_broken_sample_is_refused(broken):
    (row,) = exported(turns())["rows"]
    trl.check(row["sample"])
    with pytest.raises(Refused, match="RolloutSample"):
        trl.check(row["sample"] | broken)


# -- what TRL makes of the training trace -----------------------------------------------------------------------------


@dataclass
class Chained:
    """The rows that TRL's loop-owning worker makes of turns, with its fork threshold of 0: a turn goes on with the last
    row if its prompt begins with all of it, and begins a new row otherwise."""

    rows: list[tuple[list[int], list[int], list[float]]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    drifts: list[int] = field(default_factory=list)

    def add(self, turn: dict) -> None:
        prompt, reply, logprobs = (turn[key] for key in ("prompt_token_ids", "completion_token_ids", "per_token_logps"))
        mask = turn["loss_mask"][len(prompt) :]
        if self.rows:
            held = self.rows[-1][0]
            same = 0
            while same < min(len(held), len(prompt)) and held[same] == prompt[same]:
                same += 1
            self.drifts.append(len(held) - same)
            self.kinds.append("fork" if self.drifts[-1] else "clean")
        if not self.rows or self.drifts[-1]:
            self.rows.append(([], [], []))
        ids, masks, values = self.rows[-1]
        more = prompt[len(ids) :]
        ids += [*more, *reply]
        masks += [*([0] * len(more)), *mask]
        values += [*([0.0] * len(more)), *logprobs]


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True))
def test_rows_are_those_that_trl_chains_from_the_training_trace(story):
    graph = read(story.rollout, story.calls)
    note(repr(graph))
    sequences = cut(graph, Options(roles=ROLES))
    try:
        form = wire(trl.to_json(graph, sequences))
    except Refused:
        return
    chained = Chained()
    for turn in wire(openenv.to_json(graph, sequences))["turns"]:
        chained.add(turn)
    samples = [row["sample"] for row in form["rows"]]
    assert [(each["input_ids"], each["completion_mask"], each["old_log_probs"]) for each in samples] == chained.rows
    tally = form["tally"]
    assert (tally["clean"], tally["fork"]) == (chained.kinds.count("clean"), chained.kinds.count("fork"))
    assert tally["transitions"] == len(chained.kinds)
    assert (tally["drift_tokens"], tally["drift_max"]) == (sum(chained.drifts), max(chained.drifts, default=0))


def test_turns_of_two_agents_that_took_turns_are_two_rows():
    """In order of arrival they would be one row a turn."""
    tape = turns()
    weights = tape.calls[0].weights
    for messages, reply, prompt, sampled in (
        ([user("Sub")], "Three.", [20, 21], [22]),
        ([user("Sub"), assistant("Three."), user("More")], "Four.", [20, 21, 22, 23], [24]),
    ):
        ids = np.array(prompt, np.int32)
        tape.say(messages, assistant(reply), prompt_ids=ids, sampled=sampled, usage_prompt=None, weights=weights)
    order = (0, 2, 1, 3)
    tape.calls = [
        msgspec.structs.replace(tape.calls[old], n=new, id=f"chatcmpl-{new}", arrived=2 * new + 1, ended=2 * new + 2)
        for new, old in enumerate(order)
    ]
    graph = tape.graph()
    sequences = cut(graph, Options(roles=ROLES))
    chained = Chained()
    for turn in wire(openenv.to_json(graph, sequences))["turns"]:
        chained.add(turn)
    assert sorted(ids for ids, _, _ in chained.rows) == [[1, 2, 3, 4, 5, 6, 7], [20, 21, 22, 23, 24]]
