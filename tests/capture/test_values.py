"""One value at a time: from what was given to the setting's own type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import UsageError
from capture.values import Setting, nearest, plain, read, split


def row(kind="text", **rest):
    return Setting(name="a_b", kind=kind, help="H.", **rest)


def test_a_setting_names_its_flag_and_variable():
    assert (row().flag, row().variable) == ("--a-b", "TREERING_A_B")


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("text", "x", "x"),
        ("whole", "7", 7),
        ("whole", 7, 7),
        ("number", "0.5", 0.5),
        ("number", 3, 3.0),
        ("yes", "No", False),
        ("yes", True, True),
        ("pairs", ["a=1", "b=x=y"], {"a": 1, "b": "x=y"}),
        ("pairs", {"a": 1}, {"a": 1}),
    ],
)
def test_read(kind, given, value):
    got = read(row(kind), given, "here")
    assert (got, type(got)) == (value, type(value))


@given(
    st.sampled_from(["text", "whole", "number", "yes", "pairs"]),
    st.none() | st.floats() | st.binary() | st.lists(st.none()),
)
def test_what_cannot_be_read_says_where_it_stood(kind, value):
    said = "here"
    try:
        read(row(kind), value, "here")
    except UsageError as error:
        said = error.message
    assert said.startswith("here")


@pytest.mark.parametrize(
    ("text", "parts"), [("a", ["a"]), ("a, b,", ["a", "b"]), ('["a,b"]', ["a,b"]), ('{"a": 1}', {"a": 1}), ("", [])]
)
def test_split(text, parts):
    assert split(row(repeatable=True), text) == parts
    assert split(row(), text) == text


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("1.0", 1.0), ("true", True), ("null", None), ("x y", "x y"), ("", ""), ('"1"', "1")]
)
def test_plain(text, value):
    assert plain(text) == value


def test_nearest():
    assert nearest("stat", ["start", "state"]) == "; did you mean state?"
    assert nearest("liste", ["listen", "list"]) == "; did you mean listen?"
    assert nearest("zzz", ["listen"]) == ""
