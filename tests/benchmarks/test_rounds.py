"""The bench on a system that does nothing: the engine itself, under other names."""

import os

import pytest

from benchmarks import report, systems, wire
from benchmarks.corpus import Corpus
from benchmarks.plan import Shape
from benchmarks.rounds import Bench
from benchmarks.systems import System
from benchmarks.upstream import Flow, serve

CORPUS = Corpus(30_000)
WIRE = wire.Wire(CORPUS)


class Noted(System):
    """Notes what is opened and closed."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name, os.getpid(), url)
        self.rounds: list[tuple[int, dict[int, int]]] = []

    def open(self, conversations: int) -> list[str]:
        self._opened = conversations
        return super().open(conversations)

    def close_round(self, calls: dict[int, int]) -> None:
        self.rounds.append((self._opened, dict(calls)))


@pytest.mark.parametrize("paced", [True, False])
async def test_every_system_gets_the_same_calls(paced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(System, "reset_peak", lambda self: None)
    monkeypatch.setattr("benchmarks.plan.N_TOKENS", CORPUS.n_tokens)
    flow = Flow()
    server, url = await serve(WIRE, flow)
    first, second = Noted("direct", url), Noted("bare", url)
    bench = Bench([first, second], CORPUS, flow, paced=paced)
    await bench.check()
    for streamed in (True, False):
        shape = Shape(prompt_tokens=2_000, streamed=streamed, case="growing", connections=2, calls=3)
        rows = report.rows(shape, await bench.turns(shape, 2), upstream="open")
        assert [(row.system, row.calls, row.upstream) for row in rows] == [("direct", 12, "open"), ("bare", 12, "open")]
        assert all((row.gap_ms_p50 is not None) == streamed for row in rows)
    server.close()
    assert first.rounds == second.rounds
    # Two checks, then two pairs of each shape: a call before the clock starts, and three behind it.
    assert first.rounds[0] == (1, {0: 1})
    assert first.rounds[-1] == (2, {0: 4, 1: 4})


async def test_a_system_that_says_something_else_is_found_out() -> None:
    flow = Flow()
    server, url = await serve(wire.Wire(Corpus(30_000, seed=1)), flow)
    with pytest.raises(RuntimeError, match="direct did not pass the reply on"):
        await Bench([systems.direct(url)], CORPUS, flow).check()
    server.close()


async def test_what_does_not_stream_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(System, "reset_peak", lambda self: None)
    monkeypatch.setattr("benchmarks.plan.N_TOKENS", CORPUS.n_tokens)
    flow = Flow()
    server, url = await serve(WIRE, flow)
    whole = Noted("whole", url)
    whole.streams = False
    bench = Bench([Noted("direct", url), Noted("bare", url), whole], CORPUS, flow)
    shape = Shape(prompt_tokens=2_000, streamed=True, case="growing", connections=1, calls=1)
    assert set(await bench.turns(shape, 1)) == {"direct", "bare"}
    server.close()
