"""Work beside the event loop: long work leaves it free, short work costs no thread, and faults come back."""

import asyncio
import threading

import pytest

from capture.aside import FROM_BYTES, aside


@pytest.mark.parametrize(("size", "beside"), [(0, False), (FROM_BYTES - 1, False), (FROM_BYTES, True)])
async def test_long_work_is_done_in_a_thread_and_short_work_at_once(size: int, beside: bool) -> None:
    worked = await aside(size, threading.get_ident)
    assert (worked != threading.get_ident()) is beside


async def test_the_loop_goes_on_meanwhile() -> None:
    passed = threading.Event()
    asyncio.get_running_loop().call_soon(passed.set)
    assert await aside(FROM_BYTES, lambda: passed.wait(10))


@pytest.mark.parametrize("size", [0, FROM_BYTES])
async def test_what_the_work_raises_comes_back(size: int) -> None:
    with pytest.raises(ZeroDivisionError):
        await aside(size, lambda: 1 // 0)
