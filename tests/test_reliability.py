"""docs/reliability.md: every test that it names is there, and every fault of a store is explained in it."""

import ast
import re
from pathlib import Path

import pytest

from capture.store.faults import FAULTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def named_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    # A state machine's test is assigned.
    return found | {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_it_names_tests() -> None:
    assert len(NAMED) > 50
    # None is spelt so that it isn't found above.
    assert PAGE.count("::") == sum(PAGE.count(f"`{path}::{name}`") for path, name in NAMED)


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_each_of_them_exists(path) -> None:
    there = named_in(ROOT / path)
    assert {name for named, name in NAMED if named == path} <= there


def test_each_row_has_its_proof() -> None:
    heads = ("| promise", "| code")
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(heads)]
    # Tables of figures have more columns.
    promises = [row for row in rows if row.count("|") == 3]
    assert len(promises) > 30
    assert all("`tests/" in row or row.endswith("| the same |") or row.startswith("| `") for row in promises)


def test_each_fault_is_explained() -> None:
    for code, meaning in FAULTS.items():
        assert f"| `{code}` | {meaning} |" in PAGE
