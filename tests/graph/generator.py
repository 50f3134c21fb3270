"""Agent conversations, drawn: what would be recorded of a rollout, and what is true of it.

A small world with agents (generators that ask, spawn and wait), an engine (a tokeniser and a template of its own)
and a scheduler that draws which request arrives next and which reply ends next. It imports nothing of the graph but
its records and the constructor of canonical messages, so what it says is true is known by construction and not found
by the code under test.

The shape is the demo's: a main loop with tools, a title call, subagents started by tool calls, a request that is sent
again after a hang-up in mid-stream, a compaction in one of three styles. Texts, tool names, the template's habits, the
agent's way of echoing, and the order of everything that may overlap are drawn. No call carries a header hint, the
rollout has no task text, and titles, subagent prompts and tool arguments quote the task.

`stories(wild=True)` adds what single agents were seen to do, and texts that mislead on purpose:

- a greeting that nobody sampled at the start of every conversation (qwen-code); system messages in the middle
  (claude-code); `developer` for the system's role (pi); reasoning dropped (gemini-cli); content left out
  (mini-swe-agent);
- a reply cut by length and thrown away for a longer one (qwen-code);
- subagents that run beside the agent that started them, waited for or not (codex); that report by a tool call of their
  own (gemini-cli); whose report is lost; two with one prompt;
- an agent without tools, which splices a hand-off of three calls into its next request (terminus-2);
- replies of one word that occur everywhere; a summary that quotes every reply; auxiliary calls that are offered tools,
  or use one; a probe of a tool call's arguments; a title of the title's own prompt.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

Chat = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

# -- the engine -------------------------------------------------------------------------------------------------------

START, END, NEWLINE, THINK, UNTHINK, TOOL, UNTOOL = 1, 2, 3, 4, 5, 6, 7
ROLES = {"system": 8, "developer": 8, "user": 9, "assistant": 10, "tool": 11}
PIECE = re.compile(r"\s?\w+|\s|[^\w\s]")


def encode(text: str, *, fine: bool = False) -> list[int]:
    """Ids of a text: words, or, `fine`, characters: the same text in ids that encoding it again does not give."""
    pieces = list(text) if fine else PIECE.findall(text)
    return [100 + zlib.crc32(piece.encode()) % 100_000 for piece in pieces]


def body(message: Chat, *, thinking: bool, fine: bool = False) -> list[int]:
    """Ids of one message between its header and its end."""
    ids: list[int] = []
    reasoning = message.get("reasoning_content") or ""
    if thinking and reasoning:
        ids += [THINK, *encode(reasoning, fine=fine), UNTHINK]
    ids += encode(message.get("content") or "", fine=fine)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        ids += [TOOL, *encode(function["name"] + " " + function["arguments"]), UNTOOL]
    return ids


def render(messages: list[Chat], tools: tuple[str, ...], stripping: str) -> list[int]:
    """Ids of a prompt. `stripping` is what the template does to earlier reasoning: "never", "user" (it drops what
    stands before the last user message, as Qwen3's does) or "always"."""
    ids = [START, ROLES["system"], NEWLINE, *encode(" ".join(tools)), END, NEWLINE] if tools else []
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    for place, message in enumerate(messages):
        thinking = stripping == "never" or (stripping == "user" and place > users[-1])
        ids += [START, ROLES[message["role"]], NEWLINE, *body(message, thinking=thinking), END, NEWLINE]
    return [*ids, START, ROLES["assistant"], NEWLINE]


# -- what is true -----------------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """What is true of one call."""

    # Names the conversation; equal for all its calls.
    conversation: str
    role: str
    kind: str | None
    # exact and drift are told apart by comparing ids.
    link: str
    parent: int | None
    # The call whose tool call started this conversation.
    started_by: int | None = None
    # The call's later try, for one whose agent hung up.
    tried_again_by: int | None = None
    carries: tuple[int, ...] = ()


@dataclass
class Story:
    """A rollout in plain forms, and the truth of it by call: `tests.graph.told` makes records of it."""

    # Each with the fields of a recorded call; messages and reply as chat messages, ids and logprobs as lists.
    calls: tuple[dict[str, Any], ...]
    truth: dict[int, Truth]


# -- the world --------------------------------------------------------------------------------------------------------


@dataclass
class Ask:
    """A request that an agent makes, and the reply that the engine will give."""

    conversation: str
    role: str
    kind: str | None
    messages: list[Chat]
    tools: tuple[str, ...]
    reply: Chat
    link: str
    parent: int | None
    started_by: int | None = None
    carries: tuple[int, ...] = ()
    finish: str | None = None
    # Another agent makes the same request. Which of the two was sent again could not be known, so neither is.
    twin: bool = False


@dataclass
class Fan:
    """Agents that run at once; their results come back together, in order. Received at once where nobody waits: the
    results are then appended as they come."""

    threads: list[Thread]
    waits: bool = True
    results: list[str] = field(default_factory=list)


Thread = Generator[Ask | Fan, Any, str]
"""An agent: asks and receives (call number, assistant message as it echoes it); returns its last reply's text."""


@dataclass
class Task:
    thread: Thread
    above: Task | None = None
    place: int = 0
    # The request that hasn't arrived, or the number of the call in flight.
    ask: Ask | None = None
    flying: int | None = None
    hang_up: bool = False
    waiting: int = 0
    results: list[str] = field(default_factory=list)


EVERYWHERE = ("ok", "Done.", "yes", "I will look at it.")
"""Replies that everybody gives."""

words = st.text("abcdefghijklmnopqrstuvwxyzäßñ漢字", min_size=1, max_size=8)
names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=10)


