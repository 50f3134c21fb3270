"""The pictures of docs/, drawn from recorded forests of real agents.

    python -m tests.pictures        # writes docs/pictures/*.svg; a test compares

Each is a rollout of tests/corpus, read by the graph like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from graph import bars, picture
from graph.graph import Graph
from graph.sequences import Options
from tests.graph import corpus

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"

# File's name → the recorded rollout, and how it is drawn.
PICTURES: dict[str, tuple[str, Callable[[Graph], str]]] = {
    "forest": (
        "opencode-subagents-compaction",
        lambda graph: picture.forest(graph, title="A rollout of opencode: title, main, two subagents, a compaction"),
    ),
    "fork": (
        "mini-swe-agent-dropped-reply",
        lambda graph: picture.forest(graph, title="A rollout of mini-swe-agent: a reply that the agent dropped"),
    ),
    "hand-over": (
        "terminus-2-hand-over",
        lambda graph: picture.forest(graph, title="A rollout of terminus-2: it hands over to itself"),
    ),
    "broken-off": (
        "codex-subagents",
        lambda graph: picture.forest(graph, title="A rollout of codex: a subagent that was ended in the middle"),
    ),
    "drift": (
        "mini-swe-agent-dropped-reply",
        lambda graph: bars.drift(graph, 3, title="A drift: where the next prompt parts from what was there"),
    ),
    "rows": (
        "opencode-subagents-compaction",
        lambda graph: bars.rows(graph, title="The training rows of the rollout of opencode"),
    ),
    "rows-realigned": (
        "opencode-subagents-compaction",
        lambda graph: bars.rows(
            graph, title="The same rollout's rows, where a row may cross a drift", options=Options(drift="realign")
        ),
    ),
}


def draw(name: str) -> str:
    """Draw one of the pictures. Raises KeyError for a name that is none."""
    recorded, drawing = PICTURES[name]
    return drawing(corpus.graph_of(corpus.load(corpus.FOLDER / f"{recorded}.json")))


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(draw(name), encoding="utf-8")


if __name__ == "__main__":
    main()
