"""Drift over rollouts, read of their graphs' JSON form: it counts what the graph itself counts."""

import pytest

from graph.sequences import Options, cut
from graph.survey import measure, outline, rows
from graph.transitions import numbers
from graph.view import graph_json
from tests.graph import corpus
from tests.graph.tape import Tape, assistant, user

KEPT = sorted(corpus.FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_it_counts_what_the_graph_counts(path):
    graph = corpus.graph_of(corpus.load(path))
    one = outline(graph_json(graph))
    for threshold in (0, 60, 1024):
        told = numbers(graph.forest, graph.calls_of("main"), threshold=threshold)
        found = measure([one], threshold=threshold)
        assert (found.transitions, found.exact) == (told.transitions, told.exact)
        assert (found.tokens_mean, found.tokens_max) == (told.tokens_mean, told.tokens_max)
        assert (found.fork_frac, found.realign_frac) == (told.fork_frac, told.realign_frac)
        assert found.samples_per_rollout == told.samples_per_rollout


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_its_rows_are_the_rows_cut(path):
    graph = corpus.graph_of(corpus.load(path))
    one = outline(graph_json(graph))
    for threshold in (None, 0, 60, 1024):
        options = Options() if threshold is None else Options(drift="realign", threshold=threshold)
        cut_rows = cut(graph, options)
        found = rows(one, threshold=threshold)
        assert (found.rows, found.trained) == (len(cut_rows.sequences), cut_rows.n_trained_tokens)
        assert found.forwarded == sum(len(row.input_ids) for row in cut_rows.sequences)


def test_several_rollouts_are_added_up():
    one = outline(graph_json(corpus.graph_of(corpus.load(KEPT[0]))))
    alone, twice = measure([one]), measure([one, one])
    assert twice.transitions == 2 * alone.transitions
    assert twice.tokens_mean == alone.tokens_mean
    assert twice.samples_per_rollout == alone.samples_per_rollout
    assert twice.split.forwarded == 2 * alone.split.forwarded
    assert [cause.transitions for cause in twice.causes] == [2 * cause.transitions for cause in alone.causes]


def test_without_rollouts_there_are_no_means():
    found = measure([])
    assert (found.transitions, found.tokens_mean, found.samples_per_rollout, found.causes) == (0, None, None, ())


def test_a_drift_thought_away_joins_its_rows():
    tape = Tape()
    look = assistant("", ("bash", {"command": "ls"}))
    tape.say([user("Go.")], look)
    respelt = {**look, "tool_calls": [{**look["tool_calls"][0]}]}
    respelt["tool_calls"][0]["function"] = {"name": "bash", "arguments": '{"command":"ls"}'}
    done = [user("Go."), respelt, {"role": "tool", "tool_call_id": look["tool_calls"][0]["id"], "content": "x"}]
    tape.say(done, assistant("Done."))
    one = outline(graph_json(tape.graph()))
    (cause,) = measure([one]).causes
    assert (cause.cause, cause.transitions) == ("arguments_reserialised", 1)
    assert rows(one).rows == 2
    assert rows(one, gone=lambda drift: drift.cause == cause.cause).rows == 1
    assert rows(one, gone=lambda drift: drift.cause == "media").rows == 2


def test_why_calls_were_not_pinned_is_counted_by_call():
    tape = Tape()
    tape.say([user("Go.")], assistant("Yes."))
    form = graph_json(tape.graph())
    form["findings"] += [
        {"code": "pin_fallback", "calls": [1, 2], "data": {"reason": "stop-string"}},
        {"code": "pin_fallback", "calls": [4], "data": {"reason": "stop-string"}},
    ]
    assert measure([outline(form)]).fallbacks == {"stop-string": 3}
