"""Where renderings part: measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.drift import measure
from graph.records import IntArray


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("parent", "n_prompt", "child", "expected"),
    [
        ((1, 2, 3, 4), 2, (1, 2, 3, 4, 5), (0, 4, "sampled")),
        ((1, 2, 3, 4), 2, (1, 2, 3, 9), (1, 3, "sampled")),
        ((1, 2, 3, 4), 2, (1, 2, 9), (2, 2, "sampled")),
        ((1, 2, 3, 4), 2, (1, 9), (3, 1, "prompt")),
        ((1, 2, 3, 4), 2, (), (4, 0, "prompt")),
        ((1, 2), 2, (1, 2), (0, 2, "sampled")),
    ],
)
def test_measure(parent, n_prompt, child, expected):
    assert measure(ids(*parent), n_prompt, ids(*child)) == expected


few = st.lists(st.integers(0, 1), max_size=6)


@given(few, few, few)
def test_what_is_shared_and_what_is_lost_make_the_parent(prompt, sampled, child):
    tokens, at, where = measure(ids(*prompt, *sampled), len(prompt), ids(*child))
    assert tokens + at == len(prompt) + len(sampled)
    assert [*prompt, *sampled][:at] == child[:at]
    assert where == ("prompt" if at < len(prompt) else "sampled")
