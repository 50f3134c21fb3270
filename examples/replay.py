"""Begin a rollout again from the middle of an earlier one, with another instruction.

    python3 examples/replay.py
    python3 examples/replay.py --url URL --key KEY [--rollout ID] [--at K] [--instruction TEXT]

Without --rollout a first one is made: an agent that lists a folder and answers. The new rollout begins with the seed:
what the first agent had sent up to that point, its open tool calls cut away. Its own first call is a root, whose prompt
is context; what is sampled from there on is trained, so several tries from one place share their beginning.
"""

from __future__ import annotations

import urllib.parse
from typing import Any

from appliance import Appliance, appliance, arguments, chat
from treering_client.rollout import Rollout

TASK = "Which files are in this folder?"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "list_files",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
MOST_TURNS = 8


def work(rollout: Rollout, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """Go on from some messages until a reply has no tool call; return its words."""
    for _ in range(MOST_TURNS):
        reply = chat(rollout, messages, tools)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return str(reply["content"]).strip()
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "README.md docs src tests"}
            for call in reply["tool_calls"]
        ]
    return ""


def first(found: Appliance) -> str:
    """Make a rollout to go on from; return its id."""
    with found.client.rollout(TASK, sampling={"temperature": 1.0}) as rollout:
        print(f"the first, {rollout.id}, said: {work(rollout, [{'role': 'user', 'content': TASK}], TOOLS)}")
        rollout.reward(0.0)
    return rollout.id


def main() -> None:
    """Resume a rollout at a point."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rollout", help="The rollout to go on from. Default: one is made.")
    parser.add_argument("--at", help="Its resume point, a number, or whole. Default: the last behind a tool result.")
    parser.add_argument("--instruction", default="Name the folders alone.", help="A user message behind the seed.")
    asked = parser.parse_args()
    with appliance(asked.url, asked.key) as found:
        path = f"/rollouts/{urllib.parse.quote(asked.rollout or first(found), safe='')}/replay"
        points = found.call("GET", path)["points"]
        for point in points:
            print(f"point {point['k']}: {', '.join(point['kinds'])}, awaits {point['awaits']}")
        at = asked.at or [point["k"] for point in points if "tool_result" in point["kinds"]][-1]
        instruction = urllib.parse.urlencode({"instruction": asked.instruction})
        seed = found.call("GET", f"{path}/{at}?{instruction}")
        # The labels say where it came from: a replay is no source for another, unless it is asked for by name.
        with found.client.rollout(asked.instruction, labels=seed["labels"], sampling={"temperature": 1.0}) as again:
            print(f"the second, {again.id}, said: {work(again, seed['messages'], seed['tools'] or [])}")
            again.reward(1.0)
            for row in again.sequences()["sequences"]:
                told = f"{row['n_trained_tokens']} of {len(row['input_ids'])} tokens are trained, the seed is context"
                print(f"row {row['row']}, calls {row['calls']}: {told}")


if __name__ == "__main__":
    main()
