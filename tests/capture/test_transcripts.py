"""What a running call has said so far: its budget, and those who follow."""

import asyncio

import pytest
from multidict import CIMultiDict

from capture import transcripts
from capture.errors import EngineError
from capture.transcripts import Transcript


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_who_follows_is_told_of_every_change() -> None:
    said = Transcript()
    said.follow("a")
    for change in (
        lambda: said.begin(200, CIMultiDict()),
        lambda: said.add(b"x"),
        lambda: said.end(clean=True, through=True),
        lambda: said.fail(EngineError("x", "y")),
    ):
        waiting = [asyncio.ensure_future(said.changed()) for _ in range(2)]  # noqa: TID251  awaited at once
        await turn()
        assert not any(one.done() for one in waiting)
        change()
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert said.over


async def test_one_that_gives_up_waiting_takes_nobody_with_it() -> None:
    said = Transcript()
    said.follow("a")
    gone, stays = (asyncio.ensure_future(said.changed()) for _ in range(2))  # noqa: TID251  awaited below
    await turn()
    gone.cancel()
    await turn()
    said.add(b"x")
    await asyncio.wait_for(stays, 5)


def test_the_one_that_grows_beyond_the_budget_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "BUDGET", Transcript.kept + 10)
    before = Transcript.kept
    one, other = Transcript(), Transcript()
    one.add(b"12345678")
    other.add(b"1234")
    assert (one.dropped, one.pieces, other.dropped, other.pieces) == (False, [b"12345678"], True, [])
    other.add(b"56")
    assert other.pieces == []
    one.close()
    one.close()
    other.close()
    assert Transcript.kept == before


def test_one_that_is_followed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "BUDGET", 0)
    said = Transcript()
    said.follow("a")
    said.add(b"x")
    assert (said.dropped, said.pieces) == (False, [b"x"])
    said.close()


async def test_nobody_waits_for_one_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "LAG", 0)
    monkeypatch.setattr(transcripts, "BUDGET", Transcript.kept + 1)
    said = Transcript()
    said.follow("a", reads=False)
    said.add(b"x")
    async with asyncio.timeout(5):
        await said.caught_up()
    said.add(b"y")
    assert said.dropped
    said.unfollow("a")


async def test_who_writes_waits_for_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "LAG", 3)
    said = Transcript()
    await said.caught_up()
    said.follow("a")
    said.follow("b")
    for piece in (b"12", b"34", b"56"):
        said.add(piece)
    writing = asyncio.ensure_future(said.caught_up())  # noqa: TID251  awaited below
    said.has_read("a", 3)
    await turn()
    assert not writing.done()
    said.has_read("b", 1)
    await turn()
    assert not writing.done()
    said.has_read("b", 2)
    await asyncio.wait_for(writing, 5)
    said.add(b"7890")
    writing = asyncio.ensure_future(said.caught_up())  # noqa: TID251  awaited below
    await turn()
    said.unfollow("a")
    await turn()
    assert not writing.done()
    said.unfollow("b")
    await asyncio.wait_for(writing, 5)
    said.close()
