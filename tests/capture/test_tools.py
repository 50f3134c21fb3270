"""What a rollout's tool servers may do: /state and /task, as they pass on the wire."""

from __future__ import annotations

import asyncio
import io
import json

import aiohttp
import pytest

from capture.errors import ClientError
from capture.tools import STATE_LIMIT, expected
from tests.house import house
from tests.served import Served

TASK = {"text": "Win the game.", "data": {"board": [1, 2.5]}, "private": {"answer": "gold-0815"}}


@pytest.fixture
async def home(tmp_path):
    async with house("scripted", tmp_path) as home:
        yield home


async def ask(home, rollout, method, path, *, key="tools_secret", base=None, body=None, **headers):
    """Ask the data plane; return status, ETag and body."""
    shown = {} if key is None else {"Authorization": f"Bearer {rollout.get(key, key)}"}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    url = (base or rollout["tools_url"]) + path
    async with home.session.request(method, url, data=body, headers={**shown, **sent}) as answer:
        return answer.status, answer.headers.get("ETag"), await answer.read()


def code(answer):
    status, _, body = answer
    return status, json.loads(body)["error"]["code"]


async def test_a_state_is_read_set_and_guarded(home):
    made = await home.rollout()
    assert await ask(home, made, "GET", "/state") == (200, '"0"', b"null")
    assert await ask(home, made, "PUT", "/state", body=b'{"n": 1.50}') == (204, '"1"', b"")
    assert await ask(home, made, "GET", "/state") == (200, '"1"', b'{"n": 1.50}')
    assert await ask(home, made, "GET", "/state", If_None_Match='"1"') == (304, '"1"', b"")
    assert await ask(home, made, "GET", "/state", If_None_Match='W/"1", "x"') == (304, '"1"', b"")
    assert await ask(home, made, "PUT", "/state", body=b"2", If_Match='"1"') == (204, '"2"', b"")
    late = await ask(home, made, "PUT", "/state", body=b"3", If_Match='"1"')
    assert code(late) == (412, "state_changed")
    assert b'ETag is now \\"2\\"' in late[2]
    assert await ask(home, made, "PUT", "/state", body=b"3", If_Match='"9", "2"') == (204, '"3"', b"")
    assert code(await ask(home, made, "PUT", "/state", body=b"4", If_None_Match="*")) == (412, "state_changed")
    assert await ask(home, made, "PUT", "/state", body=b"4") == (204, '"4"', b"")
    shown = await home.control("GET", f"/rollouts/{made['id']}/state")
    assert (shown["state"], shown["version"]) == (4, 4)
    assert shown["changed_at"].endswith("Z")


async def test_of_many_that_go_on_from_one_state_one_is_taken(home):
    made = await home.rollout()
    tries = [ask(home, made, "PUT", "/state", body=b"%d" % n, If_Match='"0"') for n in range(12)]
    assert sorted(status for status, _, _ in await asyncio.gather(*tries)) == [204] + [412] * 11


async def test_the_public_part_of_a_task_and_nothing_else(home):
    made = await home.rollout(task=TASK)
    status, _, body = await ask(home, made, "GET", "/task")
    assert (status, json.loads(body)) == (200, {"text": TASK["text"], "data": TASK["data"]})
    assert b"gold" not in body
    bare = await home.rollout()
    assert json.loads((await ask(home, bare, "GET", "/task"))[2]) == {"text": None, "data": None}


@pytest.mark.parametrize(("method", "path"), [("GET", "/state"), ("PUT", "/state"), ("GET", "/task")])
async def test_the_agents_key_opens_none_of_it_and_the_tools_key_no_model(home, method, path):
    made = await home.rollout(task=TASK)
    refused = await ask(home, made, method, path, key="secret", body=b"1" if method == "PUT" else None)
    assert code(refused) == (403, "agent_secret")
    assert b"gold" not in refused[2]
    assert code(await ask(home, made, method, path, key="sk-treering-tools-nobody")) == (401, "invalid_api_key")
    assert code(await ask(home, made, method, path, key=None)) == (401, "invalid_api_key")
    chat = await ask(home, made, "POST", "/v1/chat/completions", body=b"{}")
    assert code(chat) == (403, "tools_secret")
    assert (await ask(home, made, "GET", "/state"))[0] == 200


async def test_prefixes_and_other_places_of_the_key_work_as_for_others(home):
    made = await home.rollout()
    assert (await ask(home, made, "GET", "/v1/state"))[0] == 200
    assert (await ask(home, made, "GET", "/some/gateway/task"))[0] == 200
    assert (await ask(home, made, "GET", f"/r/{made['tools_secret']}/state", key=None))[0] == 200
    assert (await ask(home, made, "GET", "/state", key=None, x_api_key=made["tools_secret"]))[0] == 200


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b'"\xff"', b"[" * 100_000, b"1 2"])
async def test_what_is_not_json_is_refused_and_nothing_changes(home, body):
    made = await home.rollout()
    assert code(await ask(home, made, "PUT", "/state", body=body)) == (400, "invalid_json")
    assert await ask(home, made, "GET", "/state") == (200, '"0"', b"null")


