"""What pinned prefixes cost, and what an engine saves by them.

    bin/bench drift --cost [--quick] [--docs]

Two measurements, each of conversations that are had in turn, so that a slow minute of the machine meets all of them:

- before an engine that answers at once (`benchmarks.drift.static`): how much longer a call takes plain and pinned than
  at the engine itself, and how often the engine is asked, at 16,000 and 100,000 tokens;
- before a real vLLM with its prefix cache on: the time to the first token at turn k, pinned by plain. The model is
  random, so as it renders the engine finds none of what it sampled in its cache; pinned, it finds all.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from benchmarks.drift.templates import ROOT
from capture.settings import Settings
from capture.trial.play import Trial, trial
from capture.trial.scenarios import Ask, Script

Json = dict[str, Any]

PAGE = ROOT / "docs" / "pinned.md"
DATA = ROOT / "docs" / "pinned.json"
BEGIN, END = "<!-- cost: begin -->\n", "<!-- cost: end -->\n"

SIZES = (16_000, 100_000)
TURNS = 12
"""Of a conversation; the first has no parent and is left out."""
SAMPLED = 1024
"""Tokens of each reply at the real engine: eight blocks of its cache on a CPU."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one size in one mode, before an engine that answers at once."""

    prompt_tokens: int
    mode: str
    total_ms_p50: float
    # Beyond what the call takes at the engine itself; null for that.
    added_ms_p50: float | None
    # Requests to the engine a call, by path.
    requests: dict[str, float]


class First(msgspec.Struct, frozen=True, kw_only=True):
    """Time to the first token at a turn of a conversation with a real engine."""

    turn: int
    prompt_tokens: int
    plain_ms: float
    pinned_ms: float
    ratio: float