class World:
    """The scheduler, the engine's record, and the drawn habits of one rollout."""

    def __init__(self, draw: Draw, *, wild: bool = False) -> None:
        self.draw = draw
        self.wild = wild
        # The agent's habits that only wild rollouts have.
        self.greeting: list[Chat] = []
        self.system_role, self.drops_reasoning = "system", False
        self.common = False
        if wild:
            self.system_role = draw(st.sampled_from(["system", "system", "developer"]))
            self.drops_reasoning = draw(st.booleans())
            self.common = draw(st.booleans())
        self.stripping: str = draw(st.sampled_from(["never", "user", "always"]))
        self.thinks: bool = draw(st.booleans())
        self.fine: bool = draw(st.booleans())
        self.verbatim: bool = draw(st.booleans())
        self.blank: Any = draw(st.sampled_from(["", None, ...] if wild else ["", None]))
        self.asks_until_hang_up: int = draw(st.integers(0, 5))
        self.calls: list[dict[str, Any]] = []
        self.truth: dict[int, Truth] = {}
        self.again: dict[int, int] = {}
        self.clock = 0
        self.unique = 0
        self.tool_calls = 0
        # What was said so far, for those who quote all of it.
        self.said: list[str] = []

    # texts

    def text(self, least: int = 1, most: int = 5) -> str:
        return " ".join(self.draw(st.lists(words, min_size=least, max_size=most)))

    def own(self, least: int = 1, most: int = 5) -> str:
        """A text that stands nowhere else by chance."""
        self.unique += 1
        return f"{self.text(least, most)} #{self.unique}#"

    def quoting(self, quoted: str) -> str:
        """A text of its own, which quotes another or does not."""
        style = self.draw(st.sampled_from(["plain", "inside", "end", "quotes"]))
        if style == "plain":
            return self.own()
        if style == "inside":
            return f"{self.text()} {quoted} {self.own()}"
        return f'{self.own()} "{quoted}"' if style == "quotes" else f"{self.own()}\n{quoted}"

    # messages

    def says(self, text: str = "", calls: list[tuple[str, dict[str, Any]]] | None = None) -> Chat:
        reply: Chat = {"role": "assistant", "content": text}
        if self.thinks and self.draw(st.booleans()):
            reply["reasoning_content"] = self.text() + " "
        if text:
            self.said.append(text)
        if calls:
            reply["tool_calls"] = []
            for name, arguments in calls:
                self.tool_calls += 1
                spaced = self.draw(st.booleans())
                spelled = json.dumps(arguments, separators=(" , ", " :  ") if spaced else None, ensure_ascii=spaced)
                function = {"name": name, "arguments": spelled}
                reply["tool_calls"].append({"id": f"call_{self.tool_calls}", "type": "function", "function": function})
        return reply

    def echo(self, reply: Chat) -> Chat:
        """The assistant message as this agent sends it back."""
        if self.verbatim:
            return reply
        echoed = dict(reply)
        if echoed.get("reasoning_content"):
            echoed["reasoning_content"] = echoed["reasoning_content"].strip()
        if self.drops_reasoning:
            echoed.pop("reasoning_content", None)
        if echoed.get("tool_calls"):
            echoed["content"] = echoed["content"] or self.blank
            if echoed["content"] is ...:
                del echoed["content"]
            echoed["tool_calls"] = [
                call
                | {
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": json.dumps(
                            json.loads(call["function"]["arguments"]), separators=(",", ":"), ensure_ascii=False
                        ),
                    }
                }
                for call in echoed["tool_calls"]
            ]
        return echoed

    # the engine's side

    def arrive(self, ask: Ask) -> int:
        n = len(self.calls)
        prompt = render(ask.messages, ask.tools, self.stripping)
        link = ask.link
        if link == "next":
            assert ask.parent is not None
            before = self.calls[ask.parent]["prompt"] + self.calls[ask.parent]["sampled"]
            link = "exact" if prompt[: len(before)] == before else "drift"
        raw = json.dumps([ask.messages, ask.tools], sort_keys=True).encode()
        self.calls.append(
            {"ask": ask, "arrived": self.clock, "prompt": prompt, "body": hashlib.sha256(raw).hexdigest()}
        )
        self.truth[n] = Truth(
            ask.conversation, ask.role, ask.kind, link, ask.parent, started_by=ask.started_by, carries=ask.carries
        )
        return n

    def end(self, n: int, *, hang_up: bool) -> None:
        call = self.calls[n]
        ids = [*body(call["ask"].reply, thinking=True, fine=self.fine), END]
        reply = call["ask"].reply
        if hang_up:
            kept = self.draw(st.integers(0, len(ids) - 1))
            ids = ids[:kept]
            reply = {"role": "assistant", "content": (reply["content"] or "")[:kept]}
        call |= {"ended": self.clock, "sampled": ids, "hang_up": hang_up, "reply": reply}

    # the scheduler

    def run(self, threads: list[Thread]) -> None:
        tasks = [Task(thread) for thread in threads]
        for task in list(tasks):
            self.step(tasks, task, None)
        while True:
            live = [task for task in tasks if task.ask is not None]
            if not live:
                return
            task = live[self.draw(st.integers(0, len(live) - 1))]
            self.clock += 1
            assert task.ask is not None
            if task.flying is None:
                self.asks_until_hang_up -= 0 if task.ask.twin else 1
                task.hang_up = self.asks_until_hang_up == -1 and not task.ask.twin
                task.flying = self.arrive(task.ask)
                continue
            n, task.flying = task.flying, None
            self.end(n, hang_up=task.hang_up)
            if task.hang_up:
                # The same request goes out again, and this time the agent stays.
                self.clock += 1
                task.flying, task.hang_up = self.arrive(task.ask), False
                self.truth[n].tried_again_by = task.flying
                continue
            reply, task.ask = task.ask.reply, None
            self.step(tasks, task, (n, self.echo(reply)))

    def maybe(self, share: int = 2) -> bool:
        """Draw one in `share` in a wild rollout; never in another."""
        return self.wild and self.draw(st.integers(1, share)) == 1

    def step(self, tasks: list[Task], task: Task, value: Any) -> None:
        try:
            wanted = task.thread.send(value)
        except StopIteration as stop:
            above = task.above
            if above is not None:
                above.results[task.place] = stop.value
                above.waiting -= 1
                if above.waiting == 0:
                    self.step(tasks, above, above.results)
            return
        if isinstance(wanted, Ask):
            task.ask = wanted
            return
        if not wanted.waits:
            for thread in wanted.threads:
                child = Task(_reported(thread, wanted.results))
                tasks.append(child)
                self.step(tasks, child, None)
            self.step(tasks, task, None)
            return
        task.results, task.waiting = [""] * len(wanted.threads), len(wanted.threads)
        for place, thread in enumerate(wanted.threads):
            child = Task(thread, above=task, place=place)
            tasks.append(child)
            self.step(tasks, child, None)

    def recorded(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._record(n, call) for n, call in enumerate(self.calls))

    def _record(self, n: int, call: dict[str, Any]) -> dict[str, Any]:
        ask: Ask = call["ask"]
        sampled, reply = call["sampled"], call["reply"]
        finish = ask.finish or ("tool_calls" if reply.get("tool_calls") else "stop")
        return {
            "n": n,
            "id": f"chatcmpl-{n}",
            "status": "aborted" if call["hang_up"] else "complete",
            "delivered": not call["hang_up"],
            "arrived": call["arrived"],
            "ended": call["ended"],
            "streamed": True,
            "engine": "vllm",
            "model_asked": "m",
            "finish_reason": None if call["hang_up"] else finish,
            "messages": list(ask.messages),
            "tools": hashlib.sha256(" ".join(ask.tools).encode()).hexdigest() if ask.tools else None,
            "tool_names": ask.tools,
            "reply": reply,
            "body": call["body"],
            "prompt_ids": list(call["prompt"]),
            "sampled_ids": list(sampled),
            "logprobs": [-0.01 * (1 + place % 97) for place in range(len(sampled))],
            "usage_prompt": None if call["hang_up"] else len(call["prompt"]),
            "usage_sampled": None if call["hang_up"] else len(sampled),
            "sampling_sent": {"temperature": 1.0},
            "started_at": "2026-01-01T00:00:00.000Z",
        }


