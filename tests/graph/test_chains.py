"""Which calls make a row, and what is trained in it."""

import numpy as np

from graph.chains import Part, chains
from graph.forest import grow
from tests.graph.tape import Tape, assistant, user

HEAD = [1, 9, 3, 100, 2, 3, 1, 10, 3]
MORE = [3, 1, 9, 3, 101, 2, 3, 1, 10, 3]


def said(tape: Tape, turns: int, prompt: list[int], sampled: list[int]) -> int:
    """Record a call of so many turns before it; what they said is the same each time."""
    messages = [user("Make the tests pass.")]
    for turn in range(turns):
        messages += [assistant(f"Reply {turn}."), user(f"Go on {turn}.")]
    return tape.say(
        messages,
        assistant(f"Reply {turns}."),
        prompt_ids=np.array(prompt, np.int32),
        sampled=sampled,
        usage_prompt=None,
    )


def cut(
    tape: Tape, *, eligible=None, **threshold
) -> list[tuple[tuple[int, ...], list[tuple[int, int, int]], int, bool]]:
    """(calls, parts as (call, start, end), drifts crossed, whether it trains what was lost elsewhere) of each chain."""
    forest = grow(tape.rollout, tape.calls)
    calls = range(len(tape.calls))
    return [
        (found.calls, [(part.call, part.start, part.end) for part in found.trained], found.crossed, found.lost)
        for found in chains(forest, calls, calls if eligible is None else eligible, **threshold)
    ]


def three_turns() -> Tape:
    """The second prompt has all but the last id of the first reply; the third has the second whole."""
    tape = Tape()
    said(tape, 0, HEAD, [150, 151, 2])
    said(tape, 1, [*HEAD, 150, 151, 12, *MORE], [160, 2])
    said(tape, 2, [*HEAD, 150, 151, 12, *MORE, 160, 2, *MORE], [170, 2])
    return tape


def test_without_a_threshold_a_drift_parts_rows():
    assert cut(three_turns()) == [
        ((0,), [(0, 9, 12)], 0, False),
        ((1, 2), [(1, 22, 24), (2, 34, 36)], 0, False),
    ]


def test_a_row_that_crosses_a_drift_and_the_row_of_what_it_loses():
    assert cut(three_turns(), threshold=1) == [
        ((0,), [(0, 11, 12)], 0, True),
        ((0, 1, 2), [(0, 9, 11), (1, 22, 24), (2, 34, 36)], 1, False),
    ]
    assert cut(three_turns(), threshold=0) == cut(three_turns())


def test_a_break_takes_the_ids_of_every_reply_behind_it():
    """The third prompt parts in the first reply: the second, behind it, is lost whole. Each gets its own row."""
    tape = Tape()
    said(tape, 0, HEAD, [150, 151, 2])
    said(tape, 1, [*HEAD, 150, 151, 2, *MORE], [160, 2])
    said(tape, 2, [*HEAD, 150, 152, 2, *MORE, 160, 2, *MORE], [170, 2])
    assert cut(tape, threshold=100) == [
        ((0,), [(0, 10, 12)], 0, True),
        ((0, 1), [(1, 22, 24)], 0, True),
        ((0, 1, 2), [(0, 9, 10), (2, 34, 36)], 1, False),
    ]


def test_equal_ids_behind_a_break_are_not_trained_there():
    """The parting is one id in the middle of the reply, and its last is the same again."""
    tape = Tape()
    said(tape, 0, HEAD, [150, 151, 2])
    said(tape, 1, [*HEAD, 150, 159, 2, *MORE], [160, 2])
    own, row = cut(tape, threshold=100)
    assert own == ((0,), [(0, 10, 12)], 0, True)
    assert row == ((0, 1), [(0, 9, 10), (1, 22, 24)], 1, False)


def test_what_may_not_be_trained_is_context_and_loses_nothing():
    assert cut(three_turns(), eligible={1, 2}, threshold=1) == [
        ((0, 1, 2), [(1, 22, 24), (2, 34, 36)], 1, False),
    ]
    assert cut(three_turns(), eligible={0, 1}, threshold=1)[-1] == ((0, 1), [(0, 9, 11), (1, 22, 24)], 1, False)
    assert cut(three_turns(), eligible={0}, threshold=1) == [((0,), [(0, 9, 12)], 0, False)]
    assert cut(three_turns(), eligible=()) == []


def test_a_row_is_made_of_the_calls_that_are_asked_for():
    forest = grow(Tape().rollout, three_turns().calls)
    (found,) = chains(forest, [1, 2], [1, 2], threshold=1)
    assert (found.calls, found.trained[0]) == ((1, 2), Part(call=1, start=22, end=24))
