"""A process that does not outlive the one that started it, however suddenly that one dies.

On Linux the kernel sends a signal to the child when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
Elsewhere the channel is what remains: its end of file says the same, a moment later and only while the loop turns.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# <sys/prctl.h>
_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> bool:
    """Have the kernel kill this process once `parent` is gone; False if it is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # After, not before: a parent that dies between the two would be missed.
    return os.getppid() == parent
