"""No program outlives the tests that started it, even where those are killed and their fixtures never end."""

import ctypes
import signal
import sys

# <sys/prctl.h>
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process once its parent is gone: a `preexec_fn`, where the system is Linux.

    Elsewhere an orphan stays behind when the tests are killed; there is no engine there, and an idle agent is small.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
