"""Rollouts made by hand and drawn, for trainers' libraries to read, and what they must find in them.

Among them: forks, drift, compaction, retries, subagents, replies cut by length, several policies in one row; kept
rollouts of real agents (tests/corpus); and rollouts drawn by seed, whose sampled tokens each have a logprob of their
own.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

from capture.formats import FORMATS
from graph.graph import Graph, read
from graph.records import Weights, WeightSpan
from graph.sequences import Options, cut
from tests.graph import corpus
from tests.graph.formats import captures
from tests.graph.formats.readback import told
from tests.graph.tape import Tape
from tests.real.library import encoded

DRAWN = 20
# Of what these rollouts have; the last is of all agents in one trace.
ROLES: tuple[tuple[str, ...], ...] = (("main",), ("main", "subagent", "summary"))


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout and what was asked of it."""

    name: str
    graph: Graph
    roles: tuple[str, ...]

    def form(self, name: str) -> Any:
        """Return it in a format, as it comes out of the other end of a connection."""
        module = importlib.import_module(FORMATS[name].module)
        sequences = cut(self.graph, Options(roles=self.roles))
        made = module.to_json(sequences) if name == "native" else module.to_json(self.graph, sequences)
        return msgspec.json.decode(encoded(made))


def rollouts() -> list[Made]:
    """Return all of them; each has something to train."""
    found = []
    for name, graph in _graphs():
        for roles in ROLES:
            made = Made(name=f"{name} ({', '.join(roles)})", graph=graph, roles=roles)
            if made.form("native")["sequences"]:
                found.append(made)
    return found


def _graphs() -> Iterator[tuple[str, Graph]]:
    yield "two turns", captures.turns().graph()
    yield "drift", captures.parted().graph()
    yield "fork", captures.branched().graph()
    yield "cut by length", _one([3, 4, 5], Weights(start="7", end="7"), finish_reason="length")
    yield "two policies in one reply", _one([3, 4, 5], _CHANGED)
    for path in sorted(corpus.FOLDER.glob("*.json")):
        yield path.stem, corpus.graph_of(corpus.load(path))
    for place, story in enumerate(_stories(DRAWN)):
        yield f"drawn {place}", read(story.rollout, story.calls)


_CHANGED = Weights(
    start="7", end="8", spans=(WeightSpan(version="7", start=0, end=1), WeightSpan(version="8", start=1, end=3))
)


def _one(sampled: list[int], weights: Weights, **fields: Any) -> Graph:
    tape = Tape(id="g-3", group="g", reward=0.5)
    logprobs = [-0.5 * (place + 1) for place in range(len(sampled))]
    captures.say(tape, captures.TOLD, captures.FIRST, [1, 2], sampled, logprobs, None, **{"weights": weights} | fields)
    return tape.graph()


def _stories(count: int) -> list[Any]:
    found: list[Any] = []

    @seed(5)
    @settings(
        max_examples=count,
        derandomize=False,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(told())
    def draw(story: Any) -> None:
        found.append(story)

    draw()
    return found


# -- what a reader must find -------------------------------------------------------------------------------------------

Drawn = Counter[tuple[tuple[int, ...], float]]
"""Each trained token: all ids up to and with it, and its logprob. Blind to how tokens are shared out among rows."""


def drawn(rows: Any) -> Drawn:
    """Count the trained tokens of rows, each `ids`, `mask` and `logprobs` of one length."""
    found: Drawn = Counter()
    for row in rows:
        ids, mask, logprobs = row["ids"], row["mask"], np.asarray(row["logprobs"], np.float32).tolist()
        assert len(ids) == len(mask) == len(logprobs)
        found.update((tuple(ids[: place + 1]), logprobs[place]) for place, on in enumerate(mask) if on)
    return found


def native(form: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of `format=native` with 0.0 for context."""
    return [
        {
            "ids": row["input_ids"],
            "mask": row["loss_mask"],
            "logprobs": [0.0 if value is None else value for value in row["logprobs"]],
        }
        for row in form["sequences"]
    ]
