"""What Treering is to reach, held against the runs that lie in docs/. Pure.

A ratio is judged by requests per second, since that is what the goal says. Where the pairs of a run differ too much
among themselves for that, or there is but one, or the machine had other work to do (load, proxy and upstream keep two
cores busy at the most), no verdict is drawn; the ratio by CPU time, which other work disturbs less, is told beside it.
A median that is further from its goal than the middle half of the ratios is wide is on its side of it, however much
the pairs differ: a seventh is not six tenths.

A goal that the least recorder misses in the same run (`least.py`: the bare pass-through with what a record can't do
without, and nothing else) is called out of reach: each further thing that a recorder does only costs more. Where
Treering does more than the least recorder it is called missed all the same: there is a better way than that one's.
A goal beside a peer that the bare pass-through itself misses, which relays and does nothing else, is out of reach too,
where it does more than Treering.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from benchmarks import flat
from benchmarks.memory import AGAIN, GOALS_MIB
from benchmarks.report import BUSY, NOISY_SPREAD, Row, describe, line, rule, shown

Verdict = Literal["holds", "does not hold", "out of reach", "too noisy", "not measured"]

STREAMED = 0.8
"""Of the bare pass-through's requests, an event a write, at 2,000 and 16,000 tokens."""

GROWING = {16_000: 0.8, 100_000: 0.7}
UNRELATED = {2_000: 0.6, 16_000: 0.6, 100_000: 0.4}
"""The same of whole replies, by the prompts' tokens."""

PEERS = {"openenv": 10.0, "litellm": 50.0}
"""Times their requests, at every size."""

FIRST_TOKEN_MS = 1.0
"""Beyond the bare pass-through's, p50, at 16,000 tokens."""

LEFT_MIB = 10.0
"""That closed rollouts may seem to hold: what an allocator keeps of what it had. The rest is held by someone."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One goal, in one case."""

    what: str
    case: str
    wanted: str
    measured: str
    # The same by CPU time, where the goal is a ratio.
    by_cpu: str
    # What the least recorder reaches, and that by CPU time.
    least: str = ""
    least_by_cpu: str = ""
    verdict: Verdict
    # What shows that it is out of reach, where that is not the least recorder.
    shown_by: str = ""


def goals(docs: Mapping[str, Mapping[str, Any]]) -> list[Goal]:
    """Return every goal; `docs` holds the documents of `overhead`, `calls` and `memory`, those that there are."""
    rows = [msgspec.convert(row, Row) for row in docs.get("overhead", {}).get("rows", [])]
    busy = _busy(docs.get("overhead", {}))
    rows = [
        msgspec.structs.replace(row, ratio_spread=None, treering_spread=None) if row.upstream in busy else row
        for row in rows
    ]
    points = [msgspec.convert(row, flat.Point) for row in docs.get("calls", {}).get("rows", [])]
    return [*_ratios(rows), *_peers(rows), *_flat(points), *_first_tokens(rows), *_memory(docs.get("memory", {}))]


def _busy(told: Mapping[str, Any]) -> set[str]:
    """Return the parts of a run during which the machine had other work to do."""
    cores = told.get("host", {}).get("cores", 0)
    return {name for name, part in told.get("parts", {}).items() if part.get("load", 0.0) > cores + BUSY}


def _ratios(rows: Sequence[Row]) -> Iterator[Goal]:
    own = [row for row in rows if row.system == "treering" and row.upstream == "engine"]
    for row in own:
        wanted = _of_bare(row)
        if wanted is not None and row.ratio_to_bare is not None:
            least = _beside(rows, row, "least")
            yield Goal(
                what="streamed, an event a write" if row.streamed else "not streamed",
                case=f"{row.prompt_tokens:,} tokens, {row.case}, {row.connections} at a time",
                wanted=f"≥ {wanted} of bare",
                measured=shown(row.ratio_to_bare),
                by_cpu=shown(row.cpu_ratio_to_bare),
                least=shown(least.ratio_to_bare) if least is not None else "",
                least_by_cpu=shown(least.cpu_ratio_to_bare) if least is not None else "",
                verdict=_reached(
                    _judged(row.ratio_to_bare, wanted, row.ratio_spread),
                    own=row.ratio_to_bare,
                    wanted=wanted,
                    least=None if least is None else least.ratio_to_bare,
                    spread=None if least is None else least.ratio_spread,
                ),
            )
    if not own:
        yield _missing("beside the bare pass-through", "`bin/bench overhead`")


