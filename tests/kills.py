"""Killed at any instant, nothing is lost that an agent saw end.

32 agents hold streaming conversations, in four dialects, and note each reply the moment they see its finish (not
`[DONE]`): its id, and, where the dialect shows them, its prompt ids, sampled ids and logprobs. A hand on the control
plane registers, grades and closes rollouts, and notes what was answered. Then something is killed with SIGKILL: the
appliance, the database, one of several replicas. What is killed is started again, and all that was noted must be there:
each reply under its id, `complete`, never "not delivered", id by id and logprob by logprob; each answered change of a
rollout; and nothing may still be running of what the dead process ran.

Instants are drawn from a seed: at the moment when so many chunks have come in all (which is just behind something that
an agent saw), after so many seconds (which is anywhere), or while the killed process starts again. What runs between
is the machine's, so the same seed gives the same instants and not the same run; it is printed with every failure.

What is in the agents' socket buffers when the process dies was sent by it, and counts: an agent reads on to the end.

`Site` is what is killed; `Appliance` is one process over SQLite. A site over a database or of several replicas is a
class of its own, beside its servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import numpy as np

from capture.scripted import ScriptedEngine
from capture.scripted.rules import Match, Reply, Rule, Rules
from capture.store.check import check
from capture.store.faults import WASTE
from tests.served import Served

AGENTS = 32
MOST_CHUNKS = 1_500
"""Of one round: some three replies of each agent."""
MOST_S = 0.7
START_S = 1.5
"""Within which an instant of a start is drawn; it takes about one second."""
TURNS = 5
"""Of one rollout; then its agent registers another."""
GRACE_S = 0.3
"""For agents to read what had reached them; those of a site that goes on serving are stopped then."""

SAID = (
    "I have looked at {last} and found what there was to find.",
    "Yes. {last}",
    "One thing after the other: first this, then that, and at the end, with the rest behind us, what is left of it.",
)


def engine(pace_s: float = 0.002) -> ScriptedEngine:
    """The engine for such a run: short and long replies, several tokens a chunk, some of them with a thought."""
    rules = tuple(
        Rule(
            match=Match(turn=list(range(at, 64, len(SAID)))),
            reply=Reply(text=text, thinking=None if at else "Let me see.", tokens_per_chunk=4, pace_s=pace_s),
        )
        for at, text in enumerate(SAID)
    )
    return ScriptedEngine(Rules(rules=rules))


class Site(Protocol):
    """Something that serves, and of which a part is killed."""

    # For agents of that number, without /v1.
    def data_url(self, agent: int) -> str: ...

    @property
    def control_url(self) -> str: ...

    # What the control plane asks for.
    @property
    def headers(self) -> dict[str, str]: ...

    # What its log says last, for a person.
    @property
    def said(self) -> str: ...

    # Whether an ended reply may be missing if the rollout's findings name it: the store was down, and the agent was
    # given its reply all the same.
    @property
    def may_name_lost(self) -> bool: ...

    # Whether what the victim ran has ended by the time that it serves again.
    @property
    def ends_at_once(self) -> bool: ...

    async def start(self) -> None:
        """Start all of it."""

    async def strike(self) -> None:
        """Kill the victim with SIGKILL."""

    async def revive(self) -> None:
        """Start the victim again, and return when it serves."""

    async def strike_while_starting(self, after_s: float) -> None:
        """Start the victim and kill it after so many seconds, whether it serves by then or not."""

    async def faults(self) -> list[str]:
        """Say what is wrong with the store as it stands."""

    async def close(self) -> None:
        """Stop all of it."""


class Appliance:
    """One process over SQLite; it is the victim."""

    may_name_lost = False
    ends_at_once = True

    def __init__(self, folder: Path, engine_url: str, *words: str) -> None:
        self._path = folder / "treering.db"
        self._served = Served(folder, "--engine", f"vllm={engine_url}", "--log-level", "warning", *words)
        self.headers = self._served.headers

    def data_url(self, agent: int) -> str:
        return self._served.data_url

    @property
    def control_url(self) -> str:
        return self._served.control_url

    @property
    def said(self) -> str:
        return self._served.said

    async def start(self) -> None:
        await self._served.start()

    async def strike(self) -> None:
        await self._served.kill()

    async def revive(self) -> None:
        await self._served.start()

    async def strike_while_starting(self, after_s: float) -> None:
        await self._served.spawn()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await self._served.ended()
                raise AssertionError(f"it ended by itself: {self._served.said}")
        await self._served.kill()

    async def faults(self) -> list[str]:
        report = await asyncio.to_thread(check, self._path)
        return [f"{fault.rollout} {fault.call}: {fault.message}" for fault in report.faults if fault.code not in WASTE]

    async def close(self) -> None:
        await self._served.close()


@dataclass(kw_only=True)
class Ended:
    """A reply whose finish an agent saw."""

    id: str
    text: str
    # It came by a request that had been sent before: maybe as the second delivery of one and the same call.
    again: bool = False
    # None where the dialect doesn't show them.
    prompt_ids: list[int] | None = None
    sampled_ids: list[int] | None = None
    logprobs: list[float] | None = None


@dataclass(kw_only=True)
class Noted:
    """A rollout, and what was seen of it."""

    id: str
    secret: str = ""
    ended: list[Ended] = field(default_factory=list)
    # What the control plane answered to: the value of `reward`, and whether it closed.
    reward: float | None = None
    closed: bool = False


class Dialect(Protocol):
    """How an agent speaks, and how it sees a reply's end."""

    path: str

    def request(self, turns: list[str]) -> dict[str, Any]: ...

    def headers(self, secret: str) -> dict[str, str]: ...

    def read(self, event: dict[str, Any], so_far: Ended) -> bool:
        """Take an event in; True when by it the reply is finished."""


