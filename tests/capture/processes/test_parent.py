"""A child ends with its parent, however that ends."""

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, subprocess, sys
child = "import os, sys, time\\nfrom capture.processes.parent import die_with\\n" \
        "print(die_with(int(sys.argv[1])), flush=True)\\nsys.stdin.read()"
made = subprocess.Popen([sys.executable, "-c", child, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert made.stdout.readline() == b"True\\n"
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word for it is Linux's")
def test_it_is_killed_when_its_parent_is():
    # The child holds the pipe, so `run` returns when neither is left.
    done = subprocess.run([sys.executable, "-c", SCRIPT], stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")


def test_one_whose_parent_is_gone_already_knows():
    child = "import sys\nfrom capture.processes.parent import die_with\nsys.exit(die_with(int(sys.argv[1])))"
    for parent, knows in ((os.getpid(), 1), (-1, 0)):
        assert subprocess.run([sys.executable, "-c", child, str(parent)], timeout=60, check=False).returncode == knows