def _of_bare(row: Row) -> float | None:
    """Return what is wanted of the bare pass-through's requests in a case; None where nothing is."""
    if row.streamed:
        return STREAMED if row.prompt_tokens <= 16_000 else None
    return (GROWING if row.case == "growing" else UNRELATED).get(row.prompt_tokens)


def _beside(rows: Sequence[Row], row: Row, system: str) -> Row | None:
    """Return another system's row of the same case."""
    case = row.upstream, describe(row)
    return next((one for one in rows if one.system == system and (one.upstream, describe(one)) == case), None)


def _reached(verdict: Verdict, *, own: float, wanted: float, least: float | None, spread: float | None) -> Verdict:
    """Return a verdict; out of reach is what doesn't hold where the least recorder, which does more, misses it too."""
    if verdict != "does not hold" or least is None or _judged(least, wanted, spread) != "does not hold":
        return verdict
    return "out of reach" if least >= own else verdict


def _peers(rows: Sequence[Row]) -> Iterator[Goal]:
    for peer, wanted in PEERS.items():
        own = [row for row in rows if row.system == peer and row.upstream == "open"]
        for row in own:
            if row.treering_ratio is None:
                continue
            how = "streamed" if row.streamed else "whole"
            least = _beside(rows, row, "least")
            times = None if least is None else least.rps / max(row.rps, 1e-6)
            verdict = _reached(
                _judged(row.treering_ratio, wanted, row.treering_spread),
                own=row.treering_ratio,
                wanted=wanted,
                least=times,
                spread=None if least is None else least.ratio_spread,
            )
            shown_by = ""
            bare = _maybe_bare(row, wanted)
            if verdict == "does not hold" and bare is not None and row.treering_ratio <= bare:
                verdict, shown_by = "out of reach", f"bare does {bare:,.1f} x"
            yield Goal(
                what=f"beside {peer}",
                case=f"{row.prompt_tokens:,} tokens, {how}, {row.connections} at a time",
                wanted=f"≥ {wanted:g} x",
                measured=f"{row.treering_ratio:,.1f} x",
                by_cpu="" if row.treering_cpu_ratio is None else f"{row.treering_cpu_ratio:,.1f} x",
                least="" if times is None else f"{times:,.1f} x",
                least_by_cpu="" if least is None else f"{row.cpu_ms_per_call / least.cpu_ms_per_call:,.1f} x",
                verdict=verdict,
                shown_by=shown_by,
            )
        if not own:
            yield _missing(f"beside {peer}", "`bin/bench overhead --peers`")


def _maybe_bare(peer: Row, wanted: float) -> float | None:
    """Return how many times a peer's requests the bare pass-through does, where that misses what is wanted; or None."""
    if not peer.ratio_to_bare or _judged(1 / peer.ratio_to_bare, wanted, peer.ratio_spread) != "does not hold":
        return None
    return 1 / peer.ratio_to_bare


def _flat(points: Sequence[flat.Point]) -> Iterator[Goal]:
    last = [point for point in points if point.call == flat.POINTS[-1] and point.by_tenth is not None]
    for point in last:
        if point.case == "one conversation":
            tenth = next((each for each in points if each.case == point.case and each.call == 10), None)
            grown = point.cpu_by_bare / tenth.cpu_by_bare if tenth is not None else 0.0
            measured, case = f"{grown:.2f} x, by bare's", f"one conversation, to {point.prompt_tokens:,} tokens"
        else:
            grown = point.by_tenth or 0.0
            measured, case = f"{grown:.2f} x", f"{point.case}, {point.prompt_tokens:,} tokens each"
        yield Goal(
            what="the 1,000th call of a rollout beside its 10th",
            case=case,
            wanted=f"≤ {flat.FLAT} x",
            measured=measured,
            by_cpu=measured,
            verdict="holds" if grown <= flat.FLAT else "does not hold",
        )
    if not last:
        yield _missing("the 1,000th call of a rollout beside its 10th", "`bin/bench overhead --calls`")


