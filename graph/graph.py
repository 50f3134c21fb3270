"""The whole of a rollout: forest, conversations with their roles, findings."""

from __future__ import annotations

from collections.abc import Iterable

from graph.finders import FINDERS
from graph.finders.statements import in_order, of_notices
from graph.forest import Forest, grow
from graph.records import Call, Finding, Notice, Rollout
from graph.roles import Judged, judge


class Graph(Judged):
    """A judged forest with its findings. Made by `read`; nothing changes it afterwards."""

    def __init__(self, judged: Judged, findings: tuple[Finding, ...]) -> None:
        super().__init__(
            judged.forest,
            judged.conversations,
            tie=judged.tie,
            flow_roles=judged.flow_roles,
            flow_kinds=judged.flow_kinds,
        )
        self.findings = findings

    @property
    def rollout(self) -> Rollout:
        """The rollout's record."""
        return self.forest.rollout

    def __repr__(self) -> str:
        lines = [f"<Graph of {self.rollout.id}: {len(self.forest.calls)} calls>"]
        for found in self.conversations:
            kind = f" ({found.kind})" if found.kind else ""
            lines.append(f"  {found.n}: {found.role}{kind}, calls {', '.join(map(str, found.calls))}")
        lines += [f"  {finding.level} {finding.code}: {finding.message}" for finding in self.findings]
        return "\n".join(lines)


def read(rollout: Rollout, calls: Iterable[Call], notices: Iterable[Notice] = ()) -> Graph:
    """Read a rollout's record, its calls and notices, in whatever order they come, into its graph."""
    return of_forest(grow(rollout, calls, notices))


def of_forest(forest: Forest) -> Graph:
    """Judge a forest that is already grown, and say what there is to say about it."""
    judged = judge(forest)
    found = [finding for find in FINDERS for finding in find(judged)]
    found += of_notices(forest.notices, tier=forest.rollout.tier)
    return Graph(judged, in_order(found))
