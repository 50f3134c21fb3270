import subprocess
import sys

import pytest

from capture import heap


def test_free_pages_go_back():
    pieces = [bytes(1000) for _ in range(50_000)]
    # Something at the top of the heap keeps the rest of it where it is.
    last = bytes(1000)
    del pieces
    assert heap.trim() in (True, False)
    assert last == bytes(1000)


def test_another_c_library_has_no_such_thing(monkeypatch):
    heap._maybe.cache_clear()
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _name: object())
    assert heap.trim() is False
    heap._maybe.cache_clear()


def test_what_large_bodies_take_is_held(monkeypatch):
    asked = []
    monkeypatch.setattr(heap, "_maybe", lambda _name: lambda what, value: asked.append((what, value)) or 1)
    assert heap.hold({}) is True
    # As glibc's malloc.h has them.
    assert asked == [(-3, 32 << 20), (-1, 32 << 20)]


def test_a_users_own_word_on_it_counts(monkeypatch):
    monkeypatch.setattr(heap, "_maybe", lambda _name: pytest.fail)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        assert heap.hold({name: "1"}) is False


HELD = """
import resource, sys
from capture import heap

if sys.argv[1] == "held" and not heap.hold({}):
    sys.exit("another C library")
faults = 0
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bodies = [b"x" * (3_000_000 + i) for i in range(4)]
    del bodies
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


@pytest.mark.skipif(heap._maybe("mallopt") is None, reason="another C library than glibc")
def test_freed_bodies_are_not_mapped_anew():
    """Of the last round: it has 3,000 pages in hand, and nothing of it is new to the process."""

    def faults(how):
        ran = subprocess.run([sys.executable, "-c", HELD, how], capture_output=True, text=True, timeout=60, check=True)
        return int(ran.stdout)

    assert faults("held") < 100 < faults("as it is")


def test_another_c_library_holds_nothing(monkeypatch):
    heap._maybe.cache_clear()
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _name: object())
    assert heap.hold({}) is False
    heap._maybe.cache_clear()
