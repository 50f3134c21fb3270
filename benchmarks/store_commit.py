"""What goes into the store: calls a second, and how long a call's record takes to be committed.

Each round is a store of its own under 32 lanes at a time. A lane holds one conversation after the other, of 20 calls
that grow by 300 tokens, as agents do: start, record (awaited, as the agent's finish awaits it), mark of delivery. The
requests are handed over taken apart, as the appliance does. First the lanes go on without a pause: calls a second. Then
they pause as if for an engine, 100 calls a second in all, at random: how long a record takes when the store isn't at
its limit. What lanes themselves cost (JSON, arrays) is in every figure alike. The lanes run
in a process of their own; with two `workers` in two of them over one database, 16 in each.

The durabilities are measured by turns, and a ratio is the median over those of one turn: a busy machine differs from
itself by more than they from each other. PostgreSQL gives out each call's number, which is one more awaited statement.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks import store_kill
from benchmarks.report import percentile
from capture import clock
from capture.digests import Digests, digest
from capture.store import open_store
from capture.store.base import Delta, Durability, Entry, Exchange, Parts, Record, Registration, Store
from capture.store.bodies import array, whole
from graph.messages import from_chat
from graph.records import Call, Message, Rollout
from tests import postgres

ROOT = Path(__file__).resolve().parent.parent
LANES = 32
TURNS = 20
TURN_TOKENS = 300
SAMPLED = 100
REPLY = 1_200
"""Letters of a message: some 300 tokens."""

DURABILITIES: tuple[Durability, ...] = ("process", "none", "power")
ROUNDS, ROUND_S = 7, 6.0
QUICK_ROUNDS, QUICK_ROUND_S = 3, 2.0
PACED = 100.0
"""Calls a second of all lanes while latency is measured."""

GOAL = 0.9
"""Of `none`'s calls a second."""

Row = dict[str, Any]


def rows(*, quick: bool, kill: bool) -> list[Row]:
    """Measure; with `kill`, kill instead and look for what was lost. Says on stderr how far it is."""
    if kill:
        return store_kill.rows(quick=quick)
    rounds, seconds = (QUICK_ROUNDS, QUICK_ROUND_S) if quick else (ROUNDS, ROUND_S)
    made = _sqlite(rounds, seconds)
    if (reason := postgres.missing()) is not None:
        sys.stderr.write(f"no PostgreSQL: {reason}\n")
        return made
    return made + _postgres(rounds, seconds)


