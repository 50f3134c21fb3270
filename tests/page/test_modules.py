"""The page's modules that have no DOM, by node's own test runner; and that every module is one that parses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "capture" / "page"
LIMIT_S = 120


def test_node_runs_the_tests_of_the_pure_modules() -> None:
    tests = sorted(str(file) for file in Path(__file__).parent.glob("*.test.mjs"))
    assert tests
    done = subprocess.run(
        ["node", "--test", *tests], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize("file", sorted(PAGE.glob("*.js")), ids=lambda file: file.name)
def test_a_module_parses_and_says_what_it_is_for(file: Path) -> None:
    text = file.read_text()
    assert text.startswith("/* "), f"{file.name} begins with a comment that says what it is for"
    # As a module, which its name alone doesn't say.
    done = subprocess.run(
        ["node", "--input-type=module", "--check"],
        input=text,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
