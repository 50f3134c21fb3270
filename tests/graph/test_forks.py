"""Retries, resamples and branches, what was kept of them, and what was discarded."""

from __future__ import annotations

import pytest

from graph.forest import Forest, grow
from tests.graph.tape import Tape, assistant, result, system, user

TASK = [system("Be brief."), user("Make the tests pass.")]
LOOK = assistant("", ("bash", {"command": "ls"}))


def forest(tape: Tape) -> Forest:
    return grow(tape.rollout, tape.calls)


def forks(tape: Tape) -> list[tuple[int | None, str, tuple[int, ...], int | None]]:
    return [(fork.at, fork.kind, fork.children, fork.kept) for fork in forest(tape).forks]


def cut(tape: Tape, messages, **fields) -> int:
    """A call whose agent hung up before the first id was out."""
    return tape.say(messages, None, status="aborted", delivered=False, **fields)


def test_a_retry_of_a_root():
    tape = Tape()
    cut(tape, TASK)
    tape.say(TASK, LOOK)
    assert forks(tape) == [(None, "retry", (0, 1), 1)]
    assert forest(tape).discarded == {0}
    assert (forest(tape).trees, forest(tape).roots) == (((0, 1),), (1,))


def test_a_retry_in_a_conversation():
    tape = Tape()
    tape.say(TASK, LOOK)
    history = [*TASK, LOOK, result("x", LOOK)]
    cut(tape, history)
    tape.say(history, assistant("Done."))
    assert forks(tape) == [(0, "retry", (1, 2), 2)]
    assert forest(tape).trees == ((0, 1, 2),)


def test_a_retry_whose_first_try_had_no_ids_yet():
    tape = Tape()
    tape.say(TASK, LOOK)
    history = [*TASK, LOOK, result("x", LOOK)]
    cut(tape, history, prompt_ids=None, sampled_ids=None)
    tape.say(history, assistant("Done."))
    assert forks(tape) == [(0, "retry", (1, 2), 2)]
    assert forest(tape).links[1].drift is None


@pytest.mark.parametrize("known", [True, False])
def test_a_retry_of_calls_that_failed(known):
    tape = Tape()
    nothing = {} if known else {"prompt_ids": None}
    for _ in range(2):
        tape.say(TASK, None, status="error", delivered=False, sampled_ids=None, **nothing)
    tape.say(TASK, LOOK)
    assert forks(tape) == [(None, "retry", (0, 1, 2), 2)]
    assert forest(tape).discarded == frozenset()
    assert forest(tape).trees == ((2,),)


def test_a_failure_after_the_answer_is_no_retry():
    tape = Tape()
    tape.say(TASK, LOOK)
    tape.say(TASK, None, status="error", delivered=False, prompt_ids=None, sampled_ids=None)
    assert forks(tape) == []


def test_a_retry_after_a_crash():
    tape = Tape()
    tape.say(TASK, assistant("", ("bash", {"command": "ls"}), ids="lost"), delivered=None)
    tape.say(TASK, LOOK)
    tape.say([*TASK, LOOK, result("x", LOOK)], assistant("Done."))
    assert forks(tape) == [(None, "retry", (0, 1), 1)]
    assert forest(tape).roots == (1,)


def test_tries_that_all_broke_off_are_one_tree():
    tape = Tape()
    for _ in range(3):
        cut(tape, TASK)
    assert forks(tape) == [(None, "retry", (0, 1, 2), None)]
    assert (forest(tape).trees, forest(tape).roots) == (((0, 1, 2),), (2,))
    assert forest(tape).discarded == frozenset()


def test_several_choices_of_one_request_are_resamples():
    tape = Tape()
    said = [assistant("", ("bash", {"command": command})) for command in ("ls", "cat")]
    for choice, reply in enumerate(said):
        tape.say(TASK, reply, choice=choice, id="one", arrived=0, ended=1)
    tape.say([*TASK, said[1], result("x", said[1])], assistant("Done."))
    assert forks(tape) == [(None, "resample", (0, 1), 1)]
    assert forest(tape).discarded == {0}


def test_choices_that_all_broke_off_are_no_retries_of_each_other():
    tape = Tape()
    for choice in range(2):
        cut(tape, TASK, choice=choice, id="one", arrived=0, ended=1)
    assert forks(tape) == [(None, "resample", (0, 1), None)]


def test_a_second_draw_that_broke_off_is_no_retry():
    tape = Tape()
    tape.say(TASK, LOOK)
    cut(tape, TASK)
    assert forks(tape) == [(None, "resample", (0, 1), 0)]


def test_draws_that_end_the_rollout_are_all_ends():
    tape = Tape()
    for text in ("Yes.", "No."):
        tape.say(TASK, assistant(text))
    assert forks(tape) == [(None, "resample", (0, 1), None)]
    assert forest(tape).discarded == frozenset()


def test_equal_subagents_whose_reports_come_back_are_not_discarded():
    tape = Tape()
    start = assistant("", ("task", {"prompt": "Look."}), ("task", {"prompt": "Look."}))
    tape.say(TASK, start)
    inner = [system("Be brief."), user("Look.")]
    tape.say(inner, assistant("Nothing to see here."))
    tape.say(inner, LOOK)
    tape.say([*inner, LOOK, result("x", LOOK)], assistant("There is a file."))
    back = [result("Nothing to see here.", start, 0), result("There is a file.", start, 1)]
    tape.say([*TASK, start, *back], assistant("Done."))
    assert forks(tape) == [(None, "resample", (1, 2), 2)]
    assert forest(tape).discarded == frozenset()


