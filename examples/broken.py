"""Six broken rollouts, each with a healthy twin beside it, to see how Treering says what is wrong with them.

    python3 examples/broken.py                # make them, and print what Treering finds
    python3 examples/broken.py --serve        # … and leave them to be looked at on the page; Ctrl-C ends it
    python3 examples/broken.py --serve --quiz # without the answers: find out yourself

Nothing failed in any of them: no agent crashed, no engine sent an error. Each group is one task with two rollouts, of
which one is broken:

    group      what was done to the broken one
    files      its agent was started with yesterday's key, so not one call arrived; it was graded all the same
    greeting   its title call was ruled to be part of the task, so the title's tokens get the task's advantage
    report     its agent writes tool-call arguments anew (keys sorted), so the next prompt has other tokens
    changelog  the trainer put in new weights while a reply was being sampled
    pages      its limit of two calls ended it in the middle of the work
    callers    its agent gives up after a second and asks again, while the engine is still at work

With --url and --key it uses an appliance that runs; start that one with `--engine scripted=examples/broken.toml`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from appliance import Appliance, appliance, arguments
from treering_client.errors import RequestError
from treering_client.rollout import Rollout

RULES = Path(__file__).resolve().with_name("broken.toml")
PATIENCE_S = 60.0
MOST_TURNS = 8


class AgentError(Exception):
    """The model's address refused the agent."""


def tool(name: str, *parameters: str) -> dict[str, Any]:
    """Return a function tool whose parameters are all strings."""
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in parameters}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("run", "command"), tool("write_file", "path", "content")]


# -- an agent ---------------------------------------------------------------------------------------------------------


def as_it_came(text: str) -> str:
    """Leave a tool call's arguments as the model wrote them."""
    return text


def keys_sorted(text: str) -> str:
    """Write arguments anew from their parsed form, as many an agent does: the same JSON, and not the same tokens."""
    return json.dumps(json.loads(text), sort_keys=True)


