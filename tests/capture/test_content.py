"""A body as it comes: read, read whole, poured."""

import asyncio

import aiohttp
import pytest

from capture.content import HIGH_BYTES, Content, incomplete
from capture.tasks import spawn


class Source:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def hold(self) -> None:
        self.told.append("hold")

    def go_on(self) -> None:
        self.told.append("go on")

    def offer(self, rush: object) -> None:
        self.told.append("offer" if rush is not None else "offer nothing")

    def drop(self, content: object) -> None:
        self.told.append("drop")

    def forget(self, content: object) -> None:
        self.told.append("forget")


@pytest.fixture
def content() -> Content:
    return Content(Source())


async def turns(n: int = 3) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_what_came_together_is_read_together_and_then_the_end(content: Content) -> None:
    content.feed(b"a")
    content.feed(b"b")
    assert await content.readany() == b"ab"
    reading = spawn(content.readany(), name="read")
    await turns()
    assert not reading.done()
    content.feed(b"c")
    assert await reading == b"c"
    content.end()
    assert [await content.readany() for _ in range(2)] == [b"", b""]


async def test_a_break_comes_behind_what_came_before_it(content: Content) -> None:
    content.feed(b"a")
    content.fail(incomplete(OSError("gone")))
    assert await content.readany() == b"a"
    with pytest.raises(aiohttp.ClientPayloadError, match="gone"):
        await content.readany()
    with pytest.raises(aiohttp.ClientPayloadError):
        await content.rest(10)


async def test_the_whole_is_waited_for_once(content: Content) -> None:
    whole = spawn(content.rest(100), name="rest")
    for piece in (b"a", b"b", b"c"):
        await turns()
        content.feed(piece)
    assert not whole.done()
    content.end()
    assert await whole == b"abc"


@pytest.mark.parametrize(("size", "fits"), [(10, True), (11, False)])
async def test_a_whole_that_is_too_large_is_none(content: Content, size: int, fits: bool) -> None:
    content.feed(b"x" * size)
    content.end()
    assert (await content.rest(10) is not None) == fits


async def test_a_whole_larger_than_what_is_held_back_comes_in_several_gulps() -> None:
    source = Source()
    content = Content(source)
    whole = spawn(content.rest(10 * HIGH_BYTES), name="rest")
    await turns()
    piece = b"x" * (HIGH_BYTES // 2 + 1)
    for _ in range(5):
        content.feed(piece)
        await turns()
    content.end()
    assert await whole == piece * 5
    assert source.told.count("hold") == 2
    assert source.told.count("go on") >= 2


async def test_one_that_never_ends_stops_at_the_limit() -> None:
    content = Content(Source())
    whole = spawn(content.rest(HIGH_BYTES), name="rest")
    await turns()
    for _ in range(2):
        content.feed(b"x" * HIGH_BYTES)
        await turns()
    assert await whole is None


async def test_pieces_are_poured_in_the_step_that_brought_them(content: Content) -> None:
    got: list[bytes] = []

    def sink(piece: bytes) -> bool:
        got.append(piece)
        return piece != b"stop"

    content.feed(b"a")
    content.feed(b"b")
    pouring = spawn(content.pour(sink), name="pour")
    await turns()
    assert got == [b"ab"]
    content.feed(b"c")
    assert got == [b"ab", b"c"]
    content.feed(b"stop")
    content.feed(b"kept")
    assert await pouring is True
    assert got == [b"ab", b"c", b"stop"]
    assert await content.readany() == b"kept"


async def test_pouring_ends_with_the_body_and_not_before(content: Content) -> None:
    pouring = spawn(content.pour(lambda _: True), name="pour")
    await turns()
    content.feed(b"a")
    content.end()
    assert await pouring is False


async def test_a_sink_that_has_enough_with_the_last_piece_is_told_so_first(content: Content) -> None:
    pouring = spawn(content.pour(lambda _: False), name="pour")
    await turns()
    content.feed(b"a")
    content.fail(incomplete(None))
    assert await pouring is True
    with pytest.raises(aiohttp.ClientPayloadError):
        await content.pour(lambda _: True)


async def test_what_a_sink_raises_is_raised_where_it_was_poured(content: Content) -> None:
    def sink(piece: bytes) -> bool:
        raise RuntimeError(piece.decode())

    pouring = spawn(content.pour(sink), name="pour")
    await turns()
    content.feed(b"a")
    content.feed(b"b")
    with pytest.raises(RuntimeError, match="a"):
        await pouring
    assert await content.readany() == b"b"


async def test_the_chunk_of_a_piece_is_offered_first_while_it_is_poured(content: Content) -> None:
    assert content.rush is None
    pouring = spawn(content.pour(lambda piece: piece != b"stop", lambda _: True), name="pour")
    await turns()
    assert content.rush is not None
    assert content.rush(b"1\r\na\r\n")
    content.feed(b"stop")
    # Who has enough is offered nothing more, although it has not run yet.
    assert content.rush is None
    assert await pouring is True


async def test_what_went_wrong_with_a_chunk_is_raised_where_it_was_poured(content: Content) -> None:
    pouring = spawn(content.pour(lambda _: True, lambda _: True), name="pour")
    await turns()
    content.stop(RuntimeError("a"))
    assert content.rush is None
    with pytest.raises(RuntimeError, match="a"):
        await pouring
    content.feed(b"b")
    assert await content.readany() == b"b"


async def test_who_stops_pouring_leaves_the_rest_to_the_next(content: Content) -> None:
    got: list[bytes] = []

    def sink(piece: bytes) -> bool:
        got.append(piece)
        return True

    pouring = spawn(content.pour(sink), name="pour")
    await turns()
    content.feed(b"a")
    pouring.cancel()
    await turns()
    content.feed(b"b")
    assert (got, await content.readany()) == ([b"a"], b"b")


async def test_too_much_that_nobody_takes_holds_the_engine() -> None:
    source = Source()
    content = Content(source)
    content.feed(b"x" * HIGH_BYTES)
    assert source.told == []
    content.feed(b"x")
    assert source.told == ["hold"]
    await content.readany()
    assert source.told == ["hold", "go on"]
