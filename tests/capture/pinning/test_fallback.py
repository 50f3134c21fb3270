"""The names of why a call goes the plain way."""

import pytest

from capture.pinning.fallback import REASONS, Fallback


def test_a_fallback_bears_a_name_of_the_table():
    assert Fallback("no-parent").reason == "no-parent"
    with pytest.raises(AssertionError):
        Fallback("because")


def test_each_name_is_explained_in_a_sentence():
    assert all(text.endswith(".") for text in REASONS.values())
