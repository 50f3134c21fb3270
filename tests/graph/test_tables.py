"""What the printed document holds; that it is up to date is test_findings' to say."""

from graph.causes import CAUSES
from graph.eligibility import REASONS
from graph.findings import TABLE
from graph.roles import RULES
from graph.tables import document


def test_every_name_is_in_the_document():
    printed = document()
    for code in TABLE:
        assert f"\n### `{code}`\n" in printed
    for name in (*RULES, *CAUSES, *REASONS):
        assert f"| `{name}` | " in printed
