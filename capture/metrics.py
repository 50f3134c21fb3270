"""The numbers of a process, and of all workers together, as Prometheus reads them from `GET /metrics`.

Rules
1. One table (`TABLE`) names every metric; the answer, docs/operations.md, the dashboard and the alert rules are held
   against it.
2. Labels are few and bounded: an engine that a rollout brought along is `guest`; no rollout's id, no model's name and
   no word that an agent chose is ever a label, and no secret either.
3. What counts on an agent's path are additions to numbers in memory. What is a state is read when somebody asks.
4. Workers send their numbers to the supervisor, which adds them to its own. What a worker that died had counted is
   kept, so that no sum ever falls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from capture import answers
from capture.keys import without_password
from capture.tallies import Counter, Histogram
from capture.version import version
from graph.drift import THRESHOLD
from graph.graph import Graph

if TYPE_CHECKING:
    from capture.app import Appliance
    from capture.draft import Draft
    from capture.upstream import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of the text format that `generate_latest` writes; the library has no name for it before 0.23.1."""

GUEST, NONE = "guest", "none"
"""Labels of an engine that a rollout brought along, and of a call that no engine served."""

FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Buckets in seconds of what takes milliseconds: our own part of a call, a commit."""

SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Buckets in seconds of what an engine takes."""

LINKS = ("exact", "drift", "drift_over_threshold", "compaction")
"""How a step of a main conversation goes on."""

