"""Tokens as bars: what is drawn is as long as the tokens are many."""

from xml.etree import ElementTree

import pytest

from graph import bars
from graph.outline import runs
from graph.sequences import Options, cut
from tests.graph import corpus
from tests.graph.tape import Tape, assistant, user

SVG = "{http://www.w3.org/2000/svg}"
NAMES = [path.stem for path in corpus.FOLDER.glob("*.json")]


def kept(name):
    return corpus.graph_of(corpus.load(corpus.FOLDER / f"{name}.json"))


def bars_of(tree, colour: str) -> list[float]:
    """Return the widths of the bars of a colour, the legend's left out."""
    return [
        float(rect.get("width"))
        for rect in tree.iter(f"{SVG}rect")
        if rect.get("fill") == f"var(--{colour})" and rect.get("height") == str(bars.BAR)
    ]


def test_a_drift_is_drawn_to_scale():
    graph = kept("qwen-code-summary-inside")
    (n,) = [n for n, link in graph.forest.links.items() if link.drift and link.drift.tokens > 1024]
    tree = ElementTree.fromstring(bars.drift(graph, n, title="t"))
    link, forest = graph.forest.links[n], graph.forest
    counts = [forest.n_prompt(link.parent), forest.n_prompt(n)]
    widths = bars_of(tree, "line")
    assert widths[0] / widths[1] == pytest.approx(counts[0] / counts[1], rel=0.01)
    (line,) = [text.text for text in tree.iter(f"{SVG}text") if text.text.startswith("token ")]
    assert line == f"token {link.drift.at:,}"
    desc = tree.find(f"{SVG}desc").text
    assert f"{link.drift.tokens} are lost. Cause: {link.drift.cause}." in desc


def test_what_does_not_drift_is_an_error():
    graph = kept("mini-swe-agent-dropped-reply")
    with pytest.raises(ValueError, match="call 0 does not drift"):
        bars.drift(graph, 0, title="t")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("drift", ["split", "realign"])
def test_rows_are_the_export_s(name, drift):
    graph, options = kept(name), Options(drift=drift)
    rows = cut(graph, options).sequences
    tree = ElementTree.fromstring(bars.rows(graph, title="t", options=options))
    assert len(bars_of(tree, "line")) == len(rows)
    assert len(bars_of(tree, "main")) == sum(len(runs(row.loss_mask)) for row in rows)
    longest = max(len(row.input_ids) for row in rows)
    for width, row in zip(bars_of(tree, "line"), rows, strict=True):
        assert width / max(bars_of(tree, "line")) == pytest.approx(len(row.input_ids) / longest, abs=0.01)
    desc = tree.find(f"{SVG}desc").text
    assert all(f"{len(row.input_ids)} tokens, {row.n_trained_tokens} trained." in desc for row in rows)


def test_what_is_left_out_is_said():
    tape = Tape()
    tape.say([user("Go")], assistant("Gone."), delivered=False)
    desc = ElementTree.fromstring(bars.rows(tape.graph(), title="t")).find(f"{SVG}desc").text
    assert desc == "Left out: call 0 (undelivered)."
