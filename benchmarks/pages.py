"""Sections of the docs that a measurement writes, each between two marks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks import flat, report
from benchmarks.report import BUSY, NOISY_SPREAD, Row, describe, line, ratio_of, rule, shown, verdict


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with what stands between the marks of `name` replaced. Raises ValueError if they are not there."""
    start = page.index(f"<!-- {name}: made by ")
    start = page.index("\n", start) + 1
    return page[:start] + text + page[page.index(f"<!-- end of {name} -->", start) :]


def between(page: str, name: str) -> str:
    """Return what stands between the marks of `name`. Raises ValueError."""
    start = page.index("\n", page.index(f"<!-- {name}: made by ")) + 1
    return page[start : page.index(f"<!-- end of {name} -->", start)]


def run_of(told: Mapping[str, Any]) -> str:
    """Return when a run was, on what, and how busy that was."""
    host = told["host"]
    pinned = ", each proxy alone on one of them" if told.get("pinned") else ""
    return f"{told['at'][:10]}, {host['cores']} cores{pinned}, {report.busy(told)}."


def overhead(told: Mapping[str, Any]) -> str:
    """Return the sections on a run of `overhead`, from its document: one for each upstream that it had."""
    made = [msgspec.convert(row, Row) for row in told["rows"]]
    told_parts = []
    for name, title, table in (
        ("engine", "### An event at a time", _brief),
        ("static", "### As fast as it goes: nginx has the replies in files", _wide),
        ("open", "### Beside other capture proxies", _peers),
    ):
        own = [row for row in made if row.upstream == name]
        if own:
            part = told.get("parts", {}).get(name, {})
            host = told["host"] | {"load": part.get("load", told["host"]["load"])}
            run = run_of({**told, **part, "host": host})
            pairs = f" {part['pairs']} pairs." if part else ""
            if host["load"] > host["cores"] + BUSY:
                pairs += " The machine had other work to do: ratios by CPU time say more than those of requests."
            told_parts.append(f"{title}\n\n{run}{pairs} {_sentence(verdict(own))}.\n\n{table(own)}")
    return "\n".join(told_parts)


def calls(told: Mapping[str, Any]) -> str:
    """Return the section on a run of `overhead --calls`."""
    lines = "".join(flat.table_line(msgspec.convert(row, flat.Point)) for row in told["rows"])
    return f"{run_of(told)} {told['verdict'][0].upper()}{told['verdict'][1:]}.\n\n{flat.heading()}{lines}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _case(row: Row) -> tuple[str, ...]:
    return (f"{row.prompt_tokens:,}", "streamed" if row.streamed else "plain", row.case, str(row.connections))


def _cases(made: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Return the rows of each shape by their system, in the order in which they were measured."""
    found: dict[str, dict[str, Row]] = {}
    for row in made:
        found.setdefault(describe(row), {})[row.system] = row
    return found


_BRIEF = (
    "prompt", "reply", "case", "conns", "direct", "nginx", "bare", "bare, no ids", "least", "of bare", "by CPU",
    "treering", "of bare", "by CPU", "added p50", "p99", "first token: bare", "treering", "gap: bare", "treering",
    "CPU ms: bare", "least", "treering", "peak MiB",
)  # fmt: skip


def _brief(made: Sequence[Row]) -> str:
    """Return a line for each shape: requests a second of all, and Treering beside the bare pass-through."""
    lines = [line(_BRIEF), rule(_BRIEF, words=(1, 2))]
    for systems in _cases(made).values():
        bare, own, least = systems["bare"], systems["treering"], systems.get("least")
        lines.append(
            line(
                (
                    *_case(own),
                    *(_rps(systems.get(name)) for name in ("direct", "nginx", "bare", "bare, no ids", "least")),
                    "" if least is None else ratio_of(least),
                    "" if least is None else shown(least.cpu_ratio_to_bare),
                    _rps(own),
                    ratio_of(own),
                    shown(own.cpu_ratio_to_bare),
                    shown(own.added_ms_p50),
                    shown(own.added_ms_p99),
                    shown(bare.first_token_ms_p50),
                    shown(own.first_token_ms_p50),
                    shown(bare.gap_ms_p50, 3),
                    shown(own.gap_ms_p50, 3),
                    shown(bare.cpu_ms_per_call),
                    "" if least is None else shown(least.cpu_ms_per_call),
                    shown(own.cpu_ms_per_call),
                    shown(own.peak_mib, 0),
                )
            )
        )
    return "".join(lines)


_WIDE = (
    "prompt", "reply", "case", "conns", "direct", "nginx", "bare", "bare, no ids", "treering, unrecorded", "treering",
    "of bare", "by CPU", "added p50", "p99", "CPU ms: bare", "treering", "peak MiB",
)  # fmt: skip


def _wide(made: Sequence[Row]) -> str:
    lines = [line(_WIDE), rule(_WIDE, words=(1, 2))]
    names = ("direct", "nginx", "bare", "bare, no ids", "treering, unrecorded", "treering")
    for systems in _cases(made).values():
        own = systems["treering"]
        lines.append(
            line(
                (
                    *_case(own),
                    *(_rps(systems.get(name)) for name in names),
                    ratio_of(own),
                    shown(own.cpu_ratio_to_bare),
                    shown(own.added_ms_p50),
                    shown(own.added_ms_p99),
                    shown(systems["bare"].cpu_ms_per_call),
                    shown(own.cpu_ms_per_call),
                    shown(own.peak_mib, 0),
                )
            )
        )
    return "".join(lines)


def _peers(made: Sequence[Row]) -> str:
    """Return a line for each shape: requests a second, and how many times those of each peer Treering does."""
    cases = _cases(made)
    known = ("direct", "nginx", "bare", "bare, no ids", "least", "treering, unrecorded", "treering")
    found = list(dict.fromkeys(row.system for row in made))
    ours, peers = [name for name in known if name in found], [name for name in found if name not in known]
    columns = ("prompt", "reply", "case", "conns", *ours, *peers, *(f"treering by {name}" for name in peers))
    lines = [line(columns), rule(columns, words=(1, 2))]
    for systems in cases.values():
        own = systems["treering"]
        times = [_times(systems.get(name)) for name in peers]
        rates = [_rps(systems.get(name)) for name in (*ours, *peers)]
        lines.append(line((*_case(own), *rates, *times)))
    return "".join(lines)


def _times(row: Row | None) -> str:
    """Return how many times a peer's requests Treering does, in brackets if the pairs differ too much to say."""
    if row is None or row.treering_ratio is None:
        return ""
    noisy = (row.treering_spread or 0.0) > NOISY_SPREAD
    told = f"({row.treering_ratio:,.1f} x)" if noisy else f"{row.treering_ratio:,.1f} x"
    return f"{told}, CPU {row.treering_cpu_ratio or 0.0:,.1f} x"


def _rps(row: Row | None) -> str:
    return "" if row is None else f"{row.rps:,.1f}"
