"""The test mirror asks for a test file where there is code, and nowhere else."""

from pathlib import Path

import pytest

from bin import mirror


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("def f(): return 1", True),
        ("class A:\n    async def f(self): return 1", True),
        ('"""A table."""\nTABLE = {1: 2}', False),
        ("class Record:\n    a: int = 1", False),
        ('class Port:\n    def f(self) -> int:\n        """Do it."""\n        ...', False),
    ],
)
def test_only_functions_with_a_body_are_code(source, counts):
    assert mirror.has_code(source) is counts


def test_each_module_has_its_own_file(tmp_path):
    code = "def f(): return 1\n"
    for name in ("graph/forest.py", "graph/finders/loops.py", "graph/__init__.py", "capture/__main__.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
    assert mirror.missing_tests(tmp_path) == [Path("graph/finders/loops.py"), Path("graph/forest.py")]
    (tmp_path / "tests/graph/finders").mkdir(parents=True)
    (tmp_path / "tests/graph/finders/test_loops.py").touch()
    assert mirror.missing_tests(tmp_path) == [Path("graph/forest.py")]
