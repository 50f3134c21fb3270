"""Real chat templates under the plan: no tail that it finds is wrong, and docs/pinned.md has the table."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.drift.sweep import BEGIN, END, PAGE, Judged, judge, sweep, table
from benchmarks.drift.templates import TEMPLATES, missing, rendering
from benchmarks.drift.turns import END as END_TEXT
from benchmarks.drift.turns import TURNS, Turn, called, result, said, system, user
from capture.pinning.plan import Closings

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def renderings():
    if (why := missing()) is not None:
        pytest.skip(why)
    with rendering() as one:
        yield one


@pytest.fixture(scope="module")
def judged(renderings) -> list[Judged]:
    return sweep(renderings)


def test_nothing_wrong_is_accepted(judged):
    assert [(one.template, one.turn) for one in judged if one.verdict == "wrong"] == []
    assert len(judged) == len(TEMPLATES) * len(TURNS)


def test_most_of_what_has_an_answer_is_found(judged):
    possible = [one for one in judged if one.possible]
    found = [one for one in possible if one.verdict == "right"]
    # All but one were seen, 413 of 414; else nothing wrong could be accepted by accepting nothing.
    assert len(found) / len(possible) > 0.98


@pytest.mark.parametrize("name", ["qwen3", "qwen2.5", "qwen3-2507", "glm4-moe", "nemotron-3-nano"])
def test_some_templates_are_pinned_in_every_turn(judged, name):
    assert Counter(one.verdict for one in judged if one.template == name) == {"right": len(TURNS)}


def test_a_reply_is_pinned_nowhere_where_the_template_ends_it_otherwise_in_history(judged):
    # gpt-oss samples <|return|>, and puts <|end|> into history.
    own = {one.turn: one for one in judged if one.template == "gpt-oss"}
    assert (own["plain"].verdict, own["plain"].reason) == ("fell back", "closing-differs")
    assert own["tool"].verdict == "right"


@pytest.mark.parametrize("wrong", [[1, 2, 3], []])
def test_what_is_wrong_is_called_so(renderings, monkeypatch, wrong):
    monkeypatch.setattr("benchmarks.drift.sweep._found", lambda *_: np.array(wrong, np.int32))
    assert judge(renderings, TEMPLATES["qwen3"], TURNS["plain"], Closings()).verdict == "wrong"
    # Where there is no right answer, whatever is found is wrong.
    assert judge(renderings, TEMPLATES["gpt-oss"], TURNS["plain"], Closings()).verdict == "wrong"


def test_the_documentation_has_the_table(judged):
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == table(judged)


texts = st.text(st.sampled_from("ab <|>\n{}é"), max_size=10) | st.sampled_from(
    [END_TEXT, f"{END_TEXT}\n", "<think>", "</think>\n\n", "Zebra", "quilt 77", '"}}', "<tool_call>", "[INST]"]
)
replies = st.builds(said, texts, st.none() | texts) | st.builds(
    lambda names, text: called(*names, text=text), st.lists(st.sampled_from(["look", "read"]), min_size=1, max_size=2),
    texts,
)  # fmt: skip


@st.composite
def drawn(draw):
    """A conversation and a place in it; some templates refuse it, as they would at an engine."""
    messages = [system(draw(texts))] if draw(st.booleans()) else []
    messages.append(user(draw(texts)))
    for _ in range(draw(st.integers(1, 3))):
        reply = draw(replies)
        messages.append(reply)
        messages += [result(draw(texts), n) for n in range(len(reply.get("tool_calls", [])))]
        if not reply.get("tool_calls") or draw(st.booleans()):
            messages.append(user(draw(texts)))
    place = draw(st.sampled_from([i for i, message in enumerate(messages) if message["role"] == "assistant"]))
    reply = messages[place]
    return Turn(
        name="drawn", history=messages[:place], reply=reply, new=messages[place + 1 :],
        arguments=draw(st.sampled_from([{}, {"enable_thinking": False}])),
        cut=not reply.get("tool_calls") and draw(st.booleans()),
    )  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(TEMPLATES)), turn=drawn())
def test_nothing_wrong_is_accepted_of_drawn_conversations(renderings, name, turn):
    assert judge(renderings, TEMPLATES[name], turn, Closings()).verdict != "wrong"
