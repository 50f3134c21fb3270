"""The names of why a call goes the plain way."""

from pathlib import Path

import pytest

from capture.pinning.fallback import REASONS, Fallback, table
from graph.advice import REASONS as ENDED_BY

PAGE = Path(__file__).parents[3] / "docs" / "pinned.md"
BEGIN, END = "<!-- reasons: begin -->\n", "<!-- reasons: end -->\n"


def test_a_fallback_bears_a_name_of_the_table():
    assert Fallback("no-parent").reason == "no-parent"
    with pytest.raises(AssertionError):
        Fallback("because")


def test_each_name_is_explained_in_a_sentence():
    assert all(text.endswith(".") for text in REASONS.values())


def test_the_documentation_has_the_table():
    # python -c 'from capture.pinning.fallback import table; print(table(), end="")'
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == table()


def test_advice_is_about_names_of_the_table():
    assert set(ENDED_BY) <= set(REASONS)
