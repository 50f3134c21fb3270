"""Tokens as bars: a drift, as a parent's ids above its child's prompt; training rows, with what of each is trained.

Rules: those of `graph.picture`, whose ground, colours and letters these have. All bars of one picture have one scale,
in tokens; a stretch too short to be seen is drawn two pixels wide.
"""

from __future__ import annotations

from collections.abc import Iterator

from graph.graph import Graph
from graph.outline import runs
from graph.picture import PAD, WIDE, document, number, text
from graph.sequences import Options, cut

LABELS = 130
BAR = 22
GAP = 34


def drift(graph: Graph, n: int, *, title: str) -> str:
    """Draw where call `n` parts from its parent; return an SVG document. Raises ValueError where it doesn't drift."""
    link = graph.forest.links[n]
    if link.drift is None or link.parent is None:
        raise ValueError(f"call {n} does not drift")
    forest, parent, found = graph.forest, link.parent, link.drift
    prompt, sampled, child = forest.n_prompt(parent) or 0, forest.n_sampled(parent) or 0, forest.n_prompt(n) or 0
    scale = _Scale(max(prompt + sampled, child))
    y, next_y = PAD + 24.0, PAD + 24.0 + BAR + GAP
    parts = [
        text(PAD, y + 15, f"call {parent}", ""),
        scale.bar(0, prompt, y, "line"),
        scale.bar(prompt, prompt + sampled, y, "main"),
        text(PAD, next_y + 15, f"call {n}", ""),
        scale.bar(0, child, next_y, "line"),
        _break(scale.x(found.at), y - 6, next_y + BAR + 6),
        text(scale.x(found.at), y - 10, f"token {found.at:,}", "small middle break"),
        *scale.legend(
            next_y + BAR + 26,
            (("line", "prompt"), ("main", "sampled"), ("break", f"here they part: {found.tokens:,} tokens are lost")),
        ),
    ]
    desc = (
        f"Call {parent} read a prompt of {prompt} tokens and sampled {sampled}. The prompt of call {n}, of {child} "
        f"tokens, begins with the first {found.at} of them; {found.tokens} are lost. Cause: {found.cause}."
    )
    return document(title, desc, WIDE, next_y + BAR + 26 + PAD, parts)


def rows(graph: Graph, *, title: str, options: Options | None = None) -> str:
    """Draw a rollout's training rows; return an SVG document."""
    found = cut(graph, options or Options())
    scale = _Scale(max((len(row.input_ids) for row in found.sequences), default=1))
    parts: list[str] = []
    said: list[str] = []
    y = float(PAD)
    for row in found.sequences:
        calls = ", ".join(map(str, row.calls))
        which = "call" if len(row.calls) == 1 else "calls"
        parts += [
            text(PAD, y + 10, f"row {row.row}", ""),
            text(PAD, y + 22, f"{which} {calls}", "small quiet"),
            scale.bar(0, len(row.input_ids), y, "line"),
        ]
        for start, end in runs(row.loss_mask):
            parts.append(scale.bar(start, end, y, "main"))
        said.append(f"Row {row.row}, {which} {calls}: {len(row.input_ids)} tokens, {row.n_trained_tokens} trained.")
        y += BAR + 12
    left = found.left_out
    if left:
        said.append(f"Left out: {', '.join(f'call {each.call} ({each.reason})' for each in left)}.")
    parts += scale.legend(y + 8, (("line", "context"), ("main", "trained")))
    return document(title, " ".join(said), WIDE, y + 8 + PAD, parts)


class _Scale:
    def __init__(self, tokens: int) -> None:
        self._each = (WIDE - LABELS - 2 * PAD) / max(tokens, 1)

    def x(self, token: int) -> float:
        return LABELS + PAD + token * self._each

    def bar(self, start: int, end: int, y: float, colour: str) -> str:
        width = max((end - start) * self._each, 2.0)
        place = f'x="{number(self.x(start))}" y="{number(y)}" width="{number(width)}" height="{BAR}"'
        return f'<rect {place} fill="var(--{colour})"/>'

    def legend(self, y: float, marks: tuple[tuple[str, str], ...]) -> Iterator[str]:
        x = float(PAD)
        for colour, said in marks:
            if colour == "break":
                yield _break(x + 13, y - 10, y + 6)
            else:
                yield f'<rect x="{number(x)}" y="{number(y - 8)}" width="26" height="12" fill="var(--{colour})"/>'
            yield text(x + 34, y + 3, said, "quiet")
            x += 34 + 7 * len(said) + 22


def _break(x: float, y: float, to_y: float) -> str:
    return f'<path d="M{number(x)} {number(y)}V{number(to_y)}" stroke="var(--break)" stroke-width="2"/>'
