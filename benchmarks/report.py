"""From measured rounds to rows, a table and a verdict. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.load import Round
from benchmarks.plan import Shape

VERSION = 1

GOAL_RATIO = 0.5
"""Of the bare pass-through's requests per second."""

NOISY_SPREAD = 0.25
"""The middle half of the ratios, by their median, beyond which a ratio says nothing: on a busy machine with two cores
one and the same proxy was seen to differ from itself by a factor of three."""


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


def rows(shape: Shape, turns: dict[str, list[Turn]]) -> list[Row]:
    """Return the rows of one shape; `turns` holds each system's part of each pair, in the order of the pairs.

    `direct` and `bare` must be among them.
    """
    direct, bare = turns["direct"], turns["bare"]
    made = []
    for system, own in turns.items():
        ratio, spread = None, None
        if system != "bare":
            ratios = [mine.round.rps / its.round.rps for mine, its in zip(own, bare, strict=True)]
            ratio, spread = statistics.median(ratios), spread_of(ratios)
        first, base = _first_tokens(own), _first_tokens(direct)
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
            )
        )
    return made


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies (the nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread_of(ratios: Sequence[float]) -> float | None:
    """Return the middle half of ratios by their median; None for fewer than two."""
    if len(ratios) < 2:
        return None
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / middle


def verdict(made: Sequence[Row], *, system: str = "treering") -> str:
    """Return a sentence on whether a system keeps to the goal; "too noisy" where the figures do not say."""
    own = [row for row in made if row.system == system and row.ratio_to_bare is not None]
    noisy = sum(row.noisy for row in own)
    if not own or noisy * 2 > len(own):
        return (
            f"too noisy: in {noisy} of {len(own)} cases the ratios differ by more than {NOISY_SPREAD:.0%} of themselves"
        )
    told = [row for row in own if not row.noisy]
    kept = sum((row.ratio_to_bare or 0.0) >= GOAL_RATIO for row in told)
    least = min(told, key=lambda row: row.ratio_to_bare or 0.0)
    left_out = f"; {noisy} more were too noisy" if noisy else ""
    return (
        f"{system} does at least {GOAL_RATIO} of the bare pass-through's requests per second in {kept} of {len(told)}"
        f" cases{left_out}; least: {least.ratio_to_bare} ({describe(least)})"
    )


def describe(row: Row) -> str:
    """Return what a row is of, in words."""
    how = "streamed" if row.streamed else "plain"
    return f"{row.prompt_tokens:,} tokens, {how}, {row.case}, {row.connections} at a time"


_COLUMNS = (
    "prompt", "reply", "case", "conns", "system", "req/s", "of bare", "added p50", "p99", "first token", "added",
    "CPU ms", "peak MiB",
)  # fmt: skip


def heading() -> str:
    """Return the table's two first lines, in Markdown."""
    return (
        _line(_COLUMNS) + "|" + "|".join("---:" if i not in (1, 2, 4) else "---" for i in range(len(_COLUMNS))) + "|\n"
    )


def table_line(row: Row) -> str:
    """Return a row as a line of the table; a ratio that says nothing in brackets."""
    ratio = "" if row.ratio_to_bare is None else f"{row.ratio_to_bare:.2f}"
    return _line(
        (
            f"{row.prompt_tokens:,}",
            "streamed" if row.streamed else "plain",
            row.case,
            str(row.connections),
            row.system,
            f"{row.rps:,.1f}",
            f"({ratio})" if row.noisy else ratio,
            _shown(row.added_ms_p50),
            _shown(row.added_ms_p99),
            _shown(row.first_token_ms_p50),
            _shown(row.first_token_added_ms_p50),
            f"{row.cpu_ms_per_call:.2f}",
            f"{row.peak_mib:.0f}",
        )
    )


def document(made: Sequence[Row], *, at: str, cores: int, load: float) -> dict[str, Any]:
    """Return the run as JSON's values; `at` in UTC, `load` the machine's mean over the run."""
    return {
        "benchmark": "overhead",
        "version": VERSION,
        "at": at,
        "host": {"cores": cores, "load": round(load, 2)},
        "rows": [msgspec.to_builtins(row) for row in made],
        "verdict": verdict(made),
    }


_SECTION = "## The last run\n"
_BRIEF = (
    "prompt", "reply", "case", "conns", "bare req/s", "treering req/s", "of bare", "added p50", "first token, added",
    "bare CPU ms", "treering CPU ms", "peak MiB",
)  # fmt: skip


def section(told: Mapping[str, Any]) -> str:
    """Return the docs' section on a run, from its document: a line for each shape, Treering beside the bare one."""
    host = told["host"]
    lines = [_SECTION, "\n", f"{told['at'][:10]}, {host['cores']} cores, load {host['load']}. {told['verdict']}.\n\n"]
    lines += [_line(_BRIEF), _rule(_BRIEF, words=(1, 2))]
    made = [msgspec.convert(row, Row) for row in told["rows"]]
    bare = {describe(row): row for row in made if row.system == "bare"}
    for row in made:
        if row.system != "treering" or row.ratio_to_bare is None:
            continue
        other = bare[describe(row)]
        ratio = f"{row.ratio_to_bare:.2f}"
        cells = (
            f"{row.prompt_tokens:,}",
            "streamed" if row.streamed else "plain",
            row.case,
            str(row.connections),
            f"{other.rps:,.1f}",
            f"{row.rps:,.1f}",
            f"({ratio})" if row.noisy else ratio,
            _shown(row.added_ms_p50),
            _shown(row.first_token_added_ms_p50),
            f"{other.cpu_ms_per_call:.2f}",
            f"{row.cpu_ms_per_call:.2f}",
            f"{row.peak_mib:.0f}",
        )
        lines.append(_line(cells))
    return "".join(lines)


def with_section(page: str, told: Mapping[str, Any]) -> str:
    """Return the docs' page with its last section, on the last run, replaced. Raises ValueError if there is none."""
    return page[: page.index(_SECTION)] + section(told)


def _rule(columns: Sequence[str], *, words: Sequence[int]) -> str:
    return "|" + "|".join("---" if i in words else "---:" for i in range(len(columns))) + "|\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


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
