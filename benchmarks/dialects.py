"""What a dialect costs beside chat: the same conversation, the same process, in short turns one after the other.

Theory of operation
Chat and Completions pass through; Responses, Messages and Gemini are translated to chat and back. In a slice each
dialect makes a few calls, the same ones, one dialect behind the other; which begins changes from slice to slice. A pair
is a few slices: a ratio is taken of their sums (seconds a call, first token, CPU a call, each by chat's), the median
over the pairs is what is told, and where the ratios differ too much among themselves, that. Slices take a fraction of a
second, since noise that lasts longer than one falls on all dialects alike.

`direct`, chat without a proxy, is in each pair too, so that what is added can be told from what the load itself takes.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import interpreter, load, plan, report, systems, wire
from benchmarks.corpus import Corpus
from benchmarks.plan import Shape
from benchmarks.report import Row, Turn
from benchmarks.rounds import turn
from benchmarks.speech import SPEECHES, Speech
from benchmarks.systems import System, Treering
from benchmarks.upstream import Flow, serve
from benchmarks.wire_completions import CompletionsWire

SIZES = (2_000, 16_000)

PAIRS = 7
QUICK_PAIRS = 4

SLICES = 4
QUICK_SLICES = 2
"""Of a pair."""

# Measured calls of each connection in a slice: streamed, and whole; by connections.
_CALLS = {1: (3, 5), 8: (1, 3)}

GOAL = 1.5
"""Translation may cost that much of what chat takes."""

DOCUMENT = systems.ROOT / "docs" / "overhead-dialects.json"
PAGE = systems.ROOT / "docs" / "performance.md"

SETTLE_S = 0.02
"""After a turn, before its CPU time is read: the marks of delivery are still being written."""


class DialectRow(Row, frozen=True, kw_only=True):
    """What one dialect did with one shape of calls; `ratio_to_bare` is null. Ratios are medians over the pairs."""

    # Seconds a call, by chat's; null for chat itself.
    cost: float | None
    cost_spread: float | None
    # Time to the first token, by chat's; null where nothing was streamed.
    first_token_cost: float | None
    first_token_spread: float | None
    # The process's CPU time a call, by chat's.
    cpu_cost: float | None
    cpu_spread: float | None


def shapes() -> list[Shape]:
    """Return what is measured; `calls` are those of a slice."""
    return [
        Shape(
            prompt_tokens=size,
            streamed=streamed,
            case="growing",
            connections=connections,
            calls=each[0 if streamed else 1],
        )
        for size in SIZES
        for streamed in (True, False)
        for connections, each in _CALLS.items()
    ]


class Bench:
    """The appliance, running, and what is measured on it."""

    def __init__(self, upstream: str, treering: Treering, corpus: Corpus, flow: Flow) -> None:
        chat = SPEECHES[0]
        # By the rows' names: what is asked, and how it is spoken there.
        self._spoken: dict[str, tuple[System, Speech]] = {"direct": (systems.direct(upstream), chat)}
        self._spoken |= {f"treering/{speech.name}": (treering, speech) for speech in SPEECHES}
        self._corpus = corpus
        self._flow = flow
        self._used = 0
        self._calls = 0

    async def check(self) -> None:
        """See that every dialect brings what the upstream says, and is recorded. Raises RuntimeError."""
        ask = plan.Ask(0, 0, 2_000)
        for name, (system, speech) in self._spoken.items():
            for streamed in (False, True):
                keys = await asyncio.to_thread(system.open, 1)
                client = await load.Client.connect(system.url, self._flow)
                async with asyncio.timeout(load.ROUND_LIMIT_S):
                    _, reply = await client.ask(self._request(speech, ask, keys, streamed=streamed), keep=True)
                client.close()
                got = b"".join(reply.kept or [])
                if speech.said(got, streamed=streamed) != self._corpus.text(2_000, 2_200):
                    raise RuntimeError(f"{name} did not pass the reply on: {got[:300]!r} … {got[-300:]!r}")
                # Of its tokens the agent must see each once, or the upstream would wait for what has come.
                if streamed and reply.n_events < 200:
                    raise RuntimeError(f"{name}: {reply.n_events} of 200 tokens were seen in {got[:1000]!r}")
                await asyncio.to_thread(system.close_round, {0: 1})

    async def measure(self, shape: Shape, *, pairs: int, slices: int) -> list[DialectRow]:
        """Measure one shape in every dialect, so many pairs of so many slices.

        Raises RuntimeError if a call was not recorded.
        """
        turns: dict[str, list[Turn]] = {name: [] for name in self._spoken}
        names = list(self._spoken)
        for system, _ in self._spoken.values():
            system.reset_peak()
        for number in range(pairs * slices):
            plans, used = plan.lanes(shape, self._used)
            self._used += used
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                turns[name].append(await self._turn(name, shape, plans))
        return rows(shape, {name: paired(own, slices) for name, own in turns.items()})

    async def _turn(self, name: str, shape: Shape, plans: Sequence[plan.LanePlan]) -> Turn:
        system, speech = self._spoken[name]

        def request(ask: plan.Ask, keys: Sequence[str]) -> load.Request:
            return self._request(speech, ask, keys, streamed=shape.streamed)

        return await turn(system, plans, request, self._flow, settle_s=SETTLE_S)

    def _request(self, speech: Speech, ask: plan.Ask, keys: Sequence[str], *, streamed: bool) -> load.Request:
        self._calls += 1
        wanted = wire.Ask(start=ask.start, n_prompt=ask.n_prompt, streamed=streamed, call=self._calls)
        body = speech.request(self._corpus, ask.start, ask.n_prompt, streamed=streamed)
        target = speech.streaming if streamed else speech.target
        head = load.head_of(body, key=keys[ask.conversation], bench=wanted.header(), target=target)
        marks = load.Marks(speech.token, speech.token, speech.ahead)
        return load.Request(call=self._calls, head=head, body=body, marks=marks)


def paired(turns: Sequence[Turn], slices: int) -> list[Turn]:
    """Return the sums of so many slices each, which make a pair."""
    return [
        Turn(
            round=load.Round(
                seconds=sum(each.round.seconds for each in own),
                samples=[sample for each in own for sample in each.round.samples],
            ),
            cpu_ms=sum(each.cpu_ms for each in own),
            peak_mib=max(each.peak_mib for each in own),
        )
        for own in (turns[at : at + slices] for at in range(0, len(turns), slices))
    ]


def rows(shape: Shape, turns: Mapping[str, list[Turn]]) -> list[DialectRow]:
    """Return the rows of one shape, `direct` left out; `turns` holds each one's part of each pair, in order."""
    chat = turns["treering/chat"]
    made = []
    for row in report.rows(shape, {**turns, "bare": chat}):
        if row.system in ("direct", "bare"):
            continue
        own = turns[row.system]
        of_chat = row.system == "treering/chat"
        cost = (
            (None, None) if of_chat else _ratio([1 / turn.round.rps for turn in own], [1 / c.round.rps for c in chat])
        )
        first = (None, None) if of_chat or not shape.streamed else _ratio(_firsts(own), _firsts(chat))
        cpu = (None, None) if of_chat else _ratio([turn.cpu_ms for turn in own], [turn.cpu_ms for turn in chat])
        fields = msgspec.structs.asdict(row) | {
            "ratio_to_bare": None,
            "ratio_spread": None,
            "noisy": any((spread or 0.0) > report.NOISY_SPREAD for _, spread in (cost, first)),
        }
        made.append(
            DialectRow(
                **fields,
                cost=cost[0],
                cost_spread=cost[1],
                first_token_cost=first[0],
                first_token_spread=first[1],
                cpu_cost=cpu[0],
                cpu_spread=cpu[1],
            )
        )
    return made


