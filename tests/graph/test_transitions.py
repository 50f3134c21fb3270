"""The transitions of main, counted."""

import pytest

from graph.forest import grow
from graph.records import Rollout
from graph.sequences import Options, cut
from graph.transitions import numbers
from tests.graph import corpus
from tests.graph.cases import load
from tests.graph.tape import Tape, assistant, result, system, user

TASK = [system("Be brief."), user("Make the tests pass.")]


def respelled(message):
    call = message["tool_calls"][0]
    return message | {"tool_calls": [call | {"function": call["function"] | {"arguments": '{"command":"ls"}'}}]}


def turns(tape: Tape, *drifting: bool) -> list[int]:
    """A conversation of turns with a tool; each but the last is echoed respelled, or as it was."""
    history = list(TASK)
    calls = []
    for place, drifts in enumerate((*drifting, False)):
        look = assistant("", ("bash", {"command": "ls"}), ids=f"turn{place}")
        calls.append(tape.say(history, look))
        history = [*history, respelled(look) if drifts else look, result("x", look)]
    return calls


def test_numbers_of_main():
    tape = Tape()
    main = turns(tape, False, True, False)
    forest = grow(tape.rollout, tape.calls)
    lost = forest.links[2].drift.tokens
    found = numbers(forest, main)
    assert (found.transitions, found.exact) == (3, 2)
    assert (found.tokens_mean, found.tokens_max) == (lost / 3, lost)
    assert (found.fork_frac, found.realign_frac) == (0.0, 1 / 3)
    # One row across the drift, and one for the reply that lost ids behind the break.
    assert found.samples_per_rollout == 2


def test_over_the_threshold_is_a_fork():
    tape = Tape()
    main = turns(tape, False, True, False)
    forest = grow(tape.rollout, tape.calls)
    lost = forest.links[2].drift.tokens
    assert numbers(forest, main, threshold=lost).fork_frac == 0.0
    found = numbers(forest, main, threshold=lost - 1)
    assert (found.fork_frac, found.realign_frac, found.samples_per_rollout) == (1 / 3, 0.0, 2)


def test_a_chain_is_one_row_and_has_no_drift():
    tape = Tape()
    main = turns(tape, False, False)
    found = numbers(grow(tape.rollout, tape.calls), main)
    assert (found.transitions, found.exact, found.tokens_mean, found.tokens_max) == (2, 2, 0.0, 0)
    assert found.samples_per_rollout == 1


@pytest.mark.parametrize(("number", "rows"), [(9, 1), (40, 1), (44, 2), (50, 1), (57, 1)])
def test_rows_of_the_cases(number, rows):
    case = load(number)
    assert numbers(grow(case.rollout, case.calls), range(len(case.calls))).samples_per_rollout == rows


@pytest.mark.parametrize("path", sorted(corpus.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_rows_counted_are_the_rows_cut(path):
    graph = corpus.graph_of(corpus.load(path))
    main = graph.calls_of("main")
    split = cut(graph).n_trained_tokens
    for threshold in (0, 60, 1024, 10**6):
        rows = cut(graph, Options(drift="realign", threshold=threshold))
        assert numbers(graph.forest, main, threshold=threshold).samples_per_rollout == len(rows.sequences)
        assert rows.n_trained_tokens == split


def test_without_transitions_there_are_no_means():
    found = numbers(grow(Rollout(id="r"), []), [])
    assert (found.transitions, found.exact, found.samples_per_rollout) == (0, 0, 0)
    assert (found.tokens_mean, found.tokens_max, found.fork_frac, found.realign_frac) == (None, None, None, None)


def test_a_link_by_message_alone_counts_and_measures_nothing():
    tape = Tape(tier="eval")
    text = {"prompt_ids": None, "sampled_ids": None, "logprobs": None}
    yes = assistant("Yes.")
    tape.say(TASK, yes, **text)
    tape.say([*TASK, yes, user("Sure?")], assistant("Quite."), **text)
    found = numbers(grow(tape.rollout, tape.calls), [0, 1])
    assert (found.transitions, found.exact, found.tokens_mean, found.samples_per_rollout) == (1, 0, None, 0)
