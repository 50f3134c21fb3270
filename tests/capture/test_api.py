"""The control plane's routes over HTTP, on a real store."""

import asyncio
import json

import aiohttp
import msgspec
import numpy as np
import pytest

from tests.plane import KEY, control_plane


@pytest.fixture
async def plane(tmp_path):
    async with control_plane(tmp_path) as plane:
        yield plane


@pytest.fixture
async def ask(plane):
    """Return a function that asks the control plane: status and the answer's JSON (None if it is empty)."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:

        async def ask(method, path, body=None, **headers):
            data = body if isinstance(body, bytes) or body is None else json.dumps(body)
            async with session.request(method, plane.url + path, data=data, headers=headers) as answer:
                text = await answer.read()
                assert answer.headers["Treering-Version"] == "1"
                return answer.status, json.loads(text) if text else None

        yield ask


@pytest.fixture
async def two_turns(plane, ask):
    """A rollout of two calls, the second going on from the first."""
    assert (await ask("POST", "/rollouts", {"id": "r", "group": "g", "labels": {"split": "train"}}))[0] == 201
    await plane.call("r", 0, [1, 2, 3], [4, 5])
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "reply 0"},
        {"role": "user", "content": "more"},
    ]
    request = b'{"model":"any","messages":[],"seed":1.0,"z":123456789012345678901,"a":"\\u00e9"}'
    await plane.call("r", 1, [1, 2, 3, 4, 5, 6], [7], messages=said, request=request)
    return "r"


async def test_a_registration_shows_its_secrets_this_once(ask):
    status, made = await ask("POST", "/rollouts", {"id": "r-1"})
    assert status == 201
    assert set(made) == {
        "id", "secret", "tools_secret", "url", "base_url", "tools_url", "tier", "model", "expires_at", "env",
    }  # fmt: skip
    _, shown = await ask("GET", "/rollouts/r-1")
    assert made["secret"] not in json.dumps(shown)
    assert (await ask("POST", "/rollouts", {"id": "r-1"}))[1]["error"]["code"] == "id_taken"


async def test_a_group_comes_in_order(ask):
    status, made = await ask("POST", "/rollouts", {"id": "g", "n": 3})
    assert status == 201
    assert [one["id"] for one in made["rollouts"]] == ["g-0", "g-1", "g-2"]


async def test_an_idempotency_key_repeats_the_first_answer(ask):
    first = await ask("POST", "/rollouts", {"labels": {"a": "1", "b": "2"}}, **{"Idempotency-Key": "k"})
    assert first == await ask("POST", "/rollouts", {"labels": {"b": "2", "a": "1"}}, **{"Idempotency-Key": "k"})
    status, other = await ask("POST", "/rollouts", {}, **{"Idempotency-Key": "k"})
    assert (status, other["error"]["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b'{"a": NaN}', 400, "invalid_json"),
        (b"\xff", 400, "invalid_json"),
        (b"[]", 422, "invalid_registration"),
        ({"limit": {}}, 422, "invalid_registration"),
    ],
)
async def test_a_registration_that_cannot_be_taken(ask, body, status, code):
    got, said = await ask("POST", "/rollouts", body)
    assert (got, said["error"]["code"]) == (status, code)


async def test_the_summary_counts(ask, two_turns):
    status, rollout = await ask("GET", "/rollouts/r")
    assert status == 200
    assert set(rollout) == {
        "id", "group", "labels", "state", "tier", "tier_reason", "model", "logprobs_mode", "incomplete", "reward",
        "per_call_rewards", "reward_details", "stopped", "n_calls", "n_main_calls", "n_tool_calls", "n_conversations",
        "n_prompt_tokens", "n_sampled_tokens", "n_distinct_tokens", "created_at", "first_call_at", "last_call_at",
        "closed_at", "budget_left",
    }  # fmt: skip
    counts = [rollout[name] for name in ("n_calls", "n_prompt_tokens", "n_sampled_tokens", "n_distinct_tokens")]
    assert counts == [2, 9, 3, 7]


@pytest.mark.parametrize("path", ["", "/graph", "/findings", "/sequences", "/calls", "/calls/0", "?wait=closed"])
async def test_a_rollout_that_is_not_there(ask, path):
    status, said = await ask("GET", "/rollouts/none" + path)
    assert (status, said["error"]["code"]) == (404, "rollout_not_found")


async def test_the_list_filters_and_pages(ask):
    for i in range(3):
        await ask("POST", "/rollouts", {"id": f"r{i}", "group": "g" if i else None, "labels": {"k": str(i)}})
    _, page = await ask("GET", "/rollouts?limit=2")
    assert [one["id"] for one in page["rollouts"]] == ["r0", "r1"]
    _, rest = await ask("GET", f"/rollouts?limit=2&after={page['next']}")
    assert [one["id"] for one in rest["rollouts"]] == ["r2"]
    assert rest["next"] is None
    _, found = await ask("GET", "/rollouts?group=g&label=k:2&state=open")
    assert [one["id"] for one in found["rollouts"]] == ["r2"]


async def test_the_graph_is_the_forest(ask, two_turns):
    _, graph = await ask("GET", "/rollouts/r/graph")
    assert graph["version"] == 1
    assert [(call["n"], call["link"], call["parent"]) for call in graph["calls"]] == [
        (0, "root", None),
        (1, "exact", 0),
    ]
    assert [each["role"] for each in graph["conversations"]] == ["main"]
    _, found = await ask("GET", "/rollouts/r/findings")
    assert found == {"findings": graph["findings"], "next": None}


async def test_sequences_of_an_open_rollout_are_not_final(ask, two_turns):
    status, said = await ask("GET", "/rollouts/r/sequences")
    assert (status, said["error"]["code"]) == (409, "rollout_open")
    _, cut = await ask("GET", "/rollouts/r/sequences?open=1")
    assert cut["final"] is False
    assert (await ask("POST", "/rollouts/r/close"))[0] == 200
    _, cut = await ask("GET", "/rollouts/r/sequences?roles=main,subagent&drift=split&threshold=7&format=native")
    assert cut["final"] is True
    (row,) = cut["sequences"]
    assert row["input_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert row["loss_mask"] == [0, 0, 0, 1, 1, 0, 1]
    assert row["logprobs"] == [None, None, None, -0.5, -0.5, None, -0.5]


async def test_sequences_in_outline(ask, two_turns):
    _, whole = await ask("GET", "/rollouts/r/sequences?open=1")
    _, cut = await ask("GET", "/rollouts/r/sequences?open=1&ids=0")
    assert whole["sequences"][0].keys() - cut["sequences"][0].keys() == {"input_ids", "loss_mask", "logprobs"}
    assert [row["n_ids"] for row in cut["sequences"]] == [len(row["input_ids"]) for row in whole["sequences"]]
    trained = [sum(end - start for start, end in row["trained"]) for row in cut["sequences"]]
    assert trained == [sum(row["loss_mask"]) for row in whole["sequences"]]
    status, said = await ask("GET", "/rollouts/r/sequences?open=1&ids=0&format=trl")
    assert (status, said["error"]["hint"]) == (422, "Leave ids, or format, away.")


async def test_sequences_cross_drifts_when_asked_to(ask, plane):
    await ask("POST", "/rollouts", {"id": "r"})
    await plane.call("r", 0, [1, 2, 3], [4, 5])
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "reply 0"},
        {"role": "user", "content": "more"},
    ]
    await plane.call("r", 1, [1, 2, 3, 4, 9, 6], [7], messages=said)
    await ask("POST", "/rollouts/r/close")
    _, split = await ask("GET", "/rollouts/r/sequences")
    assert [row["calls"] for row in split["sequences"]] == [[0], [1]]
    assert "realign_masked" not in split
    _, cut = await ask("GET", "/rollouts/r/sequences?drift=realign&threshold=1")
    own, row = cut["sequences"]
    assert (own["loss_mask"], row["loss_mask"]) == ([0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0, 1])
    assert (row["input_ids"], row["drift_crossed"]) == ([1, 2, 3, 4, 9, 6, 7], 1)
    assert cut["realign_masked"] == {"tokens": 1, "rows": 1}
    _, graph = await ask("GET", "/rollouts/r/graph")
    assert graph["drift"]["samples_per_rollout"] == cut["n_rows"]


@pytest.mark.parametrize("query", ["format=tree", "drift=tree", "format=tree&drift=tree"])
async def test_a_tree_has_each_token_once(ask, two_turns, query):
    _, tree = await ask("GET", f"/rollouts/r/sequences?open=1&{query}")
    assert (tree["n_tokens"], tree["n_nodes"], tree["final"]) == (7, 4, False)
    assert tree["parents"] == [-1, 0, 1, 2, 3, 4, 5]
    assert tree["loss_mask"] == [0, 0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("query", ["format=tree&drift=split", "format=tree&drift=realign", "format=native&drift=tree"])
async def test_a_format_that_cannot_do_what_is_asked_at_a_drift(ask, two_turns, query):
    status, said = await ask("GET", f"/rollouts/r/sequences?open=1&{query}")
    assert (status, said["error"]["code"]) == (422, "invalid_query")
    assert said["error"]["hint"].startswith(query.partition("&")[0])


async def test_a_close_gives_the_tree_too(ask, two_turns):
    _, closed = await ask("POST", "/rollouts/r/close", {"sequences": {"drift": "tree", "threshold": 9}})
    assert closed["sequences"]["n_nodes"] == 4


async def test_msgpack_has_the_arrays_raw(plane, two_turns):
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/msgpack"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.get(plane.url + "/rollouts/r/sequences?open=1") as answer:
            assert answer.content_type == "application/msgpack"
            (row,) = msgspec.msgpack.decode(await answer.read())["sequences"]
        async with session.get(plane.url + "/rollouts/r/calls/1") as answer:
            call = msgspec.msgpack.decode(await answer.read())
    assert np.frombuffer(row["input_ids"], "<i4").tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert np.frombuffer(row["logprobs"], "<f4")[3] == -0.5
    assert np.frombuffer(call["prompt_ids"], "<i4").tolist() == [1, 2, 3, 4, 5, 6]


async def test_calls_page_with_and_without_ids(ask, two_turns):
    _, page = await ask("GET", "/rollouts/r/calls?limit=1")
    assert [call["n"] for call in page["calls"]] == [0]
    assert "prompt_ids" not in page["calls"][0]
    _, rest = await ask("GET", f"/rollouts/r/calls?ids=1&after={page['next']}")
    assert rest["next"] is None
    ((call,)) = rest["calls"]
    assert (call["prompt_ids"], call["sampled_ids"], call["logprobs"]) == ([1, 2, 3, 4, 5, 6], [7], [-0.5])


async def test_one_call_whole_has_its_request_as_it_passed(plane, two_turns):
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(plane.url + "/rollouts/r/calls/1") as answer,
    ):
        text = await answer.read()
    assert b'"seed":1.0,"z":123456789012345678901,"a":' in text
    call = json.loads(text)
    assert {
        "n", "link", "prompt_ids", "sampled_ids", "logprobs", "top_logprobs", "text", "request", "sent", "reply",
        "error", "usage", "deliveries", "routed_experts", "sampling_mask",
    } <= set(call)  # fmt: skip
    assert call["text"] == "reply 1"
    assert call["usage"] == {"prompt_tokens": 6}
    assert call["deliveries"][0]["complete"] is True


@pytest.mark.parametrize("n", ["2", "-1", "x", "99999999999999999999", "%C2%B2"])
async def test_a_call_that_is_not_there(ask, two_turns, n):
    status, said = await ask("GET", f"/rollouts/r/calls/{n}")
    assert (status, said["error"]["code"]) == (404, "call_not_found")


async def test_one_call_ends_a_rollout(ask, two_turns):
    body = {"wait_s": 0, "reward": 1, "sequences": {"format": "native", "roles": ["main"], "threshold": 9}}
    status, closed = await ask("POST", "/rollouts/r/close", body)
    assert status == 200
    assert (closed["rollout"]["state"], closed["rollout"]["reward"]) == ("closed", 1.0)
    assert closed["sequences"]["reward"] == 1.0
    assert closed["sequences"]["n_trained_tokens"] == 3
    # Once more changes nothing; without being asked for, no sequences are cut.
    assert await ask("POST", "/rollouts/r/close", {}) == (200, {"rollout": closed["rollout"], "sequences": None})


@pytest.mark.parametrize(
    "body",
    [
        {"wait": 1},
        {"wait_s": "1"},
        {"wait_s": -1},
        {"wait_s": True},
        {"wait_s": 1e9},
        {"reward": "1"},
        {"reward": True},
        {"sequences": {"format": "trll"}},
        {"sequences": {"format": "parquet"}},
        {"sequences": {"rolse": "main"}},
        {"sequences": {"roles": ["nobody"]}},
        {"sequences": ["native"]},
        {"sequences": {"format": "native", "drift": "tree"}},
        [],
    ],
)
async def test_a_close_that_cannot_be_meant_closes_nothing(ask, two_turns, body):
    status, said = await ask("POST", "/rollouts/r/close", body)
    assert (status, said["error"]["code"]) == (422, "invalid_body")
    assert (await ask("GET", "/rollouts/r"))[1]["state"] == "open"


async def test_rewards(ask, two_turns):
    status, rollout = await ask("PUT", "/rollouts/r/reward", {"reward": 0.5, "per_call": {"chatcmpl-1": 2}})
    assert (status, rollout["reward"], rollout["per_call_rewards"]) == (200, 0.5, {"chatcmpl-1": 2.0})
    assert (await ask("PUT", "/rollouts/r/reward", {"reward": None}))[1]["reward"] is None
    status, said = await ask("PUT", "/rollouts/r/reward", {"per_call": {"other": 1}})
    assert (status, said["error"]["code"]) == (422, "unknown_call")
    for body in ({}, {"rewrad": 1}, {"force": True}):
        status, said = await ask("PUT", "/rollouts/r/reward", body)
        assert (status, said["error"]["code"]) == (422, "invalid_body")


async def test_a_number_on_a_rollout_without_calls_is_refused_unless_meant(ask):
    await ask("POST", "/rollouts", {"id": "r"})
    status, said = await ask("PUT", "/rollouts/r/reward", {"reward": 0})
    assert (status, said["error"]["code"]) == (409, "no_calls")
    assert (await ask("PUT", "/rollouts/r/reward", {"reward": None}))[0] == 200
    assert (await ask("PUT", "/rollouts/r/reward", {"reward": 0, "force": True}))[1]["reward"] == 0.0


async def test_delete(ask, two_turns):
    assert await ask("DELETE", "/rollouts/r") == (204, None)
    assert (await ask("DELETE", "/rollouts/r"))[0] == 404


async def test_waiting_ends_with_the_time_or_the_rollout(ask, two_turns):
    assert await ask("GET", "/rollouts/r?wait=closed&timeout_s=0") == (204, None)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = group.create_task(ask("GET", "/rollouts/r?wait=closed&timeout_s=30"))
        await ask("POST", "/rollouts/r/close")
    assert waiting.result()[1]["state"] == "closed"
    status, said = await ask("GET", "/rollouts/r?idle_s=1")
    assert (status, said["error"]["code"]) == (422, "invalid_query")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/rollouts?stat=open"),
        ("GET", "/rollouts/r/graph?x=1"),
        ("GET", "/rollouts/r/sequences?rolse=main"),
        ("GET", "/rollouts/r/calls?ids=yes"),
        ("POST", "/rollouts/r/close?wait_s=1"),
        ("GET", "/engines?x"),
        ("GET", "/ready?x=1"),
    ],
)
async def test_a_question_that_nobody_reads_is_refused(ask, two_turns, method, path):
    status, said = await ask(method, path)
    assert (status, said["error"]["code"]) == (422, "invalid_query")
    assert said["error"]["hint"]


async def test_a_verdict_overrules(ask, two_turns):
    status, rollout = await ask("PUT", "/rollouts/r/roles", {"conversation": 0, "role": "auxiliary"})
    assert (status, rollout["n_main_calls"]) == (200, 0)
    _, graph = await ask("GET", "/rollouts/r/graph")
    (found,) = graph["conversations"]
    assert (found["role"], found["evidence"][-1]["rule"]) == ("auxiliary", "overruled")
    # A closed rollout takes a verdict too.
    await ask("POST", "/rollouts/r/close")
    assert (await ask("PUT", "/rollouts/r/roles", {"conversation": 0, "role": "main"}))[1]["n_main_calls"] == 2
    _, cut = await ask("GET", "/rollouts/r/sequences")
    assert cut["n_trained_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"conversation": 0, "role": "boss"}, "invalid_role"),
        ({"conversation": 7, "role": "main"}, "unknown_conversation"),
        ({"conversaton": 0, "role": "main"}, "invalid_body"),
    ],
)
async def test_a_verdict_that_cannot_be_taken(ask, two_turns, body, code):
    status, said = await ask("PUT", "/rollouts/r/roles", body)
    assert (status, said["error"]["code"]) == (422, code)
    assert said["error"]["hint"]


async def test_engines(ask):
    _, page = await ask("GET", "/engines")
    (engine,) = page["engines"]
    assert page["next"] is None
    assert (engine["kind"], engine["version"], engine["models"], engine["tier"]) == (
        "vllm",
        "0.32.0",
        ["tiny"],
        "train",
    )


async def test_ready_names_what_is_not(plane, ask):
    status, ready = await ask("GET", "/ready")
    assert (status, ready["ready"], ready["engine"]) == (200, True, {"ok": True, "reason": None})
    assert set(ready) == {"ready", "engine", "store", "tunnel"}
    plane.engine.healthy, plane.engine.reason = False, "connection refused"
    status, ready = await ask("GET", "/ready")
    assert (status, ready["ready"]) == (503, False)
    assert ready["engine"] == {"ok": False, "reason": "vllm=http://e: connection refused"}
    assert ready["store"]["ok"] is True
    assert (await ask("GET", "/health")) == (200, {"ok": True, "nonce": "n0"})


async def test_answers_are_compressed_on_request(plane, two_turns):
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}, auto_decompress=False) as session:
        for asked, got in (("gzip", "gzip"), ("identity", None)):
            async with session.get(plane.url + "/rollouts/r/graph", headers={"Accept-Encoding": asked}) as answer:
                assert answer.headers.get("Content-Encoding") == got


async def test_a_call_without_its_arrays(ask, two_turns):
    whole, bare = (await ask("GET", "/rollouts/r/calls/0"))[1], (await ask("GET", "/rollouts/r/calls/0?ids=0"))[1]
    arrays = {name: whole.pop(name) for name in ("prompt_ids", "sampled_ids", "logprobs")}
    assert arrays == {"prompt_ids": [1, 2, 3], "sampled_ids": [4, 5], "logprobs": [-0.5, -0.5]}
    assert whole == bare


@pytest.mark.parametrize("path", ["/rollout", "/rollouts/r/none"])
async def test_what_is_not_there_yet_is_not_routed(ask, path):
    assert (await ask("GET", path))[1]["error"]["code"] == "not_found"


async def test_a_caller_that_hangs_up_still_closes_the_rollout(plane, ask, two_turns):
    live = await plane.rollouts._load("r")
    live.begin(2, lambda: None)
    sealed = live.changed
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        closing = group.create_task(ask("POST", "/rollouts/r/close", {"wait_s": 30}))
        await sealed.wait()
        closing.cancel()
        await plane.hung_up.wait()
        live.end(2)
        assert (await ask("GET", "/rollouts/r?wait=closed&timeout_s=10"))[1]["state"] == "closed"


async def test_what_a_route_takes_is_said_where_it_takes_something_else(plane):
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
        session.post(plane.url + "/tunnels") as answer,
    ):
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"


async def test_a_refusal_is_no_failure_in_the_log(ask, caplog):
    assert (await ask("DELETE", "/rollouts/none"))[0] == 404
    assert not caplog.records
