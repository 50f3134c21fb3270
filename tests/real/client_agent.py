"""An agent of a few turns for the client's adapters: the standard library alone, run in a trainer's environment."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def converse(base_url: str, secret: str, turns: int) -> list[dict[str, Any]]:
    """Have a conversation of so many turns, each sent with its history; return its messages."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Say something."}]
    for turn in range(turns):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{base_url}/chat/completions", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            reply = json.load(answer)["choices"][0]["message"]
        messages += [
            {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": f"And then? {turn}"},
        ]  # fmt: skip
    return messages