def _ratio(own: Sequence[float], chat: Sequence[float]) -> tuple[float, float | None]:
    """Return the median of the pairs' ratios, and their spread."""
    ratios = [mine / its for mine, its in zip(own, chat, strict=True)]
    spread = report.spread_of(ratios)
    return round(statistics.median(ratios), 3), None if spread is None else round(spread, 3)


def _firsts(turns: Sequence[Turn]) -> list[float]:
    """Return the median time to the first token in each turn."""
    return [statistics.median(each.first_token_ms or 0.0 for each in turn.round.samples) for turn in turns]


def verdict(made: Sequence[DialectRow]) -> str:
    """Return a sentence for each dialect on whether it keeps to the goal; what is too noisy is not judged."""
    told = []
    for name in dict.fromkeys(row.system for row in made if row.cost is not None):
        found = [
            (ratio, what, row)
            for row in made
            if row.system == name
            for ratio, spread, what in (
                (row.cost, row.cost_spread, "a call"),
                (row.first_token_cost, row.first_token_spread, "the first token"),
                (row.cpu_cost, row.cpu_spread, "CPU"),
            )
            if ratio is not None and (spread or 0.0) <= report.NOISY_SPREAD
        ]
        if not found:
            told.append(f"{name.partition('/')[2]}: too noisy")
            continue
        most, what, row = max(found, key=lambda each: each[0])
        over = sum(ratio > GOAL for ratio, _, _ in found)
        kept = "never over" if not over else f"in {over} of {len(found)} figures over"
        told.append(
            f"{name.partition('/')[2]}: {kept} {GOAL} x chat, most {most:.2f} x, {what} ({report.describe(row)})"
        )
    return "; ".join(told)


_COLUMNS = (
    "prompt", "reply", "conns", "dialect", "req/s", "a call, by chat's", "first token ms", "first token, by chat's",
    "CPU ms", "CPU, by chat's",
)  # fmt: skip