class Chat:
    path = "/v1/chat/completions"

    def request(self, turns: list[str]) -> dict[str, Any]:
        said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)]
        return {"model": "m", "messages": said, "stream": True, "return_token_ids": True, "logprobs": True}

    def headers(self, secret: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {secret}"}

    def read(self, event: dict[str, Any], so_far: Ended) -> bool:
        so_far.id = event["id"]
        if event.get("prompt_token_ids") is not None:
            so_far.prompt_ids = event["prompt_token_ids"]
            so_far.sampled_ids, so_far.logprobs = [], []
        for choice in event["choices"]:
            so_far.text += choice["delta"].get("content") or ""
            assert so_far.sampled_ids is not None
            assert so_far.logprobs is not None
            so_far.sampled_ids += choice.get("token_ids") or []
            so_far.logprobs += [one["logprob"] for one in (choice.get("logprobs") or {}).get("content") or []]
            if choice["finish_reason"] is not None:
                return True
        return False


class Messages:
    path = "/v1/messages"

    def request(self, turns: list[str]) -> dict[str, Any]:
        said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)]
        return {"model": "m", "max_tokens": 500, "messages": said, "stream": True}

    def headers(self, secret: str) -> dict[str, str]:
        return {"x-api-key": secret, "anthropic-version": "2023-06-01"}

    def read(self, event: dict[str, Any], so_far: Ended) -> bool:
        if event["type"] == "message_start":
            so_far.id = event["message"]["id"]
        elif event["type"] == "content_block_delta":
            so_far.text += event["delta"].get("text", "")
        return event["type"] == "message_delta" and event["delta"].get("stop_reason") is not None


