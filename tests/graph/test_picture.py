"""Forests as pictures: who stands where, what is marked, and that nobody needs to see it to know."""

import re
from xml.etree import ElementTree

import pytest

from graph import picture
from graph.records import Stop
from tests.graph import corpus
from tests.graph.tape import Tape, assistant, result, system, user

SVG = "{http://www.w3.org/2000/svg}"


def drawn(graph) -> ElementTree.Element:
    return ElementTree.fromstring(picture.forest(graph, title="A forest"))


def dots(tree) -> dict[str, tuple[float, float]]:
    """Return where each call's number stands."""
    return {
        text.text: (float(text.get("x")), float(text.get("y")))
        for text in tree.iter(f"{SVG}text")
        if text.text.isdigit()
    }


def said(tree) -> list[str]:
    return [text.text for text in tree.iter(f"{SVG}text")]


def kept(name):
    return corpus.graph_of(corpus.load(corpus.FOLDER / f"{name}.json"))


def test_a_conversation_is_a_lane_and_time_goes_right():
    graph = kept("opencode-subagents-compaction")
    places = dots(drawn(graph))
    assert sorted(places, key=lambda n: places[n][0]) == [str(n) for n in sorted(graph.forest.calls)]
    for found in graph.conversations:
        assert len({places[str(n)][1] for n in found.calls}) == 1
    assert len({y for _, y in places.values()}) == len(graph.conversations) == 5


def test_a_branch_that_was_dropped_stands_below():
    places = dots(drawn(kept("mini-swe-agent-dropped-reply")))
    assert places["0"][1] == places["2"][1] == places["3"][1] < places["1"][1]


def test_a_call_of_no_conversation_stands_apart():
    tree = drawn(kept("terminus-2-hand-over"))
    assert "in no conversation" in said(tree)
    assert dots(tree)["2"][1] == max(y for _, y in dots(tree).values())


def test_a_drift_is_marked_with_its_tokens():
    graph = kept("codex-subagents")
    marks = {text for text in said(drawn(graph)) if text.startswith("−")}
    assert marks == {f"−{link.drift.tokens}" for link in graph.forest.links.values() if link.drift}


def told() -> Tape:
    """One of everything: an aborted try, a stop, an error, a subagent."""
    tape = Tape(stopped=Stop(limit="max_calls", at_call=4, stops=1))
    asks = assistant("", ("task", {"prompt": "Find every caller."}))
    work = [system("You work."), user("Go <on> & on")]
    tape.say(work, asks, status="aborted", delivered=False)
    tape.say(work, asks, tools=("task",))
    tape.say([user("Find every caller.")], assistant("None."))
    tape.say([*work, asks, result("None.", asks)], assistant("Gone."), tools=("task",))
    none = {"prompt_ids": None, "sampled_ids": None, "logprobs": None}
    tape.say(work, assistant("The limit is reached."), status="stopped", **none)
    tape.say(work, assistant(""), status="error", delivered=None, **none)
    return tape


def test_the_legend_explains_what_is_there_and_no_more():
    everything = said(drawn(told().graph()))
    assert {"broke off", "ended in an error", "a limit's last reply", "started by it, or carried into it"} <= {
        *everything
    }
    plain = Tape()
    plain.say([user("Go")], assistant("Gone."))
    assert said(drawn(plain.graph())) == ["main", "0", "a call of the task"]


def test_all_of_it_is_said_in_words():
    tree = drawn(told().graph())
    assert tree.get("role") == "img"
    title, desc = tree.find(f"{SVG}title"), tree.find(f"{SVG}desc")
    assert tree.get("aria-labelledby").split() == [title.get("id"), desc.get("id")]
    assert title.text == "A forest"
    for words in ("6 calls", "Subagent, started by call 1: call 2.", "Call 4: stopped.", "Call 5: error."):
        assert words in desc.text
    desc = drawn(kept("opencode-subagents-compaction")).find(f"{SVG}desc").text
    assert "Call 10 goes on from call 8 with a summary of it." in desc
    assert "Call 7 drifts from call 2 by 162 tokens (turn_boundary)." in desc
    desc = drawn(kept("mini-swe-agent-dropped-reply")).find(f"{SVG}desc").text
    assert "A fork behind call 0 (branch): calls 1, 2, call 2 went on." in desc


def test_a_rollout_without_calls_says_so():
    assert said(drawn(Tape().graph())) == ["no calls"]


def test_a_title_may_hold_anything():
    svg = picture.forest(Tape().graph(), title="<script> & co")
    assert "<script>" not in svg
    assert ElementTree.fromstring(svg).find(f"{SVG}title").text == "<script> & co"


@pytest.mark.parametrize("name", [path.stem for path in corpus.FOLDER.glob("*.json")])
def test_everything_stands_within_the_picture(name):
    tree = drawn(kept(name))
    width, height = float(tree.get("width")), float(tree.get("height"))
    for x, y in dots(tree).values():
        assert 0 < x < width
        assert 0 < y < height
    for text in tree.iter(f"{SVG}text"):
        assert float(text.get("x")) + len(text.text) * 5 < width + 40
        assert float(text.get("y")) < height


def test_equal_graphs_are_equal_pictures():
    assert len({picture.forest(kept("codex-subagents"), title="t") for _ in range(2)}) == 1


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast of two colours."""

    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((light(one), light(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [picture.LIGHT, picture.DARK], ids=["light", "dark"])
def test_letters_and_lines_are_told_from_the_ground(colours):
    for name in ("text", "quiet", "main", "subagent", "auxiliary", "none", "break"):
        assert contrast(colours[name], colours["ground"]) >= 4.5, name
    assert contrast(colours["line"], colours["ground"]) >= 3


def test_both_settings_are_in_every_picture():
    svg = picture.forest(Tape().graph(), title="t")
    assert picture.LIGHT.keys() == picture.DARK.keys()
    assert "prefers-color-scheme:dark" in svg
    # No colour but those by name.
    assert not re.search(r'(fill|stroke)="#', svg)