def _reported(thread: Thread, results: list[str]) -> Thread:
    final = yield from thread
    results.append(final)
    return final


# -- the agents -------------------------------------------------------------------------------------------------------

Step = Literal["tool", "spawn", "detach", "compact", "follow_up", "cut"]


class Loop:
    """An agent's conversation: its messages, and the steps that it can take."""

    def __init__(
        self,
        world: World,
        *,
        name: str,
        role: str,
        opening: list[Chat],
        tools: tuple[str, ...],
        spawner: str | None,
        task: str,
        started_by: int | None = None,
        depth: int = 0,
    ) -> None:
        self.world, self.name, self.role, self.tools, self.spawner = world, name, role, tools, spawner
        self.opening, self.task, self.depth = [*opening[:1], *world.greeting, *opening[1:]], task, depth
        self.messages = list(self.opening)
        self.reports = False
        self.twin = False
        self.started_by = started_by
        self.link = "root"
        self.parent: int | None = None
        self.carries: tuple[int, ...] = ()
        self.summaries = 0
        self.handed_on = False

    def ask(self, reply: Chat, *, extra: list[Chat] | None = None, tools: tuple[str, ...] | None = None) -> Ask:
        return Ask(
            conversation=self.name,
            role=self.role,
            kind=None,
            messages=[*self.messages, *(extra or [])],
            tools=self.tools if tools is None else tools,
            reply=reply,
            link=self.link,
            parent=self.parent,
            started_by=self.started_by,
            carries=self.carries,
            twin=self.twin and self.link == "root",
        )

    def turn(self, reply: Chat) -> Generator[Ask | Fan, Any, int]:
        n: int
        n, echoed = yield self.ask(reply)
        self.messages.append(echoed)
        self.link, self.parent, self.carries = "next", n, ()
        return n

    def results(self, texts: list[str]) -> None:
        calls = self.messages[-1]["tool_calls"]
        for call, text in zip(calls, texts, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if self.world.maybe(6):
            self.messages.append({"role": "system", "content": "Remember what the user wants."})

    def tool(self) -> Generator[Ask | Fan, Any, None]:
        world, draw = self.world, self.world.draw
        calls = []
        for _ in range(draw(st.integers(1, 2))):
            name = draw(st.sampled_from([tool for tool in self.tools if tool != self.spawner]))
            argument = draw(st.sampled_from([self.task, world.text(), world.quoting(self.task)]))
            calls.append((name, {draw(names): argument, "n": draw(st.integers(0, 99))}))
        yield from self.turn(world.says(draw(st.sampled_from(["", world.text()])), calls))
        said = [value for value in calls[-1][1].values() if isinstance(value, str)]
        # One of arguments that quote the task can't be told from a title that does.
        if said and self.task not in said[0] and world.maybe(6):
            yield Fan([probe(world, said[0], self.tools)])
        self.results([draw(st.sampled_from([self.task, world.text()])) for _ in calls])

    def spawn(self) -> Generator[Ask | Fan, Any, None]:
        world, draw = self.world, self.world.draw
        assert self.spawner is not None
        prompts = [world.quoting(self.task) for _ in range(draw(st.integers(1, 2)))]
        if len(prompts) == 2 and world.maybe(3):
            prompts[1] = prompts[0]
        # The task handed on word for word; once, and with an answer that tells it from a title.
        verbatim = self.depth == 0 and not self.handed_on and len(set(prompts)) == len(prompts) and draw(st.booleans())
        if verbatim:
            self.handed_on, prompts[0] = True, self.task
        key = draw(names)
        calls = [(self.spawner, {key: prompt, "z_description": world.text()}) for prompt in prompts]
        n = yield from self.turn(world.says("", calls))
        inner = tuple(tool for tool in self.tools if tool != self.spawner)
        same_system = draw(st.booleans())
        children = []
        for place, prompt in enumerate(prompts):
            system = self.opening[0] if same_system else {"role": "system", "content": world.own()}
            deeper = self.depth == 0 and not verbatim and draw(st.booleans())
            child = Loop(
                world,
                name=f"{self.name}/{n}.{place}",
                role="subagent",
                opening=[system, {"role": "user", "content": prompt}],
                tools=(*inner, self.spawner) if deeper else inner,
                spawner=self.spawner,
                task=prompt,
                started_by=n,
                depth=self.depth + 1,
            )
            steps = draw(st.lists(st.sampled_from(child.steps()), max_size=2))
            child.reports = not verbatim and world.maybe(4)
            child.twin = len(set(prompts)) < len(prompts)
            children.append(child.live(steps, long=verbatim and place == 0))
        finals = yield Fan(children)
        if not verbatim and len(set(prompts)) == len(prompts) and world.maybe(6):
            # Nothing of what the child said came back. (Of two with one prompt, one would look thrown away.)
            self.results(["ERROR: the agent gave no report" for _ in finals])
            return
        wrap = draw(st.sampled_from(["{}", "<task id='1'><task_result>{}</task_result></task>", "Agent said:\n{}"]))
        self.results([wrap.format(final) for final in finals])
        if verbatim:
            # The result has to be seen, and not only a summary of it.
            yield from self.tool()

    def detach(self) -> Generator[Ask | Fan, Any, None]:
        """Start an agent, go on beside it, and wait for it later, or not."""
        world, draw = self.world, self.world.draw
        assert self.spawner is not None
        prompt = world.quoting(self.task)
        n = yield from self.turn(world.says("", [(self.spawner, {"message": prompt})]))
        self.results([f"agent_{n}"])
        child = Loop(
            world,
            name=f"{self.name}/{n}.0",
            role="subagent",
            opening=[self.opening[0], {"role": "user", "content": prompt}],
            tools=tuple(tool for tool in self.tools if tool != self.spawner),
            spawner=self.spawner,
            task=prompt,
            started_by=n,
            depth=self.depth + 1,
        )
        fan = Fan([child.live(draw(st.lists(st.just("tool"), max_size=1)))], waits=False)
        yield fan
        yield from self.tool()
        if fan.results and draw(st.booleans()):
            yield from self.turn(world.says("", [(self.tools[0], {"wait": f"agent_{n}"})]))
            self.results([json.dumps({"status": {"completed": fan.results[0]}}, ensure_ascii=False)])
            if draw(st.booleans()):
                told = f"<subagent_notification>\n{fan.results[0]}\n</subagent_notification>"
                self.messages.append({"role": "user", "content": told})

    def cut(self) -> Generator[Ask | Fan, Any, None]:
        """A reply is cut by length and thrown away; the same prompt gets a longer one."""
        world = self.world
        if self.link != "next":
            yield from self.tool()
        ask = self.ask(world.says(world.text()))
        ask.finish = "length"
        yield ask
        yield from self.tool()

    def steps(self) -> list[Step]:
        return ["tool", "spawn"] if self.spawner in self.tools and self.depth < 2 else ["tool"]

    def compact(self) -> Generator[Ask | Fan, Any, None]:
        world, draw = self.world, self.world.draw
        if self.link == "compaction":
            # Nothing was said since the last one.
            yield from self.tool()
        self.summaries += 1
        summary = world.own(9, 12)
        if world.maybe(3):
            summary = f"{summary}\n" + "\n".join(f"- {said}" for said in world.said)
        style = draw(st.sampled_from(["own-assistant", "own-user", "inside"]))
        system = self.opening[0]
        last = self.parent
        if style == "inside":
            tools = draw(st.sampled_from([self.tools, ()]))
            instruction = {"role": "user", "content": world.text() + " summarise"}
            n, _ = yield self.ask(world.says(summary), extra=[instruction], tools=tools)
            last = n
        else:
            transcript = "\n\n".join(f"[{message['role']}]: {told(message)}" for message in self.messages[1:])
            ask = Ask(
                conversation=f"{self.name}/summary{self.summaries}",
                role="auxiliary",
                kind="summary",
                messages=[
                    {"role": "system", "content": world.own()},
                    {"role": "user", "content": f"{world.text()}\n{transcript}\n{world.text()}"},
                ],
                tools=(),
                reply=world.says(summary),
                link="root",
                parent=None,
            )
            n, _ = yield ask
        if style == "own-assistant":
            fixed = world.maybe()
            self.messages = [
                system,
                {"role": "user", "content": "What did we do so far?" if fixed else world.text() + "?"},
                {"role": "assistant", "content": summary},
                {"role": "user", "content": "Continue if you have next steps." if fixed else world.text()},
            ]
        elif style == "own-user":
            kept = self.messages[self._last_turn() :] if draw(st.booleans()) else []
            before = {"role": "user", "content": f"{world.text()}:\n\n<summary>\n{summary}\n</summary>"}
            self.messages = [system, before, self.opening[-1], *kept]
        else:
            self.messages = [*self.opening, {"role": "user", "content": f"{world.text()}\n{summary}"}]
        self.link, self.parent, self.carries = "compaction", last, (n,)

    def _last_turn(self) -> int:
        return max(place for place, message in enumerate(self.messages) if message["role"] == "assistant")

    def follow_up(self) -> Generator[Ask | Fan, Any, None]:
        """The person answers what the agent said."""
        yield from self.turn(self.world.says(self.world.text()))
        self.messages.append({"role": "user", "content": self.world.text()})

    def live(self, steps: list[Step], *, long: bool = False) -> Thread:
        take = {
            "tool": self.tool, "spawn": self.spawn, "compact": self.compact, "follow_up": self.follow_up,
            "detach": self.detach, "cut": self.cut,
        }  # fmt: skip
        for step in steps:
            yield from take[step]()
        final = self.world.own(9, 12) if long or self.world.draw(st.booleans()) else self.world.text()
        if not long and self.world.common and self.world.maybe():
            final = self.world.draw(st.sampled_from(EVERYWHERE))
        if self.reports:
            # The report is a tool call's argument, and nothing is said behind it.
            yield from self.turn(self.world.says("", [("complete_task", {"result": final})]))
            return final
        yield from self.turn(self.world.says(final))
        return final


def told(message: Chat) -> str:
    """A message as a transcript tells it."""
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()]
    return " ".join([message.get("content") or "", *calls])


