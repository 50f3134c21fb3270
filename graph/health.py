"""How a rollout is, in a few numbers: what a list of many shows of each.

A row of a list is looked at, not read: which findings, how many of main's steps drifted, whether something runs. All of
it is counted from the graph, so that a list and a rollout never say two things.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph.graph import Graph
from graph.records import Finding, Level

LEVELS: tuple[Level, ...] = ("info", "warn", "error")
"""From the least to the worst; a level's place is its number where levels are compared or stored."""


def health_json(graph: Graph) -> dict[str, Any]:
    """Return a rollout's health: findings by code, drift in main, counts of errors, warnings and running calls.

    `findings` gives each code the number of calls that it names, 1 where it names none. `drift` counts main's
    transitions (calls with a parent), and those that drifted: a compaction is none.
    """
    links = [link for n in graph.calls_of("main") if (link := graph.forest.links[n]).kind != "root"]
    levels = [finding.level for finding in graph.findings]
    return {
        "findings": {code: n for code, (_, n) in found(graph.findings).items()},
        "drift": {"transitions": len(links), "drifted": sum(link.drift is not None for link in links)},
        "errors": levels.count("error"),
        "warnings": levels.count("warn"),
        "running": sum(call.status == "running" for call in graph.forest.calls.values()),
    }


def found(findings: tuple[Finding, ...]) -> dict[str, tuple[int, int]]:
    """Return by code, in order: the worst level's number, and how many calls are named, at least 1."""
    out: dict[str, tuple[int, int]] = {}
    for finding in findings:
        level, n = out.get(finding.code, (0, 0))
        out[finding.code] = max(level, LEVELS.index(finding.level)), n + max(1, len(finding.calls))
    return out


def is_troubled(row: Mapping[str, Any]) -> bool:
    """Say whether somebody should look at a rollout; `row` is its summary with its health.

    A finding of level error or warn, drift in main, no call at all when it closed, or a record with a hole in it.
    """
    health = row["health"]
    return bool(
        health["errors"]
        or health["warnings"]
        or health["drift"]["drifted"]
        or (row["state"] == "closed" and row["n_calls"] == 0)
        or row["incomplete"]
    )
