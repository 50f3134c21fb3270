"""Broken arrays are refused by name, as lists and as numpy's."""

import numpy as np
import pytest

from graph.formats.checks import one_length, scored, token_ids
from graph.formats.refused import Refused


def test_what_is_whole_passes_as_lists_and_as_arrays():
    for of in (list, np.array):
        one_length("Row", {"ids": of([1, 2]), "mask": of([0, 1])})
        token_ids("Row", of([0, 151_000]))
        scored("Row", of([0, 1, 1]), of([0.0, -0.5, 0.0]))
    scored("Row", [False, True], [0.0, -0.5])


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"ids": [1, 2], "mask": [1]}, "Row: 2 ids, 1 mask."),
        ({"ids": [], "mask": []}, "Row: ids and mask are empty."),
        ({"ids": []}, "Row: ids is empty."),
    ],
)
def test_lengths_that_differ_are_named(arrays, says):
    with pytest.raises(Refused) as refused:
        one_length("Row", arrays)
    assert str(refused.value) == says


@pytest.mark.parametrize("ids", [[-1], [1.5], [[1, 2]], ["a"]])
def test_ids_that_no_vocabulary_has_are_refused(ids):
    with pytest.raises(Refused, match="Row: token ids are whole numbers"):
        token_ids("Row", ids)


@pytest.mark.parametrize(
    ("mask", "logprobs", "says"),
    [
        ([0, 2], [0.0, -0.5], "the mask has other values than 0 and 1"),
        ([0, 0], [0.0, 0.0], "nothing is trained"),
        ([0, 1], [0.0, float("nan")], "a trained token has no logprob"),
        ([0, 1], [0.0, float("-inf")], "a trained token has no logprob"),
        ([0, 1], [0.0, None], "a trained token has no logprob"),
        ([1, 0], [-0.5, -0.5], "a token that is not trained has a logprob"),
        ([1, 0], [-0.5, float("nan")], "a token that is not trained has a logprob"),
        # A shift by one: what was scored is not what is trained.
        ([0, 1, 1, 0], [-0.5, -0.5, 0.0, 0.0], "a token that is not trained has a logprob"),
    ],
)
def test_a_mask_and_logprobs_that_do_not_go_together_are_refused(mask, logprobs, says):
    with pytest.raises(Refused, match=f"^Row: {says}"):
        scored("Row", mask, logprobs)
