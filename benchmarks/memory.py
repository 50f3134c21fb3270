"""`bin/bench memory`: what open rollouts hold in the appliance's process, in use, idle and closed.

A thousand rollouts grow to 16,000 tokens over 20 calls, all alike in step: call 1 of each, then call 2 of each. So all
are in memory when the last call has ended, whatever the time that it took. Then a hundred of them go on, a call each
now and then, and the others rest until they have left memory (`--sleep-after` of the appliance, a minute unless said
otherwise). Then some of those that rest are asked once more, and must link to what they said before. Then all are
closed, and a minute later looked at again.

What is told is the resident memory of the process, from the kernel (`VmRSS`), the same figure before the first call,
and what the store takes on disk. Prompts have nothing in common with those of other rollouts, so nothing is shared:
real ones share their system prompt and tools at least.

What a process holds beyond a fresh one once all are closed is not yet what closed rollouts hold: caches have filled,
and the heap has holes. So another crowd of as many goes the same way at the end, with prompts of its own: what the
process holds more after that one is what closed rollouts leave behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks import interpreter, load, pages, plan, report, systems, traffic, wire
from benchmarks.corpus import REPLY_TOKENS, TOOLS, Corpus
from benchmarks.systems import Treering
from benchmarks.traffic import Turn
from benchmarks.upstream import Flow, serve

ROLLOUTS, CALLS, TOKENS = 1_000, 20, 16_000
KEPT = 100
"""That go on while the others rest."""

WOKEN = 20
LANES = 8
SLEEP_AFTER_S = 60.0
LOOK_S = 12.0
"""Until the appliance has looked at who rests, and given back what they held."""

GOALS_MIB = {"all in memory": 300.0, "idle": 150.0}

DOCUMENT = systems.ROOT / "docs" / "memory.json"
PAGE = systems.ROOT / "docs" / "performance.md"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What the process holds at one time."""

    # "empty", "all in memory", "idle", "woken", "closed", "closed for a minute", "as many more, closed for a minute"
    state: str
    open_rollouts: int
    # Of those, with a call in the time after which one leaves memory.
    in_use: int
    rss_mib: float
    # Since `empty`, for each open rollout.
    kib_per_rollout: float | None
    store_mib: float
    calls: int
    goal_mib: float | None


AGAIN = "as many more, closed for a minute"
"""The state after a second crowd."""


def turn_of(rollout: int, n: int, *, calls: int = CALLS, tokens: int = TOKENS) -> Turn:
    """Return the nth call, from 0, of a rollout. Pure."""
    step = tokens // calls
    history = tuple((step * (k + 1), REPLY_TOKENS) for k in range(n))
    return Turn(0, plan.starts_of(rollout, 2 * tokens), step * (n + 1), REPLY_TOKENS, 0.0, history)


class Crowd:
    """The rollouts, and what is asked of them."""

    def __init__(
        self, treering: Treering, corpus: Corpus, keys: Sequence[str], *, calls: int, tokens: int, first: int = 0
    ) -> None:
        """`first`: the number of the first rollout, by which its prompts are told from all others'."""
        self._treering = treering
        self._corpus = corpus
        self._keys = keys
        self._first = first
        self._calls_each = calls
        self._tokens = tokens
        self.calls = 0
        self._clients: list[load.Client] = []

    async def connect(self) -> None:
        """Open the connections."""
        self._clients = [await load.Client.connect(self._treering.url, Flow()) for _ in range(LANES)]

    def disconnect(self) -> None:
        """Close them."""
        for client in self._clients:
            client.close()

    async def ask(self, n: int, rollouts: Sequence[int]) -> None:
        """Make the nth call, from 0, of these rollouts, eight at a time."""
        waiting = iter(rollouts)

        async def lane(client: load.Client) -> None:
            for rollout in waiting:
                turn = turn_of(self._first + rollout, n, calls=self._calls_each, tokens=self._tokens)
                spans = traffic.messages(turn)
                said = [{"role": role, "content": self._corpus.text(start, end)} for role, start, end in spans]
                body = msgspec.json.encode({"model": "bench", "max_tokens": 4096, "messages": said, "tools": TOOLS})
                bench = wire.Ask(start=turn.start, n_prompt=turn.n_prompt).header()
                head = load.head_of(body, key=self._keys[rollout], bench=bench)
                async with asyncio.timeout(load.ROUND_LIMIT_S):
                    await client.ask(load.Request(call=0, head=head, body=body))
                self.calls += 1

        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(lane(client))


