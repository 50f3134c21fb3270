"""The whole appliance from outside: keys, routes, limits, bad input, and start-up."""

import asyncio
import contextlib
import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest
from backports import zstd

from capture.app import Appliance
from capture.errors import EngineError, StoreError, UsageError
from capture.settings import Settings
from capture.store import retention
from tests.engine import STREAM, Engine, running, whole
from tests.house import ASK, House, house


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


@pytest.fixture
async def home(engine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


async def ask(home: House, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
    async with home.session.request(method, home.appliance.data_url + path, **options) as answer:
        body = await answer.read()
        return answer.status, json.loads(body) if body else None, answer.headers


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def answered(engine: Engine, home: House, rollout: dict[str, Any], reply: Any = None, **body: Any) -> Any:
    """One call, answered whole."""
    async with asyncio.TaskGroup() as both:
        task = both.create_task(_json(home.chat(rollout, **body)))
        (await engine.next()).answer(whole([5, 6, 7]) if reply is None else reply)
    return task.result()


async def _json(context: Any) -> tuple[int, Any]:
    async with context as response:
        return response.status, await response.json()


# Keys


async def test_only_health_needs_no_key(home: House) -> None:
    status, body, _ = await ask(home, "GET", "/healthz")
    assert (status, body) == (200, {"ok": True, "nonce": home.appliance.nonce})
    assert (await ask(home, "HEAD", "/"))[0] == 200
    for method, path in [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/"), ("POST", "/tokenize")]:
        status, body, _ = await ask(home, method, path)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key"), path


@pytest.mark.parametrize("headers", [{}, bearer("sk-wrong"), {"x-api-key": "sk-wrong"}, bearer("é")])
async def test_a_key_that_opens_nothing_gets_401_in_the_dialects_shape(home: House, headers: dict) -> None:
    status, body, _ = await ask(home, "POST", "/v1/chat/completions", json=ASK, headers=headers)
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert body["error"]["message"]


async def test_the_secret_is_taken_from_every_place(home: House) -> None:
    rollout = await home.rollout()
    secret = rollout["secret"]
    for path, headers in [
        ("/v1/models", bearer(secret)),
        ("/models", {"x-api-key": secret}),
        ("/any/prefix/v1/models", {"api-key": secret}),
        (f"/v1/models?key={secret}", {}),
        (f"/r/{secret}/v1/models", {}),
    ]:
        status, body, _ = await ask(home, "GET", path, headers=headers)
        assert (status, body["data"][0]["id"]) == (200, "tiny"), path
    status, body, _ = await ask(home, "GET", "/v1beta/models", headers={"x-goog-api-key": secret})
    assert (status, body["models"][0]["name"]) == (200, "models/tiny")


async def test_a_tool_servers_secret_may_not_sample(home: House) -> None:
    rollout = await home.rollout()
    status, body, _ = await ask(home, "POST", "/v1/chat/completions", json=ASK, headers=bearer(rollout["tools_secret"]))
    assert (status, body["error"]["code"]) == (403, "tools_secret")


async def test_a_closed_rollouts_key_opens_nothing(home: House) -> None:
    rollout = await home.rollout()
    assert (await ask(home, "GET", "/v1/models", headers=bearer(rollout["secret"])))[0] == 200
    await home.control("POST", f"/rollouts/{rollout['id']}/close", json={})
    status, body, _ = await ask(home, "POST", "/v1/chat/completions", json=ASK, headers=bearer(rollout["secret"]))
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_a_rollouts_key_does_not_open_another(engine, home: House) -> None:
    one, two = await home.rollout(), await home.rollout()
    await answered(engine, home, one)
    assert len((await home.graph(one))["calls"]) == 1
    assert (await home.graph(two))["calls"] == []


# Routes


async def test_models_come_in_the_dialects_form(home: House) -> None:
    rollout = await home.rollout()
    headers = bearer(rollout["secret"])
    _, body, _ = await ask(home, "GET", "/v1/models", headers=headers)
    assert (body["object"], [card["id"] for card in body["data"]]) == ("list", ["tiny"])
    assert body["data"][0]["max_model_len"] == 4096
    status, body, _ = await ask(home, "GET", "/v1/models/whatever/name", headers=headers)
    assert (status, body["id"]) == (200, "whatever/name")


async def test_a_strict_rollout_lists_and_serves_its_model_alone(home: House) -> None:
    rollout = await home.rollout(strict_model=True)
    headers = bearer(rollout["secret"])
    assert (await ask(home, "GET", "/v1/models/gpt-9", headers=headers))[0] == 404
    status, body, _ = await ask(home, "POST", "/v1/chat/completions", json={**ASK, "model": "gpt-9"}, headers=headers)
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("path", ["/v1/nope", "/inference/v1/abort_requests", "/v1/completions/render", "/pause", "/"])
async def test_any_other_path_is_404_and_never_reaches_the_engine(engine, home: House, path: str) -> None:
    rollout = await home.rollout()
    status, body, _ = await ask(home, "POST", path, json=ASK, headers=bearer(rollout["secret"]))
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert engine.requests == []


async def test_tokenising_is_relayed_and_not_recorded(home: House) -> None:
    rollout = await home.rollout()
    status, body, _ = await ask(
        home, "POST", "/tokenize", json={"model": "gpt-9", "prompt": "x"}, headers=bearer(rollout["secret"])
    )
    assert (status, body) == (200, {"tokens": [1, 2], "asked": {"model": "tiny", "prompt": "x"}})
    assert (await home.graph(rollout))["calls"] == []


FETCHING = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]}]


