"""The page's copies of tables are those that are printed from the tables themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from bin.page_tables import PRINTED

PAGE = Path(__file__).resolve().parent.parent.parent / "capture" / "page"


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_a_table_is_as_printed(name: str) -> None:
    assert (PAGE / f"{name}.js").read_text() == PRINTED[name](), f"python bin/page_tables.py {name}"