def title(world: World, task: str) -> Thread:
    """The call that names the session, in one of two styles; it may come at any time."""
    style = world.draw(st.sampled_from(["apart", "quoted"]))
    quoted = [{"role": "user", "content": f'{world.text()}:\n"{task}"'}]
    apart = [{"role": "user", "content": world.text()}, {"role": "user", "content": task}]
    named: str = world.draw(st.sampled_from([world.text(1, 1), world.own(3, 4)]))
    yield Ask(
        conversation="title",
        role="auxiliary",
        kind="title",
        messages=[{"role": "system", "content": world.own()}, *(apart if style == "apart" else quoted)],
        tools=(),
        reply=world.says(named),
        link="root",
        parent=None,
    )
    return named


def probe(world: World, asked: str, tools: tuple[str, ...]) -> Thread:
    """Is this command safe? Asked once a tool call was made; answered in a word."""
    world.unique += 1
    offered = world.draw(st.sampled_from([(), tools]))
    yield Ask(
        conversation=f"probe {world.unique}",
        role="auxiliary",
        kind="probe",
        messages=[
            {"role": "system", "content": world.own()},
            {"role": "user", "content": f"Is this safe?\n{asked}\nAnswer yes or no."},
        ],
        tools=offered,
        reply=world.says("yes"),
        link="root",
        parent=None,
    )
    return "yes"


