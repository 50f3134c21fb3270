"""The C library's heap: what is free in it goes back to the machine when we say so, where that library knows how.

Memory that Python has freed stays with the process: glibc keeps pages for the next allocation, and only the top of its
heap goes back by itself. After much has been let go at once, most of it lies in the middle (`trim`).

That top is a trouble of its own. A request of 100,000 tokens has 450 KB, its reply 630, and each is in memory some
times over while it passes; freed, they are the top of the heap, and by glibc's own measure too much of it. So their
pages go back to the machine with each call, to be asked for, zeroed and mapped again with the next: a tenth of a call's
CPU time, and half of that of a proxy that does nothing else. `hold` has glibc keep `TOP_BYTES` there.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping

TOP_BYTES = 32 << 20
"""Free memory that is kept at the top of the heap: what a few calls of 600,000 tokens have in hand."""

# glibc's `malloc.h`: parameters of `mallopt`. Setting either also stops glibc from setting both by what is freed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# The most that it takes. Larger ones are mapped alone, and go back alone.
_MAPPED_FROM = 32 << 20
# By these a user has said otherwise.
_THEIRS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def hold(environment: Mapping[str, str] = os.environ) -> bool:
    """Have the C library keep what large bodies take; say whether it does. The environment's own word on it counts."""
    found = _maybe("mallopt")
    if found is None or any(name in environment for name in _THEIRS):
        return False
    return bool(found(_MMAP_THRESHOLD, _MAPPED_FROM)) and bool(found(_TRIM_THRESHOLD, TOP_BYTES))


def trim() -> bool:
    """Give free pages back; say whether there were any. Takes milliseconds a GiB, without the interpreter's lock."""
    found = _maybe("malloc_trim")
    return found is not None and bool(found(0))


@functools.cache
def _maybe(name: str) -> Callable[..., int] | None:
    """Return a function of glibc's; None for another library (musl, macOS)."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    return found
