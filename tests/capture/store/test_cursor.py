"""Cursors of pages: what one is, and what is none."""

import pytest

from capture.errors import ClientError
from capture.store import cursor


def test_a_page_starts_where_the_one_before_ended():
    assert cursor.place(None, "created", first=5, most=9) == 5
    assert cursor.place("cr7", "created", first=0, most=9) == 7
    assert cursor.place("-c10", "-created", first=0, most=10) == 10


@pytest.mark.parametrize("after", ["", "cr", "7", "cl7", "cr-1", "cr1e3", "cr11", "cr007", "cr\u0663", "cr" + "9" * 40])
def test_what_is_no_cursor_of_the_order_is_refused(after):
    with pytest.raises(ClientError) as caught:
        cursor.place(after, "created", first=0, most=10)
    assert (caught.value.code, caught.value.param) == ("bad_cursor", "after")
