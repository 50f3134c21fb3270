"""Lists of digests in one piece: as any list of them."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.digests import DIGEST_BYTES, Digests, digest


def test_a_digest_is_blake2b() -> None:
    assert digest(b"a") == hashlib.blake2b(b"a", digest_size=16).digest()
    assert len(digest(b"")) == DIGEST_BYTES


@given(st.lists(st.binary(max_size=2), max_size=8), st.slices(8), st.integers(-9, 9))
def test_it_is_a_list(data: list[bytes], part: slice, at: int) -> None:
    each = list(map(digest, data))
    one = Digests.of(each)
    assert (list(one), len(one), one.data) == (each, len(each), b"".join(each))
    assert one[part] == each[part]
    if -len(each) <= at < len(each):
        assert one[at] == each[at]
    else:
        with pytest.raises(IndexError):
            one[at]
    assert one == Digests(b"".join(each))
    assert one == each
    assert (one == [*each, b""], one == Digests.of([*each, digest(b"other")]), one == 5) == (False, False, False)
    assert repr(one) == f"<Digests of {len(each)}>"
