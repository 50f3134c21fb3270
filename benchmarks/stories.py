"""Drawn rollouts, judged: how many are right, and what is taken for what.

`bin/bench graph --stories 10000`. The rollouts are those of `tests.graph.generator`, which knows what is true of them
and imports nothing of the graph; drawing needs hypothesis, so this runs where the tests do. A rollout is right if every
role, kind, link, parent and retry is (`tests.graph.stories`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks import graph


def run(argv: list[str]) -> int:
    """Judge N rollouts and print the confusion table; 1 when fewer than the goal are right, 2 without hypothesis."""
    parser = argparse.ArgumentParser(prog="bin/bench graph", description="judge drawn rollouts")
    parser.add_argument("--stories", type=int, required=True, metavar="N", help="how many to draw")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first of their seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    parser.add_argument("--docs", action="store_true", help="write the counts into docs/graph.json and performance.md")
    asked = parser.parse_args(argv)
    try:
        from tests.graph.stories import GOAL, Tally, drawn
    except ImportError as error:
        sys.stderr.write(f"bench: {error}; bin/test sets up what the tests need\n")
        return 2
    tally = Tally()
    started = time.monotonic()
    for n, (seed, story) in enumerate(drawn(asked.stories, first=asked.seed), start=1):
        tally.add(story, name=f"seed {seed}")
        if n % 500 == 0:
            sys.stderr.write(f"{n} rollouts, {tally.right} right, {time.monotonic() - started:.0f} s\n")
    sys.stdout.write(tally.table())
    if asked.json:
        asked.json.write_text(json.dumps(tally.counts(), indent=1) + "\n")
    if asked.docs:
        # Rollouts are drawn again by their seed only as long as the generator is what it is now.
        graph.publish({"stories": {name: value for name, value in tally.counts().items() if name != "named"}})
    return int(tally.right < GOAL * tally.stories)