TOKENS = (1, 8, 64, 256, 1024, 4096, 16_384, 65_536)
"""Buckets in tokens of a drift; the fifth is the threshold of `realign`."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    # Of a gauge: every process has a part of it. A counter and a histogram are always added up.
    summed: bool = False


TABLE = (
    Row(
        name="treering_calls_total",
        kind="counter",
        help="Model calls that ended, by how.",
        labels=("engine", "dialect", "status"),
    ),
    Row(
        name="treering_prompt_tokens_total",
        kind="counter",
        help="Tokens of prompts, whole, of calls that ended; the engine's count where it gave no ids.",
        labels=("engine",),
    ),
    Row(
        name="treering_sampled_tokens_total",
        kind="counter",
        help="Tokens that were sampled, of calls that ended.",
        labels=("engine",),
    ),
    Row(
        name="treering_first_token_seconds",
        kind="histogram",
        help="From a call's arrival to the first token of its stream.",
        labels=("engine",),
        buckets=SLOW,
    ),
    Row(
        name="treering_call_seconds",
        kind="histogram",
        help="From a call's arrival to its end, of calls that an engine served.",
        labels=("engine",),
        buckets=SLOW,
    ),
    Row(
        name="treering_queue_seconds",
        kind="histogram",
        help="That calls waited for a place at their engine.",
        labels=("engine",),
        buckets=SLOW,
    ),
    Row(
        name="treering_added_seconds",
        kind="histogram",
        help="What Treering added to a call, the wait for a place left out: before it was sent, and behind its end.",
        labels=("part",),
        buckets=FAST,
    ),
    Row(
        name="treering_commit_seconds",
        kind="histogram",
        help="From handing a call's record to the store to its commit.",
        buckets=FAST,
    ),
    Row(
        name="treering_unrecorded_calls_total",
        kind="counter",
        help="Calls whose record the store did not take: their rollouts are incomplete for ever.",
    ),
    Row(
        name="treering_rollouts_closed_total",
        kind="counter",
        help="Rollouts that closed, by whether their agent made any call.",
        labels=("calls",),
    ),
    Row(
        name="treering_findings_total",
        kind="counter",
        help="Findings of rollouts when they closed.",
        labels=("code", "level"),
    ),
    Row(
        name="treering_transitions_total",
        kind="counter",
        help="Steps from one call of a main conversation to the next, by how the prompt went on.",
        labels=("link",),
    ),
    Row(
        name="treering_drift_tokens",
        kind="histogram",
        help="Tokens lost at a step that was not exact, of rollouts that closed.",
        buckets=TOKENS,
    ),
    Row(name="treering_in_flight", kind="gauge", help="Calls at an engine now.", labels=("engine",)),
    Row(
        name="treering_queued",
        kind="gauge",
        help="Calls that wait for a place at an engine now.",
        labels=("engine",),
        summed=True,
    ),
    Row(name="treering_engine_up", kind="gauge", help="1 while an engine answers, as itself.", labels=("engine",)),
    Row(name="treering_engine_held", kind="gauge", help="1 while new calls are held back.", labels=("engine",)),
    Row(name="treering_engine_train", kind="gauge", help="1 where an engine's tier is train.", labels=("engine",)),
    Row(name="treering_tunnel_up", kind="gauge", help="1 while a tunnel that was opened carries.", labels=("tunnel",)),
    Row(name="treering_tunnel_rollouts", kind="gauge", help="Rollouts on a tunnel's URL as it is.", labels=("tunnel",)),
    Row(name="treering_tunnel_lost", kind="gauge", help="Times that a tunnel was lost.", labels=("tunnel",)),
    Row(name="treering_store_up", kind="gauge", help="1 while the store takes writes."),
    Row(
        name="treering_held_bytes",
        kind="gauge",
        help="Bytes of requests in hand whose record the store does not have yet.",
        summed=True,
    ),
    Row(name="treering_event_readers", kind="gauge", help="Readers of events now."),
    Row(name="treering_workers", kind="gauge", help="Processes that serve agents."),
    Row(name="treering_info", kind="gauge", help="1; which Treering this is.", labels=("version", "store")),
)
"""Every metric."""

_BY_NAME = {row.name: row for row in TABLE}

Numbers = list[tuple[str, list[tuple[str, str]], float]]
"""A process's numbers on their way: sample's name, labels, value."""

Key = tuple[str, tuple[tuple[str, str], ...]]


class Metrics:
    """The numbers of one process, and those that others sent it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for row in TABLE:
            if row.kind == "counter":
                counter = self._counters[row.name] = Counter(row.name, row.help, row.labels)
                self.registry.register(counter)
            elif row.kind == "gauge":
                self._gauges[row.name] = Gauge(row.name, row.help, row.labels, registry=self.registry)
            else:
                times = self._histograms[row.name] = Histogram(row.name, row.help, row.labels, buckets=row.buckets)
                self.registry.register(times)
        # From nothing on, so that the first of each is an increase.
        for calls in ("none", "some"):
            self._counters["treering_rollouts_closed_total"].add(calls, by=0)
        for link in LINKS:
            self._counters["treering_transitions_total"].add(link, by=0)
        # What a call counts.
        self._calls = self._counters["treering_calls_total"]
        self._prompt = self._counters["treering_prompt_tokens_total"]
        self._sampled = self._counters["treering_sampled_tokens_total"]
        self._queue_s = self._histograms["treering_queue_seconds"]
        self._first_token_s = self._histograms["treering_first_token_seconds"]
        self._call_s = self._histograms["treering_call_seconds"]
        self._added_s = self._histograms["treering_added_seconds"]
        self._commit_s = self._histograms["treering_commit_seconds"]
        # Engines by the name that calls have: the label; others are guests.
        self.engines: dict[str, str] = {}
        # What each worker sent last, and what those that are gone had counted.
        self._workers: dict[int, dict[Key, float]] = {}
        self._gone: dict[Key, float] = {}

    def __repr__(self) -> str:
        return f"<Metrics of this process and {len(self._workers)} more>"

    def label(self, engine: str | None) -> str:
        """Return an engine's label."""
        return NONE if engine is None else self.engines.get(engine, GUEST)

    def call(self, draft: Draft) -> None:
        """Count a call that has ended."""
        engine = self.label(draft.engine)
        self._calls.add(engine, draft.dialect, draft.status)
        prompt, sampled = draft.n_tokens
        self._prompt.add(engine, by=prompt)
        self._sampled.add(engine, by=sampled)
        if draft.queued_ms is not None:
            self._queue_s.observe(draft.waited_s, engine)
        if draft.request is not None and draft.request.streamed and (first_ms := draft.first_token_ms) is not None:
            self._first_token_s.observe(first_ms / 1000, engine)
        if draft.sent_after_s is not None:
            self._added_s.observe(max(0.0, draft.sent_after_s - draft.waited_s), "before")
            if draft.ended_ms is not None:
                self._call_s.observe(draft.ended_ms / 1000, engine)
            if draft.behind_s is not None:
                self._added_s.observe(draft.behind_s, "behind")

    def committed(self, seconds: float) -> None:
        """Count a commit."""
        self._commit_s.observe(seconds)

    def unrecorded(self) -> None:
        """Count a call that the store did not take."""
        self._counters["treering_unrecorded_calls_total"].add()

    def closed(self, graph: Graph) -> None:
        """Count what a closed rollout shows."""
        forest = graph.forest
        self._counters["treering_rollouts_closed_total"].add("some" if forest.calls else "none")
        for finding in graph.findings:
            self._counters["treering_findings_total"].add(finding.code, finding.level)
        links = [forest.links[n] for n in graph.calls_of("main")]
        for link in links:
            if link.kind == "root":
                continue
            over = link.drift is not None and link.drift.tokens > THRESHOLD
            kind = "drift_over_threshold" if over else link.kind
            self._counters["treering_transitions_total"].add(kind)
            if link.drift is not None:
                self._histograms["treering_drift_tokens"].observe(link.drift.tokens)

    def know(self, engines: Iterable[Engine]) -> None:
        """Take note of the engines that were given at the start: each is a label of its own."""
        self.engines = {engine.name: without_password(engine.name) for engine in engines}

    def look(self, appliance: Appliance) -> None:
        """Read what is a state."""
        gauges = self._gauges
        for name in ("treering_tunnel_up", "treering_tunnel_rollouts", "treering_tunnel_lost"):
            gauges[name].clear()
        guests = [engine for engine in appliance.fleet.all if engine.name not in self.engines]
        for engine in appliance.fleet.engines:
            label = self.engines[engine.name]
            queue = appliance.holds.queue(engine.name)
            gauges["treering_in_flight"].labels(label).set(engine.in_flight)
            gauges["treering_queued"].labels(label).set(queue.waiting)
            gauges["treering_engine_up"].labels(label).set(engine.healthy and engine.changed is None)
            gauges["treering_engine_held"].labels(label).set(queue.held)
            gauges["treering_engine_train"].labels(label).set(engine.tier == "train")
        if guests:
            gauges["treering_in_flight"].labels(GUEST).set(sum(engine.in_flight for engine in guests))
            waiting = sum(appliance.holds.queue(engine.name).waiting for engine in guests)
            gauges["treering_queued"].labels(GUEST).set(waiting)
            gauges["treering_engine_up"].labels(GUEST).set(all(engine.healthy for engine in guests))
        for one in appliance.reach.health:
            name = without_password(one.name)
            if one.opened:
                gauges["treering_tunnel_up"].labels(name).set(one.healthy)
            gauges["treering_tunnel_rollouts"].labels(name).set(one.rollouts)
            gauges["treering_tunnel_lost"].labels(name).set(one.lost)
        gauges["treering_store_up"].set(appliance.store.failure is None)
        gauges["treering_held_bytes"].set(appliance.held_bytes)
        gauges["treering_event_readers"].set(appliance.tide.readers)
        gauges["treering_workers"].set(appliance.serving)
        gauges["treering_info"].labels(version(), appliance.settings.store.partition(":")[0]).set(1)

    # Of several processes

    def numbers(self) -> Numbers:
        """Return what is added up over processes, to be sent."""
        return [
            (sample.name, list(sample.labels.items()), sample.value)
            for family in self.registry.collect()
            for sample in _counted(family)
        ]

    def take(self, worker: int, numbers: Numbers) -> None:
        """Take in what a worker sent."""
        self._workers[worker] = {(name, tuple(labels)): value for name, labels, value in numbers}

    def gone(self, worker: int) -> None:
        """Keep what a worker counted that is gone; what was a state of it is over."""
        for key, value in self._workers.pop(worker, {}).items():
            row = _BY_NAME.get(key[0])
            if row is None or row.kind != "gauge":
                self._gone[key] = self._gone.get(key, 0.0) + value

    def collect(self) -> Iterator[Metric]:
        """Return every family, added up; what `prometheus_client` asks of a registry."""
        others: dict[str, dict[Key, float]] = {}
        for source in (*self._workers.values(), self._gone):
            for key, value in source.items():
                family_of = others.setdefault(_family(key[0]), {})
                family_of[key] = family_of.get(key, 0.0) + value
        for family in self.registry.collect():
            total: dict[Key, float] = {}
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    total[sample.name, tuple(sample.labels.items())] = sample.value
            for key, value in others.get(_family(family.name), {}).items():
                total[key] = total.get(key, 0.0) + value
            out = Metric(family.name, family.documentation, family.type)
            out.samples = [Sample(name, dict(labels), value) for (name, labels), value in total.items()]
            yield out

    def text(self) -> bytes:
        """Return all in Prometheus' text format (0.0.4)."""
        return generate_latest(self)


def _counted(family: Metric) -> Iterable[Sample]:
    row = _BY_NAME.get(family.name) or _BY_NAME.get(family.name + "_total")
    if row is None or (row.kind == "gauge" and not row.summed):
        return ()
    return (sample for sample in family.samples if not sample.name.endswith("_created"))


def _family(name: str) -> str:
    """Return the family that a sample is of."""
    for end in ("_total", "_bucket", "_count", "_sum"):
        name = name.removesuffix(end)
    return name


def routes(appliance: Appliance) -> list[web.RouteDef]:
    """Return the route."""

    async def show(request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        appliance.metrics.look(appliance)
        response = web.Response(body=appliance.metrics.text(), headers={"Content-Type": CONTENT_TYPE})
        response.enable_compression()
        return response

    return [web.get("/metrics", show)]


def render(rows: Sequence[Row] = TABLE) -> str:
    """Return the table of metrics as Markdown."""
    lines = ["| metric | sort | labels | says |", "|---|---|---|---|"]
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels) or "none"
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
