"""What is compiled is found where it was built, and nothing else is."""

import sys

import pytest

from capture import digests
from capture.compiled import maybe_compiled
from capture.dialects import plain
from capture.engines import id_text, stamp


def test_what_was_not_built_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert maybe_compiled("capture.engines._nothing_of_this_name") is None
    # As Python has it of a module that can't be had.
    monkeypatch.setitem(sys.modules, "capture.engines._lists", None)
    assert maybe_compiled("capture.engines._lists") is None


def test_who_asks_has_what_was_built() -> None:
    assert maybe_compiled("capture.engines._lane") is stamp.compiled
    assert maybe_compiled("capture.engines._lists") is id_text.compiled
    assert maybe_compiled("capture.dialects._plain") is plain.compiled
    assert maybe_compiled("capture._digests") is digests.compiled
