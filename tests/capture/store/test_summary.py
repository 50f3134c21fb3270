"""What is asked of summaries, as text: what stands in it, and what is bound. `test_sums` asks the stores."""

import pytest

from capture.store import summary
from capture.store.summary import FIRST, LAST, Line, Look
from capture.store.sums import DIALECT

EVIL = "x'; DROP TABLE rollout; --"


def test_nothing_that_was_asked_for_stands_in_a_statement():
    look = Look(state="open", group=EVIL, labels={EVIL: EVIL}, finding=EVIL, text=EVIL, trouble=True)
    statements = [summary.sheet(look, DIALECT), *summary.overview(look, DIALECT).values()]
    for text, values in statements:
        assert "DROP" not in text
        assert "{" not in text
        assert f"?{len(values)}" in text
        assert f"?{len(values) + 1}" not in text


def test_a_page_begins_at_its_cursor():
    assert [summary.place(Look(order=order)) for order in ("created", "closed", "-created")] == [FIRST, FIRST, LAST]
    assert summary.place(Look(after="cr7")) == summary.place(Look(order="-created", after="-c7")) == 7


def test_a_sheet_from_its_rows():
    fresh = (1, "a", False, b"{}", "until", 2.0)
    stale = (2, "b", True, b"{}", "until", 2.0)
    found = summary.lines(Look(limit=2), [fresh, stale, (3, "c", True, None, None, None)])
    assert found.lines == (
        Line(id="a", cursor="cr1", row=b"{}", until="until", deadline_s=2.0), Line(id="b", cursor="cr2"),
    )  # fmt: skip
    assert found.next == "cr2"
    assert summary.lines(Look(), [fresh]).next is None
    assert summary.lines(Look(order="closed", after="cl9"), []).next == "cl9"


@pytest.mark.parametrize(
    ("text", "searched"),
    [("Straße", "strasse"), ("a\0b", "a\ufffdb"), ("half \ud83d", "half ?"), ("", "")],
)
def test_text_as_it_is_searched(text, searched):
    assert summary.plain(text) == searched
