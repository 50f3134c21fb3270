"""What is compiled is found where it was built, and nothing else is."""

import sys

import pytest

from capture.engines import id_text, stamp
from capture.engines.compiled import maybe_compiled


def test_what_was_not_built_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert maybe_compiled("_nothing_of_this_name") is None
    # As Python has it of a module that can't be had.
    monkeypatch.setitem(sys.modules, "capture.engines._lists", None)
    assert maybe_compiled("_lists") is None


def test_who_asks_has_what_was_built() -> None:
    assert maybe_compiled("_lane") is stamp.compiled
    assert maybe_compiled("_lists") is id_text.compiled
