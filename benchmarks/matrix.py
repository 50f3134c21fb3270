"""What `bin/bench overhead` measures: the shapes of each part, and how many calls a round has. Pure.

Calls are chosen so that a round takes about half a second in the systems that are not slow, on one core each. What two
cores and 24 GiB cannot hold is left out: 64 and 512 connections at once have 600,000 and 100,000 tokens each only
where `--only` names them.
"""

from __future__ import annotations

from benchmarks import plan
from benchmarks.plan import Shape

SIZES = (2_000, 16_000, 100_000)

PAIRS = {"engine": 5, "static": 2, "open": 3}
QUICK_PAIRS = 3

# Measured calls of a round, all connections together, by prompt size: streamed, and whole.
_ENGINE = {2_000: (32, 320), 16_000: (32, 128), 100_000: (24, 32)}
_QUICK = {2_000: (24, 240), 16_000: (16, 96), 100_000: (16, 24)}

_STATIC = {2_000: (64, 320), 16_000: (64, 128), 100_000: (24, 24), 600_000: (6, 6)}
_CONNECTIONS = {2_000: (1, 8, 64, 512), 16_000: (1, 8, 64, 512), 100_000: (1, 8, 64), 600_000: (1, 8)}
_NAMED_ONLY = {100_000: (512,), 600_000: (64, 512)}

# Of slow ones few calls would say enough, since their ratios are counted in tens. But a conversation's second call
# costs a recorder more than those behind it, which lean on more, and agents make 31 of them in the median: so as many
# turns as elsewhere, of streams five.
_OPEN = {2_000: (40, 168), 16_000: (40, 168), 100_000: (20, 84), 600_000: (5, 21)}
_OPEN_CONNECTIONS = {2_000: 8, 16_000: 8, 100_000: 4, 600_000: 1}


def engine(*, quick: bool = False) -> list[Shape]:
    """Return the shapes in front of the engine that writes one event at a time."""
    calls = _QUICK if quick else _ENGINE
    return [
        _shape(size, streamed, case, connections, calls[size])
        for size in SIZES
        for streamed in (True, False)
        for case in plan.CASES
        for connections in (1, 8)
    ]


def static(*, named: bool = False) -> list[Shape]:
    """Return the shapes in front of nginx; with `named` also those that are measured only where someone asks."""
    return [
        _shape(size, streamed, "growing", connections, _STATIC[size])
        for size in _STATIC
        for streamed in (True, False)
        for connections in (*_CONNECTIONS[size], *(_NAMED_ONLY.get(size, ()) if named else ()))
    ]


def peers() -> list[Shape]:
    """Return the shapes in front of the engine that waits for nobody, beside other people's proxies."""
    return [
        _shape(size, streamed, "growing", _OPEN_CONNECTIONS[size], _OPEN[size])
        for size in _OPEN
        for streamed in (True, False)
    ]


def is_wanted(shape: Shape, only: str | None) -> bool:
    """Say whether all the words of `only` describe a shape."""
    how = "streamed" if shape.streamed else "plain"
    told = [str(shape.prompt_tokens), how, shape.case, str(shape.connections)]
    return all(word in told for word in (only or "").split())


def _shape(size: int, streamed: bool, case: plan.Case, connections: int, calls: tuple[int, int]) -> Shape:  # noqa: FBT001 - private, beside its callers
    each = -(-calls[0 if streamed else 1] // connections)
    return Shape(prompt_tokens=size, streamed=streamed, case=case, connections=connections, calls=each)
