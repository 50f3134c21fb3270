"""A custom tool's text, read out of arguments that come in pieces."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects.responses_custom import InputText


def read(*pieces: str) -> list[str]:
    text = InputText()
    return [*map(text.feed, pieces), text.end()]


def test_pieces_pass_as_they_come() -> None:
    assert read('{"inp', 'ut" : "a', "b", '\\"', 'c"', "}") == ["", "a", "b", '"', "c", "", ""]


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (('{"input": "a\\', 'nb"}'), ["a", "\nb", ""]),
        (('{"input": "\\u00', 'e9"}'), ["", "é", ""]),
        # Two halves of a character, cut at every place between.
        (('{"input": "\\ud83d', '\\ude00"}'), ["", "😀", ""]),
        (('{"input": "\\ud83d\\', 'ude00"}'), ["", "😀", ""]),
        # A half alone is no character.
        (('{"input": "\\ud83d', 'x"}'), ["", "�x", ""]),
        # Line ends as they are, which models write and JSON forbids.
        (('{"input": "a\nb"}',), ["a\nb", ""]),
        # Cut off by a limit.
        (('{"input": "ab\\',), ["ab", ""]),
        (('{"input": "ab\\u12',), ["ab", ""]),
        (('{"input": "ab\\ud83d',), ["ab", ""]),
        (('{"inp',), ["", '{"inp']),
        # An escape that JSON doesn't have.
        (('{"input": "a\\x', 'b"}'), ["a", "", '\\xb"}']),
        # Another form than was asked for comes whole.
        (("*** Begin", " Patch"), ["", "", "*** Begin Patch"]),
        (('{"patch": "x"}',), ["", '{"patch": "x"}']),
        (('{"why": "", "input": "x"}',), ["", "x"]),
        (('{"input": 3}',), ["", '{"input": 3}']),
        ((), [""]),
    ],
)
def test_what_comes_of_each_form(pieces: tuple[str, ...], said: list[str]) -> None:
    assert read(*pieces) == said


@given(st.text(), st.booleans(), st.lists(st.integers(0, 60), max_size=5))
def test_however_it_is_cut_the_text_is_the_same(text: str, ascii_: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_)
    places = sorted({0, *(min(cut, len(arguments)) for cut in cuts), len(arguments)})
    pieces = [arguments[a:b] for a, b in itertools.pairwise(places)]
    assert "".join(read(*pieces)) == text
