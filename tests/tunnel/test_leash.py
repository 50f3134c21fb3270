"""The leash: a program that must not outlive whoever started it, however that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.processes import until

LEASH = Path(__file__).resolve().parents[2] / "tunnel" / "leash.py"


def gone(pid):
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_the_exit_code_is_the_programs():
    for code in (0, 3):
        argv = [sys.executable, "-I", str(LEASH), sys.executable, "-c", f"raise SystemExit({code})"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as leash:
            assert leash.wait(20) == code


def test_a_program_that_is_not_there():
    argv = [sys.executable, "-I", str(LEASH), "/no/such/program"]
    done = subprocess.run(argv, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=20)
    assert done.returncode == 127
    assert "can't be started" in done.stderr


async def test_it_ends_with_a_parent_that_was_killed():
    inner = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    outer = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-I', {str(LEASH)!r}, sys.executable, '-c', {inner!r}],\n"
        "    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)\n"
        "print(child.pid, child.stdout.readline().strip(), flush=True)\n"
        "time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", outer]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it is read and waited for
    try:
        leash, program = map(int, parent.stdout.readline().split())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(20)
        await until(lambda: gone(leash) and gone(program))
    finally:
        parent.kill()
        parent.wait(20)
        parent.stdout.close()
