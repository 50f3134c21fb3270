"""Twenty-five turns to pin: what stood before a reply, the reply as an agent sends it back, and what follows it.

`END` in a text stands for the template's own end of a turn: text that looks like the token.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

Json = dict[str, Any]

END = "\0END\0"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn."""

    name: str
    history: list[Json]
    reply: Json
    new: list[Json]
    # Template arguments of the request.
    arguments: dict[str, Any] = {}
    # The reply was cut by length.
    cut: bool = False

    @property
    def tools(self) -> list[Json] | None:
        """The request's tools: those of a turn in which one is called, else none."""
        messages = [*self.history, self.reply]
        return TOOLS if any(message.get("tool_calls") for message in messages) else None


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} a thing.",
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
        },
    }
    for name in ("look", "read")
]


def user(text: str) -> Json:
    """Return a user's message."""
    return {"role": "user", "content": text}


def system(text: str) -> Json:
    """Return a system message."""
    return {"role": "system", "content": text}


def said(text: str, reasoning: str | None = None) -> Json:
    """Return a reply of text."""
    return {"role": "assistant", "content": text, **thought(reasoning)}


def called(*names: str, text: str = "", reasoning: str | None = None, spelt: tuple[str, str] = (", ", ": ")) -> Json:
    """Return a reply that calls tools; `spelt` are the separators of its arguments' JSON."""
    calls = [
        {
            "id": f"call{n}9aB",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"x": f"v{n}", "y": n}, separators=spelt)},
        }
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls, **thought(reasoning)}


def result(text: str, n: int = 0) -> Json:
    """Return the result of the n-th call of the reply before it."""
    return {"role": "tool", "tool_call_id": f"call{n}9aB", "content": text}


def thought(reasoning: str | None) -> Json:
    """Return the field that templates read thinking from."""
    return {} if reasoning is None else {"reasoning_content": reasoning}


_HI, _GO = [user("Hi.")], [user("Go on.")]
_OFF = {"enable_thinking": False}

TURNS: dict[str, Turn] = {
    one.name: one
    for one in (
        Turn(name="plain", history=_HI, reply=said("Hello there."), new=_GO),
        Turn(name="system", history=[system("Be brief."), *_HI], reply=said("Hello."), new=_GO),
        Turn(
            name="third turn", history=[*_HI, said("Hello."), *_GO, said("More."), user("And?")], reply=said("Done."),
            new=[user("Sure?")],
        ),
        Turn(name="thinking dropped", history=[*_HI, said("a"), *_GO], reply=said("Hello."), new=_GO),
        Turn(name="thinking echoed", history=_HI, reply=said("Hello.", "They greet me."), new=_GO),
        Turn(name="thinking off", history=_HI, reply=said("Hello."), new=_GO, arguments=_OFF),
        Turn(name="tool", history=_HI, reply=called("look"), new=[result("found")]),
        Turn(name="tool and text", history=_HI, reply=called("look", text="I'll look."), new=[result("found")]),
        Turn(
            name="second round of tools", history=[*_HI, called("look"), result("found")], reply=called("read"),
            new=[result("words")],
        ),
        Turn(
            name="parallel tools", history=_HI, reply=called("look", "read"), new=[result("found"), result("words", 1)]
        ),
        Turn(name="tool, then user", history=_HI, reply=called("look"), new=[result("found"), user("And?")]),
        Turn(name="thinking and a tool", history=_HI, reply=called("look", reasoning="I must."), new=[result("found")]),
        Turn(
            name="compact arguments", history=_HI, reply=called("look", spelt=(",", ":")), new=[result("found")]
        ),
        Turn(name="two users", history=_HI, reply=said("Hello."), new=[user("One."), user("Two.")]),
        Turn(name="canned assistant behind", history=_HI, reply=said("Hello."), new=[user("a"), said("Got it."), *_GO]),
        Turn(name="system behind", history=_HI, reply=said("Hello."), new=[system("Be brief."), *_GO]),
        Turn(name="empty reply", history=_HI, reply=said(""), new=_GO),
        Turn(name="unicode", history=[user("Grüß Gott 🌍")], reply=said("Zażółć 👩‍👩‍👧 語"), new=[user("ещё")]),
        Turn(name="end token in the user's text", history=_HI, reply=said("Hello."), new=[user(f"why {END} here?")]),
        Turn(name="end token in the reply", history=_HI, reply=said(f"it is {END} you see"), new=_GO),
        Turn(name="end token in the thinking", history=_HI, reply=said("Hello.", f"so {END} it is"), new=_GO),
        Turn(name="end token in the result", history=_HI, reply=called("look"), new=[result(f"{END}\nfound {END}")]),
        Turn(name="newlines", history=_HI, reply=said("\n\nHello.\n\n"), new=[user("\n\nGo on.\n")]),
        Turn(name="cut by length", history=_HI, reply=said("It goes on and"), new=_GO, cut=True),
        Turn(name="own words in the chat", history=[user("Zebra")], reply=said("quilt 77"), new=[user("Zebra")]),
    )
}  # fmt: skip


def with_end(turn: Turn, end: str) -> Turn:
    """Return a turn with the end token's text where `END` stands."""
    text = msgspec.json.encode(turn).decode().replace(json.dumps(END)[1:-1], json.dumps(end)[1:-1])
    return msgspec.json.decode(text, type=Turn)
