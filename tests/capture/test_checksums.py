"""A prompt's check sum by the short way, and by that over all its bytes."""

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capture.checksums import Checksums
from capture.store import rows
from capture.store.base import Delta
from graph.tokens import Trie

IDS = st.lists(st.integers(0, 2), max_size=6)
FEW = st.integers(0, 5)


def ids(*values):
    return np.array(values, np.int32)


def crc(prompt):
    return zlib.crc32(np.asarray(prompt, "<i4").tobytes())


@given(st.lists(st.tuples(FEW, FEW, IDS, IDS, st.booleans())))
def test_the_short_way_says_what_the_long_one_does(calls):
    """Each call goes on from a part of an earlier one; of some the check sum is never told."""
    trie, checks = Trie(), Checksums()
    paths = [[]]
    for n, (goes_on, cut, more, sampled, is_told) in enumerate(calls):
        before = paths[goes_on % len(paths)]
        prompt = ids(*before[: len(before) - cut if cut else None], *more)
        found = trie.locate(prompt)
        if found.holder is not None:
            check = checks.of(
                prompt,
                holder=found.holder,
                shared=found.shared,
                n_prompt=trie.n_prompt(found.holder),
                depth=trie.depth(found.holder),
            )
            assert check == crc(prompt)
            if is_told:
                checks.keep(n, check, ids(*sampled))
        trie.insert(n, prompt, ids(*sampled))
        paths.append([*prompt.tolist(), *sampled])


def test_only_what_is_new_is_read(monkeypatch):
    checks = Checksums()
    checks.keep(3, crc([1, 2]), ids(5, 6))
    read = []
    monkeypatch.setattr("capture.checksums.rows.check", lambda data, before=0: read.append((bytes(data), before)) or 0)
    at = {"holder": 3, "n_prompt": 2, "depth": 4}
    checks.of(ids(1, 2, 5, 6, 7), shared=4, **at)
    # It parts from what was sampled; then from the prompt.
    checks.of(ids(1, 2, 5, 8), shared=3, **at)
    checks.of(ids(1, 9), shared=1, **at)
    # Of this one, and of one that came later, nothing is known.
    checks.of(ids(4), holder=0, shared=1, n_prompt=1, depth=1)
    checks.of(ids(4), holder=9, shared=1, n_prompt=1, depth=1)
    assert read == [
        (ids(7).tobytes(), crc([1, 2, 5, 6])),
        (ids(5, 8).tobytes(), crc([1, 2])),
        (ids(1, 9).tobytes(), 0),
        (ids(4).tobytes(), 0),
        (ids(4).tobytes(), 0),
    ]
    assert repr(checks) == "<Checksums of 1 calls>"


def test_what_came_with_a_prompt_is_stored_as_it_is():
    assert rows.check_of(b"\1\0\0\0", Delta(holder=0, shared=1, check=7)) == 7
    for delta in (None, Delta(holder=0, shared=1)):
        assert rows.check_of(b"\1\0\0\0", delta) == crc([1])
