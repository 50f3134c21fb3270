"""What Treering adds to a call: requests per second, latency, first token, CPU and memory, beside other proxies.

Theory of operation
Load, proxy and upstream share one machine, so a number alone says little; what is told is a ratio. In a pair every
system gets the same calls, one system after the other (`rounds.py`); ratios are taken within a pair, and the median
over the pairs is the result, since noise that lasts longer than a pair falls on both sides alike. Where the ratios of
a row differ too much among themselves it is called too noisy, and no verdict is drawn. Where there are two cores or
more every system runs on one of them, the same for all, and load and upstream on the others.

The bare pass-through relays the very bytes that Treering gets, ids and logprobs included. `bare, no ids` gets replies
without them, as an agent's engine would give them with nobody asking: the price of asking.

Three parts, each with the upstream that suits its question:
- `engine`: an event a write, and the next when the agent has seen the last: what an event costs (`upstream.py`);
- `static`: nginx with its replies in files, as fast as it goes: bytes, and many connections (`nginx.py`);
- `open`, with `--peers`: the engine without waiting, since other people's proxies hold a stream back until its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import dialects, flat, interpreter, matrix, nginx, pages, peers, report, systems, wire, workers
from benchmarks.corpus import Corpus
from benchmarks.plan import Shape
from benchmarks.report import Row
from benchmarks.rounds import Bench
from benchmarks.systems import System
from benchmarks.upstream import Flow, serve

DOCUMENT = systems.ROOT / "docs" / "overhead.json"
PAGE = systems.ROOT / "docs" / "performance.md"

PARTS = ("engine", "static", "open")


def shapes(part: str, *, quick: bool, only: str | None) -> list[Shape]:
    """Return what a part measures."""
    made = {
        "engine": matrix.engine(quick=quick),
        "static": matrix.static(named=only is not None),
        "open": matrix.peers(),
    }[part]
    return [shape for shape in made if matrix.is_wanted(shape, only)]


def run(argv: list[str]) -> int:
    """Measure, print a table and a verdict, write FILE; 1 if a system did not start, or lost a call."""
    asked = _parser().parse_args(argv)
    if asked.tunnel:
        from benchmarks import tunnel

        return tunnel.run(quick=asked.quick, file=asked.json, docs=asked.docs)
    parts = tuple(asked.part or (PARTS if asked.peers else PARTS[:1] if asked.quick else PARTS[:2]))
    command = " ".join(["bin/bench overhead", *argv])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            if asked.calls:
                told = runner.run(flat.measure(calls=100 if asked.quick else flat.POINTS[-1]))
                sys.stdout.write(f"{told['verdict']}\n")
            elif asked.workers:
                told = runner.run(workers.measure(quick=asked.quick))
                sys.stdout.write(f"\n{told['verdict']}\n")
            elif asked.dialects:
                wanted = [shape for shape in dialects.shapes() if matrix.is_wanted(shape, asked.only)]
                told = runner.run(dialects.run(wanted, quick=asked.quick, command=command))
            else:
                told = runner.run(measure(parts, quick=asked.quick, only=asked.only, pairs=asked.pairs))
        except RuntimeError as error:
            sys.stderr.write(f"bin/bench overhead: {error}\n")
            return 1
    if asked.json is not None:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    if asked.docs and asked.dialects:
        dialects.DOCUMENT.write_text(json.dumps(told, indent=1) + "\n")
        PAGE.write_text(dialects.with_section(PAGE.read_text(), told))
    elif asked.docs and asked.calls:
        flat.DOCUMENT.write_text(json.dumps(told, indent=1) + "\n")
        PAGE.write_text(pages.replaced(PAGE.read_text(), "calls", pages.calls(told)))
    elif asked.docs and asked.workers:
        workers.DOCUMENT.write_text(json.dumps(told, indent=1) + "\n")
        PAGE.write_text(pages.replaced(PAGE.read_text(), "workers", workers.section(told)))
    elif asked.docs:
        publish(told)
    return 0


def publish(told: dict[str, Any]) -> None:
    """Write a run beside the docs, and its tables into them; parts that it did not measure stay."""
    whole = merged(json.loads(DOCUMENT.read_text()) if DOCUMENT.exists() else {}, told)
    DOCUMENT.write_text(json.dumps(whole, indent=1) + "\n")
    PAGE.write_text(pages.replaced(PAGE.read_text(), "overhead", pages.overhead(whole)))


def merged(before: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Return a run's document with the parts of an earlier one that it did not measure. Pure."""
    kept = {name: part for name, part in before.get("parts", {}).items() if name not in told["parts"]}
    rows = [row for row in before.get("rows", []) if row.get("upstream") in kept]
    return told | {"parts": kept | told["parts"], "rows": [*told["rows"], *rows]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bin/bench overhead", description="what Treering adds to a call")
    parser.add_argument("--quick", action="store_true", help="Treering and the bare pass-through alone, few pairs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--only", metavar="WORDS", help='only some cases, such as "2000 streamed growing 8"')
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be given again")
    parser.add_argument("--pairs", type=int, metavar="N", help="so many pairs, whatever the part")
    parser.add_argument(
        "--peers", action="store_true", help="OpenEnv's, LiteLLM's and verifiers' too, installed on use"
    )
    parser.add_argument("--docs", action="store_true", help="write docs/overhead.json and the tables in the docs")
    parser.add_argument("--calls", action="store_true", help="a call's cost behind 1 to 1,000 others, and nothing else")
    parser.add_argument("--workers", action="store_true", help="1, 2, 4 … processes and replicas, and nothing else")
    parser.add_argument("--dialects", action="store_true", help="every dialect beside chat, and nothing else")
    parser.add_argument("--tunnel", choices=["ssh"], help="a tunnel on loopback beside the way without, and no more")
    return parser


async def measure(
    parts: Sequence[str], *, quick: bool, only: str | None = None, pairs: int | None = None
) -> dict[str, Any]:
    """Measure the parts, printing as it goes; return the run as JSON's values. Raises RuntimeError."""
    out = sys.stdout
    corpus, flow = Corpus(), Flow()
    bytes_of = wire.Wire(corpus)
    server, engine = await serve(bytes_of, flow)
    made: list[Row] = []
    loads = [os.getloadavg()[0]]
    measured: dict[str, Any] = {}
    out.write(report.heading())
    with ExitStack() as stack:
        stack.callback(server.close)
        pinned = stack.enter_context(systems.one_core())
        for part in parts:
            wanted = shapes(part, quick=quick, only=only)
            if not wanted:
                continue
            with tempfile.TemporaryDirectory(prefix="treering-bench-") as folder, ExitStack() as started:
                static = None
                if part == "static":
                    if (why := nginx.missing()) is not None:
                        sys.stderr.write(f"{why}\n")
                        continue
                    static = await asyncio.to_thread(nginx.Static, engine, Path(folder))
                    started.callback(static.stop)
                upstream = engine if static is None else static.url
                # In a thread: the appliance asks the upstream who it is before it is up.
                found = await asyncio.to_thread(_start, part, upstream, Path(folder), started, quick=quick)
                bench = Bench(
                    found, corpus, flow, paced=part == "engine", static=None if static is None else (static, bytes_of)
                )
                await bench.check()
                times = pairs or (matrix.QUICK_PAIRS if quick else matrix.PAIRS[part])
                own = [os.getloadavg()[0]]
                for shape in wanted:
                    for row in report.rows(shape, await bench.turns(shape, times), upstream=part):
                        made.append(row)
                        out.write(report.table_line(row))
                    out.flush()
                    own.append(os.getloadavg()[0])
                mean = round(sum(own) / len(own), 2)
                measured[part] = {"at": _now(), "load": mean, "pairs": times, "python": interpreter.describe()}
                loads += own
    load = sum(loads) / len(loads)
    told = report.document(made, at=_now(), cores=os.cpu_count() or 1, load=load, pinned=pinned, parts=measured)
    out.write(f"\n{told['host']['cores']} cores, load {told['host']['load']}. {told['verdict']}\n")
    return told


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _start(part: str, upstream: str, folder: Path, stack: ExitStack, *, quick: bool) -> list[System]:
    """Start a part's systems; `stack` stops them."""

    def keep(system: System) -> System:
        stack.callback(system.stop)
        return system

    bare = keep(systems.start_bare(upstream, folder))
    treering = systems.start_treering(upstream, folder)
    keep(treering)
    found = [systems.direct(upstream), bare, treering]
    if quick:
        return found
    found.append(bare.without_ids())
    if (missing := nginx.missing()) is None:
        found.append(keep(nginx.start_proxy(upstream, folder)))
    else:
        sys.stderr.write(f"{missing}\n")
    if part != "static":
        # It knows the engine's way of writing, and nginx sends as much at once as it likes.
        found.append(keep(systems.start_least(upstream, folder)))
    if part != "engine":
        found.append(treering.unrecorded())
    if part == "open":
        others, why = peers.start(upstream, folder)
        for sentence in why:
            sys.stderr.write(f"{sentence}\n")
        for other in others:
            found.append(keep(other))
            if other.name == "litellm":
                found.append(other.without_ids())
    return found