def heading() -> str:
    """Return the table's two first lines, in Markdown."""
    rule = "|" + "|".join("---" if i in (1, 3) else "---:" for i in range(len(_COLUMNS))) + "|\n"
    return _line(_COLUMNS) + rule


def table_line(row: DialectRow) -> str:
    """Return a row as a line of the table; ratios that say nothing in brackets."""
    return _line(
        (
            f"{row.prompt_tokens:,}",
            "streamed" if row.streamed else "plain",
            str(row.connections),
            row.system.partition("/")[2],
            f"{row.rps:,.1f}",
            _shown(row.cost, row.cost_spread),
            "" if row.first_token_ms_p50 is None else f"{row.first_token_ms_p50:.2f}",
            _shown(row.first_token_cost, row.first_token_spread),
            f"{row.cpu_ms_per_call:.2f}",
            _shown(row.cpu_cost, row.cpu_spread),
        )
    )


def _shown(ratio: float | None, spread: float | None) -> str:
    if ratio is None:
        return ""
    return f"({ratio:.2f})" if (spread or 0.0) > report.NOISY_SPREAD else f"{ratio:.2f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


BEGIN = "<!-- dialects: made by `bin/bench overhead --dialects --docs` -->\n"
END = "<!-- end of dialects -->\n"
_INTRODUCTION = f"""## Dialects

    bin/bench overhead --dialects             # --quick: fewer pairs, under three minutes; --docs writes this section

The same conversation in every dialect, through one appliance, beside the chat dialect. Chat and Completions pass
through; Responses, Messages and Gemini are translated to chat and back, event by event. The dialects take turns of a
few calls each, and a pair is a few turns of each; the ratios (time a call, time to the first token, CPU time a call,
each by chat's in the same pair) are medians over the pairs. In brackets: the ratios of the pairs differ by more than
{report.NOISY_SPREAD:.0%} of themselves, too noisy to say anything. Translation may cost at most {GOAL} x. All is as in
`growing`; a stream's next event is sent when the agent has seen the last token. A completion's prompt is one text, and
has no messages to tell apart. Rows lie in `overhead-dialects.json`.
"""


def document(made: Sequence[DialectRow], *, at: str, cores: int, load: float, command: str) -> dict[str, Any]:
    """Return the run as JSON's values; `at` in UTC, `load` the machine's mean over the run."""
    return {
        "benchmark": "overhead",
        "version": report.VERSION,
        "at": at,
        "command": command,
        "host": {"cores": cores, "load": round(load, 2)},
        "rows": [msgspec.to_builtins(row) for row in made],
        "verdict": verdict(made),
    }


def section(told: Mapping[str, Any]) -> str:
    """Return the docs' section on a run, from its document."""
    run = f"{told['at'][:10]}, `{told['command']}`, {told['host']['cores']} cores, {report.busy(told)}.\n"
    kept = "".join(f"- {sentence}\n" for sentence in told["verdict"].split("; ") if sentence)
    lines = "".join(table_line(msgspec.convert(row, DialectRow)) for row in told["rows"])
    return f"{BEGIN}{_INTRODUCTION}\n{run}\n{kept}\n{heading()}{lines}{END}"


def with_section(page: str, told: Mapping[str, Any]) -> str:
    """Return the docs' page with its section on dialects replaced. Raises ValueError if there is none."""
    start = page.index(BEGIN)
    return page[:start] + section(told) + page[page.index(END, start) + len(END) :]


async def run(wanted: Sequence[Shape], *, quick: bool, command: str) -> dict[str, Any]:
    """Start everything, measure, and print as it goes; return the run as JSON's values. Raises RuntimeError."""
    out = sys.stdout
    corpus, flow = Corpus(), Flow()
    server, upstream = await serve(wire.Wire(corpus), flow, completions=CompletionsWire(corpus))
    made: list[DialectRow] = []
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as folder:
        # In a thread: the appliance asks the upstream who it is before it is up.
        treering = await asyncio.to_thread(systems.start_treering, upstream, Path(folder))
        try:
            bench = Bench(upstream, treering, corpus, flow)
            await bench.check()
            loads = [os.getloadavg()[0]]
            out.write(heading())
            pairs, slices = (QUICK_PAIRS, QUICK_SLICES) if quick else (PAIRS, SLICES)
            for shape in wanted:
                for row in await bench.measure(shape, pairs=pairs, slices=slices):
                    made.append(row)
                    out.write(table_line(row))
                out.flush()
                loads.append(os.getloadavg()[0])
        finally:
            treering.stop()
            server.close()
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    mean = sum(loads) / len(loads)
    told = document(made, at=at, cores=os.cpu_count() or 1, load=mean, command=command)
    told["python"] = interpreter.describe()
    out.write(f"\n{told['host']['cores']} cores, load {told['host']['load']}. {told['verdict']}\n")
    return told
