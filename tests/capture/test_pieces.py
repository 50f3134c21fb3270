"""Large bodies in pieces: all of it, in order, and no copy of it."""

import tracemalloc
from typing import Any

import pytest

from capture.pieces import PIECE_BYTES, Pieces


class Writer:
    """What aiohttp gives a payload to write to; it keeps what `keep` says."""

    def __init__(self, *, keep: bool = True) -> None:
        self.got: list[bytes] = []
        self.sizes: list[int] = []
        self._keep = keep

    async def write(self, piece: Any) -> None:
        self.sizes.append(len(piece))
        if self._keep:
            self.got.append(bytes(piece))


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1])
async def test_all_of_it_in_order(size: int) -> None:
    body = bytes(i % 251 for i in range(size))
    payload, writer = Pieces(body), Writer()
    await payload.write(writer)
    assert b"".join(writer.got) == body
    assert all(each == PIECE_BYTES for each in writer.sizes[:-1])
    assert payload.size == size


async def test_again_from_the_start() -> None:
    """As for a request that is sent once more, where the engine closed the connection before a byte came."""
    payload, writer = Pieces(b"x" * (PIECE_BYTES + 5)), Writer()
    await payload.write(writer)
    await payload.write(writer)
    assert sum(writer.sizes) == 2 * (PIECE_BYTES + 5)
    assert (await payload.as_bytes(), payload.decode()) == (b"x" * (PIECE_BYTES + 5), "x" * (PIECE_BYTES + 5))


async def test_nothing_is_copied() -> None:
    body = b"x" * (40 * PIECE_BYTES)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        await Pieces(body).write(Writer(keep=False))
        assert tracemalloc.get_traced_memory()[1] - before < PIECE_BYTES
    finally:
        tracemalloc.stop()
