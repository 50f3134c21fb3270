"""Lines of several processes on one pipe stay whole."""

import os
import select
import subprocess
import sys

from capture.processes.lines import WholeLines, stderr

SCRIPT = """
import sys
from capture.processes.lines import stderr
out = stderr()
for n in range(400):
    out.write(f"{sys.argv[1]}{n:04}" * 12 + "\\n")
    if n % 7 == 0:
        out.flush()
out.flush()
"""


def pieces(writes: list[str]) -> list[bytes]:
    """What reaches a descriptor, a write each."""
    found: list[bytes] = []
    out = WholeLines(-1)

    def write(file: int, data: bytes) -> int:
        found.append(data)
        return len(data)

    real = os.write
    try:
        os.write = write
        for text in writes:
            out.write(text)
        out.flush()
    finally:
        os.write = real
    return found


def test_no_write_is_longer_than_a_pipe_keeps_whole_and_none_ends_within_a_line():
    lines = [f"{n:05} {'x' * (n % 300)}\n" for n in range(500)]
    found = pieces(lines)
    assert b"".join(found).decode() == "".join(lines)
    assert all(len(piece) <= select.PIPE_BUF and piece.endswith(b"\n") for piece in found)
    assert len(found) < 30


def test_a_longer_line_goes_out_alone():
    long = "y" * (3 * select.PIPE_BUF) + "\n"
    assert pieces(["a\n", long, "b\n"]) == [b"a\n", long.encode(), b"b\n"]


def test_what_no_encoding_takes_is_spelt_out():
    assert pieces(["\ud800\n"]) == [b"\\ud800\n"]
    assert (stderr().fileno(), stderr().writable()) == (2, True)


def test_three_processes_write_into_one_pipe():
    read, write = os.pipe()
    running = [subprocess.Popen([sys.executable, "-c", SCRIPT, letter], stderr=write) for letter in "abc"]
    os.close(write)
    with os.fdopen(read) as file:
        lines = file.read().splitlines()
    for process in running:
        assert process.wait(30) == 0
    assert sorted(lines) == sorted(f"{letter}{n:04}" * 12 for letter in "abc" for n in range(400))
