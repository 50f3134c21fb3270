"""A forest as a picture: an SVG with a lane for each conversation, a dot for each call, and its breaks marked.

Rules
1. Time goes from left to right, by order of arrival. A call stands in its conversation's lane; a branch that did not go
   on, or a try of a retry, has a lane of its own below it.
2. What the picture says by colour it says by a word or a shape too: lanes are labelled, marks differ in form, and
   `title` and `desc` say all of it in words, for who can't see it.
3. It stands on a ground of its own, which follows the reader's light or dark setting, so it can be read on any page.
   No script, no font, no address of anything elsewhere.
4. Equal graphs give equal bytes.

Theory: within a conversation the child that went on (a fork's `kept`, else the first that is not discarded) inherits
its parent's lane, every other begins one, as in a commit log. What hangs on another call without going on from its
tokens is dotted: a subagent from the tool call that started it, a summary to the call that carries it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from graph.finders.roles import WORDS
from graph.graph import Graph
from graph.records import Conversation

LIGHT = {
    "ground": "#ffffff", "line": "#8b918c", "text": "#1d211e", "quiet": "#5c635d",
    "main": "#1f6f43", "subagent": "#1d5fa8", "auxiliary": "#79549c", "none": "#5c635d", "break": "#b3261e",
}  # fmt: skip
DARK = {
    "ground": "#1c201d", "line": "#7d847e", "text": "#e6e9e6", "quiet": "#a3aaa4",
    "main": "#74c995", "subagent": "#82b6f0", "auxiliary": "#c3a1e6", "none": "#a3aaa4", "break": "#ff9d94",
}  # fmt: skip
"""Colours by name, for a reader's light and dark setting. Those of text are told apart from the ground by 4.5 to 1."""

LABELS = 168
"""Width of the lanes' labels, in pixels, as all below."""
LANE = 46
STEP, NARROW_STEP, WIDE = 56, 30, 760
RADIUS = 10
PAD = 18
LETTER = 6.4
"""About the width of a letter of 12 pixels; the legend is broken by it."""


def forest(graph: Graph, *, title: str) -> str:
    """Draw a graph's forest; return an SVG document. `title` is its name, for its reader and for who can't see it."""
    return _Picture(graph).document(title)


def style() -> str:
    """Return the style that every picture of ours has: colours by the reader's setting, and letters."""
    return (
        "<style>"
        f"svg{{{_variables(LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{svg{{{_variables(DARK)}}}}}"
        "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;fill:var(--text)}"
        ".small{font-size:10px}.quiet{fill:var(--quiet)}.middle{text-anchor:middle}.break{fill:var(--break)}"
        "</style>"
    )