def nothing() -> None:
    """Do nothing meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A small agent: an address, a key, and a loop with tools that only say that they were used."""

    base_url: str
    key: str
    # How long it waits for a reply, in seconds, and how often it asks.
    patience_s: float = PATIENCE_S
    tries: int = 1
    # What it does to arguments before it sends them back.
    spelling: Callable[[str], str] = as_it_came
    # Called once a reply to a tool's result has begun to come.
    meanwhile: Callable[[], object] = nothing

    def run(self, task: str) -> None:
        """Do the task, until a reply has no tool call, or none comes."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        for _ in range(MOST_TURNS):
            reply = self.ask(messages, TOOLS)
            if reply is None or not reply.get("tool_calls"):
                return
            messages.append(reply)
            for call in reply["tool_calls"]:
                used = json.loads(call["function"]["arguments"])
                call["function"]["arguments"] = self.spelling(call["function"]["arguments"])
                said = f"done: {used.get('command') or used.get('path')}"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})

    def title(self, task: str) -> None:
        """Have the conversation named, as agents do beside the first turn: it serves the agent, and not the task."""
        self.ask([{"role": "user", "content": f"Name this conversation in a few words: {task}"}])

    def ask(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any] | None:
        """Ask until a reply comes in time; None when none does."""
        body = {"model": "any", "messages": messages, "stream": True, **({"tools": tools} if tools else {})}
        for _ in range(self.tries):
            with contextlib.suppress(TimeoutError):
                return self._reply(body)
        return None

    def _reply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and put the reply together from its stream."""
        texts = {"content": "", "reasoning": ""}
        calls: dict[int, dict[str, Any]] = {}
        waits = body["messages"][-1]["role"] == "tool"
        for delta in self._deltas(body):
            for name in texts:
                texts[name] += delta.get(name) or ""
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"id": part.get("id"), "name": "", "arguments": ""})
                call["name"] += part["function"].get("name") or ""
                call["arguments"] += part["function"].get("arguments") or ""
            if waits and texts["reasoning"]:
                waits = False
                self.meanwhile()
        message = {"role": "assistant", "content": texts["content"], "reasoning_content": texts["reasoning"]}
        if not calls:
            return message
        told = [
            {"id": call.pop("id"), "type": "function", "function": call} for _, call in sorted(calls.items())
        ]  # fmt: skip
        # Only line breaks between thinking and a tool call are no text: agents send none.
        return {**message, "content": texts["content"].strip(), "tool_calls": told}

    def _deltas(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a stream's deltas. Raises TimeoutError, having hung up, when it takes too long."""
        end = time.monotonic() + self.patience_s
        address = urlsplit(self.base_url)
        connection = http.client.HTTPConnection(address.netloc, timeout=self.patience_s)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", f"{address.path}/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise AgentError(f"{answer.status} {answer.read().decode()}")
            for line in answer:
                if time.monotonic() > end:
                    raise TimeoutError
                if line.startswith(b"data: {"):
                    yield from (choice["delta"] for choice in json.loads(line[6:])["choices"])
        finally:
            connection.close()


def agent(rollout: Rollout, **manners: Any) -> Agent:
    """Return an agent that has a rollout's address and key."""
    return Agent(base_url=rollout.base_url, key=rollout.secret, **manners)


# -- the six: each returns its healthy rollout and its broken one, both closed ----------------------------------------


def zero_calls(found: Appliance) -> tuple[Rollout, Rollout]:
    """Start an agent with the key of a rollout that is over, and grade what it did."""
    task = "How many files are there in this folder?"
    old = found.client.rollout(task)
    old.delete()
    healthy, broken = pair(found, "files", task)
    agent(healthy).run(task)
    with contextlib.suppress(AgentError):
        # 401: its harness sees an agent that ended early, and a task that was not done.
        Agent(base_url=broken.base_url, key=old.secret).run(task)
    try:
        broken.reward(0.0)
    except RequestError:
        # 409: a rollout without calls has earned no number. This trainer insists.
        broken.reward(0.0, force=True)
    return closed(healthy, broken)


def title_trained(found: Appliance) -> tuple[Rollout, Rollout]:
    """Rule that a title call is part of the task, as a harness does that takes every call for the policy's."""
    task = "Write hello.txt, a greeting in four languages."
    broken, healthy = pair(found, "greeting", task)
    for rollout in (healthy, broken):
        agent(rollout).title(task)
        agent(rollout).run(task)
    (title,) = [each["n"] for each in broken.graph()["conversations"] if each["kind"] == "title"]
    broken.role(title, "main")
    broken.reward(0.0)
    return closed(healthy, broken)


def arguments_rewritten(found: Appliance) -> tuple[Rollout, Rollout]:
    """Send tool-call arguments back with sorted keys."""
    task = "Write a report on the outage of 12 March."
    healthy, broken = pair(found, "report", task)
    agent(healthy).run(task)
    agent(broken, spelling=keys_sorted).run(task)
    broken.reward(0.0)
    return closed(healthy, broken)


def weights_changed(found: Appliance) -> tuple[Rollout, Rollout]:
    """Change the weights while a reply is being sampled, instead of pausing the engine first."""

    def update(version: str) -> None:
        found.call("POST", "/engine/weights", {"version": version})

    task = "Write the changelog of the next version."
    broken, healthy = pair(found, "changelog", task)
    update("step-7")
    agent(healthy).run(task)
    agent(broken, meanwhile=lambda: update("step-8")).run(task)
    broken.reward(0.0)
    return closed(healthy, broken)


def limit_stop(found: Appliance) -> tuple[Rollout, Rollout]:
    """Give an agent two calls for a task that takes four."""
    task = "Make the tests pass."
    common: dict[str, Any] = {"group": "pages", "sampling": {"temperature": 1.0}}
    healthy = found.client.rollout(task, id="pages-0", limits={"max_calls": 8}, **common)
    broken = found.client.rollout(task, id="pages-1", limits={"max_calls": 2}, **common)
    agent(healthy).run(task)
    agent(broken).run(task)
    broken.reward(0.0)
    return closed(healthy, broken)


def client_timeouts(found: Appliance) -> tuple[Rollout, Rollout]:
    """Let an agent give up after a second, and ask three times; a reply takes longer."""
    task = "Find every caller of parse()."
    broken, healthy = pair(found, "callers", task)
    agent(healthy).run(task)
    agent(broken, patience_s=1.0, tries=3).run(task)
    broken.reward(0.0)
    return closed(healthy, broken)


SIX = (zero_calls, title_trained, arguments_rewritten, weights_changed, limit_stop, client_timeouts)


def pair(found: Appliance, group: str, task: str) -> list[Rollout]:
    """Register two rollouts of a task as one group, ids GROUP-0 and GROUP-1."""
    return found.client.rollouts(2, task, id=group, group=group, sampling={"temperature": 1.0})


def closed(healthy: Rollout, broken: Rollout) -> tuple[Rollout, Rollout]:
    """Grade the healthy one, and close both."""
    healthy.reward(1.0)
    healthy.close()
    broken.close()
    return healthy, broken


def fits(found: Appliance) -> bool:
    """Say whether the engine is the one whose part is written in broken.toml; no other gets other weights from us."""
    if any(engine["kind"] != "scripted" for engine in found.call("GET", "/engines")["engines"]):
        return False
    with found.client.rollout() as trial:
        reply = agent(trial).ask([{"role": "user", "content": "Name this conversation"}])
    trial.delete()
    title = tomllib.loads(RULES.read_text())["rule"][0]["reply"]["text"]
    return reply is not None and reply["content"].strip() == title


# -- the command line -------------------------------------------------------------------------------------------------


def tell(name: str, healthy: Rollout, broken: Rollout) -> None:
    """Print what Treering says of both, but for what it says of both alike."""
    print(f"\n{name.replace('_', ' ')}: group {healthy.show()['group']}")
    known = {each["code"] for each in healthy.findings()}
    for rollout, what in ((healthy, "healthy"), (broken, "broken")):
        print(f"  {rollout.id} ({what}): {rollout.show()['n_calls']} calls, reward {rollout.show()['reward']}")
        for each in rollout.findings():
            if rollout is broken and each["code"] not in known:
                print(f"    {each['level']} {each['code']}: {each['message']}\n      {each['hint']}")


def main() -> int:
    """Make the twelve; return 1 when the appliance is no fit for it."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--serve", action="store_true", help="Leave the appliance up, and print the page's address.")
    parser.add_argument("--quiz", action="store_true", help="Don't say what was done to which.")
    asked = parser.parse_args()
    with appliance(asked.url, asked.key, engine=f"scripted={RULES}") as found:
        if not fits(found):
            print(f"start the appliance with --engine scripted={RULES}", file=sys.stderr)
            return 1
        print("making twelve rollouts of six tasks …", file=sys.stderr)
        for make in SIX:
            healthy, broken = make(found)
            if not asked.quiz:
                tell(make.__name__, healthy, broken)
        if asked.serve:
            print(f"\nThe page is at {found.page}\n\nFor bin/treering, and the commands of docs/faq.md:\n")
            where = f"TREERING_ADMIN_LISTEN={urlsplit(found.url).netloc} TREERING_ADMIN_KEY={found.key}"
            # KEY is what the page's commands read.
            print(f"  export {where} KEY={found.key}\n")
            with contextlib.suppress(KeyboardInterrupt):
                print("Ctrl-C ends it.", flush=True)
                signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
