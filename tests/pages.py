"""The documentation as text: pages, their links and anchors, their blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

PAGES = sorted(
    (
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "client" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    )
)

_FENCE = re.compile(r"^ *```(.*)$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


class Block(NamedTuple):
    """A block of code: what stands behind the fence (empty where it is indented), its line, and its text."""

    page: Path
    info: str
    line: int
    text: str

    @property
    def language(self) -> str:
        """The first word behind the fence."""
        return self.info.split()[0] if self.info else ""

    @property
    def where(self) -> str:
        """Name it for a person."""
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    """Return a page's path from the root."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """Yield a page's blocks: fenced ones, and those that are indented by four behind an empty line."""
    info: str | None = None
    held: list[str] = []
    began = 0
    before = ""
    for at, line in enumerate([*page.read_text(encoding="utf-8").splitlines(), ""], 1):
        fence = _FENCE.match(line)
        if info is not None:
            if fence and not fence[1]:
                yield Block(page, info, began, "\n".join(held) + "\n")
                info, held = None, []
            else:
                held.append(line)
        elif fence:
            if held:
                yield Block(page, "", began, "\n".join(held).rstrip() + "\n")
                held = []
            info, began = fence[1].strip(), at + 1
        elif line.startswith("    ") and (held or not before.strip()):
            began = began if held else at
            held.append(line[4:])
        elif held and not line.strip():
            held.append("")
        elif held:
            yield Block(page, "", began, "\n".join(held).rstrip() + "\n")
            held = []
        before = line
    if held:
        yield Block(page, "", began, "\n".join(held).rstrip() + "\n")


def prose(page: Path) -> str:
    """Return a page's text without its fenced and indented blocks."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in blocks(page):
        for at in range(block.line - 1, block.line - 1 + block.text.count("\n")):
            lines[at] = ""
    return "\n".join(lines)


def links(page: Path) -> list[str]:
    """Return what a page links to, pictures included, as it is written."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        n, unique = 0, slug
        while unique in found:
            n += 1
            unique = f"{slug}-{n}"
        found.add(unique)
    return found