async def test_media_by_url_are_refused_where_nothing_is_sampled(home: House) -> None:
    answers = []
    for allow in ([], ["media_urls"]):
        headers = bearer((await home.rollout(allow=allow))["secret"])
        status, body, _ = await ask(home, "POST", "/tokenize", json={"messages": FETCHING}, headers=headers)
        answers.append((status, body["error"]["code"] if "error" in body else body["asked"]))
    assert answers == [(400, "media_url_refused"), (200, {"messages": FETCHING})]


async def test_media_by_url_are_refused_when_tokens_are_counted(engine, home: House) -> None:
    source = {"type": "url", "url": "http://10.0.0.1/"}
    asked = {"model": "m", "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    rollout = await home.rollout()
    answered, _, _ = await ask(
        home, "POST", "/v1/messages/count_tokens", json=asked, headers={"x-api-key": rollout["secret"]}
    )
    assert answered == 400
    assert engine.requests == []


# HTTP


async def test_a_websocket_is_refused_at_once(engine, home: House) -> None:
    for path in ("/v1/responses", "/any/prefix/v1/responses", "/v1/chat/completions"):
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        status, body, headers = await ask(home, "GET", path, headers=upgrade)
        assert (status, body["error"]["code"], headers["Connection"]) == (426, "no_websocket", "close")
    assert engine.requests == []


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_compressed_requests_are_read(engine, home: House, coding: str) -> None:
    rollout = await home.rollout()
    plain = json.dumps({**ASK, "user": "x" * 5000}).encode()
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}[coding]
    headers = {**bearer(rollout["secret"]), "Content-Type": "application/json", "Content-Encoding": coding}
    async with asyncio.TaskGroup() as both:
        task = both.create_task(ask(home, "POST", "/v1/chat/completions", data=pack(plain), headers=headers))
        asked = await engine.next()
        asked.answer(whole([5]))
    assert task.result()[0] == 200
    assert asked.body["user"] == "x" * 5000
    assert "Content-Encoding" not in asked.headers


async def test_a_body_that_is_not_what_its_coding_says_is_refused(engine, home: House) -> None:
    rollout = await home.rollout()
    headers = {**bearer(rollout["secret"]), "Content-Encoding": "gzip"}
    status, body, _ = await ask(home, "POST", "/v1/chat/completions", data=b"not gzip", headers=headers)
    assert (status, bool(body["error"]["message"])) == (400, True)
    assert engine.requests == []


async def test_a_bomb_ends_at_the_limit(engine, tmp_path: Path) -> None:
    async with house(engine, tmp_path, max_body_mib=1) as home:
        rollout = await home.rollout()
        headers = {**bearer(rollout["secret"]), "Content-Encoding": "gzip"}
        bomb = gzip.compress(b" " * 50 * 2**20)
        status, body, _ = await ask(home, "POST", "/v1/chat/completions", data=bomb, headers=headers)
        assert (status, body["error"]["code"]) == (413, "body_too_large")


