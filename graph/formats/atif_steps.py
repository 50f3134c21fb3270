"""The steps of one ATIF trajectory in the making: messages, replies and tool results in, steps out.

A tool's result belongs to the step whose tool call it answers: the latest of its id that has no answer yet; without an
id, the first of the latest step's that has none. A result that answers nothing known is a system's observation.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from graph.flow import bare, stands
from graph.graph import Graph
from graph.messages import strings
from graph.records import Call, Conversation, Message, ToolCall


class Use(msgspec.Struct, kw_only=True, eq=False):
    """A tool call of a step."""

    # The call whose reply made it; None for one that no call sampled.
    call: int | None
    step: dict[str, Any]
    # As the agent has it, and as the trajectory does.
    given: str | None
    name: str
    asked: ToolCall
    answered: bool = False
    # Conversations that it started.
    started: int = 0

    def results(self) -> list[dict[str, Any]]:
        """Return what was observed of it so far."""
        observed = self.step.get("observation", {"results": []})["results"]
        return [result for result in observed if result.get("source_call_id") == self.name]


class Steps:
    """Steps, numbered from 1."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._uses: list[Use] = []

    def __repr__(self) -> str:
        return f"<Steps: {len(self.all)}, {len(self._uses)} tool calls>"

    def said(self, message: Message, call: Call) -> None:
        """Take in a message of a request."""
        if message.role == "tool":
            self._result(message, call)
        elif message.role == "assistant":
            # No call of this trajectory sampled it: an agent's greeting, or a turn from elsewhere.
            step = self._step(call, "agent", message.text, llm_call_count=0)
            self._asked(step, message, None)
        else:
            self._step(call, "system" if message.role == "system" else "user", message.text, **_media(message))

    def replied(self, call: Call, known: dict[str, Any]) -> None:
        """Take in a call's reply; `known` are fields of its step."""
        reply = call.reply
        step = self._step(call, "agent", "" if reply is None else reply.text, **known)
        if reply is not None:
            if reply.reasoning:
                step["reasoning_content"] = reply.reasoning
            self._asked(step, reply, call.n)

    def aside(self, found: Conversation, graph: Graph, name: str) -> None:
        """Name the trajectory of a conversation that no tool call started."""
        text = f"A conversation of its own: {found.kind or found.role}."
        step = self._step(graph.forest.calls[found.root], "system", text)
        step["observation"] = {"results": [{"subagent_trajectory_ref": [{"trajectory_id": name}]}]}

    def started(self, n: int, found: Conversation, graph: Graph, name: str) -> None:
        """Name the trajectory of a conversation that a tool call of call `n` started, at that tool call's result."""
        uses = [use for use in self._uses if use.call == n]
        calls = graph.forest.calls
        said = [message.text for message in calls[found.root].messages if message.role == "user"]
        prompts = {said[-1].strip(), bare(said[-1])} if said else set()
        last = max(found.calls, key=lambda m: calls[m].ended or -1)
        reply = calls[last].reply
        final = "" if reply is None else reply.text

        def fits(use: Use) -> tuple[bool, bool, bool, bool]:
            values = [value.strip() for value in strings(use.asked.canonical)]
            exact = any(prompt in values for prompt in prompts if prompt)
            quoted = any(prompt in value for prompt in prompts if prompt for value in values)
            back = any(stands(final, str(result.get("content", ""))) for result in use.results()) if final else False
            return exact, back, quoted, not use.started

        # The first of equals: subagents are started in the order in which they are asked for.
        use = max(uses, key=fits)
        use.started += 1
        results = use.results()
        if not results:
            results = [{"source_call_id": use.name}]
            use.step.setdefault("observation", {"results": []})["results"] += results
        results[0].setdefault("subagent_trajectory_ref", []).append({"trajectory_id": name})

    def _step(self, call: Call, source: str, message: str, **rest: Any) -> dict[str, Any]:
        step: dict[str, Any] = {"step_id": len(self.all) + 1}
        if call.started_at:
            step["timestamp"] = call.started_at
        step |= {"source": source, "message": message, **rest}
        self.all.append(step)
        return step

    def _asked(self, step: dict[str, Any], message: Message, call: int | None) -> None:
        """Put the tool calls of a message on its step."""
        taken: set[str] = set()
        spelt = []
        for place, asked in enumerate(message.tool_calls):
            name = asked.id or f"call-{step['step_id']}-{place}"
            if name in taken:
                name = f"{name}-{place}"
            taken.add(name)
            spelt.append({"tool_call_id": name, "function_name": asked.name, **_arguments(asked)})
            self._uses.append(Use(call=call, step=step, given=asked.id, name=name, asked=asked))
        if spelt:
            step["tool_calls"] = spelt

    def _result(self, message: Message, call: Call) -> None:
        result: dict[str, Any] = {"content": message.text, **_media(message)}
        use = self._answered(message.tool_call_id)
        if use is None:
            self._step(call, "system", "")["observation"] = {"results": [result]}
            return
        use.answered = True
        results = use.step.setdefault("observation", {"results": []})["results"]
        results.append({"source_call_id": use.name, **result})

    def _answered(self, name: str | None) -> Use | None:
        if name is None:
            last = self._uses[-1].step if self._uses else None
            return next((use for use in self._uses if use.step is last and not use.answered), None)
        same = [use for use in self._uses if use.given == name]
        waiting = [use for use in same if not use.answered]
        if not waiting:
            return same[-1] if same else None
        # Of two in one reply, the first.
        return next(use for use in waiting if use.step is waiting[-1].step)


def _arguments(asked: ToolCall) -> dict[str, Any]:
    """Return arguments as the object that ATIF wants; what is none is kept as text."""
    try:
        read = json.loads(asked.arguments) if asked.arguments.strip() else {}
    except (ValueError, RecursionError):
        read = None
    if isinstance(read, dict):
        return {"arguments": read}
    return {"arguments": {}, "extra": {"treering": {"arguments": asked.arguments}}}


def _media(message: Message) -> dict[str, Any]:
    """Return the digests of what stands beside a message's text."""
    return {"extra": {"treering": {"media": list(message.media)}}} if message.media else {}
