"""Which Python a run was made with, and how fast that is.

One that was built without optimisations (`./configure` alone, as pyenv does unless it is told otherwise) takes half as
long again for its own steps as one of Debian's, of Docker's images or of uv's. How a Python was built can't be asked of
all of them (Debian's says nothing), so some steps are timed: an object is made, two of its methods called, a dictionary
written and read, a list and a text made. A mere call of a function takes the same in both.
"""

from __future__ import annotations

import platform
import timeit

from capture import digests
from capture.dialects import plain
from capture.engines import id_text, stamp

ROUNDS, STEPS = 5, 100_000


class _Thing:
    __slots__ = ("kept", "one")

    def __init__(self, one: int) -> None:
        self.one = one
        self.kept: dict[str, int] = {}

    def keep(self, name: str) -> int:
        self.kept[name] = self.one
        return self.read(name)

    def read(self, name: str) -> int:
        return self.kept.get(name, 0)


def _step() -> str:
    listed = [one for one in (1, 2, 3) if one]
    return f"{_Thing(5).keep('k')}:{len(listed)}"


def describe() -> str:
    """Return it as a few words: version, nanoseconds for some steps, and whether what can be is compiled."""
    took = min(timeit.repeat(_step, repeat=ROUNDS, number=STEPS)) / STEPS
    compiled = None not in (stamp.compiled, id_text.compiled, plain.compiled, digests.compiled)
    parts = "with" if compiled else "without"
    return f"Python {platform.python_version()} ({took * 1e9:.0f} ns for some steps), {parts} what can be compiled"


if __name__ == "__main__":
    print(describe())
