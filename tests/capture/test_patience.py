"""A time limit on a wait: what `asyncio.timeout` does, whatever happens."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from capture.patience import Patience
from capture.tasks import spawn


class Async(AbstractAsyncContextManager[Patience]):
    """Entered as `asyncio.timeout` is."""

    def __init__(self, limit_s: float) -> None:
        self._patience = Patience(limit_s)

    async def __aenter__(self) -> Patience:
        return self._patience.__enter__()

    async def __aexit__(self, *raised: object) -> None:
        self._patience.__exit__(*raised)  # type: ignore[arg-type]  # three, as they come


Limit = Callable[[float], AbstractAsyncContextManager[object]]
both = pytest.mark.parametrize("limit", [Async, asyncio.timeout])


@both
async def test_who_is_quick_hears_nothing(limit: Limit) -> None:
    async with limit(60):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@both
async def test_who_waits_too_long_is_told(limit: Limit) -> None:
    with pytest.raises(TimeoutError):
        async with limit(0.001):
            await asyncio.get_running_loop().create_future()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@both
async def test_an_error_stays_itself_although_the_time_is_over(limit: Limit) -> None:
    async def wait() -> None:
        async with limit(0.001):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise KeyError from None

    with pytest.raises(KeyError):
        await wait()


@both
async def test_a_cancellation_from_elsewhere_stays_one(limit: Limit) -> None:
    async def wait() -> None:
        async with limit(60):
            await asyncio.get_running_loop().create_future()

    task = spawn(wait(), name="wait")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1


@both
async def test_it_stays_one_although_the_time_is_over_too(limit: Limit) -> None:
    async def wait() -> None:
        async with limit(0.001):
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                mine = asyncio.current_task()
                assert mine is not None
                # While it goes out, somebody else cancels too.
                mine.cancel()

    task = spawn(wait(), name="wait")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1


@both
async def test_one_within_the_other_tells_whose_time_is_over(limit: Limit) -> None:
    async def wait() -> None:
        async with limit(0.001):
            try:
                async with limit(60):
                    await asyncio.get_running_loop().create_future()
            except TimeoutError:
                pytest.fail("the inner one had time")

    with pytest.raises(TimeoutError):
        await wait()
    async with limit(60):
        with pytest.raises(TimeoutError):
            async with limit(0.001):
                await asyncio.get_running_loop().create_future()


async def test_who_is_given_more_time_has_it() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    patience = Patience(0.03)

    async def wait() -> None:
        with patience:
            loop.call_later(0.02, patience.renew)
            await loop.create_future()

    with pytest.raises(TimeoutError):
        await wait()
    assert loop.time() - start > 0.045
    patience.renew()
    assert "over" in repr(patience)
