"""Conversations with a template in an engine's place."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.drift.rows import Case, of_had
from benchmarks.drift.standin import Recorder, RefusedError, StandIn, as_rendered
from capture.trial.scenarios import SCENARIOS, Ask, called, said, user
from tests.benchmarks.drift.small import CHATML, STRICT, THINKING, Small
from tests.capture.pinning.templates import encode


async def row(template, scenario, mode):
    had = await Recorder(StandIn(Small(), template), pinned=mode == "pinned").play(SCENARIOS[scenario].script())
    return of_had(Case(scenario=scenario, template=template.name, agent="chat", served_by="test"), mode, had)


def test_a_reply_is_sampled_as_the_template_would_have_it():
    engine = StandIn(Small(), THINKING)
    asked = Ask(messages=[user("hi")], says=said("hello"))
    # The empty pair of tags, which this template puts around a last reply, is none that a model said.
    assert engine.sampled(asked).tolist() == encode("hello<im_end>").tolist()
    thinks = Ask(messages=[user("hi")], says=said("hello", "so"))
    assert engine.sampled(thinks).tolist() == encode("so</think>hello<im_end>").tolist()


def test_one_that_is_cut_has_no_end():
    asked = Ask(messages=[user("hi")], says=said("hello"), cut=True)
    assert StandIn(Small(), CHATML).sampled(asked).tolist() == encode("he").tolist()


def test_other_ids_are_other_ids():
    asked = Ask(messages=[user("hi")], says=said("hi"), respelt=True)
    ids = StandIn(Small(), CHATML).sampled(asked)
    assert ids.tolist() == [1_000_104, 1_000_105, *encode("<im_end>").tolist()]


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if one.kept])
async def test_a_kept_history_does_not_drift_when_it_is_pinned(name):
    for template in (CHATML, THINKING):
        found = await row(template, name, "pinned")
        assert (found.exact, found.tokens_max, found.fallback) == (found.transitions, 0, {}), template.name


async def test_as_rendered_it_drifts_where_the_template_does():
    assert (await row(CHATML, "plain chat", "engine")).exact == 3
    found = await row(THINKING, "thinking stripped", "engine")
    assert (found.exact, found.causes) == (0, {"reasoning_stripped": 3})
    assert (await row(CHATML, "text re-tokenised", "engine")).causes == {"text_retokenised": 3}


async def test_a_changed_history_falls_back_by_name_and_drifts_as_without():
    plain, pinned = [await row(CHATML, "volatile system", mode) for mode in ("engine", "pinned")]
    assert pinned.fallback == {"no-parent": 3}
    assert (pinned.exact, pinned.tokens_mean) == (plain.exact, plain.tokens_mean) != (3, 0)
    older = await row(CHATML, "history pruned", "pinned")
    assert older.pinned_to_older == 2


async def test_a_template_that_refuses_says_so():
    with pytest.raises(RefusedError):
        await row(STRICT, "tool loop", "engine")


def test_a_message_is_shown_as_the_engine_would():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert as_rendered({"role": "developer", "content": parts}) == {"role": "system", "content": "a\nb"}
    assert as_rendered({**called("Paris"), "content": None, "reasoning": "so"})["reasoning_content"] == "so"
    shown = as_rendered({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})
    assert shown["content"] == [{"type": "image"}]


async def test_the_pinner_is_answered_as_by_an_engine():
    status, body = await StandIn(Small(), STRICT).ask(
        "/tokenize", b'{"messages": [{"role": "tool", "content": "x"}], "add_generation_prompt": true}'
    )
    assert (status, body) == (400, b"{}")
    assert isinstance(StandIn(Small(), CHATML).prompt([user("hi")], tools=None, arguments=None), np.ndarray)
