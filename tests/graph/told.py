"""Drawn stories as records: what `tests.graph.generator` tells in plain forms, in the graph's own.

The generator itself imports nothing of the graph, so that the two can't share a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from graph.messages import from_chat
from graph.records import Call, Message, Rollout
from tests.graph import generator
from tests.graph.generator import Chat, Truth


@dataclass
class Story:
    """A rollout as recorded, and the truth of it by call."""

    rollout: Rollout
    calls: tuple[Call, ...]
    truth: dict[int, Truth]

    def conversations(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for n, true in sorted(self.truth.items()):
            found.setdefault(true.conversation, []).append(n)
        return found

    def tries(self) -> set[tuple[int, ...]]:
        """The calls that are tries of one request, of which one alone was had: each fork of kind retry."""
        groups: dict[object, list[Call]] = {}
        for call in self.calls:
            groups.setdefault((self.truth[call.n].parent, call.prompt_ids.tobytes()), []).append(call)
        return {
            tuple(call.n for call in group)
            for group in groups.values()
            if len(group) > 1 and not group[0].delivered and sum(bool(call.delivered) for call in group) == 1
        }

    def __repr__(self) -> str:
        lines = [f"Story of {len(self.calls)} calls"]
        for call in self.calls:
            true = self.truth[call.n]
            last = call.messages[-1]
            tools = [f"{tool.name}({tool.canonical})" for tool in call.reply.tool_calls] if call.reply else []
            lines.append(
                f"  {call.n} [{call.arrived}-{call.ended}] {call.status} {true.conversation} {true.link}<-{true.parent}"
                f" | {last.role}: {last.text!r} -> {call.reply.text if call.reply else None!r} {tools}"
            )
        return "\n".join(lines)


def canonical(chat: Chat) -> Message:
    return from_chat(chat)


def recorded(story: generator.Story) -> Story:
    """Return a drawn story as records."""
    rollout = Rollout(id="r", state="closed", model="m", logprobs_mode="processed", pins={"temperature": 1.0})
    return Story(rollout=rollout, calls=tuple(map(_call, story.calls)), truth=story.truth)


def stories(**options: Any) -> st.SearchStrategy[Story]:
    """Draw stories as `tests.graph.generator.stories` does, as records."""
    return generator.stories(**options).map(recorded)


def _call(told: dict[str, Any]) -> Call:
    return Call(
        **told
        | {
            "messages": tuple(map(canonical, told["messages"])),
            "reply": canonical(told["reply"]),
            "prompt_ids": np.array(told["prompt_ids"], dtype=np.int32),
            "sampled_ids": np.array(told["sampled_ids"], dtype=np.int32),
            "logprobs": np.array(told["logprobs"], dtype=np.float32),
        }
    )
