"""Refusals name the path of the field at fault."""

from typing import Any

import pytest

from capture.dialects.responses_refusals import list_at, maybe_text_in, missing, object_at, text_in, unsupported, wrong
from capture.errors import ClientError


def test_each_kind_has_its_code() -> None:
    assert (wrong("a", "a list").code, wrong("a", "a list").message) == ("wrong_type", "The field 'a' must be a list.")
    assert (missing("a").code, missing("a").param) == ("missing_field", "a")
    assert (unsupported("a", "No.", hint="Else.").code, unsupported("a", "No.").status) == ("unsupported", 400)


def test_what_is_right_is_returned() -> None:
    assert text_in({"a": "x"}, "a", "i") == maybe_text_in({"a": "x"}, "a", "i") == "x"
    assert maybe_text_in({}, "a", "i") is maybe_text_in({"a": None}, "a", "i") is None
    assert (object_at({}, "i"), list_at([], "i")) == ({}, [])


@pytest.mark.parametrize(
    ("look", "code"),
    [
        (lambda: text_in({}, "a", "i[0]"), "missing_field"),
        (lambda: text_in({"a": None}, "a", "i[0]"), "missing_field"),
        (lambda: text_in({"a": 1}, "a", "i[0]"), "wrong_type"),
        (lambda: maybe_text_in({"a": []}, "a", "i[0]"), "wrong_type"),
        (lambda: object_at([], "i[0].a"), "wrong_type"),
        (lambda: list_at({}, "i[0].a"), "wrong_type"),
    ],
)
def test_what_is_wrong_is_named(look: Any, code: str) -> None:
    with pytest.raises(ClientError) as caught:
        look()
    assert (caught.value.code, caught.value.param) == (code, "i[0].a")
