"""Lists of digests in one piece: as any list of them."""

import hashlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import digests as digests_module
from capture.digests import DIGEST_BYTES, MANY, PIECE, Digests, digest, digests


def test_a_digest_is_blake2b() -> None:
    assert digest(b"a") == hashlib.blake2b(b"a", digest_size=16).digest()
    assert len(digest(b"")) == DIGEST_BYTES


# At and around the borders of a block of 128 bytes.
sizes = st.sampled_from([0, 1, 127, 128, 129, 255, 256, 257, 1000]) | st.integers(0, 400)


@given(st.lists(st.tuples(sizes, st.integers(0, 255)), max_size=12))
def test_many_are_hashed_side_by_side_as_each_alone(given_: list[tuple[int, int]]) -> None:
    texts = [bytes((byte + at) % 256 for at in range(size)) for size, byte in given_]
    assert digests(texts) == b"".join(map(digest, texts))


@pytest.mark.skipif(digests_module.compiled is None, reason="no compiler built it (`uv pip install -e .` with gcc)")
def test_what_is_hashed_side_by_side_and_what_is_not() -> None:
    compiled = digests_module.compiled
    assert compiled is not None
    even = [b"a" * 300] * MANY
    # None where the processor has no AVX2.
    assert compiled.digests(even) in (None, b"".join(map(digest, even)))
    # One that is longer than all others together has the lanes for itself; and nobody else gets on meanwhile.
    assert compiled.digests([b"a" * 1000, *even[:3]]) is None
    assert compiled.digests([b"a" * (300 << 10)] * 4) is None
    with pytest.raises(TypeError, match="list"):
        compiled.digests((b"a",))
    with pytest.raises(TypeError, match="bytes"):
        compiled.digests([b"a", "a"])


def test_it_does_without_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [bytes([n]) * 50 * n for n in range(MANY + 3)]
    compiled = digests(texts)
    monkeypatch.setattr(digests_module, "compiled", None)
    assert digests(texts) == compiled


lists = st.lists(st.sampled_from(list(map(digest, [b"a", b"b"]))), max_size=3 * PIECE)


@given(lists, lists, st.slices(3 * PIECE), st.integers(-3 * PIECE, 3 * PIECE))
def test_it_is_a_list(first: list[bytes], more: list[bytes], part: slice, at: int) -> None:
    each = [*first, *more]
    grown = Digests.of(more, before=Digests.of(first))
    for one in (Digests.of(each), Digests(b"".join(each)), grown):
        assert (list(one), len(one), one.data) == (each, len(each), b"".join(each))
        assert one[part] == each[part]
        if -len(each) <= at < len(each):
            assert one[at] == each[at]
        else:
            with pytest.raises(IndexError):
                one[at]
        assert one == each
        assert one == Digests.of(each)
        assert (one == [*each, b""], one == Digests.of([*each, digest(b"other")]), one == 5) == (False, False, False)
        assert repr(one) == f"<Digests of {len(each)}>"
    assert list(Digests.of(first)) == first


@given(lists, lists, lists)
def test_what_two_have_in_common(both: list[bytes], one: list[bytes], other: list[bytes]) -> None:
    left, right = [*both, *one], [*both, *other]
    places = range(min(len(left), len(right)))
    common = next((at for at in places if left[at] != right[at]), len(places))
    assert Digests.of(left).shared(Digests.of(right)) == common


def test_no_piece_is_larger_than_pythons_own_allocator_takes() -> None:
    """On the C library's heap, among the bodies of requests, it would keep a page for itself when they are gone."""
    grown = Digests()
    for n in range(3 * PIECE):
        before, grown = grown, Digests(digest(b"%d" % n), before=grown)
        assert all(sys.getsizeof(piece) <= 512 for piece in grown.pieces)
        # What is full is shared.
        full = n // PIECE
        assert all(one is two for one, two in zip(before.pieces[:full], grown.pieces[:full], strict=True))
    assert len(grown.pieces) == 3
