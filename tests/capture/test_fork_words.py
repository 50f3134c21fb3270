"""Forks and breaks in words, from what the store has."""

import json

import aiohttp
import pytest

from capture import fork_words
from tests.plane import KEY, control_plane

SYSTEM, GO = {"role": "system", "content": "It is one."}, {"role": "user", "content": "Go"}


@pytest.fixture
async def plane(tmp_path):
    headers = {"Authorization": f"Bearer {KEY}"}
    async with control_plane(tmp_path) as plane, aiohttp.ClientSession(headers=headers) as session:
        plane.session = session
        async with session.post(plane.url + "/rollouts", json={"id": "r"}) as answer:
            assert answer.status == 201
        yield plane


async def ask(plane, path="/rollouts/r/forks", status=200):
    async with plane.session.get(plane.url + path) as answer:
        assert answer.status == status
        return await answer.json()


async def broken(plane, **rest):
    """Two calls, the second with another system prompt."""
    await plane.call("r", 0, [1, 2, 3], [4, 5], messages=[SYSTEM, GO], text="Yes.")
    later = [{**SYSTEM, "content": "It is two."}, GO, {"role": "assistant", "content": "Yes."}, GO]
    await plane.call("r", 1, [1, 9, 3, 4, 5, 6], [7], messages=later, **rest)


async def test_what_an_agent_changed_at_a_break(plane):
    await broken(plane)
    said = await ask(plane)
    assert said["forks"] == []
    (told,) = said["breaks"]
    assert (told["call"], told["parent"], told["cause"], told["at"], told["tokens"]) == (1, 0, "system_changed", 1, 4)
    assert told["changes"] == [{"field": "messages[0].content", "was": "It is one.", "is": "It is two."}]
    assert "`messages[0].content`" in told["words"]


async def test_what_differs_between_tries(plane):
    for n, most in ((0, 10), (1, 20)):
        request = json.dumps({"model": "any", "messages": [GO], "max_tokens": most}).encode()
        rest = {"status": "aborted", "delivered": False} if n == 0 else {}
        await plane.call("r", n, [1, 2], [3 + n], messages=[GO], request=request, **rest)
    (told,) = (await ask(plane))["forks"]
    assert (told["kind"], told["calls"], told["changes"]) == (
        "retry", [0, 1], [{"field": "max_tokens", "was": 10, "is": 20}],
    )  # fmt: skip


@pytest.mark.parametrize("request_", [b"\xff", b'{"messages": "\\ud800", "a": NaN}', b"[1]"])
async def test_a_request_that_cannot_be_read_is_not_compared(plane, request_):
    await broken(plane, request=request_)
    (told,) = (await ask(plane))["breaks"]
    assert told["words"].startswith("Call 1 does not begin with the tokens of call 0")


async def test_only_so_many_requests_are_read(plane, monkeypatch):
    monkeypatch.setattr(fork_words, "MOST_COMPARED", 0)
    await broken(plane)
    (told,) = (await ask(plane))["breaks"]
    assert told["changes"] == []


async def test_a_rollout_that_is_not_there(plane):
    assert (await ask(plane, "/rollouts/none/forks", 404))["error"]["code"] == "rollout_not_found"
    assert (await ask(plane, "/rollouts/r/forks?x=1", 422))["error"]["code"] == "invalid_query"
    assert await ask(plane) == {"forks": [], "breaks": []}
