"""Runs a program that must not outlive us, however we die: `python leash.py PROGRAM ARGUMENTS…`.

A script, of the standard library alone. Its standard input is a pipe whose other end we hold; the kernel closes that
when we die, even of SIGKILL, and then the program is ended with all that it started. (`prctl(PR_SET_PDEATHSIG)` was
rejected: it is Linux's alone, is tied to the thread that forked, and needs code between fork and exec in a process with
threads.) It is the leader of a session of its own, so ending its process group ends everything.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 3.0


def main(argv: list[str]) -> int:
    """Run the program; return its exit code, 127 if it can't be started."""
    # What is sent to the group, this process leaves to the program: it ends when that does.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        program = subprocess.Popen(argv, stdin=subprocess.DEVNULL)  # noqa: S603 - running it is what it is for
    except OSError as error:
        print(f"{argv[0]} can't be started: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    threading.Thread(target=_watch, args=(program,), daemon=True).start()
    return program.wait()


def _watch(program: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1024):
        pass
    program.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(GRACE_S)
    # Whatever it started, and this process with it.
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
