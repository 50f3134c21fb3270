"""How many drawn rollouts the graph judges right, and what it takes for what.

Right is a rollout of which everything is: each conversation's role and kind, which call started it, every call's link
and parent, what a compaction carries, and which calls are tries of one request. `drawn` draws by seed, so that a wrong
one can be drawn again. Hypothesis puts words of the project's own modules into texts, of those that happen to be
loaded, and remembers them: both are turned off here, or each change of any module, and each test that ran before, would
draw other rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture import providers

from graph.graph import Graph, read
from tests.graph.told import Story, stories

BATCH = 100
"""Rollouts drawn from one seed: starting hypothesis costs more than a rollout."""

GOAL = 0.99
"""Share of the rollouts that have to be right."""

NO_WORDS = providers.Constants(
    integers=providers.SortedSet(),
    floats=providers.SortedSet(key=providers.float_to_int),
    bytes=providers.SortedSet(),
    strings=providers.SortedSet(),
)
"""Of hypothesis 6.170: what it has found in the project's modules; nothing."""

WRONG_SHOWN = 20
"""Rollouts whose faults a table lists."""


def drawn(count: int, *, first: int = 0) -> Iterator[tuple[str, Story]]:
    """Yield `count` rollouts, each with the seed and place that it is drawn again by."""
    left = count
    number = first
    while left > 0:
        for place, story in enumerate(batch(number, min(BATCH, left))):
            yield f"{number}.{place}", story
            left -= 1
        number += 1


def batch(number: int, count: int) -> list[Story]:
    """Draw `count` rollouts from one seed."""
    found: list[Story] = []

    @seed(number)
    @settings(
        max_examples=count,
        # A derandomised profile would draw the same for every seed.
        derandomize=False,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(stories(wild=True))
    def draw(story: Story) -> None:
        found.append(story)

    with (
        mock.patch.object(providers, "_get_local_constants", return_value=NO_WORDS),
        mock.patch.object(providers, "CONSTANTS_CACHE", providers.LRUCache(1024)),
    ):
        draw()
    return found


class Tally:
    """What was true and what was said, counted."""

    def __init__(self) -> None:
        self.stories = 0
        self.right = 0
        self.calls = 0
        # (true, said) → conversations, links.
        self.roles: Counter[tuple[str, str]] = Counter()
        self.links: Counter[tuple[str, str]] = Counter()
        # Calls or conversations of which this was wrong.
        self.wrong: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        # What was wrong with each rollout that was not right.
        self.named: dict[str, list[str]] = {}

    def add(self, story: Story, *, name: str) -> list[str]:
        """Judge a rollout; return what is wrong."""
        graph = read(story.rollout, story.calls)
        self.stories += 1
        self.calls += len(story.calls)
        wrong = [*self._roles(story, graph), *self._links(story, graph)]
        self.right += not wrong
        if wrong:
            self.named[name] = wrong
        return wrong

    def _say(self, what: str, right: bool, detail: str) -> Iterator[str]:
        self.asked[what] += 1
        if not right:
            self.wrong[what] += 1
            yield f"{what}: {detail}"

    def _roles(self, story: Story, graph: Graph) -> Iterator[str]:
        said = {
            n: (found.role + (f" {found.kind}" if found.kind else ""), found)
            for found in graph.conversations
            for n in found.calls
        }
        for name, calls in story.conversations().items():
            true = story.truth[calls[0]]
            role = true.role + (f" {true.kind}" if true.kind else "")
            for told in {said[n][0] for n in calls if n in said} or {"in none"}:
                self.roles[role, told] += 1
                yield from self._say("role", told == role, f"{name} is {role}, said to be {told}")
            first = said.get(calls[0])
            if first is None:
                continue
            yield from self._say("calls", list(first[1].calls) == calls, f"{name} has {calls}, said {first[1].calls}")
            yield from self._say(
                "parent call",
                first[1].parent_call == true.started_by,
                f"{name} was started by {true.started_by}, said {first[1].parent_call}",
            )

    def _links(self, story: Story, graph: Graph) -> Iterator[str]:
        forest = graph.forest
        for n, true in sorted(story.truth.items()):
            link = forest.links[n]
            self.links[true.link, link.kind] += 1
            yield from self._say("link", link.kind == true.link, f"call {n} is {true.link}, said {link.kind}")
            yield from self._say(
                "parent", link.parent == true.parent, f"of call {n} is {true.parent}, said {link.parent}"
            )
            # Turns kept behind a summary may be named besides it.
            carried = set(true.carries) <= set(link.carries) and bool(link.carries) == (link.kind == "compaction")
            yield from self._say("carried", carried, f"call {n} carries {true.carries}, said {link.carries}")
        tried = {fork.children for fork in forest.forks if fork.kind == "retry"}
        true_tries = story.tries()
        for children in sorted(tried | true_tries):
            yield from self._say("retry", children in tried & true_tries, f"{children}, true {sorted(true_tries)}")

    def counts(self) -> dict[str, Any]:
        """Return everything as JSON's values."""
        return {
            "stories": self.stories,
            "right": self.right,
            "calls": self.calls,
            "roles": [{"true": true, "said": said, "n": n} for (true, said), n in sorted(self.roles.items())],
            "links": [{"true": true, "said": said, "n": n} for (true, said), n in sorted(self.links.items())],
            "wrong": {what: [self.wrong[what], asked] for what, asked in sorted(self.asked.items())},
            "named": self.named,
        }

    def table(self) -> str:
        """Return the confusion tables, what was wrong, and the first wrong rollouts."""
        share = self.right / self.stories if self.stories else 0.0
        lines = [f"{self.right:,} of {self.stories:,} rollouts right ({share:.2%}), {self.calls:,} calls", ""]
        lines += [*_confusion("role", self.roles), "", *_confusion("link", self.links), ""]
        lines += [f"{what}: {self.wrong[what]:,} of {asked:,} wrong" for what, asked in sorted(self.asked.items())]
        for name, wrong in list(self.named.items())[:WRONG_SHOWN]:
            lines += ["", f"{name}:", *(f"  {line}" for line in wrong)]
        return "\n".join(lines) + "\n"


def _confusion(what: str, counts: Counter[tuple[str, str]]) -> list[str]:
    said = sorted({told for _, told in counts})
    true = sorted({each for each, _ in counts})
    wide = max([len(f"true {what}"), *map(len, true)])
    columns = [max(len(each), 7) for each in said]
    head = f"true {what}".ljust(wide) + "".join(f"  {each:>{width}}" for each, width in zip(said, columns, strict=True))
    rows = [
        each.ljust(wide)
        + "".join(f"  {counts[each, told] or '.':>{width}}" for told, width in zip(said, columns, strict=True))
        for each in true
    ]
    return [head, *rows]
