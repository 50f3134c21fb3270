"""Regular expressions mean the same on every Python that is supported."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("capture", "graph", "tunnel", "client", "bin", "benchmarks", "examples")

# A group that is repeated possessively, or is atomic. CPython before 3.11.5 (Debian 12 has 3.11.2) doesn't go back
# where such a group fails in the middle: `(?:,a)*+` takes the comma of `,b` too (gh-106052). Of one set of characters
# (`[a-z]*+`) it has always been right.
GROUPS = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")


def test_no_group_is_possessive_but_the_one_whose_end_is_looked_at() -> None:
    sources = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    assert len(sources) > 300
    found = {str(file.relative_to(ROOT)): len(GROUPS.findall(file.read_text())) for file in sources}
    assert {name: n for name, n in found.items() if n} == {"capture/rawjson.py": 1}


def test_it_would_find_one() -> None:
    found = [text for text in (")*+", ")?+", ")++", "){0,3}+", "(?>a)") if GROUPS.search(f"(?:{text}")]
    assert len(found) == 5
    assert not GROUPS.search(r"(?:[a-z]*+)*,(?:a)+[0-9]?+")
