"""Pictures of the page for the docs: PNG made small. A browser writes three bytes a pixel; a page has few colours.

Formats: PNG, W3C Recommendation (third edition), 8 bits a channel, RGB or RGBA without transparency, not interlaced:
what chromium 156 writes. Out comes a picture with a palette of at most 256 colours, the most frequent ones; a pixel of
another colour takes the nearest of them.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 256


def size(png: bytes) -> tuple[int, int]:
    """Return a picture's width and height. Raises ValueError for what is no PNG."""
    if not png.startswith(SIGNATURE):
        raise ValueError("no PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def small(png: bytes) -> bytes:
    """Return the same picture with a palette. Raises ValueError for a form of PNG that a browser does not write."""
    pixels = _pixels(png)
    height, width, _ = pixels.shape
    packed = (pixels.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(axis=2, dtype=np.uint32).ravel()
    colours, where, counts = np.unique(packed, return_inverse=True, return_counts=True)
    kept = np.sort(np.argsort(-counts, kind="stable")[:COLOURS])
    channels = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1).astype(np.int32)
    palette = channels[kept]
    # Of every colour, the nearest that is kept; those that are kept are nearest to themselves.
    nearest = np.array([np.argmin(((palette - each) ** 2).sum(axis=1)) for each in channels], np.uint8)
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = nearest[where].reshape(height, width)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [("IHDR", head), ("PLTE", palette.astype(np.uint8).tobytes())]
    parts += [("IDAT", zlib.compress(rows.tobytes(), 9)), ("IEND", b"")]
    return SIGNATURE + b"".join(_chunk(name.encode(), body) for name, body in parts)


def _pixels(png: bytes) -> np.ndarray:
    """Return a picture's pixels, height × width × 3."""
    width, height = size(png)
    depth, kind, _, _, interlaced = png[24:29]
    channels = {2: 3, 6: 4}.get(kind)
    if depth != 8 or channels is None or interlaced:
        raise ValueError(f"a PNG of depth {depth}, kind {kind}")
    raw = np.frombuffer(zlib.decompress(b"".join(body for name, body in _chunks(png) if name == b"IDAT")), np.uint8)
    lines = raw.reshape(height, width * channels + 1)
    out = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for y, (rule, line) in enumerate(zip(lines[:, 0], lines[:, 1:], strict=True)):
        above = out[y] = _unfiltered(int(rule), line, above, channels)
    return out.reshape(height, width, channels)[:, :, :3]


def _unfiltered(rule: int, line: np.ndarray, above: np.ndarray, step: int) -> np.ndarray:
    """Return a line of pixels as it was before its filter (section 9.2)."""
    if rule == 0:
        return line
    if rule == 1:
        return np.add.accumulate(line.reshape(-1, step), axis=0, dtype=np.uint8).ravel()
    if rule == 2:
        return line + above
    told, up, out = line.tolist(), above.tolist(), [0] * len(line)
    for at, value in enumerate(told):
        left = out[at - step] if at >= step else 0
        if rule == 3:
            guess = (left + up[at]) // 2
        else:
            corner = up[at - step] if at >= step else 0
            far = (abs(up[at] - corner), abs(left - corner), abs(left + up[at] - 2 * corner))
            guess = left if far[0] <= far[1] and far[0] <= far[2] else up[at] if far[1] <= far[2] else corner
        out[at] = value + guess & 255
    return np.array(out, np.uint8)


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
