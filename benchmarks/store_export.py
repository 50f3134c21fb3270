"""What comes out of the store: exported tokens a second in each format, and memory that rollouts don't add to.

Measured on a real appliance, in a process of its own, over a SQLite store that was filled before it started; the
reader takes the answer of `GET /sequences` as fast as it comes and keeps nothing of it.

- Throughput: 200 rollouts of 10 calls whose prompts grow to 8,000 tokens, 300 tokens sampled in each. Tokens are those
  of the rows, each once, in every format alike: what a format repeats (whole prompts for each turn) costs it time and
  brings it no token.
- Memory: rollouts of 10 short calls, some and ten times as many, up to 10,000. The peak is the appliance's, and what it
  held before anything was asked for stands beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.systems import stop
from capture.formats import FORMATS
from capture.store import open_store
from capture.store.base import Delta, Entry, Exchange, Record, Registration, Store
from graph.messages import from_chat
from graph.records import Call, Message, Rollout, Weights

Row = dict[str, Any]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "export.md"
"""Where the table of the last run stands."""

CALLS = 10

START_LIMIT_S = 60.0
ANSWER_LIMIT_S = 600.0
CHUNK = 1 << 20

AT_ONCE = 32
"""Rollouts that are put into the store side by side: their commits are grouped."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How many rollouts, and how long their calls."""

    rollouts: int
    # Tokens that each call adds to the prompt, and samples.
    added: int
    sampled: int

    @property
    def tokens(self) -> int:
        """Tokens of all rows: of each rollout one, with all its calls."""
        return self.rollouts * CALLS * (self.added + self.sampled)


THROUGHPUT = Shape(rollouts=200, added=500, sampled=300)
QUICK_THROUGHPUT = Shape(rollouts=20, added=500, sampled=300)
MEMORY = tuple(Shape(rollouts=rollouts, added=60, sampled=20) for rollouts in (1_000, 10_000))
QUICK_MEMORY = tuple(Shape(rollouts=rollouts, added=60, sampled=20) for rollouts in (100, 1_000))


