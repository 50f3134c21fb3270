"""Frames: how two processes write to each other. Sans-I/O.

A frame is its length (4 bytes, little-endian) and that many bytes of msgpack: an array of number, word and body. A
question has a number above 0, its answer the same number negated; a frame that wants no answer has 0. The body is
msgpack too, and is decoded by whoever knows the word.
"""

from __future__ import annotations

import struct

import msgspec

MOST_BYTES = 2**31
"""Of one frame: a request of 256 MiB, as it came and as it was sent, with the pieces that it was taken apart into."""

_LENGTH = struct.Struct("<I")


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """One frame."""

    number: int
    word: str
    body: msgspec.Raw = msgspec.Raw(b"\xc0")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def encode(frame: Frame) -> bytes:
    """Return a frame's bytes. Raises `ValueError` for one that is too large."""
    body = _encode(frame)
    if len(body) > MOST_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes in, frames out, however they are cut."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def __repr__(self) -> str:
        return f"<Frames {len(self._kept)} bytes kept>"

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete with `data`. Raises `ValueError` for what is no frame."""
        self._kept += data
        found: list[Frame] = []
        at = 0
        while len(self._kept) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._kept, at)
            if length > MOST_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = at + _LENGTH.size + length
            if len(self._kept) < end:
                break
            # A copy: what is decoded from it may point into it.
            found.append(_decode(bytes(self._kept[at + _LENGTH.size : end])))
            at = end
        del self._kept[:at]
        return found