def name_tool(world: World, task: str) -> Thread:
    """A title that is given as a tool call's argument."""
    yield Ask(
        conversation="title",
        role="auxiliary",
        kind="title",
        messages=[{"role": "system", "content": world.own()}, {"role": "user", "content": f"Name this:\n{task}"}],
        tools=("set_title",),
        reply=world.says("", [("set_title", {"title": world.own(2, 3)})]),
        link="root",
        parent=None,
    )
    return ""


class Terminal(Loop):
    """An agent without tools: what it wants done stands in its replies, and what came of it in user messages."""

    def output(self) -> Generator[Ask | Fan, Any, None]:
        yield from self.turn(self.world.says(self.world.own(3, 6)))
        self.messages.append({"role": "user", "content": "New output:\n" + self.world.own()})

    def hand_off(self) -> Generator[Ask | Fan, Any, None]:
        """Three calls: a summary asked for inside, questions to it from a new conversation, answers inside; and the
        next request is spliced of the last two."""
        world = self.world
        last = self.parent
        handing = {"role": "user", "content": "You are about to hand off your work. " + world.text()}
        summary = world.says(world.own(9, 12))
        a, told = yield self.ask(summary, extra=[handing])
        self.messages += [handing, told]
        picking = {"role": "user", "content": f"You pick up work. {self.task}\nSummary:\n{told['content']}\nAsk."}
        b, questions = yield Ask(
            conversation=f"{self.name}/questions{a}",
            role="auxiliary",
            kind="summary",
            messages=[picking],
            tools=(),
            reply=world.says(world.own(9, 12)),
            link="root",
            parent=None,
        )
        self.link, self.parent, self.carries = "next", a, ()
        asking = {"role": "user", "content": questions["content"]}
        c, answers = yield self.ask(world.says(world.own(9, 12)), extra=[asking])
        told_on = {"role": "user", "content": f"Here are the answers.\n{answers['content']}\nGo on."}
        self.messages = [self.opening[-1], picking, questions, told_on]
        self.link, self.parent, self.carries = "compaction", c, (c,)
        del b, last

    def live(self, steps: list[Any], *, long: bool = False) -> Thread:
        for step in steps:
            yield from (self.hand_off() if step == "hand_off" else self.output())
        final = self.world.own(3, 6)
        yield from self.turn(self.world.says(final))
        return final


