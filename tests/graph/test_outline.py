"""A row's outline says what its arrays say, in stretches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.formats.native import to_json
from graph.outline import ARRAYS, outline, runs
from graph.sequences import cut
from tests.graph.tape import Tape, assistant, user


@pytest.mark.parametrize(
    ("mask", "expected"),
    [([], []), ([0, 0], []), ([1], [[0, 1]]), ([0, 1, 1, 0, 1], [[1, 3], [4, 5]]), ([1, 1, 1], [[0, 3]])],
)
def test_a_masks_stretches(mask, expected):
    assert runs(np.array(mask, dtype=np.uint8)) == expected


@given(st.lists(st.integers(0, 1), max_size=40))
def test_the_stretches_give_the_mask_back(mask):
    again = [0] * len(mask)
    for start, end in runs(np.array(mask, dtype=np.uint8)):
        again[start:end] = [1] * (end - start)
    assert again == mask


def test_all_but_the_arrays_stays():
    tape = Tape()
    tape.say([user("Go")], assistant("Gone."))
    tape.say([user("Go"), assistant("Gone."), user("Back")], assistant("Here."))
    form = to_json(cut(tape.graph()))
    short = outline(form)
    assert {**short, "sequences": None} == {**form, "sequences": None}
    (row,), (drawn,) = form["sequences"], short["sequences"]
    assert drawn["n_ids"] == len(row["input_ids"])
    assert sum(end - start for start, end in drawn["trained"]) == row["n_trained_tokens"]
    assert set(drawn) == (set(row) - set(ARRAYS)) | {"n_ids", "trained"}
