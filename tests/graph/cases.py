"""Sequences of calls from tests/cases, as records.

The ids in these files are of one small vocabulary: 1 and 2 begin and end a message, 3 is a newline, 4 and 5 open and
close thinking, 6 and 7 a tool call, 8 to 11 are the roles system, user, assistant and tool, 12 is another end token.

A file gives times: `t_start` of a request's arrival, `t_end` of its last sampled id. Records have readings of one
counter instead. Where one call ends at the very time another starts, the end comes first: its last id was there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graph.records import Call, Rollout, Status

FOLDER = Path(__file__).parent.parent / "cases"


@dataclass(frozen=True)
class Case:
    """One file: its calls in order of arrival, their names by number, and what is right."""

    name: str
    calls: tuple[Call, ...]
    names: tuple[str, ...]
    expected: dict[str, Any]

    @property
    def rollout(self) -> Rollout:
        return Rollout(id=self.name, state="closed", logprobs_mode="processed")

    def n(self, name: str) -> int:
        return self.names.index(name)

    def named(self, numbers: Any) -> list[str]:
        """Names of calls in order of arrival."""
        return [self.names[n] for n in sorted(numbers)]


def load(number: int) -> Case:
    """Read the case with this number."""
    (path,) = FOLDER.glob(f"{number:02}-*.json")
    raw = json.loads(path.read_text())
    told = sorted(raw["calls"], key=lambda call: call["t_start"])
    events = [(call["t_end"], 0, n) for n, call in enumerate(told)] + [
        (call["t_start"], 1, n) for n, call in enumerate(told)
    ]
    readings = {(n, kind): reading for reading, (_, kind, n) in enumerate(sorted(events))}
    calls = tuple(_record(n, call, arrived=readings[n, 1], ended=readings[n, 0]) for n, call in enumerate(told))
    return Case(path.stem, calls, tuple(call["id"] for call in told), raw["expected"])


def _record(n: int, told: dict[str, Any], *, arrived: int, ended: int) -> Call:
    status: Status = "complete"
    if told["status"] == "error":
        status = "error"
    elif told["finish_reason"] is None:
        # Its client left before the finish, whatever it then did with what it had.
        status = "aborted"
    return Call(
        n=n,
        id=told["id"],
        status=status,
        delivered=told.get("delivered", status == "complete"),
        arrived=arrived,
        ended=ended,
        finish_reason=told["finish_reason"],
        prompt_ids=np.array(told["prompt_ids"], np.int32),
        sampled_ids=np.array(told["completion_ids"], np.int32),
        logprobs=np.array(told["logprobs"], np.float32),
    )