@st.composite
def stories(draw: Draw, *, wild: bool = False) -> Story:
    """Draw a rollout of the demo's shape, with all five kinds in it; `wild`: see above."""
    world = World(draw, wild=wild)
    task = world.own()
    if wild and draw(st.integers(1, 10)) == 1:
        return _terminal(world, task)
    tools = tuple(draw(st.lists(names, min_size=2, max_size=4, unique=True)))
    boilerplate = [{"role": "user", "content": world.text()}] if draw(st.booleans()) else []
    if world.maybe(3):
        world.greeting = [
            {"role": "user", "content": "This is the context: " + world.own()},
            {"role": "assistant", "content": "Got it. Thanks for the context!"},
        ]
    main = Loop(
        world,
        name="main",
        role="main",
        opening=[{"role": world.system_role, "content": world.own()}, *boilerplate, {"role": "user", "content": task}],
        tools=tools,
        spawner=tools[-1],
        task=task,
    )
    before = draw(st.permutations(["tool", "spawn"]))
    more: list[Step] = ["tool", "spawn", "follow_up", "compact"]
    after = draw(st.lists(st.sampled_from([*more, "detach", "cut"] if wild else more), max_size=2))
    steps = [*before, *after]
    steps.insert(draw(st.integers(1, len(steps))), "compact")
    titles = name_tool(world, task) if world.maybe(8) else title(world, task)
    threads = [main.live(steps), titles]
    world.run(threads if draw(st.booleans()) else threads[::-1])
    return _story(world)


def _terminal(world: World, task: str) -> Story:
    main = Terminal(
        world, name="main", role="main", opening=[{"role": "user", "content": task}], tools=(), spawner=None, task=task
    )
    steps = world.draw(st.lists(st.sampled_from(["output", "output", "hand_off"]), min_size=1, max_size=4))
    world.run([main.live(["output", *steps])])
    return _story(world)


def _story(world: World) -> Story:
    return Story(calls=world.recorded(), truth=world.truth)
