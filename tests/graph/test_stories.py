"""Drawn rollouts are judged right: the short form of `bin/bench graph --stories 10000`."""

import dataclasses

from hypothesis import HealthCheck, given, note, settings

from tests.graph.stories import GOAL, Tally, drawn
from tests.graph.told import Story, stories

COUNT = 400


def test_almost_all_are_right():
    tally = Tally()
    for name, story in drawn(COUNT):
        tally.add(story, name=name)
    assert tally.stories == COUNT
    assert tally.right >= GOAL * COUNT, tally.table()


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(stories(wild=True))
def test_main_is_always_right(story: Story):
    """What is trained; whatever else may be taken for something that it is not."""
    tally = Tally()
    note(repr(story))
    tally.add(story, name="this")
    assert {(true, said) for true, said in tally.roles if "main" in (true, said)} == {("main", "main")}


def test_a_wrong_rollout_is_counted_and_named():
    ((_, story),) = drawn(1)
    truth = {n: dataclasses.replace(true, role="auxiliary", kind="other") for n, true in story.truth.items()}
    tally = Tally()
    wrong = tally.add(Story(story.rollout, story.calls, truth), name="this one")
    assert "role: main is auxiliary other, said to be main" in wrong
    assert (tally.stories, tally.right, tally.named) == (1, 0, {"this one": wrong})
    told = tally.table()
    assert told.startswith("0 of 1 rollouts right (0.00%)")
    assert "this one:" in told
    assert {"true": "auxiliary other", "said": "main", "n": 1} in tally.counts()["roles"]
