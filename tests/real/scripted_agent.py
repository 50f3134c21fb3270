"""A scripted agent with tools, for a model that says words and decides nothing.

It asks for a title beside its loop, as agents do. In the loop it takes each reply as text and answers with what it
would have seen; every fourth turn a grammar makes the model call the tool, whose result goes back as a tool message. So
a rollout has replies that are the model's own, replies that are the grammar's, and what stands between them; it is the
work of Treering to say which tokens may be trained.

Replies are given seeds, so that a run can be repeated on the same engine.
"""

from __future__ import annotations

import json
from typing import Any

from tests.house import House

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Say what is at a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CALL = r'<tool_call>\n\{"name": "look", "arguments": \{"place": "(harbour|tower|mill)"\}\}\n</tool_call>'
SYSTEM = "You explore an island. Say where to go, or call a tool."
TASKS = ("Find the ship.", "Find the well.", "Find the old road to the mill.", "Find whoever rings the bell.")
# Turns of the loop. Every fourth is a tool call that a grammar forces.
TURNS = 16
MOST_TOKENS = 32


async def play(home: House, rollout: dict[str, Any], *, task: str, seed: int, turns: int = TURNS) -> None:
    """Play one rollout to its end."""
    ask = {"model": "tiny", "temperature": 1.0, "max_tokens": MOST_TOKENS}
    title = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": task}]
    await reply_to(home, rollout, {**ask, "messages": title, "seed": seed})
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    for turn in range(turns):
        body = {**ask, "messages": messages, "tools": [TOOL], "seed": seed + 1 + turn, "stream": turn % 2 == 1}
        if turn % 4 == 3:
            body |= {"structured_outputs": {"regex": CALL}, "max_tokens": 200}
        message = await reply_to(home, rollout, body)
        messages = [*messages, message]
        for call in message.get("tool_calls", ()):
            place = json.loads(call["function"]["arguments"])["place"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"At the {place}: nobody."})
        if "tool_calls" not in message:
            messages.append({"role": "user", "content": f"You went there and saw {turn} boats. Go on."})


async def reply_to(home: House, rollout: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Send a request; return the assistant message as an agent keeps it, without keys that are null."""
    async with home.chat(rollout, **body) as answer:
        assert answer.status == 200, await answer.text()
        if not body.get("stream"):
            (choice,) = (await answer.json())["choices"]
            return {name: value for name, value in choice["message"].items() if value}
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        calls: dict[int, dict[str, Any]] = {}
        for line in (await answer.read()).splitlines():
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                message["content"] += choice["delta"].get("content") or ""
                for part in choice["delta"].get("tool_calls") or ():
                    call = calls.setdefault(part["index"], {"type": "function", "function": {"arguments": ""}})
                    call["id"] = part.get("id") or call.get("id")
                    call["function"]["name"] = part["function"].get("name") or call["function"].get("name")
                    call["function"]["arguments"] += part["function"].get("arguments") or ""
        if calls:
            message["tool_calls"] = list(calls.values())
        return {name: value for name, value in message.items() if value}
