"""The comment that breaks a stream's silence: when it goes out, and when it may not."""

import asyncio

import pytest

from capture import silence
from capture.silence import KEEP_ALIVE, Silence


class Response:
    """A client's side of a stream: what was written, and a write that waits when told to."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[bytes] = asyncio.Queue()
        self.free = asyncio.Event()
        self.free.set()
        self.gone = False

    async def write(self, data: bytes) -> None:
        if self.gone:
            raise ConnectionResetError
        self.written.put_nowait(data)
        await self.free.wait()


@pytest.fixture
def response() -> Response:
    return Response()


def watch(response: Response) -> Silence:
    return Silence(response, name="test")  # type: ignore[arg-type]  # the one method that is used


def long_ago(watched: Silence) -> None:
    watched.since -= silence.SILENCE_S


async def turn() -> None:
    """Let what is ready run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_comment_goes_out_again_and_again(response: Response, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.01)
    with watch(response) as watched:
        watched.breakable = True
        async with asyncio.timeout(10):
            assert [await response.written.get() for _ in range(3)] == [KEEP_ALIVE] * 3


async def test_none_before_its_time(response: Response) -> None:
    with watch(response) as watched:
        watched.breakable = True
        watched._look()
        await turn()
        assert response.written.empty()
        long_ago(watched)
        watched._look()
        await turn()
        assert response.written.get_nowait() == KEEP_ALIVE
        # And the silence begins anew.
        watched._look()
        await turn()
        assert response.written.empty()


async def test_none_while_something_else_is_being_written(response: Response) -> None:
    with watch(response) as watched:
        long_ago(watched)
        watched._look()
        await turn()
        assert response.written.empty()


async def test_none_when_the_engine_speaks_just_then(response: Response) -> None:
    with watch(response) as watched:
        watched.breakable = True
        long_ago(watched)
        watched._look()
        watched.breakable = False
        await turn()
        assert response.written.empty()


async def test_none_behind_the_end(response: Response) -> None:
    with watch(response) as watched:
        watched.breakable = True
        long_ago(watched)
        watched._look()
    await turn()
    assert response.written.empty()
    assert watched._timer is not None
    assert watched._timer.cancelled()


async def test_one_at_a_time_to_a_client_that_takes_nothing(response: Response) -> None:
    response.free.clear()
    with watch(response) as watched:
        watched.breakable = True
        for _ in range(3):
            long_ago(watched)
            watched._look()
            await turn()
        assert response.written.qsize() == 1
        response.free.set()
        await turn()
        long_ago(watched)
        watched._look()
        await turn()
        assert response.written.qsize() == 2


async def test_a_client_that_left_is_no_error_of_ours(response: Response) -> None:
    response.gone = True
    with watch(response) as watched:
        watched.breakable = True
        long_ago(watched)
        watched._look()
        await turn()
        assert watched._breaking is not None
        assert watched._breaking.exception() is None
