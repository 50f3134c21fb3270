"""The way of a stream's ordinary tokens: in Python and, where it was built, in C, one and the same."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture import rush, transcripts
from capture.chunks import framed
from capture.dialects.express import Lane, PlainLane
from capture.engines import stamp
from capture.outlet import Outlet
from capture.rush import PlainRush, Rush
from capture.transcripts import Transcript
from tests.capture.engines.test_lane import STAMP, TOKEN

FORMS = [
    "plain",
    pytest.param("compiled", marks=pytest.mark.skipif(stamp.compiled is None, reason="the lane in C: not built")),
]


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def is_closing(self) -> bool:
        return self.closing


class Protocol:
    """Says whether writing is paused, as aiohttp's does."""

    def __init__(self) -> None:
        self._paused = False

    @property
    def writing_paused(self) -> bool:
        return self._paused


class Way:
    """One stream's, and all that is around it."""

    def __init__(self, form: str) -> None:
        self.transport, self.protocol, self.said = Transport(), Protocol(), Transcript()
        self.outlet = Outlet(self.transport, self.protocol)  # type: ignore[arg-type]  # what of them is used
        self.attended: list[float] = []
        self.faults: list[str] = []
        self.ids: list[bytes] = []
        self.broken = False
        self.rest_s = -1.0
        with pytest.MonkeyPatch.context() as patch:
            if form == "plain":
                patch.setattr(stamp, "compiled", None)
            self.rush: Rush = rush.make(self.outlet, self.said, attend=self.attend, failed=self.fail)
            lane = STAMP.maybe_lane(lambda _: [], (self.ids, []))
        assert isinstance(self.rush, PlainRush) == (form == "plain")
        assert lane is not None
        self.lane: Lane = lane

    def attend(self, now: float) -> float:
        self.attended.append(now)
        if self.broken:
            raise OSError("broken")
        return now + self.rest_s

    def fail(self, error: Exception) -> None:
        self.faults.append(repr(error))

    @property
    def kept(self) -> int:
        """Bytes that the transcript counts, when all have been told to it."""
        self.rush.settle()
        return self.said._size

    def close(self) -> None:
        self.rush.settle()
        self.said.close()


@pytest.fixture(params=FORMS)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    made = Way(request.param)
    made.rush.lane = made.lane
    made.rush.due = time.monotonic() + 60
    yield made
    made.close()


def test_a_token_is_recorded_kept_and_written(way: Way) -> None:
    before = time.monotonic()
    assert way.rush.take(framed(TOKEN)) is True
    (piece,) = way.said.pieces
    assert b'"theirs"' in piece
    assert way.transport.sent == [framed(piece)]
    assert way.ids == [b"5"]
    assert before <= way.rush.since <= time.monotonic()
    assert way.kept == len(piece)
    assert way.attended == []


def test_without_a_lane_there_is_no_way(way: Way) -> None:
    way.rush.lane = None
    assert way.rush.take(framed(TOKEN)) is False
    assert (way.said.pieces, way.transport.sent, way.ids) == ([], [], [])


@pytest.mark.parametrize("why", ["paused", "closing", "no token", "no chunk"])
def test_what_can_not_go_this_way_changes_nothing(way: Way, why: str) -> None:
    way.protocol._paused, way.transport.closing = why == "paused", why == "closing"
    chunk = {"no token": framed(b"data: {}\n\n"), "no chunk": TOKEN}.get(why, framed(TOKEN))
    assert way.rush.take(chunk) is False
    assert (way.said.pieces, way.transport.sent, way.ids, way.attended) == ([], [], [], [])


async def test_who_follows_is_told_at_once(way: Way) -> None:
    me = object()
    way.said.follow(me)
    assert way.rush.take(framed(TOKEN))
    # Counted by the transcript itself.
    assert way.said._size == way.kept == len(way.said.pieces[0]) > 0
    way.said.unfollow(me)


def test_a_transcript_that_was_dropped_keeps_nothing_and_the_token_goes_on(way: Way) -> None:
    way.said.dropped = True
    assert way.rush.take(framed(TOKEN))
    assert (way.said.pieces, len(way.transport.sent), way.kept) == ([], 1, 0)


def test_too_much_is_dropped_when_it_is_counted(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "BUDGET", 300)
    for _ in range(3):
        assert way.rush.take(framed(TOKEN))
        way.rush.settle()
    assert way.said.dropped
    assert len(way.transport.sent) == 3
    assert way.kept == 0


