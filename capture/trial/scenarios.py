"""What an agent sends, turn by turn: one script for each way in which a conversation may drift.

A script is a generator: it yields an `Ask`, is sent the assistant's message that came back (an OpenAI chat message, as
the engine gave it), and yields the next. So the same script is played to a real engine and to a stand-in.

What a real model says can't be foreseen, so a script goes on from whatever it said: a tool is answered where one was
called. `says` is what a stand-in says in the model's place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request of an agent."""

    messages: list[Json]
    # What a stand-in says in the model's place.
    says: Json
    tools: list[Json] | None = None
    # `chat_template_kwargs`.
    arguments: dict[str, Any] = {}
    max_tokens: int = 256
    # A stand-in is to say it in other ids than the tokeniser would give for it.
    respelt: bool = False
    # A stand-in is to be cut by length.
    cut: bool = False


Script = Generator[Ask, Json, None]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One way of having a conversation."""

    name: str
    about: str
    script: Callable[[], Script]
    # The agent keeps its history as it was, so that pinning can end all drift.
    kept: bool = True


def user(text: str) -> Json:
    """Return a user's message."""
    return {"role": "user", "content": text}


def system(text: str) -> Json:
    """Return a system message."""
    return {"role": "system", "content": text}


def said(text: str, reasoning: str | None = None) -> Json:
    """Return a reply of text."""
    return {"role": "assistant", "content": text, **({} if reasoning is None else {"reasoning": reasoning})}


def called(*cities: str, turn: int = 0, reasoning: str | None = None, spelt: tuple[str, str] = (", ", ": ")) -> Json:
    """Return a reply that asks for the weather of cities; `spelt` are the separators of its arguments' JSON."""
    calls = [
        {
            "id": f"call{turn}{n}9aB",
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": json.dumps({"city": city, "unit": "C"}, separators=spelt),
            },
        }
        for n, city in enumerate(cities)
    ]
    return {**said("", reasoning), "tool_calls": calls}


TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tell the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]

TURNS = 4
_WORDS = ("Hello, what can I do?", "Certainly: it is a word.", "Then it is another one.", "That is all of it.")
_THOUGHTS = ("They greet me.", "A word is wanted.", "Another one, then.", "I am done.")


def echo(reply: Json, *, reasoning: bool = True, compact: bool = False) -> Json:
    """Return a reply as an agent sends it back: with or without reasoning, its arguments as they were or compact."""
    kept: Json = {"role": "assistant", "content": reply.get("content") or ""}
    thought = reply.get("reasoning") or reply.get("reasoning_content")
    if reasoning and thought:
        # The name under which most agents send it back.
        kept["reasoning_content"] = thought
    if calls := reply.get("tool_calls"):
        kept["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": _compact(call["function"]["arguments"]) if compact else call["function"]["arguments"],
                },
            }
            for call in calls
        ]
    return kept


