"""One whole session of real opencode against the appliance on the scripted engine, and what is true of it.

The session is made of all that opencode does by itself: a title call beside the main loop, a tool, two subagents at
once, a compaction when the usage passes the context length that it was told, and a second prompt.

What is true is taken from opencode alone, never from the forest: a call's session stands in a header of opencode's,
which session is whose child opencode says, and title and summary are asked for without tools, in words of its own.
"""

import os
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tests.graph import corpus
from tests.house import house
from tests.real import agent_opencode, keep_forest

RULES = Path(__file__).parent / "opencode_rules.toml"
PROMPTS = ("Let two readers meet at a pipe, then count, then report.", "And the pear?")
ABOUT = "opencode 1.18.33 (MIT) on the scripted engine: tools, title, two subagents at once, compaction, second prompt"

# In tokens. The list that main reads is too long for this, and all else fits.
LIMITS = {"context_limit": 19_024, "output_limit": 1_024}

# Of a prompt of the scripted session: 5 s alone, and as much as a busy machine takes.
PROMPT_LIMIT_S = 90.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it looks from outside when it is over."""

    graph: dict[str, Any]
    # Whole calls by number, with ids and what passed.
    calls: dict[int, dict[str, Any]]
    sequences: dict[str, Any]
    # Session → its messages as opencode keeps them; the first session is main's.
    messages: dict[str, list[dict[str, Any]]]
    title: str

    @property
    def main_session(self) -> str:
        return next(iter(self.messages))

    def purpose(self, n: int) -> str:
        """What opencode made a call for: `main`, `title`, `summary`, or the session of a subagent."""
        call = self.calls[n]
        session = str(call["hints"]["x-session-id"])
        if session != self.main_session:
            return session
        if "tools" in call["request"]:
            return "main"
        return "title" if "title generator" in call["request"]["messages"][0]["content"] else "summary"

    def made_for(self, purpose: str) -> list[int]:
        """Return the calls made for a purpose, in order of arrival."""
        return [n for n in self.calls if self.purpose(n) == purpose]

    @property
    def subagents(self) -> list[str]:
        """The subagents' sessions, in order of their first calls."""
        return list(dict.fromkeys(p for n in self.calls if (p := self.purpose(n)) not in ("main", "title", "summary")))

    def conversation(self, purpose: str) -> dict[str, Any]:
        """Return the one conversation that holds the calls of a purpose."""
        (number,) = {self.calls[n]["conversation"] for n in self.made_for(purpose)}
        found: dict[str, Any] = self.graph["conversations"][number]
        return found


async def play(folder: Path) -> Seen:
    """Run the session, from the registration of its rollout to its sequences."""
    async with house(f"scripted={RULES}", folder) as home:
        rollout = await home.rollout()
        access = {"base_url": rollout["base_url"], "api_key": rollout["secret"]}
        async with agent_opencode.running(folder / "opencode", **access, **LIMITS) as agent:
            name = await agent.session()
            for prompt in PROMPTS:
                await agent.message(name, prompt, limit_s=PROMPT_LIMIT_S)
            await home.idle(rollout)
            messages = {name: await agent.messages(name)}
            about = await read(agent, f"/session/{name}")
            for child in await read(agent, f"/session/{name}/children"):
                messages[child["id"]] = await agent.messages(child["id"])
        closed = await home.control(
            "POST", f"/rollouts/{rollout['id']}/close", json={"sequences": {"format": "native"}}
        )
        graph = await home.graph(rollout)
        found = Seen(
            graph=graph,
            calls={call["n"]: await home.call(rollout, call["n"]) for call in graph["calls"]},
            sequences=closed["sequences"],
            messages=messages,
            title=about["title"],
        )
        # By hand: the session as a file of tests/corpus.
        if "TREERING_KEEP_FOREST" in os.environ:
            record = await keep_forest.fetch(home.control, rollout["id"], labels=labels(found), about=ABOUT)
            corpus.write(record, Path(os.environ["TREERING_KEEP_FOREST"]))
        return found


async def read(agent: agent_opencode.OpenCode, path: str) -> Any:
    """Ask opencode."""
    async with agent.http.get(agent.url + path, timeout=agent_opencode.limit(30)) as reply:
        assert reply.status == 200
        return await reply.json()


def labels(seen: Seen) -> corpus.Labels:
    """What is true of the session, as opencode has it."""
    starter = task_call(seen)
    main, summary = seen.made_for("main"), seen.made_for("summary")
    conversations = [
        corpus.ConversationLabel(calls=tuple(seen.made_for("title")), role="auxiliary", kind="title"),
        corpus.ConversationLabel(calls=tuple(main), role="main"),
        corpus.ConversationLabel(calls=tuple(summary), role="auxiliary", kind="summary"),
    ]
    conversations += [
        corpus.ConversationLabel(calls=tuple(seen.made_for(name)), role="subagent", parent_call=starter)
        for name in seen.subagents
    ]
    parents = {after: before for label in conversations for before, after in pairwise(label.calls)}
    behind = next(n for n in main if n > summary[0])
    return corpus.Labels(conversations=tuple(conversations), parents=parents, compactions={behind: tuple(summary)})


def reply_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return the message that a call produced."""
    (choice,) = call["reply"]["choices"]
    message: dict[str, Any] = choice["message"]
    return message


def tools_of(call: dict[str, Any]) -> list[str]:
    """Return the names of the tools that a call's reply called."""
    return [tool["function"]["name"] for tool in reply_of(call).get("tool_calls") or ()]


def task_call(seen: Seen) -> int:
    """Return the call that started both subagents."""
    (starter,) = [n for n in seen.calls if tools_of(seen.calls[n]) == ["task", "task"]]
    return starter


def interval(call: dict[str, Any]) -> tuple[datetime, datetime]:
    """Return the start and the end of a call."""
    start = datetime.fromisoformat(call["started_at"])
    return start, start + timedelta(milliseconds=call["ended_ms"])
