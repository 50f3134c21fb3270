import json

import pytest

from benchmarks import overhead, pages

PAGE = "a\n<!-- x: made by `y` -->\nold\n<!-- end of x -->\nb\n"


def test_what_stands_between_the_marks_is_replaced() -> None:
    new = pages.replaced(PAGE, "x", "new\n")
    assert new == "a\n<!-- x: made by `y` -->\nnew\n<!-- end of x -->\nb\n"
    assert pages.between(new, "x") == "new\n"
    assert pages.replaced(new, "x", "old\n") == PAGE
    with pytest.raises(ValueError, match="substring not found"):
        pages.replaced(PAGE, "z", "")


def test_the_docs_tell_of_the_run_that_lies_beside_them() -> None:
    told = json.loads(overhead.DOCUMENT.read_text())
    assert pages.between(overhead.PAGE.read_text(), "overhead") == pages.overhead(told)
    assert {row.get("upstream", "engine") for row in told["rows"]} <= {"engine", "static", "open"}


def test_every_line_has_a_cell_for_each_column() -> None:
    for table in pages.overhead(json.loads(overhead.DOCUMENT.read_text())).split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1
