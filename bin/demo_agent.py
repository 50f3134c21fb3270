"""A sample coding agent: an ordinary OpenAI client, with a task, tools that really run, and a subagent.

It knows an address and a key, speaks HTTP, and does what coding agents were seen to do. What it keeps for itself is the
ids of the replies that it saw, by what it had asked for (`Agent.seen`): with them the graph can be checked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

TASK = (
    "bill.py splits a restaurant bill, and the guests pay less than it says: shares(1000, 3) adds up to 999. "
    "Repair shares() so that the tests pass."
)
FILES = {
    "bill.py": (
        '"""Split a restaurant bill."""\n\n\n'
        "def shares(cents, guests):\n"
        '    """Return what each guest pays, in cents."""\n'
        "    return [cents // guests] * guests\n"
    ),
    "test_bill.py": (
        "import unittest\n\nfrom bill import shares\n\n\n"
        "class SharesTest(unittest.TestCase):\n"
        "    def test_even(self):\n"
        "        self.assertEqual(shares(900, 3), [300, 300, 300])\n\n"
        "    def test_nothing_is_lost(self):\n"
        "        self.assertEqual(sum(shares(1000, 3)), 1000)\n\n"
        "    def test_nobody_pays_two_cents_more(self):\n"
        "        self.assertEqual(sorted(shares(1001, 3)), [333, 334, 334])\n"
    ),
}

MAIN_SYSTEM = "You are a careful programmer. Use the tools to look before you change, and test what you changed."
HELPER_SYSTEM = "You answer one question about a project, briefly. You may read its files and cannot change them."
TITLE_SYSTEM = "You name conversations. Answer with the name alone."
SUMMARY_SYSTEM = "You write down what was done in a conversation, so that another can go on from your words alone."

# Agents compact when the engine's usage nears the context's length; here it is a count of turns, to be seen early.
TURNS_BEFORE_COMPACTION = 4
# The turn of main whose connection breaks, and the chunks that come before.
BROKEN_TURN = 4
CHUNKS_BEFORE_BREAK = 6
# Agents wait 2 s and more before they try again; long enough is what lets the first connection's end be seen.
BACKOFF_S = 0.3
MOST_TURNS = 12
TESTS_LIMIT_S = 60.0


class AgentError(Exception):
    """The agent can't go on; the message says why."""


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """Return a function tool whose parameters, given with their descriptions, are all strings."""
    properties = {each: {"type": "string", "description": text} for each, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


READ_FILE = tool("read_file", "Return a file's text.", path="The file's name.")
MAIN_TOOLS = [
    READ_FILE,
    tool(
        "edit_file", "Replace a text in a file.", path="The file's name.", old="It stands there once.", new="Goes in."
    ),
    tool("run_tests", "Run the project's tests."),
    tool("ask_helper", "Let a helper look something up.", prompt="The question; the helper sees nothing else."),
]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One reply: its id, the assistant message as it is sent back, and its tool calls."""

    id: str
    message: dict[str, Any]
    text: str
    tool_calls: list[dict[str, Any]]


@dataclass(kw_only=True)
class Agent:
    """The sample agent: an OpenAI client, a folder to work in, and the ids of the replies that it saw, by purpose."""

    client: openai.OpenAI
    model: str
    folder: Path
    seen: dict[str, list[str]] = field(default_factory=dict)

    def run(self) -> str:
        """Do the task, with the title call beside it; return the last words."""
        asked = f"Name the conversation that begins with this message, in six words at most:\n\n{TASK}"
        naming = self.stream(opening(TITLE_SYSTEM, asked))
        with ThreadPoolExecutor(max_workers=1) as beside:
            title = beside.submit(self.read, "title", naming)
            last = self.main()
            title.result()
        return last

    def main(self) -> str:
        """Do the task, turn by turn."""
        messages = opening(MAIN_SYSTEM, TASK)
        purpose = "main"
        for turn in range(1, MOST_TURNS + 1):
            if turn == BROKEN_TURN:
                self.break_off(messages)
            reply = self.ask("retried" if turn == BROKEN_TURN else purpose, messages, MAIN_TOOLS)
            messages.append(reply.message)
            if not reply.tool_calls:
                return reply.text
            if any(call["function"]["name"] == "ask_helper" for call in reply.tool_calls):
                self.seen["asked"] = [reply.id]
            messages += [self.result(call) for call in reply.tool_calls]
            purpose = "main"
            if turn == TURNS_BEFORE_COMPACTION:
                messages = self.compact(messages)
                purpose = "compacted"
        raise AgentError(f"the agent had not finished after {MOST_TURNS} turns")

    def helper(self, prompt: str) -> str:
        """Run the subagent: a loop of its own, of which only the last reply comes back."""
        messages = opening(HELPER_SYSTEM, prompt)
        for _ in range(MOST_TURNS):
            reply = self.ask("subagent", messages, [READ_FILE])
            if not reply.tool_calls:
                return reply.text
            messages += [reply.message, *(self.result(call) for call in reply.tool_calls)]
        raise AgentError(f"the helper had not finished after {MOST_TURNS} turns")

    def compact(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Have the conversation summed up, as a transcript in one message; return the messages that main goes on with.

        The task's own words are gone from them, as they are when opencode compacts.
        """
        asked = f"The conversation so far:\n\n<transcript>\n{transcript(messages)}\n</transcript>\n\nSum it up."
        summary = self.ask("summary", opening(SUMMARY_SYSTEM, asked)).text
        return [
            *opening(MAIN_SYSTEM, "What has been done so far?"),
            {"role": "assistant", "content": summary},
            {"role": "user", "content": "Go on with the next step, or say that all is done."},
        ]

    def result(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Run one tool call; return the message with its result."""
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")
        if name == "ask_helper":
            text = f"<answer>\n{self.helper(arguments['prompt'])}\n</answer>"
        else:
            text = use_tool(self.folder, name, arguments)
        return {"role": "tool", "tool_call_id": call["id"], "content": text}

    def ask(
        self, purpose: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """Send one request and read its reply to the end."""
        return self.read(purpose, self.stream(messages, tools))

    def read(self, purpose: str, stream: Iterable[Any]) -> Reply:
        """Read a reply's chunks to the end, and note its id."""
        text, reasoning, ident = "", "", ""
        calls: dict[int, dict[str, str]] = {}
        for chunk in stream:
            ident = chunk.id
            for choice in chunk.choices:
                delta = choice.delta
                text += delta.content or ""
                # vLLM names it `reasoning`, older engines `reasoning_content`; the client has a field for neither.
                reasoning += getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None) or ""
                for part in delta.tool_calls or ():
                    call = calls.setdefault(part.index, {"id": part.id, "name": "", "arguments": ""})
                    call["name"] += (part.function and part.function.name) or ""
                    call["arguments"] += (part.function and part.function.arguments) or ""
        self.seen.setdefault(purpose, []).append(ident)
        # Only line breaks between thinking and a tool call are no text: agents send none.
        message: dict[str, Any] = {"role": "assistant", "content": text if text.strip() else ""}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for _, call in sorted(calls.items())
            ]
        return Reply(id=ident, message=message, text=text, tool_calls=message.get("tool_calls", []))

    def break_off(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Send a request and lose the connection after a few chunks; nothing that came is used."""
        stream = self.stream(messages, MAIN_TOOLS)
        for count, chunk in enumerate(stream, 1):
            self.seen["broken"] = [chunk.id]
            if count == CHUNKS_BEFORE_BREAK:
                stream.close()
                time.sleep(BACKOFF_S)
                return
        raise AgentError("the reply that was to break had ended before")

    def stream(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> Any:
        """Send one request; return the stream of its chunks. (The request's types are left to the server.)"""
        request: dict[str, Any] = {"model": self.model, "messages": list(messages)}
        if tools:
            request["tools"] = list(tools)
        return self.client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})