class Responses:
    path = "/v1/responses"

    def request(self, turns: list[str]) -> dict[str, Any]:
        said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)]
        return {"model": "m", "input": said, "stream": True}

    def headers(self, secret: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {secret}"}

    def read(self, event: dict[str, Any], so_far: Ended) -> bool:
        if event["type"] == "response.created":
            so_far.id = event["response"]["id"]
        elif event["type"] == "response.output_text.delta":
            so_far.text += event["delta"]
        return event["type"] in ("response.completed", "response.incomplete")


class Gemini:
    path = "/v1beta/models/m:streamGenerateContent?alt=sse"

    def request(self, turns: list[str]) -> dict[str, Any]:
        said = [{"role": ("user", "model")[at % 2], "parts": [{"text": text}]} for at, text in enumerate(turns)]
        return {"contents": said}

    def headers(self, secret: str) -> dict[str, str]:
        return {"x-goog-api-key": secret}

    def read(self, event: dict[str, Any], so_far: Ended) -> bool:
        so_far.id = event.get("responseId", so_far.id)
        (candidate,) = event["candidates"]
        parts = candidate.get("content", {}).get("parts", [])
        so_far.text += "".join(part["text"] for part in parts if "text" in part and not part.get("thought"))
        return candidate.get("finishReason") is not None


SPOKEN: tuple[Dialect, ...] = (*[Chat()] * 5, Messages(), Responses(), Gemini())
"""By an agent's number; most speak the one that shows ids."""


class Pulse:
    """Counts what all agents see, and says when so many chunks have come."""

    def __init__(self, wanted: int | None) -> None:
        # None: the instant is one in time.
        self.wanted = wanted
        self.due = asyncio.Event()
        self.chunks = 0

    def beat(self) -> None:
        self.chunks += 1
        if self.wanted is not None and self.chunks >= self.wanted:
            self.due.set()


class Agent:
    """Holds conversations, one rollout after the other, and goes on with the last one after each kill."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.speaks = SPOKEN[number % len(SPOKEN)]
        self.rollouts: list[Noted] = []
        self._turns: list[str] = []
        self._asked: list[str] = []

    async def run(self, site: Site, session: aiohttp.ClientSession, pulse: Pulse) -> None:
        """Talk until the connection breaks."""
        while True:
            if not self.rollouts or len(self._turns) >= 2 * TURNS:
                self.rollouts.append(await register(site, session))
                self._turns = []
            asked = [*self._turns, f"turn {len(self._turns) // 2} of agent {self.number}"]
            again, self._asked = asked == self._asked, asked
            ended = await self._call(site, session, self.rollouts[-1], asked, pulse, again=again)
            if ended is None:
                # Refused for now: the store is down, or a replica is gone.
                await asyncio.sleep(0.05)
            else:
                self._turns = [*asked, ended.text]

    async def _call(
        self, site: Site, session: aiohttp.ClientSession, rollout: Noted, turns: list[str], pulse: Pulse, *, again: bool
    ) -> Ended | None:
        speaks, so_far = self.speaks, Ended(id="", text="", again=again)
        url = site.data_url(self.number) + speaks.path
        finished = False
        async with session.post(url, json=speaks.request(turns), headers=speaks.headers(rollout.secret)) as answer:
            if answer.status != 200:
                await answer.read()
                assert answer.status in (502, 503, 507), f"{answer.status} {await answer.text()}\n{site.said}"
                return None
            left = b""
            async for data in answer.content.iter_any():
                pulse.beat()
                *events, left = (left + data).replace(b"\r\n", b"\n").split(b"\n\n")
                for event in events:
                    told = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
                    if not told or told == [b"[DONE]"] or finished:
                        continue
                    if speaks.read(json.loads(b"\n".join(told)), so_far):
                        # Noted here and now; what comes behind the finish may never come.
                        rollout.ended.append(so_far)
                        finished = True
        return so_far if finished else None


class Clerk:
    """Registers, grades and closes rollouts, one after the other, and notes what was answered."""

    def __init__(self) -> None:
        self.rollouts: list[Noted] = []

    async def run(self, site: Site, session: aiohttp.ClientSession, pulse: Pulse) -> None:
        """Go on until the connection breaks."""
        while True:
            noted = await register(site, session)
            self.rollouts.append(noted)
            reward = {"reward": 0.5, "force": True}
            if await _ask(session, "PUT", f"{site.control_url}/rollouts/{noted.id}/reward", site, reward):
                noted.reward = 0.5
            if await _ask(session, "POST", f"{site.control_url}/rollouts/{noted.id}/close", site, {"wait_s": 0}):
                noted.closed = True
            await asyncio.sleep(0.02)


async def register(site: Site, session: aiohttp.ClientSession) -> Noted:
    """Register a rollout, and try again while the store is down."""
    while True:
        made = await _ask(session, "POST", f"{site.control_url}/rollouts", site, {})
        if made is not None:
            return Noted(id=made["id"], secret=made["secret"])
        await asyncio.sleep(0.05)


async def _ask(
    session: aiohttp.ClientSession, method: str, url: str, site: Site, body: dict[str, Any] | None = None
) -> Any | None:
    async with session.request(method, url, json=body, headers=site.headers) as answer:
        said = await answer.read()
        if answer.status >= 500:
            return None
        assert answer.status < 300, f"{method} {url}: {answer.status} {said!r}\n{site.said}"
        return json.loads(said)


@dataclass(kw_only=True)
class Outcome:
    """What came of a run."""

    seed: int
    kills: int = 0
    # Of them, how many while the victim was starting.
    starting: int = 0
    calls_seen_ended: int = 0
    changes_seen: int = 0
    # Missing, and named by a finding; only where the site allows it.
    named: int = 0
    seconds: float = 0.0
    # Each a sentence that begins with the kill's number and instant.
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = f"seed {self.seed}: {self.kills} kills ({self.starting} while starting) in {self.seconds:.0f} s, "
        told += f"{self.calls_seen_ended} calls seen ended, {self.changes_seen} changes, {len(self.lost)} lost"
        return "\n".join([told, *self.lost[:20]])


async def run(
    site: Site, *, kills: int, seed: int, agents: int = AGENTS, said: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Kill so many times; return what was seen and what of it is missing."""
    outcome = Outcome(seed=seed)
    began = time.monotonic()
    talkers, clerk = [Agent(number) for number in range(agents)], Clerk()
    await site.start()
    while outcome.kills < kills:
        rng = random.Random(f"{seed}/{outcome.kills}")
        pulse = Pulse(rng.randint(1, MOST_CHUNKS) if rng.random() < 0.6 else None)
        after_s = rng.uniform(0, MOST_S)
        await _round(site, [*talkers, clerk], pulse, after_s)
        outcome.kills += 1
        instant = f"at {after_s:.3f} s" if pulse.wanted is None else f"at chunk {pulse.wanted}"
        if outcome.kills < kills and rng.random() < 0.15:
            after_s = rng.uniform(0, START_S)
            await site.strike_while_starting(after_s)
            outcome.kills += 1
            outcome.starting += 1
            instant += f", and {after_s:.3f} s into the start"
        await site.revive()
        touched = [agent.rollouts[-2:] for agent in talkers] + [clerk.rollouts[-3:]]
        problems = await _missing(site, [noted for some in touched for noted in some], outcome)
        outcome.lost += [f"kill {outcome.kills} {instant}: {problem}" for problem in problems]
        said(f"{outcome.kills} {instant}: {pulse.chunks} chunks, {len(problems)} lost")
    every = [noted for one in (*talkers, clerk) for noted in one.rollouts]
    outcome.lost += [f"at the end: {problem}" for problem in await _missing(site, every, outcome)]
    outcome.lost += [f"at the end: {fault}" for fault in await site.faults()]
    outcome.calls_seen_ended = sum(len(noted.ended) for noted in every)
    outcome.changes_seen = sum(1 + (noted.reward is not None) + noted.closed for noted in every)
    outcome.seconds = time.monotonic() - began
    return outcome


async def _round(site: Site, hands: Iterable[Agent | Clerk], pulse: Pulse, after_s: float) -> None:
    """Let all talk, strike at the instant, and wait until each has read what had reached it."""
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        loop = asyncio.get_running_loop()
        talking = [loop.create_task(_until_broken(hand.run(site, session, pulse))) for hand in hands]
        try:
            if pulse.wanted is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(10):
                        await pulse.due.wait()
            else:
                await asyncio.sleep(after_s)
            await site.strike()
            await asyncio.wait(talking, timeout=GRACE_S)
        finally:
            for task in talking:
                task.cancel()
            ended = await asyncio.gather(*talking, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


async def _until_broken(work: Awaitable[None]) -> None:
    with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
        await work


async def _missing(site: Site, rollouts: Iterable[Noted], outcome: Outcome) -> list[str]:
    """Return what was seen and isn't there, each as a sentence."""
    problems: list[str] = []
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for noted in rollouts:
            where = f"{site.control_url}/rollouts/{noted.id}"
            answer = await session.get(where, headers=site.headers)
            told = await answer.json()
            if answer.status != 200:
                problems.append(f"{noted.id} is gone: {told}")
                continue
            if noted.closed and told["state"] != "closed":
                problems.append(f"{noted.id} was closed and is {told['state']}")
            if noted.reward is not None and told["reward"] != noted.reward:
                problems.append(f"{noted.id} was given {noted.reward} and has {told['reward']}")
            if not noted.ended:
                continue
            answer = await session.get(f"{where}/calls?ids=1&limit=10000", headers=site.headers)
            calls = (await answer.json())["calls"]
            named: set[int] = set()
            if told["incomplete"]:
                answer = await session.get(f"{where}/findings", headers=site.headers)
                for finding in (await answer.json())["findings"]:
                    named |= set(finding["calls"]) if finding["code"] == "capture_incomplete" else set()
            by_id = {call["id"]: call for call in calls}
            if site.ends_at_once and (left := [call["n"] for call in calls if call["status"] == "running"]):
                problems.append(f"{noted.id}: {left} still run")
            lost = [problem for ended in noted.ended if (problem := _compared(ended, by_id.get(ended.id))) is not None]
            if site.may_name_lost and len(lost) <= len(named):
                outcome.named += len(lost)
            else:
                problems += [f"{noted.id}: {problem}" for problem in lost]
    return problems


def _compared(ended: Ended, call: dict[str, Any] | None) -> str | None:
    """Return how a stored call differs from what its agent saw, None where it doesn't."""
    if call is None:
        return f"{ended.id} was seen to end and is missing"
    # The mark of a second delivery may die with its process; what stands then is that the first one failed.
    undelivered = ended.again and call["status"] == "undelivered"
    if not undelivered and (call["status"] != "complete" or call["delivered"] is False):
        return f"{ended.id} was seen to end and is {call['status']}, delivered {call['delivered']}"
    if ended.sampled_ids is None:
        return None
    if call.get("prompt_ids") != ended.prompt_ids or call.get("sampled_ids") != ended.sampled_ids:
        return f"{ended.id} has other ids: {call.get('sampled_ids')}, and its agent saw {ended.sampled_ids}"
    seen = np.array(ended.logprobs, np.float32).tolist()
    if np.array(call.get("logprobs"), np.float32).tolist() != seen:
        return f"{ended.id} has other logprobs"
    return None
