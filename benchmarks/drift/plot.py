"""The plot of docs/drift.svg: shares of what came out id by id, a group of bars a scenario. No library draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.drift.rows import Row

WIDTH, HEIGHT = 960, 400
LEFT, TOP, BOTTOM = 56, 56, 96
MODES: Mapping[str, tuple[str, str]] = {
    "rerender": ("#9aa5b1", "prompts that local re-rendering gets right"),
    "engine": ("#d98324", "turns that go on id by id, as the engine renders"),
    "pinned": ("#2f7d4f", "turns that go on id by id, pinned"),
}
"""Mode → colour, and what the bar says."""


def shares(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """Return by scenario and mode the share of exact transitions, over all templates."""
    found: dict[str, dict[str, float | None]] = {}
    for scenario in dict.fromkeys(row.scenario for row in rows):
        found[scenario] = {}
        for mode in MODES:
            own = [row for row in rows if row.scenario == scenario and row.mode == mode]
            n = sum(row.transitions for row in own)
            found[scenario][mode] = sum(row.exact for row in own) / n if n else None
    return found


def svg(rows: Sequence[Row], *, title: str) -> str:
    """Return the plot of rows as an SVG document."""
    drawn = shares(rows)
    height = HEIGHT - TOP - BOTTOM
    step = (WIDTH - LEFT - 16) / max(1, len(drawn))
    bar = min(18.0, step / (len(MODES) + 1))
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            ' font-family="system-ui, sans-serif" font-size="12" role="img">'
        ),
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" fill="#111111">{escape(title)}</text>',
    ]
    x = float(LEFT)
    for colour, words in MODES.values():
        parts.append(f'<rect x="{x:.0f}" y="30" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="39" fill="#333333">{escape(words)}</text>')
        x += 26 + 6.4 * len(words)
    for percent in (0, 25, 50, 75, 100):
        y = TOP + height * (1 - percent / 100)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{percent} %</text>')
    for place, (scenario, by_mode) in enumerate(drawn.items()):
        middle = LEFT + step * (place + 0.5)
        for number, (mode, (colour, _)) in enumerate(MODES.items()):
            share = by_mode[mode]
            if share is None:
                continue
            tall = max(1.5, height * share)
            at = middle + bar * (number - len(MODES) / 2)
            parts.append(
                f'<rect x="{at:.1f}" y="{TOP + height - tall:.1f}" width="{bar - 2:.1f}" height="{tall:.1f}"'
                f' fill="{colour}"><title>{escape(scenario)}, {mode}: {share:.0%}</title></rect>'
            )
        y = TOP + height + 16
        parts.append(
            f'<text x="{middle:.1f}" y="{y}" text-anchor="end" fill="#333333"'
            f' transform="rotate(-35 {middle:.1f} {y})">{escape(scenario)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
