"""The trie against a brute force that keeps every call whole and compares it with every other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from graph.records import IntArray
from graph.tokens import LARGEST_CHUNK, Insertion, Trie, lcp


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


# -- lcp


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [((), (), 0), ((1,), (), 0), ((1, 2, 3), (1, 2, 3), 3), ((1, 2, 3), (1, 2), 2), ((1, 2), (3, 2), 0)],
)
def test_lcp(a, b, expected):
    assert lcp(ids(*a), ids(*b)) == lcp(ids(*b), ids(*a)) == expected


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 4097, 36_863, 36_864, 200_000, LARGEST_CHUNK * 3, 599_999])
def test_lcp_finds_the_first_difference_in_any_chunk(at):
    a = np.arange(600_000, dtype=np.int32)
    b = a.copy()
    b[at:] += 1
    assert lcp(a, b) == at


# -- a trie by hand


def test_a_conversation_is_one_run():
    trie = Trie()
    assert trie.insert(0, ids(1, 9, 3), ids(150, 2)) == Insertion(shared=0, holder=None)
    assert trie.insert(1, ids(1, 9, 3, 150, 2, 3), ids(151, 2)) == Insertion(shared=5, holder=0)
    assert list(trie.ends(1, 6)) == [(5, (0,))]
    assert trie.path(0).tolist() == [1, 9, 3, 150, 2]
    assert trie.path(1).tolist() == [1, 9, 3, 150, 2, 3, 151, 2]
    assert (trie.n_prompt(1), trie.depth(1), trie.distinct) == (6, 8, 8)
    assert repr(trie) == "Trie(2 keys, 8 tokens)"


def test_a_parting_keeps_the_longer_rest_in_the_run():
    trie = Trie()
    trie.insert(0, ids(1, 2, 3), ids(4))
    trie.insert(1, ids(1, 2, 5, 6, 7), ids(8))
    trie.insert(2, ids(1, 2, 5, 6, 7, 8), ids(9))
    assert trie.common(0, 2) == 2
    assert trie.common(1, 2) == 6
    assert [trie.path(n).tolist() for n in range(3)] == [[1, 2, 3, 4], [1, 2, 5, 6, 7, 8], [1, 2, 5, 6, 7, 8, 9]]


few = st.lists(st.integers(0, 2), max_size=8).map(lambda found: ids(*found))


@given(st.lists(st.tuples(few, few), max_size=12), st.lists(st.tuples(few, few), max_size=6), st.data())
@settings(max_examples=200, deadline=None)
def test_a_copy_is_equal_and_goes_its_own_way(before, after, data):
    trie = Trie()
    for key, (prompt, sampled) in enumerate(before):
        trie.insert(key, prompt, sampled)
    twin = trie.copy()
    paths = [trie.path(key).tolist() for key in range(len(before))]
    ends = [list(trie.ends(key, 99)) for key in range(len(before))]
    grown, left = (trie, twin) if data.draw(st.booleans()) else (twin, trie)
    for key, (prompt, sampled) in enumerate(after, start=len(before)):
        grown.insert(key, prompt, sampled)
    for key in data.draw(st.lists(st.sampled_from(range(len(before))), unique=True)) if before else []:
        grown.remove(key)
    assert [left.path(key).tolist() for key in range(len(before))] == paths
    assert [list(left.ends(key, 99)) for key in range(len(before))] == ends
    assert (len(left), left.distinct) == (len(before), len({tuple(p[:n]) for p in paths for n in range(1, len(p) + 1)}))
    assert [grown.path(key).tolist() for key in range(len(before), len(grown._runs))] == [
        [*prompt, *sampled] for prompt, sampled in after
    ]


def test_locate_stores_nothing():
    trie = Trie()
    trie.insert(4, ids(1, 2, 3), ids())
    assert trie.locate(ids(1, 2, 7)) == Insertion(shared=2, holder=4)
    assert trie.locate(ids(7)) == Insertion(shared=0, holder=None)
    assert (len(trie), trie.distinct) == (1, 3)


def test_equal_calls_end_together_in_order_of_their_keys():
    trie = Trie()
    for key in (2, 0, 1):
        trie.insert(key, ids(1, 2), ids(3))
    assert list(trie.ends(0, 3)) == [(3, (0, 1, 2))]
    assert list(trie.ends(0, 2)) == []
    assert trie.distinct == 3


@pytest.mark.parametrize("key", [-1, 0])
def test_a_key_is_new_and_not_negative(key):
    trie = Trie()
    trie.insert(0, ids(1), ids(2))
    with pytest.raises(ValueError, match="no key"):
        trie.insert(key, ids(1), ids(2))


@pytest.mark.parametrize("key", [-1, 0, 1, 2])
def test_a_key_that_is_not_there_is_a_key_error(key):
    trie = Trie()
    trie.insert(0, ids(1), ids(2))
    trie.remove(0)
    trie.insert(3, ids(1), ids(2))
    assert key not in trie
    for look in (trie.path, trie.depth, trie.n_prompt, trie.remove):
        with pytest.raises(KeyError):
            look(key)
    with pytest.raises(KeyError):
        trie.common(3, key)


def test_a_spot_lies_on_the_path():
    trie = Trie()
    trie.insert(0, ids(1), ids(2))
    with pytest.raises(ValueError, match="no depth 3"):
        trie.spot(0, 3)


# -- against the brute force


@dataclass
class Plain:
    """Every call whole."""

    prompts: dict[int, list[int]] = field(default_factory=dict)
    paths: dict[int, list[int]] = field(default_factory=dict)

    def shared(self, path: list[int]) -> int:
        return max((common(path, other) for other in self.paths.values()), default=0)

    @property
    def distinct(self) -> int:
        return len({tuple(path[:n]) for path in self.paths.values() for n in range(1, len(path) + 1)})

    def ends(self, path: list[int], depth: int) -> list[tuple[int, tuple[int, ...]]]:
        found: dict[int, list[int]] = {}
        for key, other in sorted(self.paths.items()):
            if len(other) <= depth and path[: len(other)] == other:
                found.setdefault(len(other), []).append(key)
        return [(at, tuple(keys)) for at, keys in sorted(found.items(), reverse=True)]


# An alphabet of three, so that most paths share something; and continuations of what is there, so that chains grow.
few = st.lists(st.integers(0, 2), max_size=8)


class Compared(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.trie, self.plain, self.n = Trie(), Plain(), 0

    def insert(self, prompt: list[int], sampled: list[int]) -> None:
        shared = self.plain.shared(prompt + sampled)
        got = self.trie.insert(self.n, ids(*prompt), ids(*sampled))
        assert got.shared == shared
        if shared:
            assert got.holder in self.plain.paths
            assert self.plain.paths[got.holder][:shared] == (prompt + sampled)[:shared]
        else:
            assert got.holder is None
        self.plain.prompts[self.n], self.plain.paths[self.n] = prompt, prompt + sampled
        self.n += 1

    @rule(prompt=few, sampled=few)
    def anything(self, prompt, sampled):
        self.insert(prompt, sampled)

    @precondition(lambda self: self.plain.paths)
    @rule(data=st.data(), lost=st.integers(0, 4), more=few, sampled=few)
    def continuation(self, data, lost, more, sampled):
        path = self.plain.paths[data.draw(st.sampled_from(sorted(self.plain.paths)))]
        self.insert(path[: len(path) - lost] + more, sampled)

    @precondition(lambda self: self.plain.paths)
    @rule(data=st.data())
    def remove(self, data):
        key = data.draw(st.sampled_from(sorted(self.plain.paths)))
        self.trie.remove(key)
        del self.plain.paths[key], self.plain.prompts[key]

    @rule(prompt=few)
    def locate(self, prompt):
        got = self.trie.locate(ids(*prompt))
        assert got.shared == self.plain.shared(prompt)
        assert (got.holder is None) == (got.shared == 0)
        if got.holder is not None:
            assert self.plain.paths[got.holder][: got.shared] == prompt[: got.shared]

    @invariant()
    def same(self):
        assert self.trie.distinct == self.plain.distinct
        assert len(self.trie) == len(self.plain.paths)
        spots: dict[object, list[int]] = {}
        for key, path in self.plain.paths.items():
            assert self.trie.path(key).tolist() == path
            assert self.trie.n_prompt(key) == len(self.plain.prompts[key])
            assert self.trie.depth(key) == len(path)
            for depth in {0, len(self.plain.prompts[key]), len(path)}:
                assert list(self.trie.ends(key, depth)) == self.plain.ends(path, depth)
            for depth in range(len(path) + 1):
                assert self.trie.path(key, depth).tolist() == path[depth:]
                assert spots.setdefault(self.trie.spot(key, depth), path[:depth]) == path[:depth]
            for other, its in self.plain.paths.items():
                assert self.trie.common(key, other) == common(path, its)
        assert len(spots) == len({tuple(path[:n]) for path in self.plain.paths.values() for n in range(len(path) + 1)})


TestCompared = Compared.TestCase
TestCompared.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(st.lists(st.tuples(few, few), max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_insertion_changes_nothing_that_can_be_asked(calls, random):
    def ask(order: list[int]) -> object:
        trie = Trie()
        for key in order:
            trie.insert(key, ids(*calls[key][0]), ids(*calls[key][1]))
        paths = [(trie.path(key).tolist(), list(trie.ends(key, trie.depth(key)))) for key in range(len(calls))]
        return paths, trie.distinct, [[trie.common(a, b) for a in order] for b in sorted(order)] if not order else None

    order = list(range(len(calls)))
    shuffled = random.sample(order, len(order))
    assert ask(order) == ask(shuffled)


# -- what it weighs: bytes for each distinct token, on the shapes that rollouts have


def chain(trie: Trie, n_calls: int, n_more: int) -> None:
    rng = np.random.default_rng(0)
    text = rng.integers(0, 151_936, n_calls * n_more, dtype=np.int32)
    for key in range(n_calls):
        trie.insert(key, text[: key * n_more + n_more // 2], text[key * n_more + n_more // 2 : (key + 1) * n_more])


def branches(trie: Trie, n_calls: int, n_more: int) -> None:
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 151_936, 20_000, dtype=np.int32)
    for key in range(n_calls):
        trie.insert(key, shared, rng.integers(0, 151_936, n_more, dtype=np.int32))


def drifting(trie: Trie, n_calls: int, n_more: int) -> None:
    rng = np.random.default_rng(0)
    path = np.empty(0, np.int32)
    for key in range(n_calls):
        kept = path[: max(0, len(path) - 6)]
        prompt = np.concatenate([kept, rng.integers(0, 151_936, n_more // 2 + 6, dtype=np.int32)])
        sampled = rng.integers(0, 151_936, n_more // 2, dtype=np.int32)
        trie.insert(key, prompt, sampled)
        path = np.concatenate([prompt, sampled])


@pytest.mark.parametrize(
    ("shape", "n_calls", "n_more", "most"),
    [(chain, 200, 500, 4.5), (branches, 1000, 200, 7.0), (drifting, 200, 500, 7.0)],
)
def test_memory_is_linear_in_distinct_tokens(shape, n_calls, n_more, most):
    trie = Trie()
    shape(trie, n_calls, n_more)
    assert len(trie) == n_calls
    assert trie.nbytes / trie.distinct <= most


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=4)), max_size=12)
)
def test_packing_changes_no_answer_and_holds_no_more(told):
    trie, packed = Trie(), Trie()
    for key, (prompt, sampled) in enumerate(told):
        for one in (trie, packed):
            one.insert(key, np.array(prompt, np.int32), np.array(sampled, np.int32))
        packed.pack()
    assert packed.nbytes <= trie.nbytes
    for key, (prompt, sampled) in enumerate(told):
        assert packed.path(key).tolist() == trie.path(key).tolist() == [*prompt, *sampled]
        assert list(packed.ends(key, len(prompt))) == list(trie.ends(key, len(prompt)))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=4)), max_size=12)
)
def test_who_was_asked_where_a_call_belongs_stores_it_as_ever(calls: list[tuple[list[int], list[int]]]) -> None:
    asked, plain = Trie(), Trie()
    for n, ids in enumerate(calls):
        prompt, sampled = (np.array(each, dtype=np.int32) for each in ids)
        located = asked.locate(prompt)
        if n % 3 == 1:
            # Something else came between.
            asked.insert(100 + n, sampled, prompt)
            plain.insert(100 + n, sampled, prompt)
        if n % 3 == 2:
            sampled = prompt
        assert asked.locate(prompt).shared >= located.shared
        assert asked.insert(n, prompt, sampled) == plain.insert(n, prompt.copy(), sampled)
        assert asked.path(n).tolist() == [*prompt.tolist(), *sampled.tolist()]
    assert (repr(asked), asked.nbytes) == (repr(plain), plain.nbytes)


# -- prompts that grow where they stand


class Room:
    """Memory in which prompts grow, as a reader keeps it: what was given out is never written to again."""

    def __init__(self, size: int = 64) -> None:
        self.memory = np.empty(size, np.int32)
        self.used = 0

    def grown(self, more: list[int]) -> IntArray:
        self.memory[self.used : self.used + len(more)] = more
        self.used += len(more)
        return self.memory[: self.used]


GROWING = st.tuples(
    # Which room it grows in, or a copy of what stands there; or only its first so many ids.
    st.integers(0, 1),
    st.sampled_from(["grown", "copied", "cut"]),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), max_size=3),
)


@given(st.lists(GROWING, max_size=10), st.data())
def test_a_prompt_that_lies_where_the_last_one_did_is_stored_as_if_it_lay_elsewhere(told, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graph.tokens.LONG", 1)
        short, long = Trie(), Trie()
        rooms = Room(), Room()
        for key, (place, how, more, sampled) in enumerate(told):
            prompt = rooms[place].grown(more)
            if how == "copied":
                prompt = prompt.copy()
            elif how == "cut":
                prompt = prompt[: data.draw(st.integers(1, len(prompt)))]
            # A copy has memory of its own, so all of it is compared.
            if data.draw(st.booleans()):
                assert short.locate(prompt) == long.locate(prompt.copy())
            assert short.insert(key, prompt, ids(*sampled)) == long.insert(key, prompt.copy(), ids(*sampled))
            if data.draw(st.booleans()):
                gone = data.draw(st.integers(0, key))
                if gone in short:
                    short.remove(gone)
                    long.remove(gone)
            assert (len(short), short.distinct) == (len(long), long.distinct)
            for other in range(key + 1):
                if other in short:
                    assert short.path(other).tolist() == long.path(other).tolist()
                    assert list(short.ends(other, 99)) == list(long.ends(other, 99))


def test_only_what_is_new_of_such_a_prompt_is_compared(monkeypatch):
    monkeypatch.setattr("graph.tokens.LONG", 3)
    compared = []
    monkeypatch.setattr("graph.tokens.lcp", lambda a, b: compared.append((len(a), len(b))) or lcp(a, b))
    trie, room = Trie(), Room()
    trie.insert(0, room.grown([1, 2, 3, 4]), ids(5))
    compared.clear()
    prompt = room.grown([5, 6])
    assert trie.locate(prompt) == trie.insert(1, prompt, ids(7)) == Insertion(shared=5, holder=0)
    assert compared == [(1, 2)]
    # The memory is another's now: no word of what stood there is believed.
    compared.clear()
    del prompt, room
    other = Room()
    assert trie.locate(other.grown([1, 2, 3, 9])) == Insertion(shared=3, holder=1)
    assert compared[0] == (7, 4)
