"""Tasks with a name and an owner."""

import asyncio
import gc
import logging

import pytest

from capture.tasks import spawn


async def test_a_task_is_kept_until_it_is_done() -> None:
    gate = asyncio.Event()

    async def work() -> str:
        await gate.wait()
        return "done"

    task = spawn(work(), name="wait at the gate")
    gc.collect()
    gate.set()
    assert await task == "done"
    assert task.get_name() == "wait at the gate"


async def test_an_error_that_nobody_awaits_is_logged_with_the_name(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    task = spawn(fail(), name="break")
    with caplog.at_level(logging.ERROR, "treering"):
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert "task break failed" in caplog.text