@contextmanager
def static() -> Iterator[str]:
    """Run the engine that answers at once; yield its address."""
    argv = [sys.executable, "-m", "benchmarks.drift.static"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


class _Agent:
    """A conversation, one call at a time, at a chat route."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, first: str) -> None:
        self._session, self._url = session, url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._messages: list[Json] = [{"role": "user", "content": first}]
        self.took_ms: list[float] = []

    async def call(self) -> None:
        body = msgspec.json.encode({"model": "static", "messages": self._messages, "max_tokens": 16})
        began = time.perf_counter()
        async with self._session.post(
            self._url, data=body, headers={**self._headers, "Content-Type": "application/json"}
        ) as answer:
            text = await answer.read()
            assert answer.status == 200, text[:200]
        self.took_ms.append((time.perf_counter() - began) * 1000)
        reply = msgspec.json.decode(text)["choices"][0]["message"]
        self._messages += [
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": "Go on, do."},
        ]


async def at_once(size: int) -> list[Cost]:
    """Measure the calls of one size."""
    found: dict[str, list[float]] = {}
    counts: dict[str, Json] = {}
    with static() as url:
        async with trial(Settings(engine=(f"vllm={url}",))) as one, _session() as session:
            # Conversations of their own words, one after another a turn, so that all meet the same machine.
            agents: dict[str, _Agent] = {}
            for mode in ("direct", "engine", "pinned"):
                words = f"{mode:8}" + "word" * (size - 4)
                if mode == "direct":
                    agents[mode] = _Agent(session, f"{url}/v1/chat/completions", "none", words)
                    continue
                rollout = await one.control("POST", "/rollouts", {"tokens": mode})
                agents[mode] = _Agent(session, f"{rollout['base_url']}/chat/completions", rollout["secret"], words)
            asked: dict[str, list[Json]] = {mode: [] for mode in agents}
            for _ in range(TURNS):
                for mode, agent in agents.items():
                    await _counted(session, url)
                    await agent.call()
                    asked[mode].append(await _counted(session, url))
    for mode, agent in agents.items():
        found[mode] = agent.took_ms[1:]
        paths = sorted({path for each in asked[mode][1:] for path in each})
        counts[mode] = {path: statistics.mean(each.get(path, 0) for each in asked[mode][1:]) for path in paths}
    direct = statistics.median(found["direct"])
    return [
        Cost(
            prompt_tokens=size,
            mode=mode,
            total_ms_p50=round(statistics.median(took), 2),
            added_ms_p50=None if mode == "direct" else round(statistics.median(took) - direct, 2),
            requests={path: round(n, 2) for path, n in counts[mode].items()},
        )
        for mode, took in found.items()
    ]


async def _counted(session: aiohttp.ClientSession, url: str) -> Json:
    async with session.get(f"{url}/counts") as answer:
        found: Json = await answer.json()
    return found


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        yield session


def _long(first: str, turns: int) -> Script:
    """A long first message, and long replies."""
    messages = [{"role": "user", "content": first}]
    for n in range(turns):
        reply = yield Ask(messages=messages, says={}, max_tokens=SAMPLED)
        messages = [
            *messages,
            {"role": "assistant", "content": reply.get("content") or ""},
            {"role": "user", "content": f"And number {n}?"},
        ]


MORE: Json = {
    "stream": True,
    # All replies are cut by length, and so of one length.
    "logit_bias": {"151645": -100, "151643": -100},
    # Thinking is off, so that they are text.
    "chat_template_kwargs": {"enable_thinking": False},
}
"""Of each call at the real engine. No seed: it ends at one with a prompt of several chunks."""


async def first_tokens(url: str, *, turns: int, words: int) -> list[First]:
    """Measure times to the first token at a running engine."""
    calls: dict[str, list[Json]] = {}
    async with trial(Settings(engine=(f"vllm={url}",))) as one:
        scripts = {
            mode: _Played(one, _long(f"{mode} " + "word " * words, turns), tokens=mode) for mode in ("engine", "pinned")
        }
        for _ in range(turns):
            for each in scripts.values():
                await each.step()
        for mode, each in scripts.items():
            path = f"/rollouts/{each.rollout['id']}/calls"
            calls[mode] = [await one.control("GET", f"{path}/{n}") for n in range(turns)]
    found = []
    for turn, (plain, pinned) in enumerate(zip(calls["engine"], calls["pinned"], strict=True)):
        if not turn:
            continue
        assert pinned["pinned"] is not None, "not pinned"
        found.append(
            First(
                turn=turn,
                prompt_tokens=pinned["n_prompt"],
                plain_ms=round(plain["first_token_ms"], 1),
                pinned_ms=round(pinned["first_token_ms"], 1),
                ratio=round(pinned["first_token_ms"] / plain["first_token_ms"], 3),
            )
        )
    return found


class _Played:
    """A script, streamed, a call at a time."""

    def __init__(self, one: Trial, script: Script, *, tokens: str) -> None:
        self._one, self._script, self._tokens = one, script, tokens
        self._asked: Ask | None = None
        self.rollout: Json = {}

    async def step(self) -> None:
        if self._asked is None:
            self.rollout = await self._one.control("POST", "/rollouts", {"tokens": self._tokens})
            self._asked = next(self._script)
        message = await self._one.say(self.rollout, self._asked, MORE)
        self._asked = next(iter(_sent(self._script, message)), self._asked)


def _sent(script: Script, message: Json) -> Iterator[Ask]:
    try:
        yield script.send(message)
    except StopIteration:
        return


def served(*, turns: int, words: int) -> tuple[list[First], str | None]:
    """Start a vLLM and measure; say why there is none where it can't be started."""
    from tests.real import engine_vllm

    if (why := engine_vllm.missing()) is not None:
        return [], why
    with tempfile.TemporaryDirectory() as folder:
        try:
            with engine_vllm.running(Path(folder), flags=(*engine_vllm.FLAGS, "--enable-prefix-caching")) as engine:
                return asyncio.run(first_tokens(engine.base_url, turns=turns, words=words)), None
        except engine_vllm.EngineError as error:
            return [], f"vLLM did not start: {str(error).splitlines()[0]}"


def section(told: Mapping[str, Any]) -> str:
    """Return the section of docs/pinned.md."""
    host = told["host"]
    lines = [f"`bin/bench drift --cost`, {told['at'][:10]}, {host['cores']} cores, load {host['load']}.\n\n"]
    lines.append("Before an engine that answers at once; medians of the calls behind the first, one at a time:\n\n")
    lines.append("| prompt tokens | mode | ms | added | requests to the engine a call |\n|---:|---|---:|---:|---|\n")
    for row in told["rows"]:
        asked = ", ".join(f"{n:g} `{path}`" for path, n in row["requests"].items())
        added = "" if row["added_ms_p50"] is None else f"{row['added_ms_p50']:.1f}"
        name = {"direct": "the engine itself", "engine": "plain", "pinned": "pinned"}[row["mode"]]
        lines.append(f"| {row['prompt_tokens']:,} | {name} | {row['total_ms_p50']:.1f} | {added} | {asked} |\n")
    if told["first_tokens"]:
        ratios = [row["ratio"] for row in told["first_tokens"]]
        lines.append(
            f"\nTime to the first token at a real vLLM on a CPU with its prefix cache on, replies of {SAMPLED} tokens,"
            f" plain and pinned in turn in one run; pinned takes {statistics.median(ratios):.2f} of plain's time in the"
            " median, its renderings included:\n\n"
        )
        lines.append("| turn | prompt tokens | plain, ms | pinned, ms | ratio |\n|---:|---:|---:|---:|---:|\n")
        lines += [
            f"| {row['turn']} | {row['prompt_tokens']:,} | {row['plain_ms']:,.0f} | {row['pinned_ms']:,.0f} |"
            f" {row['ratio']:.2f} |\n"
            for row in told["first_tokens"]
        ]
    return "".join(lines)


def with_section(page: str, told: Mapping[str, Any]) -> str:
    """Return docs/pinned.md with the section between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + section(told) + END + rest.partition(END)[2]


def run(argv: Sequence[str]) -> int:
    """Measure, print the section, and write FILE."""
    parser = argparse.ArgumentParser(prog="bin/bench drift --cost", description="what pinned prefixes cost and save")
    parser.add_argument("--cost", action="store_true", help="this measurement")
    parser.add_argument("--quick", action="store_true", help="the smaller size, and no real engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--docs", action="store_true", help="write docs/pinned.json and the section in docs/pinned.md")
    asked = parser.parse_args(argv)
    rows = list(itertools.chain.from_iterable(asyncio.run(at_once(size)) for size in SIZES[: 1 if asked.quick else 2]))
    firsts: list[First] = []
    if not asked.quick:
        firsts, why = served(turns=8, words=1000)
        if why is not None:
            sys.stderr.write(f"bench: without an engine: {why}\n")
    told = {
        "benchmark": "pinned",
        "version": 1,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "host": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
        "rows": msgspec.to_builtins(rows),
        "first_tokens": msgspec.to_builtins(firsts),
    }
    sys.stdout.write(section(told))
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    if asked.docs:
        DATA.write_text(json.dumps(told, indent=1) + "\n")
        PAGE.write_text(with_section(PAGE.read_text(), told))
    return 0
