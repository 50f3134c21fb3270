"""At a stop, who waits is told that nothing came."""

import asyncio

import pytest

from capture.news import News


async def test_who_waits_is_let_go_and_nobody_waits_again():
    news = News()
    began = asyncio.Event()

    async def wait() -> str:
        try:
            async with news.waiting():
                began.set()
                await asyncio.Event().wait()
        except TimeoutError:
            return "nothing came"
        return "it came"

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await began.wait()
        assert repr(news) == "<News 1 wait>"
        news.end()
    assert (waiting.result(), await wait(), repr(news)) == ("nothing came", "nothing came", "<News 0 wait, over>")


async def test_what_comes_in_time_comes_and_a_hang_up_is_no_end():
    news = News()
    async with news.waiting():
        pass
    waiting = asyncio.get_running_loop().create_task(_for_ever(news))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert repr(news) == "<News 0 wait>"


async def _for_ever(news: News) -> None:
    async with news.waiting():
        await asyncio.Event().wait()
