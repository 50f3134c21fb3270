"""Where renderings part: measured, explained, counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.drift import cause, measure, numbers
from graph.forest import grow
from graph.messages import from_chat
from graph.records import IntArray, Rollout
from tests.graph.cases import load
from tests.graph.tape import Tape, assistant, result, system, user

TASK = [system("Be brief."), user("Make the tests pass.")]


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("parent", "n_prompt", "child", "expected"),
    [
        ((1, 2, 3, 4), 2, (1, 2, 3, 4, 5), (0, 4, "sampled")),
        ((1, 2, 3, 4), 2, (1, 2, 3, 9), (1, 3, "sampled")),
        ((1, 2, 3, 4), 2, (1, 2, 9), (2, 2, "sampled")),
        ((1, 2, 3, 4), 2, (1, 9), (3, 1, "prompt")),
        ((1, 2, 3, 4), 2, (), (4, 0, "prompt")),
        ((1, 2), 2, (1, 2), (0, 2, "sampled")),
    ],
)
def test_measure(parent, n_prompt, child, expected):
    assert measure(ids(*parent), n_prompt, ids(*child)) == expected


few = st.lists(st.integers(0, 1), max_size=6)


@given(few, few, few)
def test_what_is_shared_and_what_is_lost_make_the_parent(prompt, sampled, child):
    tokens, at, where = measure(ids(*prompt, *sampled), len(prompt), ids(*child))
    assert tokens + at == len(prompt) + len(sampled)
    assert [*prompt, *sampled][:at] == child[:at]
    assert where == ("prompt" if at < len(prompt) else "sampled")


def said(arguments='{"a": 1}', reasoning="Hm, I see.", text=""):
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return from_chat({"role": "assistant", "content": text, "reasoning": reasoning, "tool_calls": [call]})


# A reply of thinking (4 … 5), a call (6 … 7) and an end (2).
WHOLE = ids(4, 120, 121, 122, 5, 6, 130, 7, 2)


@pytest.mark.parametrize(
    ("echo", "offset", "new", "expected"),
    [
        (said(reasoning=""), 0, (6, 130, 7, 2, 3), "reasoning_stripped"),
        (said(reasoning="Hm, I see"), 3, (5, 6, 130, 7, 2, 3), "reasoning_stripped"),
        (said(reasoning="Something else."), 1, (99, 5), "unknown"),
        (said('{"a":1}'), 6, (131, 7, 2), "arguments_reserialised"),
        (said('{"a":2}'), 6, (131, 7, 2), "unknown"),
        # The agent echoed all; the template dropped the thinking, left an empty pair of tags, or did neither.
        (said(), 0, (6, 130, 7, 2, 3), "reasoning_stripped"),
        (said(), 1, (3, 5, 6, 130, 7, 2, 3), "reasoning_stripped"),
        (said(), 1, (125, 126, 5, 6, 130, 7, 2), "text_retokenised"),
        (said(), 6, (131, 7, 2, 3), "text_retokenised"),
        (None, 0, (6,), "unknown"),
    ],
)
def test_causes_in_a_reply(echo, offset, new, expected):
    assert cause(said(), echo, lost=WHOLE[offset:], offset=offset, new=ids(*new)) == expected


def test_a_blank_line_before_a_call_that_an_agent_leaves_out_is_no_change():
    whole, echo = said('{ "a" : 1 }', text="\n\n"), said('{"a":1}')
    assert cause(whole, echo, lost=WHOLE[7:], offset=7, new=ids(131, 7, 2)) == "arguments_reserialised"
    assert cause(whole, said('{"a":2}'), lost=WHOLE[7:], offset=7, new=ids(131, 7, 2)) == "unknown"
    assert cause(said(text="I look."), said(), lost=WHOLE[7:], offset=7, new=ids(131, 7, 2)) == "unknown"


def test_without_thinking_a_break_at_once_is_the_tokeniser():
    reply = said(reasoning="")
    assert cause(reply, reply, lost=WHOLE[5:], offset=0, new=ids(6, 131, 7, 2)) == "text_retokenised"
    assert cause(None, reply, lost=WHOLE, offset=0, new=ids(6)) == "unknown"


def respelled(message):
    call = message["tool_calls"][0]
    return message | {"tool_calls": [call | {"function": call["function"] | {"arguments": '{"command":"ls"}'}}]}


def drift_of(tape: Tape):
    return list(grow(tape.rollout, tape.calls).links.values())[-1].drift


def test_a_break_in_the_prompt_is_explained_by_the_first_message_that_changed():
    look, then = assistant("", ("bash", {"command": "ls"}), ids="a"), assistant("", ("bash", {"n": 1}), ids="b")
    tape = Tape()
    tape.say([*TASK, look, result("x", look)], then)
    tape.say([*TASK, respelled(look), result("x", look), then, result("y", then)], assistant("Done."))
    assert (drift_of(tape).where, drift_of(tape).cause) == ("prompt", "arguments_reserialised")


def test_a_changed_system_text_has_no_name_yet():
    look = assistant("", ("bash", {"command": "ls"}))
    tape = Tape()
    tape.say(TASK, look)
    tape.say([system("Be brief: 99% left."), *TASK[1:], look, result("x", look)], assistant("Done."))
    assert (drift_of(tape).where, drift_of(tape).cause) == ("prompt", "unknown")


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