def _compact(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        return arguments


def answers(reply: Json, otherwise: str) -> list[Json]:
    """Return what follows a reply: the results of its calls, or the user's next words."""
    calls = reply.get("tool_calls") or ()
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny, 21 °C"} for call in calls]
    return results or [user(otherwise)]


def chat(*, thinking: bool | None = None, reasoning: bool = True, **more: Any) -> Script:
    """Have a conversation of words; `reasoning`: it is sent back."""
    messages = [user("Hi there.")]
    arguments = {} if thinking is None else {"enable_thinking": thinking}
    for n in range(TURNS):
        says = said(_WORDS[n], _THOUGHTS[n] if thinking else None)
        reply = yield Ask(messages=messages, says=says, arguments=arguments, **more)
        messages = [*messages, echo(reply, reasoning=reasoning), user(f"And number {n}?")]


def tool_loop(*cities: str, compact: bool = False, thinking: bool | None = None) -> Script:
    """Call tools in each turn but the last; `compact`: the model spells JSON so, and the agent sends it back so."""
    messages = [user("How is the weather?")]
    arguments = {} if thinking is None else {"enable_thinking": thinking}
    for n in range(TURNS):
        thought = _THOUGHTS[n] if thinking else None
        spelt = (",", ":") if compact else (", ", ": ")
        calls = called(*cities, turn=n, reasoning=thought, spelt=spelt)
        says = calls if n < TURNS - 1 else said("It is sunny.", thought)
        reply = yield Ask(messages=messages, says=says, tools=TOOLS, arguments=arguments)
        messages = [*messages, echo(reply, compact=compact), *answers(reply, f"And place {n}?")]


def empty_turn() -> Script:
    """Say nothing at all in one turn."""
    messages = [user("Hi there.")]
    for n in range(TURNS):
        reply = yield Ask(messages=messages, says=said("" if n == 1 else _WORDS[n]))
        messages = [*messages, echo(reply), user(f"And number {n}?")]


def cut_and_continued() -> Script:
    """Be cut by length, and go on behind it."""
    messages = [user("Tell me a long story.")]
    for n in range(TURNS):
        cut = n < TURNS - 1
        reply = yield Ask(messages=messages, says=said(_WORDS[n] * 3), cut=cut, max_tokens=12 if cut else 256)
        messages = [*messages, echo(reply), user("Go on.")]


def volatile_system() -> Script:
    """Change a line of the system text in every call."""
    messages = [user("Hi there.")]
    for n in range(TURNS):
        line = system(f"You are brief.\nTokens left: {9000 - 137 * n}")
        reply = yield Ask(messages=[line, *messages], says=said(_WORDS[n]))
        messages = [*messages, echo(reply), user(f"And number {n}?")]


def pruned() -> Script:
    """Clear old results of tools."""
    messages = [user("How is the weather?")]
    for n in range(TURNS + 1):
        kept = [
            {**message, "content": "[cleared]"} if message["role"] == "tool" and place < len(messages) - 3 else message
            for place, message in enumerate(messages)
        ]
        says = called("Paris", turn=n) if n < TURNS else said("It is sunny.")
        reply = yield Ask(messages=kept, says=says, tools=TOOLS)
        messages = [*messages, echo(reply), *answers(reply, f"And place {n}?")]


def compaction() -> Script:
    """Put a summary into the history's place."""
    messages = [system("You are brief."), user("Hi there.")]
    for n in range(TURNS):
        reply = yield Ask(messages=messages, says=said(_WORDS[n]))
        messages = [*messages, echo(reply), user(f"And number {n}?")]
        if n == 1:
            asked = [*messages[:-1], user("Summarise all of it.")]
            reply = yield Ask(messages=asked, says=said("They greeted me, and asked for a word."))
            words = reply.get("content") or "nothing was said so far"
            messages = [messages[0], user(f"<summary>{words}</summary>\nGo on.")]


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


def images() -> Script:
    """Show a picture first."""
    shown = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    messages: list[Json] = [{"role": "user", "content": shown}]
    for n in range(TURNS):
        reply = yield Ask(messages=messages, says=said(_WORDS[n]))
        messages = [*messages, echo(reply), user(f"And number {n}?")]


SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for one in (
        Scenario(name="plain chat", about="text, sent back as it came", script=chat),
        Scenario(
            name="thinking kept",
            about="thinking, sent back as reasoning_content",
            script=lambda: chat(thinking=True),
        ),
        Scenario(
            name="thinking stripped",
            about="thinking that the agent does not send back",
            script=lambda: chat(thinking=True, reasoning=False),
        ),
        Scenario(name="thinking off", about="enable_thinking: false", script=lambda: chat(thinking=False)),
        Scenario(
            name="tool loop",
            about="a tool in each turn; its arguments are compact JSON, and templates spell them anew",
            script=lambda: tool_loop("Paris", compact=True),
        ),
        Scenario(
            name="parallel tools",
            about="two calls in each turn",
            script=lambda: tool_loop("Paris", "Rome"),
        ),
        Scenario(
            name="text re-tokenised",
            about="replies whose ids are not those that the tokeniser gives for their text",
            script=lambda: chat(respelt=True),
        ),
        Scenario(name="empty turn", about="a reply of nothing but its end", script=empty_turn),
        Scenario(name="cut by length", about="replies that are cut, and gone on from", script=cut_and_continued),
        Scenario(name="volatile system", about="a line of the system text changes", script=volatile_system, kept=False),
        Scenario(name="history pruned", about="old results are cleared", script=pruned, kept=False),
        Scenario(name="compaction", about="a summary in the history's place", script=compaction, kept=False),
        Scenario(name="images", about="a picture in the first message", script=images, kept=False),
    )
}
"""By name."""

BRIEF: Sequence[str] = ("plain chat", "thinking stripped", "thinking off", "tool loop", "cut by length")
"""Those that any engine can be tried with."""