# Bad input


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"{}", "messages"),
        (b'{"messages": 5}', "messages"),
        (b'{"messages": [], "stream": "yes"}', "stream"),
        (b'{"messages": [], "n": 0}', "n"),
        (b'{"messages": [], "model": 5}', "model"),
    ],
)
async def test_what_no_engine_could_take_is_refused_by_name_and_recorded(home: House, body: bytes, names: str) -> None:
    rollout = await home.rollout()
    headers = {**bearer(rollout["secret"]), "Content-Type": "application/json"}
    status, answer, _ = await ask(home, "POST", "/v1/chat/completions", data=body, headers=headers)
    assert status == 400
    assert names in answer["error"]["message"] + str(answer["error"].get("param"))
    assert set(answer["error"]) >= {"message", "type", "param", "code"}
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["error"]["blame"], call["error"]["status"]) == ("error", "client", 400)


async def test_an_oversized_body_is_413(engine, tmp_path: Path) -> None:
    async with house(engine, tmp_path, max_body_mib=1) as home:
        rollout = await home.rollout()
        big = json.dumps({**ASK, "pad": "x" * 2**20}).encode()
        for data in (io.BytesIO(big), _slowly(big)):
            status, body, _ = await ask(
                home, "POST", "/v1/chat/completions", data=data, headers=bearer(rollout["secret"])
            )
            assert (status, body["error"]["code"]) == (413, "body_too_large")
        assert engine.requests == []


async def _slowly(data: bytes):
    for at in range(0, len(data), 65536):
        yield data[at : at + 65536]


async def test_an_engine_that_is_down_gets_502_and_is_recorded(engine, home: House) -> None:
    rollout = await home.rollout()
    await engine.close()
    status, body = await _json(home.chat(rollout))
    assert (status, body["error"]["code"]) == (502, "engine_unreachable")
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["error"]["blame"]) == ("error", "engine")
    ready = await home.control("GET", "/ready", status=503)
    assert (ready["ready"], ready["engine"]["ok"]) == (False, False)


# Limits and pins


@pytest.mark.parametrize("stream", [False, True])
async def test_at_its_limit_an_agent_gets_a_last_reply_then_an_error(engine, home: House, stream: bool) -> None:
    rollout = await home.rollout(limits={"max_calls": 1})
    assert (await answered(engine, home, rollout))[0] == 200
    for _ in range(3):
        async with home.chat(rollout, stream=stream, tools=[TOOL]) as response:
            text = await response.text()
            assert response.status == 200
            assert "max_calls" in text
            assert '"stop"' in text
            assert "tool_calls" not in text
            assert text.endswith("data: [DONE]\n\n") == stream
    status, body = await _json(home.chat(rollout, stream=stream))
    assert (status, body["error"]["code"]) == (400, "rollout_limit")
    assert "context" not in body["error"]["message"]
    graph = await home.graph(rollout)
    assert [call["status"] for call in graph["calls"]] == ["complete", *["stopped"] * 4]
    assert graph["rollout"]["stopped"] == {"limit": "max_calls", "at_call": 1, "stops": 4}
    assert "limit_stop" in [finding["code"] for finding in graph["findings"]]
    assert len(engine.requests) == 1


async def test_calls_that_run_at_once_cannot_pass_a_limit_together(engine, home: House) -> None:
    rollout = await home.rollout(limits={"max_calls": 3})
    tasks = [asyncio.ensure_future(_json(home.chat(rollout, seed=i))) for i in range(8)]  # noqa: TID251  a client's
    for _ in range(3):
        (await engine.next()).answer(whole([5]))
    replies = [await task for task in tasks]
    assert sum("max_calls" in json.dumps(body) for _, body in replies) == 5
    assert len(engine.requests) == 3


async def test_an_error_gives_its_place_back(engine, home: House) -> None:
    rollout = await home.rollout(limits={"max_calls": 1})
    async with asyncio.TaskGroup() as both:
        task = both.create_task(_json(home.chat(rollout)))
        (await engine.next()).answer({"error": {"message": "busy"}}, status=503)
    assert task.result()[0] == 503
    await home.idle(rollout)
    assert (await answered(engine, home, rollout))[1]["choices"][0]["message"]["content"] == "Hi"


async def test_pins_and_clamps_reach_the_engine(engine, home: House) -> None:
    rollout = await home.rollout(sampling={"temperature": 1.0}, limits={"max_output_tokens": 64})
    async with asyncio.TaskGroup() as both:
        task = both.create_task(_json(home.chat(rollout, temperature=0.2, max_tokens=32_000)))
        asked = await engine.next()
        asked.answer(whole([5]))
    assert task.result()[0] == 200
    assert (asked.body["temperature"], asked.body["max_tokens"]) == (1.0, 64)
    await home.idle(rollout)
    sampling = (await home.call(rollout, 0))["sampling"]
    assert (sampling["asked"]["temperature"], sampling["sent"]["temperature"]) == (0.2, 1.0)