def document(title: str, desc: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Put an SVG document together, on a ground of its own."""
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc" {size}>',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(desc)}</desc>',
            style(),
            f'<rect width="{number(width)}" height="{number(height)}" rx="8" fill="var(--ground)"/>',
            *parts,
            "</svg>",
            "",
        )
    )


def words(graph: Graph) -> str:
    """Say in words what the picture shows."""
    forest = graph.forest
    said = [f"{len(forest.calls)} {'call' if len(forest.calls) == 1 else 'calls'}, in order of arrival."]
    for found in graph.conversations:
        calls = ", ".join(map(str, found.calls))
        by = "" if found.parent_call is None else f", started by call {found.parent_call}"
        said.append(f"{_name(found).capitalize()}{by}: {'call' if len(found.calls) == 1 else 'calls'} {calls}.")
    for n, link in sorted(forest.links.items()):
        if link.drift is not None:
            said.append(f"Call {n} drifts from call {link.parent} by {link.drift.tokens} tokens ({link.drift.cause}).")
        if link.kind == "compaction":
            said.append(f"Call {n} goes on from call {link.parent} with a summary of it.")
    for fork in forest.forks:
        at = "at the beginning" if fork.at is None else f"behind call {fork.at}"
        kept = "" if fork.kept is None else f", call {fork.kept} went on"
        said.append(f"A fork {at} ({fork.kind}): calls {', '.join(map(str, fork.children))}{kept}.")
    for n, call in sorted(forest.calls.items()):
        if call.status not in ("complete", "running"):
            said.append(f"Call {n}: {call.status}.")
    return " ".join(said)


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


def number(value: float) -> str:
    """Write a number as short as it goes, with at most one digit behind the point."""
    return f"{value:.1f}".removesuffix(".0")


def _name(found: Conversation) -> str:
    return found.kind or found.role


class _Picture:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._calls = sorted(graph.forest.calls)
        many = max(len(self._calls) - 1, 1)
        self._step = max(NARROW_STEP, min(STEP, (WIDE - LABELS) / many))
        self._rows: dict[int, int] = {}
        # A label a row, and the role that colours it; only a conversation's first row has one.
        self._labels: list[tuple[str, str]] = []
        for found in graph.conversations:
            self._lay(found)
        loose = [n for n in self._calls if n not in self._rows]
        if loose:
            self._rows |= dict.fromkeys(loose, len(self._labels))
            self._labels.append(("in no conversation", "none"))

    def _lay(self, found: Conversation) -> None:
        """Give the calls of a conversation their rows."""
        forest = self._graph.forest
        kept = {fork.kept for fork in forest.forks}
        inside = set(found.calls)
        first = len(self._labels)
        rows = first
        heirs: dict[int, int] = {}
        # Its root first: tries that were given up arrived before it, and stand below.
        for n in sorted(found.calls, key=lambda n: (n != found.root, n)):
            if n not in heirs:
                heirs[n] = rows
                rows += 1
            self._rows[n] = heirs[n]
            children = [child for child in forest.children(n) if child in inside]
            children.sort(key=lambda child: (child not in kept, child in forest.discarded, child))
            if children:
                heirs[children[0]] = heirs[n]
        self._labels.append((_name(found), found.role))
        self._labels += [("", found.role)] * (rows - first - 1)

    def _x(self, n: int) -> float:
        return LABELS + PAD + self._calls.index(n) * self._step

    def _y(self, n: int) -> float:
        return PAD + LANE / 2 + self._rows[n] * LANE

    def _role(self, n: int) -> str:
        at = self._graph.conversation_of.get(n)
        return "none" if at is None else self._graph.conversations[at].role

    def document(self, title: str) -> str:
        last = self._calls[-1] if self._calls else None
        width = max(WIDE, (0 if last is None else self._x(last)) + RADIUS + PAD)
        lanes = PAD + LANE * len(self._labels)
        legend, height = self._legend(lanes + PAD, width)
        # Lines first, so that dots stand on them.
        parts = [*self._lanes(), *self._ties(), *self._edges(), *self._dots(), *legend]
        return document(title, words(self._graph), width, height, parts)

    def _lanes(self) -> Iterator[str]:
        for row, (label, role) in enumerate(self._labels):
            if label:
                y = PAD + LANE / 2 + row * LANE + 4
                yield f'<text x="{PAD}" y="{number(y)}" style="fill:var(--{role})">{escape(label)}</text>'
        if not self._calls:
            yield f'<text x="{PAD}" y="{PAD + 12}">no calls</text>'

    def _edges(self) -> Iterator[str]:
        links = self._graph.forest.links
        for n in self._calls:
            link = links.get(n)
            if link is None or link.parent is None:
                continue
            x, y, to_x, to_y = self._x(link.parent), self._y(link.parent), self._x(n), self._y(n)
            path = _curve(x, y, to_x, to_y)
            dash = ' stroke-dasharray="7 4"' if link.kind == "compaction" else ""
            yield f'<path d="{path}" fill="none" stroke="var(--{self._role(n)})" stroke-width="2"{dash}/>'
            if link.drift is not None:
                at = to_x - RADIUS - (self._step - 2 * RADIUS) / 2
                yield _cut(at, to_y)
                yield text(at, to_y + 19, f"−{link.drift.tokens}", "small middle break")

    def _ties(self) -> Iterator[str]:
        """Yield what hangs on another call without going on from its tokens."""
        graph = self._graph
        ties = [(found.parent_call, found.root) for found in graph.conversations if found.parent_call is not None]
        ties += [
            (carried, n)
            for n, link in sorted(graph.forest.links.items())
            for carried in link.carries
            if carried != link.parent
        ]
        for start, end in ties:
            path = _curve(self._x(start), self._y(start), self._x(end), self._y(end))
            yield f'<path d="{path}" fill="none" stroke="var(--line)" stroke-width="1.5" stroke-dasharray="1.5 4"/>'

    def _dots(self) -> Iterator[str]:
        for n in self._calls:
            yield _dot(self._x(n), self._y(n), self._role(n), self._shape(n))
            solid = self._shape(n) == "whole"
            fill = "var(--ground)" if solid else f"var(--{self._role(n)})"
            yield (
                f'<text x="{number(self._x(n))}" y="{number(self._y(n) + 3.5)}" class="small middle" '
                f'style="fill:{fill}">{n}</text>'
            )

    def _shape(self, n: int) -> str:
        forest = self._graph.forest
        status = forest.calls[n].status
        if status in ("error", "stopped"):
            return status
        if status == "aborted" and n not in forest.proved:
            return "aborted"
        return "discarded" if n in forest.discarded else "whole"

    def _legend(self, y: float, width: float) -> tuple[list[str], float]:
        """Return the legend's parts, from `y` on, of what there is to be explained; and the picture's height."""
        parts: list[str] = []
        x = float(PAD)
        for mark, said in self._marks():
            needed = 34 + LETTER * len(said) + 22
            if x + needed > width and x > PAD:
                x, y = float(PAD), y + 22
            parts += [*_mark(mark, x, y), text(x + 34, y + 4, said, "quiet")]
            x += needed
        return parts, y + PAD

    def _marks(self) -> Iterator[tuple[str, str]]:
        graph, links = self._graph, self._graph.forest.links
        for role in ("main", "subagent", "auxiliary"):
            if any(found.role == role for found in graph.conversations):
                yield role, {"main": "a call of the task"}.get(role, WORDS[role])
        kinds = {link.kind for link in links.values()}
        if "exact" in kinds or "drift" in kinds:
            yield "exact", "goes on from it"
        if "drift" in kinds:
            yield "drift", "drift: so many tokens of it are lost"
        if "compaction" in kinds:
            yield "compaction", "goes on from a summary"
        if any(self._ties()):
            yield "tie", "started by it, or carried into it"
        shapes = {self._shape(n) for n in self._calls}
        for shape, said in (
            ("aborted", "broke off"),
            ("discarded", "nobody went on with it"),
            ("error", "ended in an error"),
            ("stopped", "a limit's last reply"),
        ):
            if shape in shapes:
                yield shape, said


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    if y == to_y:
        return f"M{number(x)} {number(y)}H{number(to_x)}"
    # Down or up at once, and then along the lane that it leads to: lines of one lane don't cross it.
    bend = min(to_x - x, 40.0) if to_x > x else 20.0
    first, second = f"{number(x + bend * 0.6)} {number(y)}", f"{number(x + bend * 0.2)} {number(to_y)}"
    return f"M{number(x)} {number(y)}C{first} {second} {number(x + bend)} {number(to_y)}H{number(to_x)}"


def _cut(x: float, y: float) -> str:
    strokes = f"M{number(x - 5)} {number(y + 7)}l5 -14M{number(x + 1)} {number(y + 7)}l5 -14"
    return f'<path d="{strokes}" fill="none" stroke="var(--break)" stroke-width="2"/>'


def _dot(x: float, y: float, role: str, shape: str) -> str:
    colour = f"var(--{role})"
    if shape in ("error", "stopped"):
        stroke = "var(--break)" if shape == "error" else colour
        side = 2 * RADIUS - 2
        return (
            f'<rect x="{number(x - side / 2)}" y="{number(y - side / 2)}" width="{side}" height="{side}" rx="2" '
            f'fill="var(--ground)" stroke="{stroke}" stroke-width="2"/>'
        )
    if shape == "whole":
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="{RADIUS}" fill="{colour}"/>'
    dash = ' stroke-dasharray="3 2.5"' if shape == "discarded" else ""
    return (
        f'<circle cx="{number(x)}" cy="{number(y)}" r="{RADIUS - 1}" fill="var(--ground)" stroke="{colour}" '
        f'stroke-width="2"{dash}/>'
    )


def _mark(mark: str, x: float, y: float) -> Iterator[str]:
    """Yield the example of a mark in the legend, 26 wide, around the height `y`."""
    if mark in ("main", "subagent", "auxiliary"):
        yield _dot(x + 13, y, mark, "whole")
    elif mark in ("aborted", "discarded", "error", "stopped"):
        yield _dot(x + 13, y, "none", mark)
    else:
        dash = {"compaction": "7 4", "tie": "1.5 4"}.get(mark)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        stroke = "var(--line)" if mark == "tie" else "var(--quiet)"
        yield f'<path d="M{number(x)} {number(y)}h26" fill="none" stroke="{stroke}" stroke-width="2"{dashed}/>'
        if mark == "drift":
            yield _cut(x + 13, y)


def text(x: float, y: float, said: str, classes: str) -> str:
    return f'<text x="{number(x)}" y="{number(y)}" class="{classes}">{escape(said)}</text>'
