"""Work that takes as long as a body is large: beside the event loop, where that is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")

FROM_BYTES = 2**20
"""Of a body, from which it is worked on in a thread. To read one takes about 10 ms a MiB, to copy one 1 ms and more, in
which no other call is served: a conversation with pictures would hold up all others for seconds. Below, a thread costs
more than it saves."""


async def aside(size: int, work: Callable[[], Made]) -> Made:
    """Do what a body of `size` bytes needs; in a thread, where they are many. Raises what the work does."""
    return await asyncio.to_thread(work) if size >= FROM_BYTES else work()