async def test_what_steers_the_engine_is_named_in_a_finding(engine, home: House) -> None:
    rollout = await home.rollout()
    await answered(engine, home, rollout, priority=3)
    assert "priority" not in engine.requests[0].body
    findings = await home.control("GET", f"/rollouts/{rollout['id']}/findings")
    (found,) = [one for one in findings["findings"] if one["code"] == "steering_removed"]
    assert (found["calls"], found["data"]["fields"]) == ([0], ["priority"])


# Across a restart


async def test_a_restart_loses_nothing_and_goes_on_counting(engine, tmp_path: Path) -> None:
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout(limits={"max_calls": 2})
        await answered(engine, home, rollout)
        await home.idle(rollout)
        before = await home.graph(rollout)
        key = home.appliance.admin_key
    async with house(engine, tmp_path) as home:
        assert home.appliance.admin_key == key
        assert (await home.graph(rollout))["calls"] == before["calls"]
        rollout["base_url"] = home.appliance.data_url + "/v1"
        await answered(engine, home, rollout)
        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [call["n"] for call in graph["calls"]] == [0, 1]
        _, body = await _json(home.chat(rollout))
        assert "max_calls" in json.dumps(body)


def break_store(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*args: Any) -> None:
        raise StoreError("store_full", "The disk is full.")

    monkeypatch.setattr(home.appliance.store, "finish", full)


