"""verifiers' own `WireTrace` reads `format=verifiers`: branches whose ids, mask and logprobs are our rows'."""

import pytest

from tests.real import library
from tests.real.captured import Captured
from tests.real.handmade import Made, drawn, native

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_it_reads_what_was_made_by_hand(made: list[Made], tmp_path):
    told = library.ask("verifiers", "read_verifiers.py", [one.form("verifiers") for one in made], tmp_path)
    for one, found in zip(made, told, strict=True):
        assert drawn(found["rows"]) == drawn(native(one.form("native"))), one.name
        assert found["score"] == {"reward": one.graph.rollout.reward}
    edges = {kind for found in told for kind, _, _ in found["edges"]}
    assert edges == {"continuation", "subagent_call", "subagent_return", "compaction", "compaction_attempt"}


def test_all_agents_of_a_rollout_are_in_one_trace(made: list[Made], tmp_path):
    """Two subagents, each a branch of its own, called from the node of one reply."""
    (one,) = [one for one in made if one.name == "opencode-subagents-compaction (main, subagent, summary)"]
    (found,) = library.ask("verifiers", "read_verifiers.py", [one.form("verifiers")], tmp_path)
    calls = [(source, target) for kind, source, target in found["edges"] if kind == "subagent_call"]
    assert len(calls) == 2
    assert len({source for source, _ in calls}) == 1


@pytest.mark.parametrize("vllm", ["sharp"], indirect=True)
def test_it_reads_what_was_captured(captured: list[Captured], tmp_path):
    told = library.ask("verifiers", "read_verifiers.py", [one.forms["verifiers"] for one in captured], tmp_path)
    for one, found in zip(captured, told, strict=True):
        assert drawn(found["rows"]) == drawn(native(one.forms["native"]))
        assert (found["score"], found["completed"], found["stop"]) == ({"reward": one.reward}, True, "agent_completed")