def opening(system: str, user: str) -> list[dict[str, Any]]:
    """Return the messages that a conversation begins with."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def transcript(messages: Iterable[Mapping[str, Any]]) -> str:
    """Write messages down as one text, without the system prompt."""
    names = {"user": "User", "assistant": "Assistant", "tool": "Result"}
    lines = []
    for message in messages:
        if message["content"] and message["role"] in names:
            lines.append(f"[{names[message['role']]}] {message['content']}")
        called = [call["function"] for call in message.get("tool_calls", ())]
        lines += [f"[Call] {each['name']} {each['arguments']}" for each in called]
    return "\n".join(lines)


def use_tool(folder: Path, name: str, arguments: Mapping[str, str]) -> str:
    """Run a tool in a folder; what is wrong with the call is told to the model."""
    if name == "run_tests":
        return run_tests(folder)[1]
    path = folder / arguments.get("path", "")
    if path.parent != folder or not path.is_file():
        return f"There is no file {arguments.get('path')}."
    text = path.read_text()
    if name == "read_file":
        return text
    if name != "edit_file":
        return f"There is no tool {name}."
    if text.count(arguments["old"]) != 1:
        return "Nothing was changed: the text to be replaced must stand there once."
    path.write_text(text.replace(arguments["old"], arguments["new"]))
    return f"{path.name} was changed in one place."


def run_tests(folder: Path) -> tuple[bool, str]:
    """Run the tests in a folder; return whether they passed, and what was printed, without times and paths."""
    argv = [sys.executable, "-I", "-B", "-m", "unittest", "discover", "-s", str(folder)]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=TESTS_LIMIT_S, check=False)
    printed = done.stderr.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    return done.returncode == 0, re.sub(r" in [\d.]+s", "", printed).strip()
