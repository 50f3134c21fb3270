"""Resume points and seeds of stored rollouts, over HTTP."""

import json

import aiohttp
import pytest

from graph import saved
from tests.plane import KEY, control_plane

TOOLS = [{"type": "function", "function": {"name": "bash"}}]
ASKS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
BEHIND = [PICTURE, ASKS, {"role": "tool", "tool_call_id": "c1", "content": "a.py"}]


@pytest.fixture
async def plane(tmp_path):
    async with control_plane(tmp_path) as plane:
        yield plane


@pytest.fixture
async def ask(plane):
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:

        async def ask(method, path, body=None):
            async with session.request(method, plane.url + path, json=body) as answer:
                return answer.status, await answer.json(content_type=None)

        yield ask


async def rollout(plane, ask, name="r", **rest):
    await ask("POST", "/rollouts", {"id": name, **rest})
    for n, messages in enumerate(([PICTURE], BEHIND)):
        request = json.dumps({"model": "m", "messages": messages, "tools": TOOLS}).encode()
        ids = [[1, 2], [1, 2, 3, 4]][n]
        await plane.call(name, n, ids, [3], messages=messages, request=request, text="Done.")


async def test_points(plane, ask):
    await rollout(plane, ask)
    assert (await ask("GET", "/rollouts/r/replay")) == (
        200,
        {
            "rollout": "r",
            "points": [
                {"k": 0, "kinds": ["tool_result"], "call": 1, "n_messages": 3, "awaits": "reply"},
                {"k": "whole", "kinds": ["whole"], "call": 1, "n_messages": 4, "awaits": "user"},
            ],
            "next": None,
        },
    )


async def test_a_seed_is_what_was_sent(plane, ask):
    await rollout(plane, ask)
    assert (await ask("GET", "/rollouts/r/replay/0")) == (
        200,
        {
            "version": 1, "rollout": "r", "k": 0, "kinds": ["tool_result"], "awaits": "reply", "messages": BEHIND,
            "tools": TOOLS, "labels": {"replay_of": "r"},
        },
    )  # fmt: skip


async def test_a_recheck(plane, ask):
    await rollout(plane, ask)
    _, seed = await ask("GET", "/rollouts/r/replay/whole?instruction=Are+you+sure%3F")
    assert seed["messages"][-2:] == [
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Are you sure?"},
    ]
    assert seed["k"] == "whole"


@pytest.mark.parametrize("k", ["9", "-1", "x", "00"])
async def test_a_point_that_is_not_there(plane, ask, k):
    await rollout(plane, ask)
    status, said = await ask("GET", f"/rollouts/r/replay/{k}")
    assert (status, said["error"]["code"]) == (404, "point_not_found")


async def test_the_end_of_a_rollout_without_calls(ask):
    await ask("POST", "/rollouts", {"id": "r"})
    assert (await ask("GET", "/rollouts/r/replay"))[1]["points"] == []
    assert (await ask("GET", "/rollouts/r/replay/whole"))[0] == 404


@pytest.mark.parametrize("request_", [b"not json", b'{"messages": 3}', b'{"messages": []}'])
async def test_without_the_request_canonical_messages_stand_for_it(plane, ask, request_):
    await ask("POST", "/rollouts", {"id": "r"})
    told = [{"role": "user", "content": "Fix it."}, *BEHIND[1:]]
    await plane.call("r", 0, [1], [2], messages=told, request=request_)
    _, seed = await ask("GET", "/rollouts/r/replay/0")
    assert [message["role"] for message in seed["messages"]] == ["user", "assistant", "tool"]
    assert seed["tools"] is None


async def test_lineage_is_stored(plane, ask):
    """A rollout registered with the seed's labels says what it replays, in the line that it is saved as."""
    await rollout(plane, ask)
    _, seed = await ask("GET", "/rollouts/r/replay/0")
    await rollout(plane, ask, "r2", labels=seed["labels"])
    lines = {}
    for name in ("r", "r2"):
        status, told = await ask("GET", f"/rollouts/{name}/replay?saved=1")
        assert status == 200
        lines[name] = saved.read(json.dumps(told).encode())
    assert (lines["r"].replay_of, lines["r2"].replay_of) == (None, "r")
    assert list(lines["r"].seed(lines["r"].points[0]).messages) == BEHIND