async def test_a_state_that_is_too_large_is_refused_however_it_comes(home):
    made = await home.rollout()
    most = b'"' + b"x" * (STATE_LIMIT - 2) + b'"'
    assert await ask(home, made, "PUT", "/state", body=most) == (204, '"1"', b"")

    async def pieces():
        for _ in range(20):
            yield b" " * 65_536

    assert code(await ask(home, made, "PUT", "/state", body=io.BytesIO(most + b" "))) == (413, "state_too_large")
    assert code(await ask(home, made, "PUT", "/state", body=pieces())) == (413, "state_too_large")
    assert (await ask(home, made, "GET", "/state"))[1:] == ('"1"', most)


async def test_once_closed_its_key_opens_nothing_and_the_record_has_the_state(home):
    made = await home.rollout()
    await ask(home, made, "PUT", "/state", body=b"[1]")
    await home.control("POST", f"/rollouts/{made['id']}/close", json={})
    for method, path in (("GET", "/state"), ("PUT", "/state"), ("GET", "/task")):
        refused = await ask(home, made, method, path, body=b"2" if method == "PUT" else None)
        assert code(refused) == (401, "invalid_api_key")
    assert (await home.control("GET", f"/rollouts/{made['id']}/state"))["state"] == [1]
    await home.control("DELETE", f"/rollouts/{made['id']}", status=204)
    gone = await home.control("GET", f"/rollouts/{made['id']}/state", status=404)
    assert gone["error"]["code"] == "rollout_not_found"
    again = await home.rollout(id=made["id"])
    assert await ask(home, again, "GET", "/state") == (200, '"0"', b"null")
    assert code(await ask(home, made, "GET", "/state")) == (401, "invalid_api_key")


async def test_a_close_between_reading_and_writing_is_401(home):
    made = await home.rollout()
    live = await home.appliance.rollouts.admit(made["tools_secret"], "tools")
    await home.control("POST", f"/rollouts/{made['id']}/close", json={})
    for work in (
        home.appliance.rollouts.state(live),
        home.appliance.rollouts.set_state(live, b"1", expected=None),
    ):
        with pytest.raises(ClientError) as refused:
            await work
        assert refused.value.status == 401


async def test_packed_it_is_a_value_and_not_text(home):
    made = await home.rollout()
    await ask(home, made, "PUT", "/state", body=b'{"a": [1]}')
    headers = {"Accept": "application/msgpack", "Authorization": f"Bearer {home.appliance.admin_key}"}
    async with home.session.get(f"{home.appliance.control_url}/rollouts/{made['id']}/state", headers=headers) as answer:
        assert b"\x81\xa1a\x91\x01" in await answer.read()


@pytest.mark.parametrize(
    ("headers", "versions"),
    [
        ({}, None),
        ({"If-Match": "*"}, None),
        ({"If-Match": '"3"'}, {3}),
        ({"If-Match": ' "3" , "5"'}, {3, 5}),
        # Weak tags never guard a write (RFC 9110, 13.1.1), and what we can't have given matches nothing.
        ({"If-Match": 'W/"3"'}, set()),
        ({"If-Match": "3"}, set()),
        ({"If-Match": '"three"'}, set()),
        ({"If-Match": '"' + "9" * 5000 + '"'}, set()),
        ({"If-Match": '"'}, set()),
        ({"If-None-Match": "*"}, {0}),
        ({"If-None-Match": "*", "If-Match": '"3"'}, set()),
    ],
)
def test_conditions(headers, versions):
    assert expected(headers) == versions


def test_a_condition_that_can_not_be_kept_is_refused_and_not_passed_over():
    with pytest.raises(ClientError, match="only \\*") as refused:
        expected({"If-None-Match": '"3"'})
    assert refused.value.status == 400


async def test_workers_keep_one_state(tmp_path):
    served = Served(tmp_path, "--engine", "scripted", "--workers", "2")
    await served.start()
    try:
        # A connection each, so that both workers are met.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as session:
            async with session.post(f"{served.control_url}/rollouts", json={}, headers=served.headers) as answer:
                made = await answer.json()
            home = type("Hand", (), {"session": session})
            for n in range(8):
                put = await ask(home, made, "PUT", "/state", body=b"%d" % n, If_Match=f'"{n}"')
                assert put == (204, f'"{n + 1}"', b"")
                assert await ask(home, made, "GET", "/state") == (200, f'"{n + 1}"', b"%d" % n)
            assert code(await ask(home, made, "PUT", "/state", body=b"x", If_Match='"8"')) == (400, "invalid_json")
            assert code(await ask(home, made, "PUT", "/state", body=b"1", If_Match='"2"')) == (412, "state_changed")
            assert code(await ask(home, made, "GET", "/state", key="secret")) == (403, "agent_secret")
    finally:
        await served.close()
