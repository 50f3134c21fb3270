"""docs/conformance.md says what the tests show, and nothing that they don't."""

from pathlib import Path

import pytest

from tests import conformance
from tests.conformance import AGENT_FEATURES, AGENTS, DIALECT_FEATURES, DIALECTS, Row


def test_the_page_is_what_the_tests_show() -> None:
    assert conformance.PAGE.read_text() == conformance.page(), "run python -m tests.conformance"


def test_every_claim_is_of_a_feature_that_the_table_has() -> None:
    for rows, features in ((AGENTS, AGENT_FEATURES), (DIALECTS, DIALECT_FEATURES)):
        assert set().union(*(row.shown for row in rows)) == set(features)


@pytest.mark.parametrize("name", ["test_that_is_gone", "test_skipped", "test_failing"])
def test_a_claim_without_a_test_that_runs_is_an_error(tmp_path: Path, name: str) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "def test_fine(): ...\n"
        "@pytest.mark.skip\ndef test_skipped(): ...\n"
        "@pytest.mark.xfail(reason='not yet')\nasync def test_failing(): ...\n"
        "@pytest.mark.parametrize('x', [1])\nasync def test_of_several(x): ...\n"
    )
    assert conformance.tests_of(file) == {"test_fine", "test_of_several"}
    row = Row("it", "", str(file), {"a": name, "b": "test_fine"})
    assert conformance._test(row, "b") == (str(file), "test_fine")
    with pytest.raises(LookupError, match=name):
        conformance._test(row, "a")
