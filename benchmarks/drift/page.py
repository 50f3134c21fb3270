"""What is generated of docs/drift.md, from a run's document: an example id by id, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.drift.rows import Row, causes_of

Json = dict[str, Any]

ALONE = "template alone"
PARTS = ("example", "served", "templates", "agents")


def with_parts(page: str, told: Mapping[str, Any]) -> str:
    """Return the page with each generated part between its marks replaced. Raises ValueError where a mark is gone."""
    rows = [msgspec.convert(row, Row) for row in told["rows"]]
    host = told["host"]
    run = f"`bin/bench drift`, {told['at'][:10]}, {host['cores']} cores.\n\n"
    made = {
        "example": example(told.get("examples", {})),
        "served": run + served(rows),
        "templates": run + matrix(rows),
        "agents": run + agents(rows),
    }
    for name in PARTS:
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        if begin not in page or end not in page:
            raise ValueError(f"the page has no marks for {name}")
        before, _, rest = page.partition(begin)
        page = before + begin + made[name] + end + rest.partition(end)[2]
    return page


SHOWN = ("qwen3-2507: tool loop", "qwen3: tool loop")
"""The example, the one that is there first."""

BEHIND = 10
"""Ids shown from the break on."""


def example(examples: Mapping[str, Json]) -> str:
    """Return one break as a table: what the engine had, and what it renders of the same conversation."""
    name = next((name for name in SHOWN if name in examples), None)
    if name is None:
        return "No engine was there when this was made.\n"
    found = examples[name]
    begins, at = found["begins"], found["at"]
    had = found["n_prompt"] + found["n_sampled"]
    said = (
        f"Template and scenario *{name}*, cause `{found['cause']}`. The first call's prompt had {found['n_prompt']}"
        f" ids, its reply {found['n_sampled']}. Of these {had} the next prompt begins with {at}; the other"
        f" {found['tokens']} are lost."
    )
    heads = "| position | prompt and reply of the first call | | prompt of the second | |\n|---:|---:|---|---:|---|\n"
    lines = [f"{said}\n\n", heads]
    for place in range(min(max(len(found["had"]), len(found["rendered"])), at - begins + BEHIND)):
        cells = []
        for side in ("had", "rendered"):
            if place < len(found[side]):
                number, text = found[side][place]
                cells += [str(number), _code(text)]
            else:
                cells += ["", ""]
        position = begins + place
        mark = f"**{position}**" if position == at else str(position)
        lines.append(f"| {mark} | {' | '.join(cells)} |\n")
    return "".join(lines)


def served(rows: Sequence[Row]) -> str:
    """Return the tables of a real engine: the first template in full, the others as in the matrix."""
    own = [row for row in rows if row.served_by != ALONE and row.agent == "chat"]
    if not own:
        return "No engine was there when this was made.\n"
    first = own[0].template
    others = [row for row in own if row.template != first]
    whole = _table([row for row in own if row.template == first], ("scenario", "mode"))
    beside = f"\nOther templates at the same engine:\n\n{_matrix(others)}" if others else ""
    return f"Template {first}, {own[0].served_by}:\n\n{whole}{beside}"


def agents(rows: Sequence[Row]) -> str:
    """Return the table of recorded agents under the first template."""
    own = [row for row in rows if row.agent != "chat"]
    first = next((row.template for row in own), None)
    shown = [row for row in own if row.template == first]
    again = [row for row in shown if row.mode == "rerender"]
    right, turns = sum(row.exact for row in again), sum(row.transitions for row in again)
    return (
        f"{_table(shown, ('agent', 'scenario', 'mode'))}\nRendering again gave the engine's own prompt for {right} of"
        f" {turns} calls of these agents.\n"
    )


def matrix(rows: Sequence[Row]) -> str:
    """Return scenarios by templates: tokens lost in the mean as rendered, and pinned."""
    own = [row for row in rows if row.served_by == ALONE and row.agent == "chat"]
    causes = ", ".join(f"{cause} {n}" for cause, n in causes_of([row for row in own if row.mode == "engine"]).items())
    return f"{_matrix(own)}\nCauses over all of them, as rendered: {causes}.\n"


def _matrix(rows: Sequence[Row]) -> str:
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    by_place = {(row.template, row.scenario, row.mode): row for row in rows}
    lines = ["| template | " + " | ".join(scenarios) + " |\n|---|" + "---:|" * len(scenarios) + "\n"]
    for template in dict.fromkeys(row.template for row in rows):
        cells = []
        for scenario in scenarios:
            plain, pinned = (by_place.get((template, scenario, mode)) for mode in ("engine", "pinned"))
            cells.append(_cell(plain, pinned))
        lines.append(f"| {template} | {' | '.join(cells)} |\n")
    return "".join(lines)


def _cell(plain: Row | None, pinned: Row | None) -> str:
    if plain is None or plain.note or pinned is None:
        return "refused"
    if plain.tokens_mean is None:
        return "-"
    before = _number(plain.tokens_mean)
    if not plain.tokens_mean:
        return before
    why = "".join(f" ({reason})" for reason in pinned.fallback)
    return f"{before} → {_number(pinned.tokens_mean)}{why}"


_COLUMNS = ("transitions", "exact", "tokens_mean", "tokens_max", "fork_frac", "realign_frac", "samples_per_rollout")


def _table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return a line a row of `engine` and `pinned`; re-rendering is a column beside them."""
    heads = [*names, "transitions", "exact", "tokens mean", "max", "fork_frac", "realign_frac", "samples", "rows"]
    heads += ["trained", "forwarded", "re-rendered right", "causes; why not pinned"]
    lines = ["| " + " | ".join(heads) + " |\n", "|" + "---|" * len(names) + "---:|" * (len(heads) - len(names) - 1)]
    lines.append("---|\n")
    again = {(row.agent, row.scenario): row for row in rows if row.mode == "rerender"}
    for row in rows:
        if row.mode == "rerender" or (row.note is not None and row.mode != "engine"):
            continue
        cells = [str(getattr(row, name)) for name in names]
        if row.note is not None:
            lines.append(f"| {' | '.join(cells)} |{' |' * (len(heads) - len(names) - 1)} {_plain(row.note)} |\n")
            continue
        cells += [_number(getattr(row, name)) for name in _COLUMNS]
        cells += [_number(row.rows), _number(row.trained_tokens), _number(row.forwarded_tokens)]
        other = again.get((row.agent, row.scenario)) if row.mode == "engine" else None
        share = "" if other is None or other.turns_right is None else f"{other.exact} of {other.transitions}"
        cells.append(f"{share}; {other.turns_right:.0%}" if share and other and other.turns_right is not None else "")
        why = [f"{cause} {n}" for cause, n in row.causes.items()]
        why += [f"{reason} {n}" for reason, n in row.fallback.items()]
        why += [f"pinned to an older call {row.pinned_to_older}"] if row.pinned_to_older else []
        lines.append(f"| {' | '.join(cells)} | {', '.join(why)} |\n")
    return "".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".") if value % 1 else f"{int(value):,}"


def _code(text: str) -> str:
    shown = text.replace("\n", "⏎").replace("|", "\\|").replace("`", "'")
    return f"`{shown}`" if shown.strip() else f"`{shown.replace(' ', '␣')}`"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
