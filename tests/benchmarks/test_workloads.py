"""The calls that graphs are measured on: the same each time, and of the size that their name says."""

import itertools

import numpy as np
import pytest

from benchmarks.workloads import BESIDE, MORE, NAMED, SHAPES, SIZES, branches, chain, subagents
from graph.tokens import Trie


def test_a_chain_goes_on_exactly():
    before = np.empty(0, np.int32)
    for prompt, sampled in chain(5):
        assert np.array_equal(prompt[: len(before)], before)
        before = np.concatenate([prompt, sampled])
    assert len(before) == 5 * MORE


def test_drift_loses_so_many_tokens_a_call():
    steps = list(chain(3, drift=6))
    for (a, b), (prompt, _) in itertools.pairwise(steps):
        end = np.concatenate([a, b])
        assert np.array_equal(prompt[: len(end) - 6], end[:-6])
        assert not np.array_equal(prompt[: len(end)], end)


def test_branches_and_subagents_share_what_they_begin_with():
    prompts = {prompt.tobytes() for prompt, _ in branches(4, 10, 50)}
    assert len(prompts) == 1
    trie = Trie()
    for key, (prompt, sampled) in enumerate(subagents(3, 2, 100)):
        trie.insert(key, prompt, sampled)
    assert (len(trie), trie.distinct) == (6, 100 + 3 * 2 * MORE)


@pytest.mark.parametrize(
    "workload", [each for each in (*SHAPES, *SIZES, *BESIDE) if not each.large], ids=lambda w: w.name
)
def test_a_workload_is_the_same_each_time(workload):
    one, two = (next(workload.steps()) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert NAMED[workload.name].name == workload.name


def test_sizes_double():
    counts = [sum(1 for _ in size.steps()) for size in SIZES[:2]]
    assert counts == [250, 500]
