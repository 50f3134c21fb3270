"""The chunked transfer coding (RFC 9112, section 7.1), taken off a body as it comes. Sans-I/O.

Rules
- Only what stands in the RFC is read: digits of a size and nothing but them, a line end behind each chunk. What comes
  behind the last chunk is thrown away, as every proxy does, and counted.
- Where the network cut the bytes changes nothing: what stands before something that is no chunk is given out.

An engine that streams writes one chunk at a time, and it comes in one piece: between two chunks that is looked for
first (`maybe_one`), in one comparison, and nothing of it is noted here.
"""

from __future__ import annotations

import re

MOST_SIZE_LINE = 4_096
"""Bytes of the line that begins a chunk: a dozen digits, and extensions that nobody sends."""

MOST_TRAILER = 65_536
"""Bytes of fields behind the last chunk."""

_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?")

# By the length of one whole chunk: its size line, written as servers write it. A length tells how many digits it has.
_N_LEADS = 4_096 + 7
_LEADS = [b""] * _N_LEADS
for _size in range(1, 4_096):
    _LEADS[_size + 4 + len(b"%x" % _size)] = b"%x\r\n" % _size


def maybe_one(data: bytes) -> bytes | None:
    """Return the data of one whole chunk, as engines write them, an event each; None for anything else."""
    if not data.endswith(b"\r\n"):
        return None
    if len(data) < _N_LEADS:
        # An event of a token or a few.
        lead = _LEADS[len(data)]
        return data[len(lead) : -2] if lead and data.startswith(lead) else None
    end = data.find(b"\r\n", 0, 10)
    size = len(data) - end - 4
    return data[end + 2 : -2] if size > 0 and data[:end] == b"%x" % size else None


def framed(piece: bytes) -> bytes:
    """Return the chunk that brings a piece; nothing for an empty one, which would be the last."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


class Chunks:
    """Takes the transfer coding off a body (RFC 9112, section 7.1). Sans-I/O."""

    def __init__(self) -> None:
        self.ended = False
        # What comes next begins a chunk: whoever has one whole chunk may read it without us (`maybe_one`).
        self.at_border = True
        # Why what came is no chunk; nothing more is read then.
        self.broken: ValueError | None = None
        # What came behind the end.
        self.rest = b""
        self._held = b""
        # Bytes still to come of the chunk under way; -2 to 0 of the line end behind it; None between chunks.
        self._left: int | None = None
        self._trailer = False
        self._trailed = 0

    def __repr__(self) -> str:
        return f"<Chunks {'ended' if self.ended else self._left}, {len(self._held)} bytes held>"

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; return those of the body. What is no chunk is told in `broken`."""
        out: list[bytes] = []
        if self.broken is None:
            try:
                self._feed(data, out)
            except ValueError as error:
                self.broken = error
        self.at_border = self.broken is None and self._left is None and not (self._held or self._trailer)
        return out

    def _feed(self, data: bytes, out: list[bytes]) -> None:
        data = self._held + data if self._held else data
        at, self._held = 0, b""
        while not self.ended and at < len(data):
            if self._left is None:
                end = data.find(b"\r\n", at)
                if end < 0:
                    if len(data) - at > MOST_SIZE_LINE:
                        raise ValueError("a line without an end in place of a chunk's size")
                    break
                line, at = data[at:end], end + 2
                if self._trailer:
                    self._trailed += len(line)
                    if self._trailed > MOST_TRAILER:
                        raise ValueError("too much behind the last chunk")
                    self.ended = not line
                    continue
                found = _SIZE.fullmatch(line)
                if found is None:
                    raise ValueError(f"{line[:40]!r} is no size of a chunk")
                size = int(found[1], 16)
                self._trailer = not size
                self._left = size or None
                continue
            piece = data[at : at + self._left]
            if piece:
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
            if not self._left:
                if len(data) - at < 2:
                    if data[at:] not in (b"", b"\r"):
                        raise ValueError("a chunk is longer than it said")
                    break
                if data[at : at + 2] != b"\r\n":
                    raise ValueError("a chunk is longer than it said")
                at += 2
                self._left = None
        if self.ended:
            self.rest = data[at:]
        else:
            self._held = data[at:]
