"""Sequences of calls from tests/cases, as records.

The ids in these files are of one small vocabulary: 1 and 2 begin and end a message, 3 is a newline, 4 and 5 open and
close thinking, 6 and 7 a tool call, 8 to 11 are the roles system, user, assistant and tool, 12 is another end token,
60 a place that a picture takes.

A file gives times: `t_start` of a request's arrival, `t_end` of its last sampled id. Records have readings of one
counter instead. Where one call ends at the very time another starts, the end comes first: its last id was there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from graph.messages import from_chat
from graph.records import Call, Message, Rollout, Status

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
    elif told.get("finish_reason", "stop") is None:
        # Its client left before the finish, whatever it then did with what it had.
        status = "aborted"
    # The file says by its status that the engine gave none; an empty list would be a claim.
    bare = told["status"] == "incomplete_tokens"
    return Call(
        n=n,
        id=told["id"],
        status=status,
        delivered=told.get("delivered", status == "complete"),
        arrived=arrived,
        ended=ended,
        finish_reason=told.get("finish_reason", "stop"),
        prompt_ids=None if bare else np.array(told["prompt_ids"], np.int32),
        sampled_ids=None if bare else np.array(told["completion_ids"], np.int32),
        logprobs=None if bare else np.array(told["logprobs"], np.float32),
    )


def with_messages(case: Case) -> tuple[Call, ...]:
    """Return the case's calls with the messages that their ids spell, as an agent would have sent them."""
    return tuple(
        msgspec.structs.replace(
            call,
            messages=tuple(_spelled([*call.prompt_ids.tolist()])[:-1]),
            reply=_spelled([1, 10, 3, *call.sampled_ids.tolist()])[-1],
        )
        for call in case.calls
        if call.prompt_ids is not None and call.sampled_ids is not None
    )


def _spelled(ids: list[int]) -> list[Message]:
    """Read ids as messages, the last of which is not over."""
    roles = {8: "system", 9: "user", 10: "assistant", 11: "tool"}
    found = []
    for part in _parts(ids, 1)[1:]:
        role, rest = roles[part[0]], [token for token in part[1:] if token not in (2, 3, 12)]
        thinking, calls, text, media = [], [], [], []
        kind = text
        for token in rest:
            kind = {4: thinking, 5: text, 6: calls, 7: text}.get(token, kind)
            if token == 60:
                # However many ids a picture takes, it is one.
                media[:] = [token]
            elif token > 12:
                kind.append(token)
        if 5 in rest and 4 not in rest:
            # The prompt has opened the thinking.
            thinking, text = text[: rest.index(5)], text[rest.index(5) :]
        found.append(_message(role, text, thinking, calls, bool(media)))
    return found


def _parts(ids: list[int], border: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == border:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _message(role: str, text: list[int], thinking: list[int], calls: list[int], picture: bool) -> Message:
    words: list[dict[str, Any]] = [{"type": "text", "text": " ".join(map(str, text))}]
    if picture:
        words.append({"type": "image_url", "image_url": {"url": "data:a picture"}})
    message: dict[str, Any] = {"role": role, "content": words, "reasoning": " ".join(map(str, thinking))}
    if calls:
        # The tool's name, and its arguments in the order of the ids.
        arguments = json.dumps({str(token): token for token in calls[1:]})
        message["tool_calls"] = [{"id": "c", "function": {"name": str(calls[0]), "arguments": arguments}}]
    return from_chat(message)
