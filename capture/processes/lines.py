"""Whole lines: several processes that write to one stderr, none of them into another's line.

A write of up to PIPE_BUF bytes (4096 on Linux) to a pipe is never mixed with another process's (POSIX, write(2)), and
one to a file opened for appending, or to a terminal, isn't either. So what is written are whole lines, as many as fit
in so many bytes; a single longer line goes out in one write, and may be mixed in a pipe that is full.
"""

from __future__ import annotations

import io
import os
import select
from typing import TextIO, cast


class WholeLines(io.TextIOBase):
    """A text stream over a descriptor, for whoever writes lines; it never closes the descriptor."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._kept = bytearray()

    def __repr__(self) -> str:
        return f"<WholeLines {self._file}, {len(self._kept)} bytes kept>"

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._file

    def write(self, text: str) -> int:
        """Take text; what doesn't fit beside what is kept sends that first."""
        for line in text.encode("utf-8", "backslashreplace").splitlines(keepends=True):
            if self._kept and len(self._kept) + len(line) > select.PIPE_BUF and self._kept.endswith(b"\n"):
                self._send()
            self._kept += line
        return len(text)

    def flush(self) -> None:
        """Send what is kept."""
        if not self.closed:
            self._send()

    def _send(self) -> None:
        data, self._kept = bytes(self._kept), bytearray()
        while data:
            data = data[os.write(self._file, data) :]


def stderr() -> TextIO:
    """Return a stream of whole lines over this process's stderr."""
    return cast("TextIO", WholeLines(2))
