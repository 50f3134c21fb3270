"""From measured rounds to rows, a table and a verdict. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.load import Round
from benchmarks.plan import Shape

VERSION = 1

NOISY_SPREAD = 0.25
"""The middle half of the ratios, by their median, beyond which a ratio says nothing: on a busy machine with two cores
one and the same proxy was seen to differ from itself by a factor of three."""


BUSY = 1.0
"""Of load beyond the machine's cores: somebody else was at work."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One system's part of one pair."""

    round: Round
    cpu_ms: float
    peak_mib: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one system did with one shape of calls."""

    system: str
    prompt_tokens: int
    streamed: bool
    connections: int
    case: str
    rps: float
    # Beyond what the same calls take without a proxy; null for that itself.
    added_ms_p50: float | None
    added_ms_p99: float | None
    # As the agent sees it, null where nothing was streamed.
    first_token_ms_p50: float | None
    first_token_added_ms_p50: float | None
    cpu_ms_per_call: float
    peak_mib: float
    # Median over the pairs of this system's requests per second by the bare pass-through's; null for the latter.
    ratio_to_bare: float | None
    # The middle half of those ratios, by their median.
    ratio_spread: float | None
    noisy: bool
    calls: int
    # What stood behind: "engine", an event a write and the next when the last was seen; "open", the same engine
    # without waiting; "static", files that nginx serves.
    upstream: str = "engine"
    # From one token to the next, as the agent sees it; null where nothing was streamed.
    gap_ms_p50: float | None = None
    gap_ms_p99: float | None = None
    # As `ratio_to_bare`, of the calls that a second of the process's CPU time is enough for: what a busy machine
    # disturbs the least.
    cpu_ratio_to_bare: float | None = None
    cpu_ratio_spread: float | None = None
    # Treering's requests per second by this system's, median over the pairs; null for Treering, and without it.
    treering_ratio: float | None = None
    treering_spread: float | None = None
    treering_cpu_ratio: float | None = None


def rows(shape: Shape, turns: dict[str, list[Turn]], *, upstream: str = "engine") -> list[Row]:
    """Return the rows of one shape; `turns` holds each system's part of each pair, in the order of the pairs.

    `direct` and `bare` must be among them.
    """
    direct, bare = turns["direct"], turns["bare"]
    made = []
    for system, own in turns.items():
        ratio, spread, cpu, cpu_spread = None, None, None, None
        if system != "bare":
            ratios = [mine.round.rps / its.round.rps for mine, its in zip(own, bare, strict=True)]
            ratio, spread = statistics.median(ratios), spread_of(ratios)
        if system not in ("bare", "direct"):
            # A round may have taken less CPU time than the kernel counts.
            ratios = [its.cpu_ms / max(mine.cpu_ms, 1e-3) for mine, its in zip(own, bare, strict=True)]
            cpu, cpu_spread = statistics.median(ratios), spread_of(ratios)
        ours, ours_spread, ours_cpu = _beside(turns.get("treering"), own) if system != "treering" else (None,) * 3
        first, base = _first_tokens(own), _first_tokens(direct)
        gaps = [gap for turn in own for sample in turn.round.samples for gap in sample.gaps_ms]
        made.append(
            Row(
                system=system,
                prompt_tokens=shape.prompt_tokens,
                streamed=shape.streamed,
                connections=shape.connections,
                case=shape.case,
                rps=_round(statistics.median(turn.round.rps for turn in own)),
                added_ms_p50=None if system == "direct" else _added(own, direct, 0.5),
                added_ms_p99=None if system == "direct" else _added(own, direct, 0.99),
                first_token_ms_p50=_round(percentile(first, 0.5)) if first else None,
                first_token_added_ms_p50=_round(percentile(first, 0.5) - percentile(base, 0.5))
                if first and system != "direct"
                else None,
                cpu_ms_per_call=_round(sum(turn.cpu_ms for turn in own) / sum(_calls(turn) for turn in own)),
                peak_mib=round(max(turn.peak_mib for turn in own), 1),
                ratio_to_bare=None if ratio is None else round(ratio, 3),
                ratio_spread=None if spread is None else round(spread, 3),
                noisy=spread is not None and spread > NOISY_SPREAD,
                calls=sum(_calls(turn) for turn in own),
                upstream=upstream,
                gap_ms_p50=_round(percentile(gaps, 0.5)) if gaps else None,
                gap_ms_p99=_round(percentile(gaps, 0.99)) if gaps else None,
                cpu_ratio_to_bare=None if cpu is None else round(cpu, 3),
                cpu_ratio_spread=None if cpu_spread is None else round(cpu_spread, 3),
                treering_ratio=ours,
                treering_spread=ours_spread,
                treering_cpu_ratio=None if system == "direct" else ours_cpu,
            )
        )
    return made


