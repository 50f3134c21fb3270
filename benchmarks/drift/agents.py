"""What real agents sent, call by call, in their recorded rollouts (tests/corpus), played to a template.

The requests are the agents' own, messages, spelling and order; what the model said is what the scripted engine said
then. Long texts are shortened in the records, and the tools' schemas are not in them, so a prompt has the agent's
structure and not its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.drift.standin import Had, Recorder, StandIn
from benchmarks.drift.templates import ROOT
from capture.trial.scenarios import Ask, Script

FOLDER = ROOT / "tests" / "corpus"

Json = dict[str, Any]


class _Label(msgspec.Struct):
    role: str
    calls: list[int]


class _Labels(msgspec.Struct):
    conversations: list[_Label]


class _Call(msgspec.Struct):
    n: int
    messages: list[int]
    status: str = "complete"
    reply: int | None = None
    tools: str | None = None
    tool_names: list[str] = []


class Record(msgspec.Struct):
    """A recorded rollout, as far as it is played."""

    about: str
    messages: list[Json]
    calls: list[_Call]
    labels: _Labels

    @property
    def agent(self) -> str:
        """The agent and its version."""
        return self.about.partition(" (")[0]

    @property
    def scenario(self) -> str:
        """What it did."""
        return self.about.partition(" on the scripted engine: ")[2]


def records(folder: Path = FOLDER) -> Iterator[Record]:
    """Yield the recorded rollouts, by name."""
    for path in sorted(folder.glob("*.json")):
        yield msgspec.json.decode(path.read_bytes(), type=Record)


def script(record: Record) -> Script:
    """Send what the agent sent."""
    for call in record.calls:
        if call.status != "complete" or call.reply is None:
            continue
        yield Ask(
            messages=[record.messages[place] for place in call.messages],
            says=_said(record.messages[call.reply]),
            tools=_tools(call) or None,
        )


def _said(message: Mapping[str, Any]) -> Json:
    """Return a reply's message without the fields that engines leave empty."""
    kept: Json = {name: value for name, value in message.items() if value is not None}
    return {"role": "assistant", "content": "", **kept}


def _tools(call: _Call) -> list[Json]:
    # Schemas aren't recorded; the names are enough for a template to have a list of tools.
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in call.tool_names
    ]


async def play(record: Record, engine: StandIn, *, pinned: bool) -> Had:
    """Play a record to a template. Raises `benchmarks.drift.standin.RefusedError`."""
    return await Recorder(engine, pinned=pinned).play(script(record))
