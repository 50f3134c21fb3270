"""Colour: on a terminal alone."""

import io

import pytest

from capture.colour import LEVELS, Paint, is_coloured


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_where_there_is_colour(stream, environ, coloured):
    assert is_coloured(stream, environ) is coloured
    painted = Paint(stream, environ)("word", "bad")
    assert painted == ("\x1b[31mword\x1b[0m" if coloured else "word")


def test_every_level_has_a_tone():
    assert set(LEVELS) == {"ok", "info", "warn", "fail", "error"}
    assert Paint(Terminal(), {})("word", None) == "word"
