"""One run of a real agent's program against the appliance on the scripted engine, as it looks from outside afterwards.

All comes from the control plane and from what the program printed. What is true of the run the tests take from the
agent (its headers, its tool list, its script), never from the forest that they judge.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capture.agents import Recipe
from capture.scripted import ScriptedEngine, load_rules
from tests.graph.corpus import Labels
from tests.house import House, house
from tests.real import played
from tests.real.played import Played, over
from tests.real.program import Ended, Running, missing, program, running

MODEL = "test-model"
# From an interrupt until the engine's request is gone: milliseconds, but for gemini-cli, which takes two seconds.
DROP_LIMIT_S = 20.0
STREAM_LIMIT_S = 60.0


class Seen(Played, frozen=True, kw_only=True):
    """A rollout when its agent has ended."""

    ended: Ended
    # What the agent left in its project.
    files: dict[str, str]

    def of_role(self, role: str) -> list[dict[str, Any]]:
        """Return the conversations with a role."""
        return [found for found in self.graph["conversations"] if found["role"] == role]

    @property
    def main(self) -> list[int]:
        """The calls of main, which is one conversation."""
        (main,) = self.of_role("main")
        calls: list[int] = main["calls"]
        return calls

    @property
    def warnings(self) -> dict[str, list[int]]:
        """The findings that are more than information, with the calls that show them."""
        return {found["code"]: found["calls"] for found in self.graph["findings"] if found["level"] != "info"}

    @property
    def left_out(self) -> dict[int, str]:
        """The calls that are not trained, and why."""
        return {left["call"]: left["reason"] for left in self.sequences["left_out"]}

    def says(self, n: int) -> str:
        """Return what the engine said in a call, in text."""
        return said(self.calls[n])["text"]

    def tools(self, n: int) -> list[str]:
        """Return the names of the tools that a call's reply called; none where no reply came."""
        return [name for name, _ in said(self.calls[n])["tools"]] if self.calls[n]["reply"] else []


def said(call: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine said in a call, read from its chat reply or its dialect's own: `text` and `tools`.

    A tool is `(name, arguments)`, the arguments as they are: text or an object.
    """
    reply = call["reply"]
    if "output" in reply:
        parts = [part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]]
        tools = [(item["name"], item["arguments"]) for item in reply["output"] if item["type"] == "function_call"]
    elif "candidates" in reply:
        found = [part for part in reply["candidates"][0]["content"]["parts"] if not part.get("thought")]
        parts = [part["text"] for part in found if "text" in part]
        calls = [part["functionCall"] for part in found if "functionCall" in part]
        tools = [(tool["name"], tool["args"]) for tool in calls]
    elif "choices" in reply:
        message = reply["choices"][0]["message"]
        parts = [message["content"] or ""]
        functions = [tool["function"] for tool in message.get("tool_calls") or ()]
        tools = [(function["name"], function["arguments"]) for function in functions]
    else:
        parts = [block["text"] for block in reply["content"] if block["type"] == "text"]
        tools = [(block["name"], block["input"]) for block in reply["content"] if block["type"] == "tool_use"]
    return {"text": "".join(parts).strip(), "tools": tools}


def needed(name: str, command: str) -> Path:
    """Return where an agent's program is; skip the test where it is missing."""
    if reason := missing(name, command):
        pytest.skip(reason)
    return program(name, command)


async def play(
    path: Path,
    recipe: Callable[..., Recipe],
    rules: Path,
    prompt: str,
    folder: Path,
    *,
    keep: tuple[Callable[[Played], Labels], str] | None = None,
    **limits: int,
) -> Seen:
    """Run a program by its recipe from the registration of a rollout to its sequences.

    `limits` are the recipe's `context` and `output`; `keep` says what is true of the run, and what it is, for
    tests/corpus (`tests.real.played.keep`).
    """
    async with house(f"scripted={rules}", folder) as home:
        rollout = await home.rollout()
        made = recipe(base_url=rollout["base_url"], model=MODEL, secret=rollout["secret"], **limits)
        async with running(path, made, prompt, folder / "agent") as agent:
            ended = await agent.ended()
        seen = await look(home, rollout, agent, ended)
        if keep is not None:
            true, about = keep
            played.keep(seen, true(seen), about=about)
        return seen


async def look(home: House, rollout: dict[str, Any], agent: Running, ended: Ended) -> Seen:
    """Return what is to be seen of a rollout whose agent has ended."""
    found = await over(home, rollout)
    return Seen(**msgspec.structs.asdict(found), ended=ended, files=project_of(agent))


def project_of(agent: Running) -> dict[str, str]:
    """Return the small files of an agent's project."""
    return {path.name: path.read_text(errors="replace") for path in agent.project.iterdir() if path.is_file()}


async def interrupt(
    path: Path, recipe: Callable[..., Recipe], rules: Path, prompt: str, folder: Path, *, left: int = 1
) -> Seen:
    """Run a program until the script lets its stream hang, interrupt it, and see that the engine's request is dropped.

    `left` is how many requests its end leaves at the engine. Fails past DROP_LIMIT_S.
    """
    async with scripted(rules) as (engine, url), house(f"vllm={url}", folder) as home:
        rollout = await home.rollout()
        made = recipe(base_url=rollout["base_url"], model=MODEL, secret=rollout["secret"])
        async with running(path, made, prompt, folder / "agent") as agent:
            async with asyncio.timeout(STREAM_LIMIT_S):
                await engine.hung()
            assert engine.left == 0
            agent.interrupt()
            async with asyncio.timeout(DROP_LIMIT_S):
                await engine.idle()
            ended = await agent.ended()
        assert engine.left == left
        return await look(home, rollout, agent, ended)


@contextlib.asynccontextmanager
async def scripted(rules: Path) -> AsyncIterator[tuple[ScriptedEngine, str]]:
    """Yield a scripted engine of the test's own, and its address: it counts the requests that are left."""
    engine = ScriptedEngine(load_rules(rules))
    url = await engine.start()
    try:
        yield engine, url
    finally:
        await engine.close()