def branching(tape: Tape) -> list:
    said = assistant("Yes.")
    tape.say(TASK, said)
    return [*TASK, said]


def both(one, two):
    """Main starts two agents with one prompt; the first goes on for a turn."""
    tape = Tape()
    asks = assistant("", ("task", {"prompt": "Look around."}), ("task", {"prompt": "Look around."}))
    tape.say(TASK, asks, tools=("task",))
    inner = [user("Look around.")]
    tape.say(inner, LOOK, tools=("bash",))
    tape.say(inner, one, tools=("bash",))
    tape.say([*inner, LOOK, result("x", LOOK)], assistant("It is all there."), tools=("bash",))
    brought = [result("It is all there.", asks), result(two, asks, 1)]
    tape.say([*TASK, asks, *brought], assistant("Done."), tools=("task",))
    return forest(tape)


def test_a_report_that_was_given_to_a_tool_comes_back_as_well():
    report = assistant("", ("complete_task", {"result": "There is nothing to see."}))
    assert both(report, "<result>There is nothing to see.</result>").discarded == frozenset()
    assert both(report, "No report.").discarded == {2}


def test_a_command_that_both_draws_gave_is_no_report():
    tape = Tape()
    run = assistant("", ("bash", {"command": "python -m pytest -q"}))
    again = assistant("Again.", ("bash", {"command": "python -m pytest -q"}))
    tape.say(TASK, run)
    tape.say(TASK, again)
    tape.say([*TASK, again, result("$ python -m pytest -q\nok", again)], assistant("Done."))
    assert forest(tape).discarded == {0}


def test_the_branch_that_went_on_is_kept():
    tape = Tape()
    before = branching(tape)
    tape.say([*before, user("Sure?")], assistant("Quite."))
    tape.say([*before, user("Why?")], LOOK)
    tape.say([*before, user("Why?"), LOOK, result("x", LOOK)], assistant("Because."))
    assert forks(tape) == [(0, "branch", (1, 2), 2)]
    assert forest(tape).discarded == {1}


def test_a_branch_that_ended_the_rollout_is_not_discarded():
    tape = Tape()
    before = branching(tape)
    tape.say([*before, user("Why?")], LOOK)
    tape.say([*before, user("Why?"), LOOK, result("x", LOOK)], assistant("Because."))
    tape.say([*before, user("Sure?")], assistant("Quite."))
    assert forks(tape) == [(0, "branch", (1, 3), 1)]
    assert forest(tape).discarded == frozenset()


def test_a_reply_that_a_user_broke_off_and_spoke_to_is_not_discarded():
    """The agent keeps the half that it had: it is context of what follows, though no ids prove it."""
    tape = Tape()
    before = branching(tape)
    asked, half = [*before, user("Why?")], assistant("Because of")
    tape.say(asked, half, sampled=[7, 8], status="aborted", delivered=False)
    tape.say([*asked, half, user("Shorter.")], LOOK)
    assert forest(tape).links[2].parent == 0
    assert forest(tape).discarded == frozenset()
    tape.say([*asked, half, user("Shorter."), LOOK, result("x", LOOK)], assistant("Luck."))
    assert forks(tape) == [(0, "branch", (1, 2), 2)]
    assert forest(tape).discarded == frozenset()


def test_a_branch_that_was_left_after_some_turns_is_not_discarded():
    tape = Tape()
    before = branching(tape)
    for question in ("Why?", "Sure?"):
        tape.say([*before, user(question)], LOOK)
        tape.say([*before, user(question), LOOK, result("x", LOOK)], assistant("Because."))
    assert forks(tape) == [(0, "branch", (1, 3), 3)]
    assert forest(tape).discarded == frozenset()


def test_a_retry_inside_a_branch_keeps_its_own_kind():
    tape = Tape()
    before = branching(tape)
    cut(tape, [*before, user("Why?")])
    tape.say([*before, user("Why?")], assistant("Because."))
    tape.say([*before, user("Sure?")], LOOK)
    tape.say([*before, user("Sure?"), LOOK, result("x", LOOK)], assistant("Quite."))
    assert forks(tape) == [(0, "retry", (1, 2), 2), (0, "branch", (2, 3), 3)]
    assert dict(forest(tape).fork_of) == {1: "retry", 2: "retry", 3: "branch"}
    assert forest(tape).discarded == {1, 2}


def test_a_summary_that_was_carried_is_not_discarded():
    tape = Tape()
    tools = ("bash",)
    tape.say(TASK, LOOK, tools=tools)
    history = [*TASK, LOOK, result("parse.py", LOOK)]
    tape.say(history, assistant("Too long."), tools=tools)
    summary = "There is one file, and it is parse.py."
    tape.say([*history, user("Summarise.")], assistant(summary), tools=tools)
    tape.say([TASK[0], user(f"So far: {summary}")], assistant("Done."), tools=tools)
    assert forks(tape) == [(0, "branch", (1, 2), 2)]
    assert forest(tape).links[3].carries == (2,)
    assert forest(tape).discarded == {1}


def test_beside_a_broken_reply_that_was_brought_back_the_whole_one_is_kept():
    """codex's next try holds the thinking of the broken one, and ends the rollout."""
    tape = Tape()
    before = branching(tape)
    half = assistant("The work is") | {"reasoning": "Well."}
    tape.say(before, half, sampled=[7, 8], status="aborted", delivered=False)
    tape.say([*before, assistant("") | {"reasoning": "Well."}], assistant("The work is done."))
    assert forks(tape) == [(0, "branch", (1, 2), 2)]
    assert forest(tape).discarded == frozenset()