def table(made: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    if any("kills" in row for row in made):
        return store_kill.table(made)
    lines = [
        "| store | durability | processes | calls/s | commit p50 | p99 | calls/s by `none`'s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in made:
        ratio = "" if row["ratio_to_none"] is None else f"{row['ratio_to_none']:.2f}"
        lines.append(
            f"| {row['store']} | {row['durability']} | {row['workers']} | {row['calls_per_s']:,.0f} | "
            f"{row['commit_ms_p50']:.1f} ms | {row['commit_ms_p99']:.1f} ms | {ratio} |"
        )
    return "\n".join(lines)


def _sqlite(rounds: int, seconds: float) -> list[Row]:
    turns: dict[Durability, list[Row]] = {durability: [] for durability in DURABILITIES}
    for turn in range(rounds):
        # Each comes first as often as the others.
        for at in range(len(DURABILITIES)):
            durability = DURABILITIES[(turn + at) % len(DURABILITIES)]
            with tempfile.TemporaryDirectory(prefix="treering-store-") as folder:
                turns[durability].append(_round(f"sqlite:///{folder}/t.db", durability, 1, seconds))
        sys.stderr.write(f"sqlite: turn {turn + 1} of {rounds}\n")
    none = turns["none"]
    return [_row("sqlite", durability, 1, measured, beside=none) for durability, measured in turns.items()]


def _postgres(rounds: int, seconds: float) -> list[Row]:
    turns: dict[tuple[Durability, int], list[Row]] = {}
    with postgres.Server.running(fsync=True) as server:
        for turn in range(rounds):
            for durability in cast("tuple[Durability, ...]", ("process", "power")):
                for workers in (1, 2):
                    url = asyncio.run(server.database())
                    turns.setdefault((durability, workers), []).append(_round(url, durability, workers, seconds))
                    asyncio.run(server.drop(url))
            sys.stderr.write(f"postgresql: turn {turn + 1} of {rounds}\n")
    return [_row("postgresql", durability, workers, measured) for (durability, workers), measured in turns.items()]


def _row(store: str, durability: str, workers: int, turns: list[Row], *, beside: list[Row] | None = None) -> Row:
    ratios = [mine["calls_per_s"] / its["calls_per_s"] for mine, its in zip(turns, beside or turns, strict=True)]
    waits = [wait for turn in turns for wait in turn["commit_ms"]]
    return {
        "store": store,
        "durability": durability,
        "workers": workers,
        "calls_per_s": round(statistics.median(turn["calls_per_s"] for turn in turns), 1),
        "commit_ms_p50": round(percentile(waits, 0.5), 2),
        "commit_ms_p99": round(percentile(waits, 0.99), 2),
        "ratio_to_none": round(statistics.median(ratios), 3) if beside is not None else None,
        "calls": sum(turn["calls"] for turn in turns),
        "rounds": len(turns),
    }


def _round(url: str, durability: Durability, workers: int, seconds: float) -> Row:
    """Run one round in processes of its own."""
    lanes = LANES // workers
    command = [sys.executable, "-m", "benchmarks.store_commit", url, durability, str(lanes), str(seconds)]
    running = [
        subprocess.Popen([*command, str(worker)], stdout=subprocess.PIPE, cwd=ROOT, text=True)
        for worker in range(workers)
    ]
    told = [json.loads(process.communicate()[0]) for process in running]
    return {
        "calls_per_s": sum(each["calls"] / each["seconds"] for each in told),
        "calls": sum(each["calls"] for each in told),
        "commit_ms": [wait for each in told for wait in each["commit_ms"]],
    }


# In the process of a round


async def _drive(url: str, durability: Durability, lanes: int, seconds: float, worker: int) -> Row:
    store = open_store(url, durability=durability)
    await store.open()
    waits: list[float] = []
    # Before the clock runs: connections, caches, the file's first pages.
    await asyncio.gather(*(_talk(store, f"warm-{worker}-{lane}", [], turns=3) for lane in range(lanes)))
    began = time.perf_counter()
    await asyncio.gather(*(_lane(store, f"{worker}-{lane}", began + seconds, waits) for lane in range(lanes)))
    took, calls = time.perf_counter() - began, len(waits)
    waits.clear()
    until = time.perf_counter() + seconds / 2
    paced = [_lane(store, f"paced-{worker}-{lane}", until, waits, pause_s=LANES / PACED) for lane in range(lanes)]
    await asyncio.gather(*paced)
    await store.close()
    return {"calls": calls, "seconds": took, "commit_ms": [round(wait * 1000, 3) for wait in waits]}


async def _lane(store: Store, name: str, until: float, waits: list[float], *, pause_s: float = 0.0) -> None:
    conversation = 0
    while time.perf_counter() < until:
        conversation += 1
        await _talk(store, f"{name}-{conversation}", waits, until=until, pause_s=pause_s)


async def _talk(
    store: Store,
    name: str,
    waits: list[float],
    *,
    turns: int = TURNS,
    until: float = float("inf"),
    pause_s: float = 0.0,
) -> None:
    """One conversation of so many calls, or until the time is over; `pause_s` is the mean pause before a call."""
    draw = random.Random(name)
    now = clock.now()
    await store.add([_entry(name, now)])
    elements: list[bytes] = []
    names: list[bytes] = []
    messages: tuple[Message, ...] = ()
    ids = np.empty(0, np.int32)
    holder: int | None = None
    for turn in range(turns):
        if pause_s:
            await asyncio.sleep(draw.expovariate(1 / pause_s))
        if time.perf_counter() > until:
            return
        for role in ("assistant", "user")[turn == 0 :]:
            form = {"role": role, "content": "".join(draw.choices("abcdefghij klmnop", k=REPLY))}
            elements.append(json.dumps(form).encode())
            names.append(digest(elements[-1]))
            messages = (*messages, from_chat(form))
        prompt = np.concatenate([ids, np.arange(TURN_TOKENS, dtype=np.int32) + 1000 * turn])
        sampled = np.arange(SAMPLED, dtype=np.int32) + turn
        n, arrived = turn, 2 * turn
        if store.shared:
            given = await store.arrive(name, choices=1, started_at=now)
            assert given is not None
            n, arrived = given.n, given.arrived
        fields = {"model": b'"m"', "messages": array(elements), "seed": b"7"}
        parts = Parts(fields=fields, elements=list(elements), names=Digests.of(names), messages=messages, sent=fields)
        body = whole(fields)
        running = Call(n=n, status="running", arrived=arrived, messages=messages, started_at=now)
        store.begin(name, running, body, parts=parts)
        ended = Call(
            n=n, id=f"{name}-{n}", status="complete", arrived=arrived, ended=None if store.shared else arrived + 1,
            messages=messages, prompt_ids=prompt, sampled_ids=sampled, logprobs=np.full(SAMPLED, -0.5, np.float32),
            usage_prompt=len(prompt), usage_sampled=SAMPLED, finish_reason="stop", started_at=now,
        )  # fmt: skip
        reply = json.dumps({"id": ended.id, "choices": [{"message": {"content": "r" * REPLY}}]}).encode()
        delta = None if holder is None else Delta(holder=holder, shared=len(ids))
        exchange = Exchange(request=body, sent=body, reply=reply, parts=parts)
        handed = time.perf_counter()
        await store.finish(name, [Record(call=ended, exchange=exchange, delta=delta)])
        waits.append(time.perf_counter() - handed)
        store.deliver(name, [n], delivered=True, at=now)
        ids, holder = np.concatenate([prompt, sampled]), n


def _entry(name: str, now: str) -> Entry:
    return Entry(
        rollout=Rollout(id=name, created_at=now),
        registration=Registration(),
        secret=digest(name.encode()),
        tools_secret=digest(b"tools" + name.encode()),
    )


if __name__ == "__main__":
    where, how, wide, long, which = sys.argv[1:]
    row = asyncio.run(_drive(where, cast("Durability", how), int(wide), float(long), int(which)))
    sys.stdout.write(json.dumps(row) + "\n")
