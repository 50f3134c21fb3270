"""Check that tests mirror modules: every module of the rooms that has code has its test file. Standard library only.

    python3 bin/mirror.py

`graph/finders/loops.py` is mirrored by `tests/graph/finders/test_loops.py`. Left out are files without code of their
own (`__init__.py`, `__main__.py`, modules of records, tables and protocols) and the exceptions below, each
with its reason. An exception that is not needed any more fails too.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("capture", "graph", "tunnel")

# Held to one suite with SQLite: every test of tests/capture/store that takes a `store` runs on both.
BOTH = "the store's own suite, tests/capture/store, runs on it"
# Module → why no test file bears its name.
EXCEPTIONS: dict[str, str] = {
    **{
        f"capture/store/postgres/{name}.py": BOTH
        for name in ("batch", "calls", "changes", "events", "prepared", "rollouts", "states", "sums")
    },
    "capture/store/postgres/driver.py": "types for asyncpg, and one list of column names that every statement uses",
    "capture/store/prompts.py": BOTH,
}


def has_code(source: str) -> bool:
    """Tell whether a module holds a function with a body: records and protocols have nothing to test."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return any(not is_stub(statement) for function in functions for statement in function.body)


def is_stub(statement: ast.stmt) -> bool:
    """Tell whether a statement does nothing: a docstring, an ellipsis, `pass`."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def test_of(module: Path) -> Path:
    """Return where a module's tests belong; both are relative to the root."""
    return Path("tests", *module.parts[:-1], f"test_{module.name}")


def missing_tests(root: Path) -> list[Path]:
    """Return the modules, relative to the root, that have code and no test file, in order of name."""
    modules = [path for room in ROOMS for path in sorted((root / room).rglob("*.py"))]
    named = [
        path.relative_to(root) for path in modules if not path.name.startswith("__") and has_code(path.read_text())
    ]
    return [module for module in named if not (root / test_of(module)).is_file()]


def main() -> int:
    """Print what is missing; return 1 when anything is."""
    missing = {str(module): test_of(module) for module in missing_tests(ROOT)}
    problems = [f"{module} has no {test}" for module, test in missing.items() if module not in EXCEPTIONS]
    problems += [f"{module} is an exception that is not needed" for module in EXCEPTIONS if module not in missing]
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