def _first_tokens(rows: Sequence[Row]) -> Iterator[Goal]:
    streams = [row for row in rows if row.upstream == "engine" and row.streamed and row.prompt_tokens == 16_000]
    bare = {(row.case, row.connections): row for row in streams if row.system == "bare"}
    own = [row for row in streams if row.system == "treering"]
    for row in own:
        beside = bare.get((row.case, row.connections))
        if beside is None or row.first_token_ms_p50 is None or beside.first_token_ms_p50 is None:
            continue
        added = row.first_token_ms_p50 - beside.first_token_ms_p50
        least = _beside(rows, row, "least")
        its = None if least is None or least.first_token_ms_p50 is None else least.first_token_ms_p50
        its_added = None if its is None else its - beside.first_token_ms_p50
        yield Goal(
            what="first token, p50, beyond the bare pass-through's",
            case=f"16,000 tokens, {row.case}, {row.connections} at a time",
            wanted=f"≤ {FIRST_TOKEN_MS:g} ms",
            measured=f"{added:.2f} ms",
            by_cpu="",
            least="" if its_added is None else f"{its_added:.2f} ms",
            # A difference of two times is as good as the ratio of the same rounds. Less is more here.
            verdict=_reached(
                _judged(-added, -FIRST_TOKEN_MS, row.ratio_spread),
                own=-added,
                wanted=-FIRST_TOKEN_MS,
                least=None if its_added is None else -its_added,
                spread=None if least is None else least.ratio_spread,
            ),
        )
    if not own:
        yield _missing("first token, p50, beyond the bare pass-through's", "`bin/bench overhead`")


def _memory(told: Mapping[str, Any]) -> Iterator[Goal]:
    rows = {row["state"]: row for row in told.get("rows", [])}
    what = "resident memory, 1,000 rollouts of 16,000 tokens"
    for state, most in GOALS_MIB.items():
        if (row := rows.get(state)) is None or row["goal_mib"] is None:
            yield _missing(f"{what}, {state}", "`bin/bench memory`")
            continue
        yield Goal(
            what=what,
            case=state if state != "idle" else "900 of them idle for a minute",
            wanted=f"< {most:g} MiB",
            measured=f"{row['rss_mib']:.0f} MiB",
            by_cpu="",
            verdict="holds" if row["rss_mib"] < most else "does not hold",
        )
    if (closed := rows.get("closed for a minute")) is not None and rows["idle"]["goal_mib"] is not None:
        left = closed["rss_mib"] - rows["empty"]["rss_mib"]
        again = rows.get(AGAIN)
        grown = None if again is None else again["rss_mib"] - closed["rss_mib"]
        yield Goal(
            what=what,
            case="all closed for a minute, beyond a process that had none",
            wanted="holds none",
            measured=f"{left:+.0f} MiB" + ("" if grown is None else f"; after another thousand {grown:+.0f} more"),
            by_cpu="",
            # What closed ones hold grows with them; the rest is caches, and holes in the heap.
            verdict="holds" if min(left, left if grown is None else grown) <= LEFT_MIB else "does not hold",
        )


def _judged(reached: float, wanted: float, spread: float | None) -> Verdict:
    """Hold a median up to what is wanted at the least; `spread` is how wide the middle half of the values is, by it."""
    if spread is None or (spread > NOISY_SPREAD and abs(reached - wanted) <= spread * abs(reached)):
        return "too noisy"
    return "holds" if reached >= wanted else "does not hold"


def _missing(what: str, command: str) -> Goal:
    return Goal(what=what, case=command, wanted="", measured="", by_cpu="", verdict="not measured")


_COLUMNS = ("goal", "case", "wanted", "measured", "by CPU time", "the least recorder", "by CPU time", "")


def section(made: Sequence[Goal]) -> str:
    """Return the docs' section: how many hold, and each."""
    counts = {each: sum(goal.verdict == each for goal in made) for each in get_args(Verdict)}
    missing = counts["not measured"]
    said = f"Of {len(made)}, {counts['holds']} hold, {counts['does not hold']} do not"
    if counts["out of reach"]:
        relayed = sum(bool(goal.shown_by) for goal in made)
        said += f", {counts['out of reach'] - relayed} the least recorder misses too"
        said += f", {relayed} the bare pass-through itself" if relayed else ""
    said += f", {counts['too noisy']} were too noisy to say" if counts["too noisy"] else ""
    said += f", {missing} were not measured" if missing else ""
    lines = "".join(
        line(
            (
                goal.what,
                goal.case,
                goal.wanted,
                goal.measured,
                goal.by_cpu,
                goal.least,
                goal.least_by_cpu,
                f"{goal.verdict}: {goal.shown_by}" if goal.shown_by else goal.verdict,
            )
        )
        for goal in made
    )
    return f"{said}.\n\n{line(_COLUMNS)}{rule(_COLUMNS, words=(0, 1, 7))}{lines}"
