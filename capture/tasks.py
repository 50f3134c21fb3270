"""Tasks with a name and an owner.

A task that nobody holds can be collected in the middle, and its error is printed by nobody. `spawn` demands a name,
keeps the reference until the task is done, and logs what it raised. A `TaskGroup` is better wherever a block owns the
tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

_log = logging.getLogger("treering")
_running: set[asyncio.Task[Any]] = set()

T = TypeVar("T")


def spawn(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start `work` as a named task and keep it until it is done; an error that nobody awaits is logged."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task %s failed", task.get_name(), exc_info=error)
