"""`treering tail`: a line an event, and what becomes of a stream that is lost."""

import asyncio
import io
import json
from types import SimpleNamespace

import pytest

from capture import cli
from capture.client import Client
from capture.colour import Paint
from capture.commands import tail
from capture.commands.tail import Block, blocks, line
from capture.errors import ClientError, UsageError
from capture.tasks import spawn
from tests.house import house

PLAIN = Paint(io.StringIO(), {})
AT = "2026-01-01T10:00:00.123Z"


def said(name, **data):
    return line(name, {"at": AT, "rollout": "r", "call": None, **data}, PLAIN)


def test_a_line_each():
    ended = {
        "call": 3, "status": "complete", "n_prompt": 1204, "n_sampled": 88, "ended_ms": 1500.0, "streamed": True,
        "first_token_ms": 250.0, "queued_ms": 40.0, "dialect": "chat", "finish_reason": "stop", "delivered": True,
    }  # fmt: skip
    assert said("call.ended", **ended) == (
        "10:00:00.123  r  call 3  complete  1,204 + 88 tokens  1.50 s, first token 0.25 s, queued 0.04 s  chat  stop"
    )
    eval_tier = {**ended, "n_prompt": None, "usage_prompt": 7, "n_sampled": None, "streamed": False, "queued_ms": 0.0}
    assert said("call.ended", **{**eval_tier, "delivered": False}) == (
        "10:00:00.123  r  call 3  complete  7 + - tokens  1.50 s  chat  stop  not delivered"
    )
    assert said("call.begun", call=3, dialect="chat") == "10:00:00.123  r  call 3  begun  chat"
    assert said("rollout.closed", reward=0.5) == "10:00:00.123  r  closed  reward 0.5"
    assert said("finding", code="drift", level="warn", message="It drifts.", calls=[1, 2]) == (
        "10:00:00.123  r  warn  drift: It drifts.  (calls 1, 2)"
    )
    assert said("engine", engine="vllm=http://e", healthy=False, reason="refused", rollout=None) == (
        "10:00:00.123  engine vllm=http://e  down: refused"
    )
    assert line("tunnel", {"at": AT, "tunnel": "t", "healthy": True}, PLAIN) == "10:00:00.123  tunnel t  up"


def test_no_word_of_an_agents_steers_the_terminal():
    assert "\x1b" not in said("finding", code="x", level="info", message="\x1b[2J", calls=[])
    assert "\x1b" not in said("call.ended", call=0, status="complete", finish_reason="\x1b]0;x\x07")


def test_blocks():
    lines = [b"retry: 1000\n", b"id: 4\n", b"\n", b"event: engine\n", b"id: 5\n", b'data: {"a": 1}\n', b"\n", b"\n"]
    assert list(blocks(lines)) == [Block("", "4", b""), Block("engine", "5", b'{"a": 1}')]


async def test_a_rollout_from_its_beginning_to_its_end(tmp_path, capsys, monkeypatch):
    async with house("scripted", tmp_path) as home:
        monkeypatch.setenv("TREERING_ADMIN_KEY", home.appliance.admin_key)
        rollout = await home.rollout(id="r")
        async with home.chat(rollout) as answer:
            await answer.read()
        words = ["tail", "r", "--url", home.appliance.control_url]
        following = spawn(asyncio.to_thread(cli.main, words), name="tail")
        as_json = spawn(asyncio.to_thread(cli.main, [*words, "--json"]), name="tail --json")
        async with asyncio.timeout(20):
            while home.appliance.tide.readers < 2:
                await home.control("GET", "/health")
            await home.control("DELETE", "/rollouts/r", status=204)
            assert (await following, await as_json) == (0, 0)
    out, _ = capsys.readouterr()
    texts = [text for text in out.splitlines() if not text.startswith("{")]
    events = [json.loads(text)["event"] for text in out.splitlines() if text.startswith("{")]
    assert texts[0].split()[1] == "registered"
    assert any("call 0  complete" in text for text in texts)
    assert events[0] == "rollout.registered"
    assert events[-1] == "rollout.deleted"


def given(**arguments):
    return SimpleNamespace(arguments={"id": None, "url": None, "after": None, "json": True, **arguments}, settings=None)


@pytest.fixture
def streams(monkeypatch):
    """What each connection brings, in turn; what was asked for is kept."""
    asked, brought = [], []

    def follow(plane, path, after):
        asked.append(after)
        for one in brought.pop(0):
            if isinstance(one, BaseException):
                raise one
            yield one

    monkeypatch.setattr(tail, "client", lambda settings, url: Client("http://127.0.0.1:1"))
    monkeypatch.setattr(tail, "follow", follow)
    monkeypatch.setattr(tail, "PAUSE_S", 0)
    return asked, brought


def test_a_lost_stream_goes_on_behind_what_came(streams, capsys):
    asked, brought = streams
    brought += [
        [Block("", "4", b""), Block("engine", "5", b"{}")],
        [UsageError("no answer")],
        [Block("engine", "6", b"{}"), ConnectionResetError()],
        [KeyboardInterrupt()],
    ]
    with pytest.raises(KeyboardInterrupt):
        tail.tail(given())
    assert asked == [None, "5", "5", "6"]
    out, err = capsys.readouterr()
    assert [json.loads(text)["id"] for text in out.splitlines()] == ["5", "6"]
    assert err.count("trying again") == 2


def test_a_server_that_is_not_there_is_said_at_once(streams):
    _, brought = streams
    brought.append([UsageError("no answer")])
    with pytest.raises(UsageError):
        tail.tail(given())


def test_it_gives_up_in_the_end(streams, monkeypatch):
    _, brought = streams
    monkeypatch.setattr(tail, "PATIENCE_S", -1.0)
    brought += [[Block("", "4", b"")], [UsageError("no answer")], [UsageError("no answer")]]
    with pytest.raises(UsageError, match="no answer from"):
        tail.tail(given())


def test_what_was_dropped_meanwhile_is_said(streams, capsys):
    asked, brought = streams
    gone = ClientError("events_gone", "Not all are kept.", status=410)
    brought += [[Block("engine", "5", b"{}")], [gone], [Block("gone", "9", b"{}")], [KeyboardInterrupt()]]
    with pytest.raises(KeyboardInterrupt):
        tail.tail(given())
    assert asked == [None, "5", None, None]
    assert capsys.readouterr().err.count("going on from now") + 1 == 2


def test_an_id_that_was_asked_for_and_is_gone_is_an_error(streams):
    _, brought = streams
    brought.append([ClientError("events_gone", "Not all are kept.", status=410)])
    with pytest.raises(ClientError):
        tail.tail(given(after="5"))
