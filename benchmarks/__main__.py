"""`bin/bench NAME …`: find the measurement and run it."""

from __future__ import annotations

import importlib
import resource
import sys
from collections.abc import Callable, Sequence

MEASUREMENTS = {
    "overhead": "what Treering adds to a call, beside no proxy and a bare one",
    "drift": "what of a conversation is rendered anew to other ids, plain, pinned and re-rendered",
    "graph": "bytes per distinct token, time per append",
    "performance": "all that docs/performance.md tells of a call: overhead, replay, memory, and the goals",
    "replay": "agents' traffic at its own times, 32 to 384 rollouts at once, and that nothing was dropped",
    "memory": "what 1,000 open rollouts hold: all in memory, most of them idle, closed",
    "store": "commits a second, calls lost to kills, exported tokens a second",
    "page": "how long until the page shows what was asked for, in a real browser",
}


def main(argv: Sequence[str]) -> int:
    """Run one measurement with the rest of the words; return its exit code, 2 for an unknown name."""
    name = argv[0] if argv else ""
    if name not in MEASUREMENTS:
        wanted = name in ("-h", "--help")
        lines = "".join(f"  {each:<12} {what}\n" for each, what in MEASUREMENTS.items())
        (sys.stdout if wanted else sys.stderr).write(f"usage: bin/bench NAME [--quick] [--json FILE]\n\n{lines}")
        return 0 if wanted else 2
    # 512 agents, and as many connections to an engine, in one process; what it starts has the same.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run: Callable[[list[str]], int] = importlib.import_module(f"benchmarks.{name}").run
    return run(list(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
