"""Changing a request's fields."""

from capture.dialects.base import with_fields


def test_values_are_replaced_in_place_added_at_the_end_or_removed() -> None:
    fields = {"a": b"1", "b": b"2", "c": b"3"}
    changed = with_fields(fields, {"b": b"9", "c": None, "d": b"4", "e": None})
    assert list(changed.items()) == [("a", b"1"), ("b", b"9"), ("d", b"4")]
    assert fields == {"a": b"1", "b": b"2", "c": b"3"}
