"""docs/cli.md is what the tables say."""

from pathlib import Path

from capture.commands.reference import render

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def test_the_page_is_made_from_the_tables():
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m capture.commands.reference > docs/cli.md"


def test_no_cell_is_broken_by_a_bar():
    for line in render().splitlines():
        if line.startswith("|"):
            columns = line.replace("\\|", "").count("|")
            assert columns in (3, 6), line