def test_what_is_due_is_done_before_the_token_goes_out(way: Way) -> None:
    way.rush.due = 0.0
    assert way.rush.take(framed(TOKEN))
    assert way.attended == [way.rush.since]
    assert way.rush.due == way.rush.since - 1
    way.broken = True
    with pytest.raises(OSError, match="broken"):
        way.rush.take(framed(TOKEN))
    assert len(way.transport.sent) == 1
    # What was kept by then has been counted.
    assert way.said._size == len(way.said.pieces[0])


def test_what_was_done_is_not_due_at_once(way: Way) -> None:
    way.rush.due, way.rest_s = 0.0, 60.0
    assert way.rush.take(framed(TOKEN))
    assert way.rush.take(framed(TOKEN))
    assert len(way.attended) == 1


def test_a_fault_of_the_lanes_is_told_and_the_event_left_to_others(way: Way) -> None:
    def event(_: bytes) -> bytes | None:
        raise KeyError("x")

    way.rush.lane = PlainLane(event)
    assert way.rush.take(framed(TOKEN)) is False
    assert way.faults == ["KeyError('x')"]
    assert way.transport.sent == []


def test_what_is_no_fault_is_raised(way: Way) -> None:
    def event(_: bytes) -> bytes | None:
        raise KeyboardInterrupt

    way.rush.lane = PlainLane(event)
    with pytest.raises(KeyboardInterrupt):
        way.rush.take(framed(TOKEN))


def test_a_lane_of_any_sort_will_do(way: Way) -> None:
    way.rush.lane = PlainLane(lambda event: b"shown" if event == b"event" else b"" if event == b"hidden" else None)
    assert [way.rush.take(framed(event)) for event in (b"event", b"other", b"hidden")] == [True, False, True]
    assert way.said.pieces == [b"shown"]
    assert way.transport.sent == [b"5\r\nshown\r\n"]


steps = st.sampled_from(["token", "odd", "cut", "pause", "go on", "close", "follow", "leave", "drop", "lane", "none"])


@given(st.lists(steps, max_size=12))
@example(["token", "follow", "token", "leave", "token", "drop", "token"])
@pytest.mark.skipif(stamp.compiled is None, reason="the lane in C: not built")
def test_both_do_the_same(plan: list[str]) -> None:
    ways = [Way("plain"), Way("compiled")]
    me = object()
    for one in ways:
        one.rush.lane, one.rush.due = one.lane, time.monotonic() + 60
    for step in plan:
        took: list[Any] = []
        for one in ways:
            match step:
                case "pause" | "go on":
                    one.protocol._paused = step == "pause"
                case "close":
                    one.transport.closing = True
                case "follow" if not one.said.followers:
                    one.said.follow(me)
                case "leave" if one.said.followers:
                    one.said.unfollow(me)
                case "drop":
                    one.said.dropped = True
                case "lane" | "none":
                    one.rush.lane = one.lane if step == "lane" else None
                case "token" | "odd" | "cut":
                    whole = framed({"odd": b"data: {}\n\n"}.get(step, TOKEN))
                    took.append(one.rush.take(whole[:-3] if step == "cut" else whole))
        assert len(set(took)) <= 1
        states = [(w.said.pieces, w.transport.sent, w.ids, w.kept, w.faults, len(w.attended)) for w in ways]
        assert states[0] == states[1]
    for one in ways:
        one.close()


def test_it_holds_nothing_when_it_is_gone() -> None:
    for form in ("plain", "compiled") if stamp.compiled is not None else ("plain",):
        one = Way(form)
        one.rush.lane = one.lane
        there = weakref.ref(one)
        # It holds its own way, by what it is to call.
        del one
        gc.collect()
        assert there() is None


@pytest.mark.skipif(stamp.compiled is None, reason="the lane in C: not built")
def test_what_it_is_given_wrongly_is_refused() -> None:
    assert stamp.compiled is not None
    with pytest.raises(TypeError):
        stamp.compiled.Rush()
    one = Way("compiled")
    one.rush.lane = one.lane
    with pytest.raises(TypeError):
        one.rush.since = "x"  # type: ignore[assignment]  # what a slip would do
    one.rush.take(bytearray(b"x"))  # type: ignore[arg-type]  # as above
    assert one.faults == ["TypeError('a chunk is bytes')"]
    odd: Any = type("Odd", (), {"chunk": lambda self, data: (1, 2)})()
    one.rush.lane = odd
    assert one.rush.take(framed(TOKEN)) is False
    assert len(one.faults) == 2
    one.close()
