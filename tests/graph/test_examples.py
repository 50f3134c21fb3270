"""The example of each finding shows it; what its drawing says of a call."""

import pytest

from graph import examples
from graph.examples import CODES, Tape, example, graph_of
from graph.findings import TABLE


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_example_shows_its_finding(code):
    assert code in {finding.code for finding in graph_of(code).findings}
    drawn = example(code)
    assert f"{TABLE[code].level} {code}" in drawn
    forest, _, said = drawn.partition("\n\n")
    assert max(map(len, forest.splitlines())) <= 140
    assert len(said.splitlines()[0]) <= 280


def test_every_finding_of_a_rollout_has_an_example():
    assert {row.code for row in TABLE.values() if row.source != "export"} == CODES


def test_an_example_that_does_not_show_its_finding_is_an_error(monkeypatch):
    monkeypatch.setitem(examples._EXAMPLES, "drift", Tape)
    with pytest.raises(LookupError, match="the example of drift"):
        example("drift")
    with pytest.raises(KeyError):
        example("no such code")


def test_a_forest_is_drawn_by_conversation():
    assert example("subagents").splitlines() == [
        "main",
        "  0  user: Make the tests pass. → task(Find every caller of parse().)",
        "    2  tool: There are two callers of it. → Done.   [exact]",
        "subagent, started by call 0",
        "  1  user: Find every caller of parse(). → There are two callers of it.",
        "",
        "info subagents (calls 1): 1 conversation was started by a tool call.",
        '  {"conversations":1,"parents":[0]}',
    ]


def test_what_became_of_a_call_is_drawn():
    assert "[drift; 6 tokens lost at " in example("drift")
    assert "[compaction]" in example("compaction")
    assert "[aborted; retry; discarded]" in example("retries")
    assert "[delivery unknown]" in example("delivery_unknown")
    assert example("engine_errors").count("in no conversation") == 1
    assert example("no_calls").startswith("no calls\n")