def rows(*, quick: bool, kill: bool) -> list[Row]:
    """Measure."""
    del kill
    made: list[Row] = []
    shape = QUICK_THROUGHPUT if quick else THROUGHPUT
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as name, serving(Path(name), shape) as appliance:
        for each in FORMATS:
            made.append(appliance.measure(each, shape))
            sys.stderr.write(f"export: {each}\n")
    for shape in QUICK_MEMORY if quick else MEMORY:
        with tempfile.TemporaryDirectory(prefix="treering-bench-") as name, serving(Path(name), shape) as appliance:
            made.append(appliance.measure("native", shape))
            sys.stderr.write(f"export: {shape.rollouts:,} rollouts\n")
    return made


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    lines = [
        "| format | rollouts | calls | tokens | MiB | tokens/s | rollouts/s | peak MiB | before |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            row["format"],
            *(f"{row[name]:,}" for name in ("rollouts", "calls", "tokens")),
            f"{row['mib']:,.1f}",
            *(f"{row[name]:,.0f}" for name in ("tokens_per_s", "rollouts_per_s", "peak_mib", "before_mib")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


class Appliance:
    """A running appliance, asked for exports."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, key: str) -> None:
        self.pid = process.pid
        self.url = f"http://127.0.0.1:{port}"
        self.key = key
        self._process = process
        self._port = port

    def __repr__(self) -> str:
        return f"<Appliance on port {self._port}>"

    def measure(self, format_: str, shape: Shape) -> Row:
        """Export all rollouts. Raises RuntimeError for an answer without its end, or with a refused rollout."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")
        before = self._memory("VmRSS")
        started = time.perf_counter()
        size = self._read(f"/sequences?format={format_}", shape.rollouts, whole=format_ == "parquet")
        took = time.perf_counter() - started
        return {
            "format": format_,
            "rollouts": shape.rollouts,
            "calls": shape.rollouts * CALLS,
            "tokens": shape.tokens,
            "mib": round(size / 2**20, 2),
            "tokens_per_s": round(shape.tokens / took),
            "rollouts_per_s": round(shape.rollouts / took, 1),
            "peak_mib": round(self._memory("VmHWM"), 1),
            "before_mib": round(before, 1),
        }

    def ready(self) -> bool:
        """Say whether it answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        return False

    def _memory(self, name: str) -> float:
        """Return a figure of the process's memory, in MiB."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.M)
        assert found is not None, "Linux gives it"
        return int(found[1]) / 1024

    def _read(self, path: str, rollouts: int, *, whole: bool) -> int:
        """Read an answer; return its bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_LIMIT_S)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.key}"})
            answer = connection.getresponse()
            size, last = 0, b""
            while piece := answer.read(CHUNK):
                size += len(piece)
                last = (last + piece)[-1_000:]
        if answer.status != 200:
            raise RuntimeError(f"GET {path} was answered with {answer.status}: {last!r}")
        if not whole:
            end = json.loads(last.splitlines()[-1])
            if end != {"end": True, "rollouts": rollouts, "refused": 0, "next": None}:
                raise RuntimeError(f"GET {path} ended with {end}")
        elif not last.endswith(b"PAR1"):
            raise RuntimeError(f"GET {path} gave no whole file")
        return size


@contextlib.contextmanager
def serving(folder: Path, shape: Shape) -> Iterator[Appliance]:
    """Fill a store and run an appliance over it, for a block."""
    url = f"sqlite:///{folder}/treering.db"
    asyncio.run(fill(url, shape))
    with running(folder, url) as appliance:
        yield appliance


@contextlib.contextmanager
def running(folder: Path, url: str) -> Iterator[Appliance]:
    """Run an appliance over a store, on the scripted engine, for a block. Raises RuntimeError if it doesn't start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = hashlib.sha256(str(folder).encode()).hexdigest()
    (folder / "key").touch(mode=0o600)
    (folder / "key").write_text(key)
    command = [
        sys.executable, "-m", "capture.cli", "serve", "--engine", "scripted", "--listen", "127.0.0.1:0",
        "--admin-listen", f"127.0.0.1:{port}", "--admin-key-file", str(folder / "key"), "--store", url,
    ]  # fmt: skip
    # Settings of the caller's must not reach it, nor a treering.toml in the working folder.
    given = {name: value for name, value in os.environ.items() if not name.startswith("TREERING_")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=given, stdout=log, stderr=log)
    try:
        appliance = Appliance(process, port, key)
        until = time.monotonic() + START_LIMIT_S
        while not appliance.ready():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the appliance did not start: {(folder / 'log').read_text()[-500:]}")
            time.sleep(0.05)
        yield appliance
    finally:
        stop(process)


async def fill(url: str, shape: Shape) -> None:
    """Put closed, graded rollouts of one conversation each into a store."""
    store = open_store(url, durability="none")
    await store.open()
    try:
        for first in range(0, shape.rollouts, AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for number in range(first, min(first + AT_ONCE, shape.rollouts)):
                    group.create_task(_rollout(store, number, shape))
    finally:
        await store.close()


async def _rollout(store: Store, number: int, shape: Shape) -> None:
    name = f"rollout-{number:06}"
    rollout = Rollout(
        id=name, group=f"group-{number // 8}", model="bench", logprobs_mode="processed", created_at=_at(0)
    )
    secrets = [hashlib.sha256(f"{name} {kind}".encode()).digest() for kind in ("agent", "tools")]
    await store.add([Entry(rollout=rollout, registration=Registration(), secret=secrets[0], tools_secret=secrets[1])])
    drawn = np.random.default_rng(number)
    ids = np.empty(0, np.int32)
    said: list[dict[str, str]] = []
    messages: tuple[Message, ...] = ()
    for n in range(CALLS):
        held = len(ids)
        prompt = np.concatenate([ids, drawn.integers(0, 150_000, shape.added, dtype=np.int32)])
        sampled = drawn.integers(0, 150_000, shape.sampled, dtype=np.int32)
        said.append({"role": "user", "content": f"Step {n} of {name}."})
        reply = {"role": "assistant", "content": f"Done with {n} of {name}."}
        messages = (*messages, from_chat(said[-1]))
        call = Call(
            n=n, id=f"{name}-{n}", status="complete", delivered=True, arrived=2 * n, ended=2 * n + 1,
            model_asked="bench", finish_reason="stop", messages=messages, reply=from_chat(reply),
            prompt_ids=prompt, sampled_ids=sampled, logprobs=-drawn.random(shape.sampled, dtype=np.float32),
            usage_prompt=len(prompt), usage_sampled=shape.sampled, sampling_sent={"temperature": 1.0},
            weights=Weights(start="1", end="1"), started_at=_at(n),
        )  # fmt: skip
        request = json.dumps({"model": "bench", "messages": said}).encode()
        store.begin(name, call, request)
        exchange = Exchange(request=request, sent=request, reply=json.dumps({"choices": [{"message": reply}]}).encode())
        delta = Delta(holder=n - 1, shared=held) if n else None
        await store.finish(name, [Record(call=call, exchange=exchange, delta=delta)])
        said.append(reply)
        messages = (*messages, from_chat(reply))
        ids = np.concatenate([prompt, sampled])
    await store.change(name, {"state": "closed", "closed_at": _at(CALLS), "reward": float(number % 2)})


def _at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}.000Z"
