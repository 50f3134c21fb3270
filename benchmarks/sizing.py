"""What so many rollouts need, from what a call was measured to cost. Pure.

The formulas, with the names that the code has:

    calls_per_s  = rollouts / (gap_s + first_token_s + reply_tokens * token_s)
    cores        = calls_per_s * (call_ms(prompt_tokens) + reply_tokens * event_ms) / 1000 / USABLE
    memory       = BASE + rollouts in use * bytes_per_token * distinct tokens + rollouts at rest * bytes_at_rest
    disk a day   = calls_per_s * 86,400 * (bytes_per_call + bytes_per_token_stored * new_tokens)
    PostgreSQL   = calls_per_s * postgres_ms / 1000 / USABLE cores

`call_ms` is what a whole reply takes, in between the measured prompts a straight line; `event_ms` what a stream takes
more, for each of its events. Events that come one by one to a process which is otherwise idle cost more, and so do
prompts of which much is new: the table has a second column of cores, by the CPU time a call of the traffic in `replay`.
A rollout is in use when its last call was less than `--sleep-after` ago.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec

from benchmarks import traffic
from benchmarks.corpus import REPLY_TOKENS
from benchmarks.report import Row, line, rule
from benchmarks.traffic import Traffic

USABLE = 0.7
"""Of a core or a disk: beyond, a burst makes agents wait."""

EVENTS = REPLY_TOKENS + 3
"""Of a measured stream: the role, a token each, usage, `[DONE]`."""

DAY_S = 86_400
MIB, GIB = 2**20, 2**30


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    # Prompt tokens → CPU milliseconds of a call whose reply is whole, prompts growing.
    call_ms: dict[int, float]
    # CPU milliseconds of an event of a stream.
    event_ms: float
    base_mib: float
    # Of memory, for a token of an open rollout that is in use.
    bytes_per_token: float
    # Of memory, for an open rollout at rest.
    bytes_at_rest: float
    # Of disk, for a call's record with 800 new tokens in it.
    bytes_per_call: float
    new_tokens: int
    # CPU milliseconds of PostgreSQL's for a call, None where none was measured.
    postgres_ms: float | None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What agents ask for."""

    rollouts: int
    prompt_tokens: float
    reply_tokens: float
    # Of a call, that no earlier call of its rollout had.
    new_tokens: float
    gap_s: float = traffic.GAP_S
    first_token_s: float = traffic.FIRST_TOKEN_S
    token_s: float = traffic.TOKEN_S


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What that needs."""

    calls_per_s: float
    events_per_s: float
    # Of a core, used, of a call.
    cpu_ms_per_call: float
    cores: float
    memory_gib: float
    disk_gib_per_day: float
    # From the engines, whose replies hold the prompt's ids, and from the agents.
    network_mib_per_s: float
    postgres_cores: float | None


def costs_of(docs: Mapping[str, Mapping[str, Any]]) -> Costs:
    """Return what the runs say: documents of `overhead`, `memory` and, if there is one, `workers`.

    Raises ValueError where one lacks what is needed.
    """
    rows = [msgspec.convert(row, Row) for row in docs["overhead"]["rows"]]
    own = [
        row for row in rows if row.system == "treering" and row.upstream == "engine" and row.case == "growing"
        and row.connections == 8
    ]  # fmt: skip
    whole = {row.prompt_tokens: row.cpu_ms_per_call for row in own if not row.streamed}
    events = [
        (row.cpu_ms_per_call - whole[row.prompt_tokens]) / EVENTS
        for row in own
        if row.streamed and row.prompt_tokens in whole
    ]
    states = {row["state"]: row for row in docs["memory"]["rows"]}
    if not whole or not events or not {"empty", "all in memory", "idle"} <= states.keys():
        raise ValueError("the runs in docs/ do not say what a call costs: bin/bench performance --docs")
    empty, full, idle = (states[name] for name in ("empty", "all in memory", "idle"))
    tokens = docs["memory"]["tokens"] + REPLY_TOKENS
    held = (full["rss_mib"] - empty["rss_mib"]) * MIB / full["open_rollouts"]
    in_use = (idle["rss_mib"] - empty["rss_mib"]) * MIB - idle["in_use"] * held
    places = [row for row in docs.get("workers", {}).get("rows", []) if row["store"] == "postgresql"]
    return Costs(
        call_ms=whole,
        event_ms=max(0.0, statistics.median(events)),
        base_mib=empty["rss_mib"],
        bytes_per_token=held / tokens,
        bytes_at_rest=max(0.0, in_use / (idle["open_rollouts"] - idle["in_use"])),
        bytes_per_call=full["store_mib"] * MIB / full["calls"],
        new_tokens=docs["memory"]["tokens"] // docs["memory"]["calls"],
        postgres_ms=places[0]["postgres_cpu_ms_per_call"] if places else None,
    )


def call_ms(costs: Costs, prompt_tokens: float) -> float:
    """Return what a call costs whose reply is whole: a straight line between, and beyond, the measured prompts."""
    known = sorted(costs.call_ms.items())
    if len(known) == 1:
        return known[0][1]
    for (low, low_ms), (high, high_ms) in pairwise(known):
        if prompt_tokens <= high or high == known[-1][0]:
            slope = (high_ms - low_ms) / (high - low)
            return max(min(low_ms, high_ms), low_ms + slope * (prompt_tokens - low))
    raise AssertionError("the last one returns")


def published(rollouts: int, *, drawn: int = 2_000) -> Load:
    """Return the load of rollouts whose traffic has the published shape: means over so many draws."""
    turns = [Traffic(seed).begun().turns[0] for seed in range(drawn)]
    return Load(
        rollouts=rollouts,
        prompt_tokens=statistics.fmean(turn.n_prompt for turn in turns),
        reply_tokens=statistics.fmean(turn.n_reply for turn in turns),
        new_tokens=statistics.fmean(
            turn.n_prompt + turn.n_reply - (sum(turn.history[-1]) if turn.history else 0) for turn in turns
        ),
    )


def plan(load: Load, costs: Costs, *, at_rest: int = 0) -> Plan:
    """Return what a load needs, with so many more rollouts open and at rest."""
    calls_per_s = load.rollouts / (load.gap_s + load.first_token_s + load.reply_tokens * load.token_s)
    cpu_ms = call_ms(costs, load.prompt_tokens) + load.reply_tokens * costs.event_ms
    memory = (
        costs.base_mib * MIB
        + load.rollouts * costs.bytes_per_token * (load.prompt_tokens + load.reply_tokens)
        + at_rest * costs.bytes_at_rest
    )
    # What is stored of a call grows with what is new in it: ids, and the text of its messages.
    stored = costs.bytes_per_call * load.new_tokens / costs.new_tokens
    return Plan(
        calls_per_s=calls_per_s,
        events_per_s=calls_per_s * load.reply_tokens,
        cpu_ms_per_call=cpu_ms,
        cores=calls_per_s * cpu_ms / 1000 / USABLE,
        memory_gib=memory / GIB,
        disk_gib_per_day=calls_per_s * DAY_S * stored / GIB,
        network_mib_per_s=calls_per_s * (load.prompt_tokens * (4.5 + 6.3) + load.reply_tokens * 380) / MIB,
        postgres_cores=None if costs.postgres_ms is None else calls_per_s * costs.postgres_ms / 1000 / USABLE,
    )


_COLUMNS = (
    "open rollouts", "calls/s", "events/s", "CPU ms a call", "cores", "cores, by the replay", "memory GiB",
    "disk GiB a day", "network MiB/s", "PostgreSQL cores",
)  # fmt: skip
SIZES = (100, 1_000, 10_000)


def section(docs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the docs' section: the unit costs, and what a hundred, a thousand and ten thousand rollouts need."""
    costs = costs_of(docs)
    calls = ", ".join(f"{ms:.1f} ms at {tokens:,} tokens" for tokens, ms in sorted(costs.call_ms.items()))
    postgres = "" if costs.postgres_ms is None else f", and {costs.postgres_ms:.2f} ms of PostgreSQL's CPU time"
    told = (
        f"Measured: a call whose reply is whole, {calls}; {costs.event_ms * 1000:.0f} us for each event of a stream;\n"
        f"{costs.bytes_per_token:.1f} bytes of memory for a token of a rollout in use,"
        f" {costs.bytes_at_rest / 1024:.0f} KiB for one at rest,\n"
        f"{costs.base_mib:.0f} MiB for a process with none; {costs.bytes_per_call / 1024:.1f} KiB of disk for a call"
        f" with {costs.new_tokens:,} new tokens{postgres}."
    )
    example = published(SIZES[-1])
    shape = (
        f"Traffic of the published shape, every rollout at work: prompts of {example.prompt_tokens:,.0f} tokens in the"
        f" mean, replies of {example.reply_tokens:,.0f}, {example.new_tokens:,.0f} new tokens a call, {example.gap_s:g}"
        f" s between calls, {1 / example.token_s:g} tokens a second. A core is used to {USABLE:.0%}."
    )
    lines = []
    seen = [row for row in docs.get("replay", {}).get("rows", []) if row["system"] == "treering" and row["scale"] == 1]
    kept = [row["cpu_ms_per_call"] for row in seen if not row["overloaded"]]
    for rollouts in SIZES:
        need = plan(msgspec.structs.replace(example, rollouts=rollouts), costs)
        lines.append(
            line(
                (
                    f"{rollouts:,}",
                    f"{need.calls_per_s:,.0f}",
                    f"{need.events_per_s:,.0f}",
                    f"{need.cpu_ms_per_call:,.1f}",
                    f"{need.cores:,.1f}",
                    f"{need.calls_per_s * kept[-1] / 1000 / USABLE:,.1f}" if kept else "",
                    f"{need.memory_gib:,.1f}",
                    f"{need.disk_gib_per_day:,.0f}",
                    f"{need.network_mib_per_s:,.0f}",
                    "" if need.postgres_cores is None else f"{need.postgres_cores:,.1f}",
                )
            )
        )
    return f"{told}\n\n{shape}\n\n{line(_COLUMNS)}{rule(_COLUMNS, words=())}{''.join(lines)}"
