"""What follows a reply, found by `capture.pinning.plan` under real templates, against what really follows it.

The yardstick is another way to the same place, in text: the whole conversation is rendered with a mark at the reply's
end; what stands behind the mark is cut at the text of the token by which a model ends its turn, and encoded by itself.
Where the template doesn't put that token there, there is no right answer, and the plan must find none.

    python -m benchmarks.drift.sweep           prints the table
    python -m benchmarks.drift.sweep --docs    writes it into docs/pinned.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.drift.templates import ROOT, TEMPLATES, Renderings, Template, array, missing, rendering
from benchmarks.drift.turns import TURNS, Turn, with_end
from capture.pinning.fallback import Fallback
from capture.pinning.plan import Closings, Ended, Rendering, plan
from graph.records import IntArray

Json = dict[str, Any]
Verdict = Literal["right", "wrong", "fell back"]

MARK = "Jq7xyMark"
"""Stands in no template and no turn."""

PAGE = ROOT / "docs" / "pinned.md"
BEGIN, END = "<!-- templates: begin -->\n", "<!-- templates: end -->\n"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One turn under one template."""

    template: str
    turn: str
    verdict: Verdict
    # Why it fell back.
    reason: str | None = None
    # Whether there was a right answer to be found.
    possible: bool = False


def judge(renderings: Renderings, template: Template, turn: Turn, closings: Closings) -> Judged:
    """Judge one turn under one template."""
    turn = with_end(turn, template.end or template.marks["user"])
    wanted = expected(renderings, template, turn)
    try:
        found = _found(renderings, template, turn, closings)
    except Fallback as why:
        return _judged(template, turn, "fell back", possible=wanted is not None, reason=why.reason)
    right = wanted is not None and found.tolist() == wanted.tolist()
    return _judged(template, turn, "right" if right else "wrong", possible=wanted is not None)


def _judged(template: Template, turn: Turn, verdict: Verdict, *, possible: bool, reason: str | None = None) -> Judged:
    return Judged(template=template.name, turn=turn.name, verdict=verdict, reason=reason, possible=possible)


def _found(renderings: Renderings, template: Template, turn: Turn, closings: Closings) -> IntArray:
    """Return what the plan finds, asked as the engine would be. Raises `Fallback`."""
    sampled = renderings.one(template, encode="words" + ("" if turn.cut else template.end_for(turn.reply, turn.new)))
    ended = Ended(sampled=array(sampled), finish_reason="length" if turn.cut else "stop")  # type: ignore[arg-type]  # ids, not None
    steps = plan(
        [*turn.history, turn.reply, *turn.new], len(turn.history), ended,
        closings=closings, shape=json.dumps([template.name, turn.tools, turn.arguments]),
    )  # fmt: skip
    got: list[IntArray | None] | None = None
    while True:
        try:
            asked = steps.send(got)  # type: ignore[arg-type]  # a generator begins with None
        except StopIteration as stop:
            ids: IntArray = stop.value.ids
            return ids
        got = [array(ids) for ids in renderings.ask(template, [_asked(turn, one) for one in asked])]


def _asked(turn: Turn, one: Rendering) -> Json:
    return {"messages": one.messages, "closed": one.closed, "tools": turn.tools, "arguments": turn.arguments}


def expected(renderings: Renderings, template: Template, turn: Turn) -> IntArray | None:
    """Return the ids behind the reply's last, by the text; None where there is no right answer."""
    marked = _marked(turn.reply)
    before = [*turn.history, marked]
    asked = [Rendering(messages=[*before, *turn.new]), Rendering(messages=before, closed=True)]
    texts = renderings.ask(template, [{**_asked(turn, one), "text": True} for one in asked])
    if any(text is None or MARK not in text for text in texts):
        return None
    going_on, closed = (text[text.rindex(MARK) + len(MARK) :] for text in texts)
    end = template.end_for(turn.reply, turn.new)
    if turn.cut:
        tail = going_on
    elif end in closed and not template.marks:
        upto = closed.rindex(end) + len(end)
        if going_on[:upto] != closed[:upto]:
            return None
        tail = going_on[upto:]
    elif going_on.startswith(closed + end):
        tail = going_on[len(closed) + len(end) :]
    else:
        return None
    return array(renderings.one(template, encode=tail))


def _marked(reply: Json) -> Json:
    """Return a reply with the mark at the end of its text and of each call: some templates show but one of them."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps({"x": MARK})}}
        for call in reply.get("tool_calls", ())
    ]
    content = reply["content"].rstrip() + MARK if reply["content"] or not calls else reply["content"]
    return {**reply, "content": content, **({"tool_calls": calls} if calls else {})}


def sweep(renderings: Renderings, templates: Iterable[Template] = tuple(TEMPLATES.values())) -> list[Judged]:
    """Judge every turn under every template."""
    found = []
    for template in templates:
        closings = Closings()
        found += [judge(renderings, template, turn, closings) for turn in TURNS.values()]
    return found


def table(judged: Sequence[Judged]) -> str:
    """Return the table in Markdown, a line a template, and a sentence on all."""
    lines = [
        f"| template | tokeniser | right, of {len(TURNS)} | wrong | fell back, and why |\n",
        "|---|---|---:|---:|---|\n",
    ]
    for name in dict.fromkeys(one.template for one in judged):
        own = [one for one in judged if one.template == name]
        counted = Counter(one.verdict for one in own)
        reasons = Counter(one.reason for one in own if one.reason is not None)
        template = TEMPLATES[name]
        tokenizer = f"{template.tokenizer}, standing in" if template.stands_in else template.tokenizer
        why = ", ".join(f"{reason} {n}" for reason, n in sorted(reasons.items()))
        lines.append(f"| {name} | {tokenizer} | {counted['right']} | {counted['wrong']} | {why} |\n")
    possible = [one for one in judged if one.possible]
    found = sum(one.verdict == "right" for one in possible)
    lines.append(
        f"\nOf {len(judged)} turns {len(possible)} have a right answer by the yardstick; {found} were found.\n"
    )
    return "".join(lines)


def with_table(page: str, judged: Sequence[Judged]) -> str:
    """Return docs/pinned.md with the table between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table(judged) + END + rest.partition(END)[2]


def main(argv: Sequence[str], page: Path = PAGE) -> int:
    """Print the table, or write it; 1 where a wrong tail was accepted, 2 where nothing can be rendered here."""
    if (why := missing()) is not None:
        sys.stderr.write(f"sweep: {why}\n")
        return 2
    with rendering() as renderings:
        judged = sweep(renderings)
    if "--docs" in argv:
        page.write_text(with_table(page.read_text(), judged))
    else:
        sys.stdout.write(table(judged))
    for one in judged:
        if one.verdict == "wrong":
            sys.stderr.write(f"sweep: wrong: {one.template}, {one.turn}\n")
    return int(any(one.verdict == "wrong" for one in judged))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
