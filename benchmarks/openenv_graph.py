"""OpenEnv's capture graph on one workload: `python -m benchmarks.openenv_graph NAME`, in an environment that has it.

Its module is loaded from its file, since importing the package takes ten seconds and needs a web server. Ids come as
Python lists, each number an object, which is what its server gets from JSON; logprobs likewise. Bytes are the growth
of the process, since counting each allocation of some ten million would measure the counting.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.workloads import NAMED

MODULE = "openenv/core/harness/capture/graph.py"
PAGE = 4096


def load() -> ModuleType:
    """Load OpenEnv's graph. Raises ImportError where this environment doesn't have it."""
    for folder in map(Path, sys.path):
        if (path := folder / MODULE).is_file():
            spec = importlib.util.spec_from_file_location("openenv_graph", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            # Dataclasses look their module up there.
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"no {MODULE} on the path")


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def measure(name: str) -> dict[str, Any]:
    """Append a workload's calls to a graph; return the row."""
    module = load()
    graph = module.RolloutGraph()
    times = []
    distinct = 0
    before_end: Any = np.empty(0, np.int32)
    gc.collect()
    before = resident()
    for n, (prompt, sampled) in enumerate(NAMED[name].steps()):
        # A chain adds what is behind the call before.
        distinct += len(prompt) + len(sampled) - len(before_end)
        before_end = np.concatenate([prompt, sampled])
        node = module.TurnNode(
            node_id=f"n{n}",
            prompt_ids=parsed(prompt),
            sampled_ids=parsed(sampled),
            sampled_logprobs=[-0.5 - 1e-9 * each for each in range(len(sampled))],
        )
        started = time.perf_counter_ns()
        graph.add_turn(node)
        times.append((time.perf_counter_ns() - started) / 1000)
    del node
    gc.collect()
    return {
        "calls": len(times),
        "distinct_tokens": distinct,
        "bytes_per_distinct_token": round((resident() - before) / distinct, 2),
        "append_us_p50": round(float(np.median(times)), 1),
        "append_us_last": round(float(np.median(times[-9:])), 1),
    }


def parsed(ids: Any) -> list[int]:
    """Return ids as JSON gives them."""
    found: list[int] = json.loads(json.dumps(ids.tolist()))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1])))