def _beside(ours: Sequence[Turn] | None, own: Sequence[Turn]) -> tuple[float | None, float | None, float | None]:
    """Return Treering's requests by a system's, the spread of that, and the same by CPU time."""
    if ours is None:
        return None, None, None
    ratios = [mine.round.rps / its.round.rps for mine, its in zip(ours, own, strict=True)]
    cpu = [its.cpu_ms / max(mine.cpu_ms, 1e-3) for mine, its in zip(ours, own, strict=True)]
    spread = spread_of(ratios)
    return (
        _round(statistics.median(ratios)),
        None if spread is None else _round(spread),
        _round(statistics.median(cpu)),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies (the nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread_of(ratios: Sequence[float]) -> float | None:
    """Return the middle half of ratios by their median; None for fewer than two, and for a median of 0."""
    if len(ratios) < 2:
        return None
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / middle if middle else None


def verdict(made: Sequence[Row], *, system: str = "treering") -> str:
    """Return a sentence on what a system does of the bare pass-through's requests; "too noisy" where none says."""
    own = [row for row in made if row.system == system and row.ratio_to_bare is not None]
    noisy = sum(row.noisy for row in own)
    if not own or noisy * 2 > len(own):
        return (
            f"too noisy: in {noisy} of {len(own)} cases the ratios differ by more than {NOISY_SPREAD:.0%} of themselves"
        )
    told = sorted((row for row in own if not row.noisy), key=lambda row: row.ratio_to_bare or 0.0)
    left_out = f"; {noisy} more were too noisy" if noisy else ""
    return (
        f"of the bare pass-through's requests per second {system} does {told[0].ratio_to_bare:.2f} at the least"
        f" ({describe(told[0])}) and {told[-1].ratio_to_bare:.2f} at the most ({describe(told[-1])}) of {len(told)}"
        f" cases{left_out}"
    )


def describe(row: Row) -> str:
    """Return what a row is of, in words."""
    how = "streamed" if row.streamed else "plain"
    return f"{row.prompt_tokens:,} tokens, {how}, {row.case}, {row.connections} at a time"


_COLUMNS = (
    "upstream", "prompt", "reply", "case", "conns", "system", "req/s", "of bare", "by CPU", "added p50", "p99",
    "first token", "added", "gap p50", "p99", "CPU ms", "peak MiB",
)  # fmt: skip


def heading() -> str:
    """Return the table's two first lines, in Markdown."""
    return line(_COLUMNS) + rule(_COLUMNS, words=(0, 2, 3, 5))


def table_line(row: Row) -> str:
    """Return a row as a line of the table; a ratio that says nothing in brackets."""
    return line(
        (
            row.upstream,
            f"{row.prompt_tokens:,}",
            "streamed" if row.streamed else "plain",
            row.case,
            str(row.connections),
            row.system,
            f"{row.rps:,.1f}",
            ratio_of(row),
            shown(row.cpu_ratio_to_bare),
            shown(row.added_ms_p50),
            shown(row.added_ms_p99),
            shown(row.first_token_ms_p50),
            shown(row.first_token_added_ms_p50),
            shown(row.gap_ms_p50, 3),
            shown(row.gap_ms_p99, 3),
            f"{row.cpu_ms_per_call:.2f}",
            f"{row.peak_mib:.0f}",
        )
    )


def ratio_of(row: Row) -> str:
    """Return a row's ratio to the bare pass-through, in brackets if it says nothing."""
    ratio = "" if row.ratio_to_bare is None else f"{row.ratio_to_bare:.2f}"
    return f"({ratio})" if row.noisy else ratio


def document(made: Sequence[Row], *, at: str, cores: int, load: float, **more: Any) -> dict[str, Any]:
    """Return the run as JSON's values; `at` in UTC, `load` the machine's mean over the run."""
    return {
        "benchmark": "overhead",
        "version": VERSION,
        "at": at,
        "host": {"cores": cores, "load": round(load, 2)},
        **more,
        "rows": [msgspec.to_builtins(row) for row in made],
        "verdict": verdict([row for row in made if row.upstream == "engine"] or made),
    }


def busy(told: Mapping[str, Any]) -> str:
    """Return how busy the machine was, and, where the document has it, with which Python."""
    python = f", {told['python']}" if "python" in told else ""
    return f"load {told['host']['load']}{python}"


def rule(columns: Sequence[str], *, words: Sequence[int]) -> str:
    """Return a table's second line; `words` are the columns that hold no numbers."""
    return "|" + "|".join("---" if i in words else "---:" for i in range(len(columns))) + "|\n"


def line(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(cells) + " |\n"


def shown(value: float | None, digits: int = 2) -> str:
    """Return a figure as a cell."""
    return "" if value is None else f"{value:,.{digits}f}"


def _round(value: float) -> float:
    return round(value, 3)


def _calls(turn: Turn) -> int:
    return len(turn.round.samples)


def _first_tokens(turns: Sequence[Turn]) -> list[float]:
    samples = [sample for turn in turns for sample in turn.round.samples]
    return [sample.first_token_ms for sample in samples if sample.first_token_ms is not None]


def _added(own: Sequence[Turn], direct: Sequence[Turn], share: float) -> float:
    mine, its = ([sample.total_ms for turn in turns for sample in turn.round.samples] for turns in (own, direct))
    return _round(percentile(mine, share) - percentile(its, share))