async def measure(
    *, rollouts: int = ROLLOUTS, calls: int = CALLS, tokens: int = TOKENS, sleep_after_s: float = SLEEP_AFTER_S
) -> dict[str, Any]:
    """Measure, printing as it goes; return the run as JSON's values. Raises RuntimeError."""
    corpus, kept = Corpus(), max(1, rollouts * KEPT // ROLLOUTS)
    server, upstream = await serve(wire.Wire(corpus), Flow())
    made: list[Row] = []
    began = time.monotonic()
    out = sys.stdout
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as name:
        folder = Path(name)
        words = ("--sleep-after", f"{sleep_after_s:g}")
        treering = await asyncio.to_thread(systems.start_treering, upstream, folder, *words)
        try:
            secrets = await asyncio.to_thread(treering.open, rollouts)
            crowd = Crowd(treering, corpus, secrets, calls=calls, tokens=tokens)
            # What a process holds once it has served anything at all.
            other = await asyncio.to_thread(treering.register, {"n": 1})
            warm = Crowd(treering, corpus, [other[0]["secret"]], calls=calls, tokens=tokens)
            for each in (warm, crowd):
                await each.connect()
            await warm.ask(0, [0])
            warm.disconnect()

            def note(state: str, *, is_open: int, in_use: int) -> None:
                rss = treering.rss_mib()
                empty = made[0].rss_mib if made else rss
                row = Row(
                    state=state,
                    open_rollouts=is_open,
                    in_use=in_use,
                    rss_mib=round(rss, 1),
                    kib_per_rollout=round((rss - empty) * 1024 / is_open, 1) if made and is_open else None,
                    store_mib=round(sum(file.stat().st_size for file in folder.glob("treering.db*")) / 2**20, 1),
                    calls=crowd.calls,
                    goal_mib=GOALS_MIB.get(state) if (rollouts, calls, tokens) == (ROLLOUTS, CALLS, TOKENS) else None,
                )
                made.append(row)
                out.write(table_line(row))
                out.flush()

            out.write(heading())
            note("empty", is_open=rollouts, in_use=0)
            for n in range(calls):
                await crowd.ask(n, range(rollouts))
            await asyncio.sleep(1.0)
            note("all in memory", is_open=rollouts, in_use=rollouts)
            rest_until = time.monotonic() + sleep_after_s + LOOK_S
            n = calls
            while time.monotonic() < rest_until:
                # Each in use has a call in every third of that time.
                await crowd.ask(n, range(kept))
                n += 1
                await asyncio.sleep(max(0.5, sleep_after_s / 3))
            note("idle", is_open=rollouts, in_use=kept)
            woken = range(kept, min(rollouts, kept + WOKEN))
            await crowd.ask(calls, woken)
            note("woken", is_open=rollouts, in_use=kept + len(woken))
            for rollout in woken:
                link = await asyncio.to_thread(_last_link, treering, secrets[rollout])
                if link != "exact":
                    raise RuntimeError(f"a rollout that had left memory came back with a call that is {link}")
            await asyncio.to_thread(_close, treering, secrets)
            await asyncio.sleep(1.0)
            note("closed", is_open=0, in_use=0)
            # What all rollouts share, messages above all, is kept as long as one that rests.
            await asyncio.sleep(sleep_after_s + LOOK_S)
            note("closed for a minute", is_open=0, in_use=0)
            crowd.disconnect()
            more = await asyncio.to_thread(treering.open, rollouts)
            other_crowd = Crowd(treering, corpus, more, calls=calls, tokens=tokens, first=rollouts)
            await other_crowd.connect()
            for n in range(calls):
                await other_crowd.ask(n, range(rollouts))
            other_crowd.disconnect()
            await asyncio.to_thread(_close, treering, more)
            await asyncio.sleep(sleep_after_s + LOOK_S)
            note(AGAIN, is_open=0, in_use=0)
        finally:
            treering.stop()
            server.close()
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told: dict[str, Any] = {
        "benchmark": "memory",
        "version": report.VERSION,
        "at": at,
        "host": {"cores": os.cpu_count() or 1, "load": round(os.getloadavg()[0], 2)},
        "python": interpreter.describe(),
        "rollouts": rollouts,
        "calls": calls,
        "tokens": tokens,
        "sleep_after_s": sleep_after_s,
        "rows": [msgspec.to_builtins(row) for row in made],
        "verdict": verdict(made),
    }
    out.write(f"\n{told['verdict']}; {time.monotonic() - began:.0f} s\n")
    return told


def _close(treering: Treering, secrets: Sequence[str]) -> None:
    for secret in secrets:
        treering.ask("POST", f"/rollouts/{treering.ids_by_secret[secret]}/close", {})


def _last_link(treering: Treering, secret: str) -> str:
    graph = treering.ask("GET", f"/rollouts/{treering.ids_by_secret[secret]}/graph")
    link: str = graph["calls"][-1]["link"]
    return link


def verdict(made: Sequence[Row]) -> str:
    """Return a sentence on each goal. Pure."""
    told = [
        f"{row.state}: {row.rss_mib:.0f} MiB of at most {row.goal_mib:.0f}, "
        + ("holds" if row.rss_mib < row.goal_mib else "does not hold")
        for row in made
        if row.goal_mib is not None
    ]
    return "; ".join(told) or "smaller than what the goals are about"


_COLUMNS = ("state", "open rollouts", "in use", "resident MiB", "KiB a rollout", "goal MiB", "store MiB", "calls")


def heading() -> str:
    """Return the table's two first lines, in Markdown."""
    return report.line(_COLUMNS) + report.rule(_COLUMNS, words=(0,))


def table_line(row: Row) -> str:
    """Return a row as a line of the table."""
    return report.line(
        (
            row.state,
            f"{row.open_rollouts:,}",
            f"{row.in_use:,}",
            report.shown(row.rss_mib, 0),
            report.shown(row.kib_per_rollout, 0),
            "" if row.goal_mib is None else f"< {row.goal_mib:.0f}",
            report.shown(row.store_mib, 0),
            f"{row.calls:,}",
        )
    )


def section(told: dict[str, Any]) -> str:
    """Return the docs' section on a run, from its document."""
    made = [msgspec.convert(row, Row) for row in told["rows"]]
    said = (
        f"{told['rollouts']:,} rollouts of {told['calls']} calls, to {told['tokens']:,} tokens;"
        f" `--sleep-after {told['sleep_after_s']:g}`. {told['verdict'][0].upper()}{told['verdict'][1:]}."
    )
    return f"{pages.run_of(told)} {said}\n\n{heading()}{''.join(map(table_line, made))}"


def run(argv: list[str]) -> int:
    """Measure and print; 1 if something went wrong."""
    parser = argparse.ArgumentParser(prog="bin/bench memory", description=__doc__.partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rollouts, and three seconds of rest")
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help=f"open at once ({ROLLOUTS})")
    parser.add_argument(
        "--sleep-after", type=float, default=SLEEP_AFTER_S, metavar="SECONDS", help="the appliance's own setting (60)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--docs", action="store_true", help="write docs/memory.json and the section in the docs")
    asked = parser.parse_args(argv)
    rollouts, sleep_after_s = asked.rollouts, asked.sleep_after
    if asked.quick:
        rollouts, sleep_after_s = rollouts // 10, min(3.0, sleep_after_s)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            told = runner.run(measure(rollouts=rollouts, sleep_after_s=sleep_after_s))
        except RuntimeError as error:
            sys.stderr.write(f"bin/bench memory: {error}\n")
            return 1
    if asked.json is not None:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    if asked.docs:
        publish(told)
    return 0


def publish(told: dict[str, Any]) -> None:
    """Write a run beside the docs, and its section into them."""
    DOCUMENT.write_text(json.dumps(told, indent=1) + "\n")
    PAGE.write_text(pages.replaced(PAGE.read_text(), "memory", section(told)))
