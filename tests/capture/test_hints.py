"""Every error says what to do next: whoever raises one gives a hint, or its code has one, or its message holds it.

Read from the source: what is raised somewhere and never in a test would not be found otherwise.
"""

import ast
from pathlib import Path

import pytest

from capture.errors import HINTS
from tunnel.errors import SpecError

ROOT = Path(__file__).parents[2]

MESSAGE_SAYS_IT = {
    "client_gone": "nobody is there to read it",
    "invalid_idempotency_key": "it says how long one is",
    "invalid_json": "it names the field, and what can't be read of it",
    "missing_field": "it names the field that is to be given",
    "unknown_field": "it names the field that is to be left out",
    "unknown_tool": "it names the tool that isn't among those given",
    "wrong_type": "it says what the field must be",
}
"""Codes of errors whose message is itself the answer to what to do, and why."""

INTERNAL = {"GoneError": "between our own processes; it becomes a StoreError, which has a hint, before anyone sees it"}
"""Classes that nobody is shown, and why."""

FAMILY = {"TreeringError", "ClientError", "EngineError", "CaptureError", "StoreError", "UsageError", "TunnelError"}


def sources():
    for room in ("capture", "graph", "tunnel"):
        yield from sorted((ROOT / room).rglob("*.py"))


def name_of(node):
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def family():
    """The classes of our errors' family, further ones included that somebody has made since."""
    trees = [ast.parse(path.read_text()) for path in sources()]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = set(FAMILY)
    while new := {node.name for node in classes if found & set(map(name_of, node.bases))} - found:
        found |= new
    return found


def made(kinds):
    """Yield where each error is made: the place, the class, its code if it stands there, and whether it has a hint."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (kind := name_of(node.func)) in kinds:
                hints = [word.value for word in node.keywords if word.arg in ("hint", None)]
                empty = len(hints) == 1 and isinstance(hints[0], ast.Constant) and not hints[0].value
                code = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                yield f"{path.relative_to(ROOT)}:{node.lineno}", kind, code, bool(hints) and not empty


def test_every_error_that_is_made_says_what_to_do():
    known = MESSAGE_SAYS_IT | HINTS
    silent = [
        f"{place}: {kind} {code or ''}"
        for place, kind, code, hinted in made(family() - set(INTERNAL))
        if not hinted and (kind in ("UsageError", "TunnelError") or code not in known)
    ]
    assert silent == []


def test_the_tables_hold_nothing_that_is_never_raised():
    codes = {code for *_, code, _ in made(family())}
    text = "".join(path.read_text() for path in sources())
    assert [code for code in (*HINTS, *MESSAGE_SAYS_IT) if code not in codes and f'"{code}"' not in text] == []
    assert set(INTERNAL) <= family()
    assert not set(HINTS) & set(MESSAGE_SAYS_IT)


@pytest.mark.parametrize("hint", HINTS.values())
def test_a_hint_is_a_sentence(hint):
    assert hint[0].isupper() or hint.startswith(("`", "GET ", "docs/"))
    assert hint.endswith(".")


def test_a_tunnels_description_is_refused_with_what_is_accepted():
    # It has no hint of its own; who shows it adds where the recipes are.
    assert issubclass(SpecError, ValueError)
