"""A tape of calls for tests that tell a rollout call by call, with the engine and the messages of the generator."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import numpy as np

from graph.graph import Graph, read
from graph.records import Call, Notice, Rollout
from tests.graph.generator import END, Chat, body, render
from tests.graph.told import canonical


def system(text: str) -> Chat:
    return {"role": "system", "content": text}


def user(text: str) -> Chat:
    return {"role": "user", "content": text}


def assistant(text: str = "", *calls: tuple[str, dict[str, Any]], ids: str = "call") -> Chat:
    """An assistant message; its tool calls are numbered by name and place, so that equal ones have equal ids."""
    message: Chat = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"{ids}_{name}_{place}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for place, (name, arguments) in enumerate(calls)
        ]
    return message


def result(text: str, to: Chat, place: int = 0) -> Chat:
    return {"role": "tool", "tool_call_id": to["tool_calls"][place]["id"], "content": text}


class Tape:
    """Calls in the order in which they are said; each arrives after the one before it has ended, unless told."""

    def __init__(self, **rollout: Any) -> None:
        self.rollout = Rollout(**{"id": "r", "state": "closed", "logprobs_mode": "processed"} | rollout)
        self.calls: list[Call] = []
        self.notices: list[Notice] = []
        self.clock = 0

    def say(
        self,
        messages: list[Chat],
        reply: Chat | None,
        *,
        tools: tuple[str, ...] = (),
        sampled: list[int] | None = None,
        **fields: Any,
    ) -> int:
        """Record a call; returns its number. `fields` overrule the record's; `sampled` the ids of the reply."""
        n = len(self.calls)
        self.clock += 2
        prompt = render(messages, tools, "never")
        ids = sampled if sampled is not None else [*body(reply, thinking=True), END] if reply else []
        call = Call(
            n=n,
            id=f"chatcmpl-{n}",
            status="complete",
            delivered=True,
            arrived=self.clock - 1,
            ended=self.clock,
            finish_reason="tool_calls" if reply and reply.get("tool_calls") else "stop",
            messages=tuple(canonical(message) for message in messages),
            tools=hashlib.sha256(" ".join(tools).encode()).hexdigest() if tools else None,
            tool_names=tools,
            reply=canonical(reply) if reply else None,
            body=hashlib.sha256(json.dumps([messages, tools], sort_keys=True).encode()).hexdigest(),
            prompt_ids=np.array(prompt, dtype=np.int32),
            sampled_ids=np.array(ids, dtype=np.int32),
            logprobs=np.full(len(ids), -0.5, dtype=np.float32),
            usage_prompt=len(prompt),
            usage_sampled=len(ids),
            sampling_sent={"temperature": 1.0},
        )
        self.calls.append(msgspec.structs.replace(call, **fields) if fields else call)
        return n

    def graph(self) -> Graph:
        return read(self.rollout, self.calls, self.notices)


def codes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The findings' codes, with the calls that each names."""
    return {finding.code: finding.calls for finding in graph.findings}


def data(graph: Graph, code: str) -> dict[str, Any]:
    """The data of the one finding of a code."""
    (finding,) = [finding for finding in graph.findings if finding.code == code]
    return finding.data