async def test_a_store_that_fails_takes_no_reply_from_the_agent_and_marks_the_rollout(
    engine, home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = await home.rollout()
    with monkeypatch.context() as broken:
        break_store(home, broken)
        assert (await answered(engine, home, rollout))[0] == 200
        assert (await home.control("GET", f"/rollouts/{rollout['id']}"))["incomplete"] is True
    assert (await answered(engine, home, rollout))[0] == 200
    await home.idle(rollout)
    graph = await home.graph(rollout)
    assert graph["rollout"]["incomplete"] is True
    (found,) = [one for one in graph["findings"] if one["code"] == "capture_incomplete"]
    assert found["calls"] == [0]
    assert [call["n"] for call in graph["calls"] if call["status"] == "complete"] == [1]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_operator_may_choose_to_refuse_what_cannot_be_stored(
    engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async with house(engine, tmp_path, on_store_failure="refuse") as home:
        rollout = await home.rollout()
        break_store(home, monkeypatch)
        async with asyncio.TaskGroup() as both:
            task = both.create_task(_text(home.chat(rollout, stream=stream)))
            exchange = await engine.next()
            exchange.send(*STREAM).end() if stream else exchange.answer(whole([5]))
        status, text = task.result()
        assert (status, 'finish_reason": "stop' in text) == (200 if stream else 507, False)


async def _text(context: Any) -> tuple[int, str]:
    async with context as response:
        try:
            return response.status, await response.text()
        except aiohttp.ClientPayloadError:
            return response.status, ""


# Start-up


def settings(folder: Path, **given: Any) -> Settings:
    base = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "store": f"sqlite:///{folder}/t.db"}
    return Settings(**{**base, **given})


async def failing(given: Settings) -> Exception:
    appliance = Appliance(given)
    with pytest.raises((EngineError, UsageError)) as caught:
        await appliance.start()
    return caught.value


async def test_an_engine_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    error = await failing(settings(tmp_path, engine=("vllm=http://127.0.0.1:9",)))
    assert error.code == "engine_unreachable"


async def test_a_model_that_the_engine_does_not_serve_ends_the_start(engine, tmp_path: Path) -> None:
    error = await failing(settings(tmp_path, engine=(f"vllm={engine.url}",), model="qwen"))
    assert error.code == "wrong_model"
    assert "tiny" in error.message


async def test_an_engine_without_ids_ends_the_start_unless_eval_will_do(tmp_path: Path) -> None:
    def dumb(exchange) -> bool:
        form = whole([5, 6, 7])
        form["prompt_token_ids"] = None
        form["choices"][0] |= {"token_ids": None}
        exchange.answer(form)
        return True

    async with running(auto=dumb) as engine:
        error = await failing(settings(tmp_path, engine=(f"vllm={engine.url}",)))
        assert error.code == "tier_too_low"
        assert "ids were missing" in error.message
        async with house(engine, tmp_path, require_tier="eval") as home:
            rollout = await home.rollout()
            assert rollout["tier"] == "eval"
            await home.control("POST", "/rollouts", json={"require_tier": "train"}, status=409)


async def test_an_engine_that_drops_ids_in_streams_is_found_out(tmp_path: Path) -> None:
    def old(exchange) -> bool:
        if exchange.body.get("stream"):
            exchange.send(*(piece.replace(b'"token_ids": [', b'"x": [') for piece in STREAM)).end()
        else:
            exchange.answer(whole([5, 6, 7]))
        return True

    async with running(auto=old) as engine:
        error = await failing(settings(tmp_path, engine=(f"vllm={engine.url}",)))
        assert "streamed" in error.message


@pytest.mark.parametrize(("logprob", "mode"), [(0.0, "processed"), (-12.0, "raw")])
async def test_one_allowed_token_tells_the_logprob_mode(tmp_path: Path, logprob: float, mode: str) -> None:
    def probed(exchange) -> bool:
        if allowed := exchange.body.get("allowed_token_ids"):
            form = whole(allowed, finish="length")
            form["choices"][0]["logprobs"]["content"][0]["logprob"] = logprob
            exchange.answer(form)
        elif exchange.body.get("stream"):
            exchange.send(*STREAM).end()
        else:
            exchange.answer(whole([5, 6, 7]))
        return True

    async with running(auto=probed) as engine, house(engine, tmp_path) as home:
        assert (home.appliance.engine.tier, home.appliance.engine.logprobs_mode) == ("train", mode)


async def test_the_engines_key_is_sent_to_it_and_shown_nowhere(tmp_path: Path, engine) -> None:
    (tmp_path / "key").write_text("engine-secret\n")
    async with house(engine, tmp_path, engine_key_file=(f"vllm={tmp_path}/key",)) as home:
        rollout = await home.rollout()
        await answered(engine, home, rollout)
        assert engine.requests[0].headers["Authorization"] == "Bearer engine-secret"
        assert rollout["secret"] not in json.dumps(engine.requests[0].headers)
        await home.idle(rollout)
        for path in ("/engines", f"/rollouts/{rollout['id']}/graph", f"/rollouts/{rollout['id']}/calls/0", "/ready"):
            assert "engine-secret" not in json.dumps(await home.control("GET", path))
        assert "engine-secret" not in repr(home.appliance)


async def test_a_port_that_is_taken_is_named(engine, tmp_path: Path) -> None:
    port = engine.url.rsplit(":", 1)[1]
    error = await failing(settings(tmp_path, engine=(f"vllm={engine.url}",), listen=f"127.0.0.1:{port}"))
    assert isinstance(error, UsageError)
    assert port in error.message


async def test_no_admin_key_is_for_loopback_alone(engine, tmp_path: Path) -> None:
    error = await failing(
        settings(tmp_path, engine=(f"vllm={engine.url}",), no_admin_key=True, admin_listen="0.0.0.0:0")
    )
    assert isinstance(error, UsageError)


async def test_the_admin_key_is_made_once_and_only_its_owner_may_read_it(engine, tmp_path: Path) -> None:
    async with house(engine, tmp_path) as home:
        key = tmp_path / "treering.db.key"
        assert key.read_text().strip() == home.appliance.admin_key
        assert key.stat().st_mode & 0o777 == 0o600


async def test_nothing_reaches_the_control_plane_by_the_data_port(home: House) -> None:
    rollout = await home.rollout()
    headers = bearer(home.appliance.admin_key or "")
    for path in ("/rollouts", f"/rollouts/{rollout['id']}/graph", "/ready", "/engines"):
        status, _, _ = await ask(home, "GET", path, headers=headers)
        assert status == 401, path


async def test_requests_on_one_connection_are_served_one_by_one(engine, home: House) -> None:
    rollout = await home.rollout()
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as one:
        for _ in range(3):
            async with asyncio.TaskGroup() as both:
                task = both.create_task(
                    _json(
                        one.post(rollout["base_url"] + "/chat/completions", json=ASK, headers=bearer(rollout["secret"]))
                    )
                )
                (await engine.next()).answer(whole([5]))
            assert task.result()[0] == 200


TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


# Several engines


async def test_a_call_fails_over_before_its_first_byte(engine, tmp_path: Path) -> None:
    async with running() as other, house(engine, tmp_path, also=(f"vllm={other.url}",)) as home:
        rollout = await home.rollout()
        first = home.appliance.fleet.order(rollout["id"], model="tiny")[0]
        dead, alive = (engine, other) if first.url == engine.url else (other, engine)
        await dead.close()
        assert (await answered(alive, home, rollout))[0] == 200
        await home.idle(rollout)
        assert (await home.call(rollout, 0))["engine"] == f"vllm={alive.url}"


async def test_a_rollout_may_bring_its_own_engine_from_the_list_alone(engine, tmp_path: Path) -> None:
    async with running() as own, house(engine, tmp_path, allow_engine=(own.url,)) as home:
        rollout = await home.rollout(engine=own.url + "/v1")
        assert (await answered(own, home, rollout))[0] == 200
        assert engine.requests == []
        refused = await home.control("POST", "/rollouts", json={"engine": "http://127.0.0.1:1"}, status=422)
        assert refused["error"]["code"] == "engine_not_allowed"


async def test_an_injected_field_that_the_engine_refuses_is_left_out_and_said_once(engine, home: House) -> None:
    rollout = await home.rollout()
    error = {"error": {"message": "Unknown field: top_logprobs", "code": 400}}
    async with asyncio.TaskGroup() as both:
        task = both.create_task(_json(home.chat(rollout)))
        (await engine.next()).answer(error, status=400)
        second = await engine.next()
        second.answer(whole([5]))
    assert task.result()[0] == 200
    assert "top_logprobs" not in second.body
    assert second.body["return_token_ids"] is True
    await answered(engine, home, rollout)
    assert len(engine.requests) == 3
    await home.idle(rollout)
    findings = (await home.graph(rollout))["findings"]
    (found,) = [one for one in findings if one["code"] == "injection_refused"]
    assert (found["calls"], found["data"]["fields"]) == ([0], ["top_logprobs"])


async def test_an_agents_own_mistake_is_not_taken_for_ours(engine, home: House) -> None:
    rollout = await home.rollout()
    error = {"error": {"message": "temperature must be non-negative", "code": 400}}
    async with asyncio.TaskGroup() as both:
        task = both.create_task(_json(home.chat(rollout, temperature=-1)))
        (await engine.next()).answer(error, status=400)
    assert task.result() == (400, error)
    assert len(engine.requests) == 1


# What a translated dialect leaves behind


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello there"}]}),
        ("/v1/responses", {"input": "Hello there"}),
        ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "Hello there"}]}]}),
    ],
)
async def test_a_translated_calls_history_is_stored_once_as_it_was_sent(
    engine, home: House, tmp_path: Path, path: str, said: dict
) -> None:
    rollout = await home.rollout()
    headers = {"x-api-key": rollout["secret"]}
    async with asyncio.TaskGroup() as both:
        task = both.create_task(ask(home, "POST", path, json=said, headers=headers))
        asked = await engine.next()
        asked.answer(whole([5, 6, 7]))
    assert task.result()[0] == 200
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["request"], call["sent"]) == (said, asked.body)
    (stored,) = await home.appliance.store.calls(rollout["id"])
    assert [(message.role, message.text) for message in stored.messages] == [("user", "Hello there")]
    with contextlib.closing(apsw.Connection(str(tmp_path / "treering.db"), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        # No copy of the history in canonical form: it is read from what was sent.
        assert list(db.execute("SELECT messages FROM call")) == [(None,)]


# What is old


async def test_what_is_old_is_moved_away_and_dropped(engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SWEEP_EVERY_S", 0.01)
    async with house(engine, tmp_path, keep_days=0.0, archive=str(tmp_path / "old")) as home:
        closed, opened = await home.rollout(), await home.rollout()
        await answered(engine, home, closed)
        await home.control("POST", f"/rollouts/{closed['id']}/close", json={})
        async with asyncio.timeout(10):
            while (await home.control("GET", "/rollouts?state=closed"))["rollouts"]:
                pass
        assert [each["id"] for each in (await home.control("GET", "/rollouts"))["rollouts"]] == [opened["id"]]
    (archive,) = (tmp_path / "old").glob("rollouts-*.db")
    async with house(engine, tmp_path, store=f"sqlite:///{archive}") as home:
        graph = await home.graph(closed)
    assert [call["status"] for call in graph["calls"]] == ["complete"]
