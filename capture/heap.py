"""The C library's heap: what is free in it is given back to the machine, where that library knows how.

Memory that Python has freed stays with the process: glibc keeps pages for the next allocation, and only the top of its
heap goes back by itself. After much has been let go at once, most of it lies in the middle.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def trim() -> bool:
    """Give free pages back; say whether there were any. Takes milliseconds a GiB, without the interpreter's lock."""
    found = _malloc_trim()
    return found is not None and bool(found(0))


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`; None for another library (musl, macOS)."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return found
