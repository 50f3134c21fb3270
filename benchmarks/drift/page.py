"""What is generated of docs/drift.md, from a run's document: an example id by id, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.drift.rows import Row, causes_of

Json = dict[str, Any]

PARTS = ("example", "served", "templates", "agents")


def with_parts(page: str, told: Mapping[str, Any]) -> str:
    """Return the page with each generated part between its marks replaced. Raises ValueError where a mark is gone."""
    rows = [msgspec.convert(row, Row) for row in told["rows"]]
    host = told["host"]
    run = f"`bin/bench drift`, {told['at'][:10]}, {host['cores']} cores.\n\n"
    made = {
        "example": example(told.get("examples", {}), told.get("shown", "tool loop")),
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


def example(examples: Mapping[str, Json], name: str) -> str:
    """Return one break as a table: what the engine had, and what it renders of the same conversation."""
    if name not in examples:
        return "No engine was there when this was made.\n"
    found = examples[name]
    begins, at = found["begins"], found["at"]
    had = found["n_prompt"] + found["n_sampled"]
    said = (
        f"Scenario *{name}*, cause `{found['cause']}`. The first call's prompt had {found['n_prompt']} ids, its reply"
        f" {found['n_sampled']}. Of these {had} the next prompt begins with {at}; the other {found['tokens']} are lost."
    )
    heads = "| position | prompt and reply of the first call | | prompt of the second | |\n|---:|---:|---|---:|---|\n"
    lines = [f"{said}\n\n", heads]
    for place in range(max(len(found["had"]), len(found["rendered"]))):
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
    """Return the table of a real engine: a line a scenario, template and mode."""
    own = [row for row in rows if row.served_by != "template alone" and row.agent == "chat"]
    if not own:
        return "No engine was there when this was made.\n"
    return _table(own, ("scenario", "template", "mode"))


def agents(rows: Sequence[Row]) -> str:
    """Return the table of recorded agents under the first template, and a line for the others."""
    own = [row for row in rows if row.agent != "chat"]
    first = next((row.template for row in own), None)
    return _table([row for row in own if row.template == first], ("agent", "scenario", "template", "mode"))


def matrix(rows: Sequence[Row]) -> str:
    """Return scenarios by templates: tokens lost in the mean as rendered, and pinned."""
    own = [row for row in rows if row.served_by == "template alone" and row.agent == "chat"]
    scenarios = list(dict.fromkeys(row.scenario for row in own))
    by_place = {(row.template, row.scenario, row.mode): row for row in own}
    lines = ["| template | " + " | ".join(scenarios) + " |\n|---|" + "---:|" * len(scenarios) + "\n"]
    for template in dict.fromkeys(row.template for row in own):
        cells = []
        for scenario in scenarios:
            plain, pinned = (by_place.get((template, scenario, mode)) for mode in ("engine", "pinned"))
            cells.append(_cell(plain, pinned))
        lines.append(f"| {template} | {' | '.join(cells)} |\n")
    causes = ", ".join(f"{cause} {n}" for cause, n in causes_of([row for row in own if row.mode == "engine"]).items())
    return "".join(lines) + f"\nCauses over all of them, as rendered: {causes}.\n"


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
    heads = [*names, "transitions", "exact", "tokens mean", "max", "fork_frac", "realign_frac", "samples", "rows"]
    heads += ["trained", "forwarded", "causes; why not pinned"]
    lines = ["| " + " | ".join(heads) + " |\n", "|" + "---|" * len(names) + "---:|" * (len(heads) - len(names) - 1)]
    lines.append("---|\n")
    for row in rows:
        cells = [str(getattr(row, name)) for name in names]
        if row.note is not None:
            lines.append(f"| {' | '.join(cells)} |{' |' * (len(heads) - len(names) - 1)} {_plain(row.note)} |\n")
            continue
        cells += [_number(getattr(row, name)) for name in _COLUMNS]
        cells += [_number(row.rows), _number(row.trained_tokens), _number(row.forwarded_tokens)]
        why = [f"{cause} {n}" for cause, n in row.causes.items()]
        why += [f"{reason} {n}" for reason, n in row.fallback.items()]
        why += [f"pinned to an older call {row.pinned_to_older}"] if row.pinned_to_older else []
        if row.turns_right is not None:
            why = [f"{row.turns_right:.0%} of turns right with their reply"]
        lines.append(f"| {' | '.join(cells)} | {', '.join(why)} |\n")
    return "".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".") if value % 1 else f"{int(value):,}"


def _code(text: str) -> str:
    shown = text.replace("\n", "⏎").replace("|", "\\|").replace("`", "'")
    return f"`{shown}`" if shown.strip() else f"`{shown.replace(' ', '␣')}`"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
