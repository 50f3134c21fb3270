"""Keys: whose they are, what wrong ones cost, and what is said of one that an agent prints."""

import json
import logging
from pathlib import Path
from typing import Any

import apsw
import pytest
from aiohttp import web
from yarl import URL

from capture import keys
from capture.throttle import BURST
from tests.engine import whole
from tests.house import ASK, House, house
from tests.playbook import case
from tests.wire import WireEngine, wire, wired


@pytest.fixture
async def engine():
    async with wired() as one:
        yield one


@pytest.fixture
async def home(engine: WireEngine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


async def ask(url: str, method: str, path: str, key: str | None, body: Any = None) -> tuple[int, dict[str, str], Any]:
    """Ask on a connection of its own."""
    text = b"" if body is None else json.dumps(body).encode()
    shown = [] if key is None else [("Authorization", f"Bearer {key}")]
    async with wire(url) as client:
        headers = ("Host", "127.0.0.1"), *shown, ("Content-Length", str(len(text)))
        answer = await client.ask(method, path, *headers, body=text)
    return answer.status, dict(answer.headers), json.loads(answer.body) if answer.body else None


# Wrong keys


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", lambda said: said["error"]["code"]),
        ("/v1/responses", lambda said: said["error"]["code"]),
        ("/v1/messages", lambda said: {"authentication_error": "invalid_api_key"}[said["error"]["type"]]),
        ("/v1beta/models/m:generateContent", lambda said: {401: "invalid_api_key"}[said["error"]["code"]]),
    ],
)
async def test_wrong_keys_are_throttled_and_right_ones_never(
    engine: WireEngine, home: House, path: str, shape: Any
) -> None:
    rollout = await home.rollout()
    answers = [await ask(home.appliance.data_url, "POST", path, f"wrong-{i}", {}) for i in range(BURST + 5)]
    for i, (status, headers, said) in enumerate(answers):
        # Still the dialect's own 401: an agent that retries a 429 for ever would not stop.
        assert (status, shape(said)) == (401, "invalid_api_key")
        assert ("retry-after" in headers) == (i >= BURST)
        assert (headers.get("connection") == "close") == (i >= BURST)
    # From the same address, in the same second.
    for _ in range(5):
        status, headers, _ = await ask(home.appliance.data_url, "POST", "/v1/chat/completions", rollout["secret"], ASK)
        assert (status, "retry-after" in headers) == (200, False)
    assert (await ask(home.appliance.data_url, "GET", "/healthz", None))[0] == 200


async def test_wrong_admin_keys_are_throttled_and_the_right_one_never(home: House) -> None:
    url, key = home.appliance.control_url, home.appliance.admin_key
    answers = [await ask(url, "GET", "/rollouts", f"wrong-{i}" if i % 2 else None) for i in range(BURST + 5)]
    for i, (status, headers, said) in enumerate(answers):
        late = i >= BURST
        assert (status, said["error"]["code"]) == ((429, "too_many_wrong_keys") if late else (401, "unauthorized"))
        assert ("retry-after" in headers, headers.get("connection") == "close") == (late, late)
    for _ in range(3):
        assert (await ask(url, "GET", "/rollouts", key))[0] == 200
    # The one plane's wrong keys are no matter of the other's.
    status, headers, _ = await ask(home.appliance.data_url, "POST", "/v1/chat/completions", "wrong", {})
    assert (status, "retry-after" in headers) == (401, False)


async def test_calls_with_a_strangers_key_are_told_to_a_rollout_whose_agent_never_came(home: House) -> None:
    before = await home.rollout()
    await home.control("POST", f"/rollouts/{before['id']}/close", json={"wait_s": 0})
    waiting, served = await home.rollout(), await home.rollout()
    async with home.chat(served):
        pass
    for key in ("sk-of-another-program", before["secret"], before["secret"]):
        assert (await ask(home.appliance.data_url, "POST", "/v1/chat/completions", key, ASK))[0] == 401
    for rollout in (waiting, served):
        await home.control("POST", f"/rollouts/{rollout['id']}/close", json={"wait_s": 5})
    found = {one["code"]: one for one in (await home.graph(waiting))["findings"]}
    assert found["unknown_secret_calls"]["data"] == {"calls": 3}
    assert found["no_calls"]["data"]["near"] == ["unknown_secret_calls"]
    assert "unknown_secret_calls" not in {one["code"] for one in (await home.graph(served))["findings"]}


# Whose key opens what


async def test_each_plane_has_its_own_keys_and_paths(home: House) -> None:
    rollout = await home.rollout()
    data, control, admin = home.appliance.data_url, home.appliance.control_url, home.appliance.admin_key
    for method, path in (
        ("GET", "/rollouts"), ("POST", "/rollouts"), ("GET", f"/rollouts/{rollout['id']}/graph"), ("GET", "/engines"),
        ("DELETE", f"/rollouts/{rollout['id']}"), ("GET", "/events"), ("GET", "/metrics"), ("GET", "/openapi.json"),
        ("POST", "/engine/weights"), ("POST", "/engine/pause"), ("GET", "/tunnels"), ("GET", "/ready"), ("GET", "/"),
        ("PUT", f"/rollouts/{rollout['id']}/reward"), ("GET", "/sequences"),
    ):  # fmt: skip
        # The control plane's paths are none on the data plane, whoever asks.
        for key, status in ((admin, 401), (rollout["secret"], 404), (rollout["tools_secret"], 403), (None, 401)):
            assert (await ask(data, method, path, key, {}))[0] == status, (method, path, key)
        # And a rollout's secrets open nothing on the control plane.
        if path not in ("/ready", "/"):
            for key in (rollout["secret"], rollout["tools_secret"]):
                assert (await ask(control, method, path, key, {}))[0] in (401, 429)
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/models", f"/r/{rollout['secret']}/v1/chat/completions"):
        assert (await ask(control, "POST", path, admin, ASK))[0] == 404
    assert (await home.graph(rollout))["calls"] == []


async def test_secrets_are_stored_as_digests(home: House, tmp_path: Path) -> None:
    rollout = await home.rollout()
    await home.appliance.store.flush()
    with apsw.Connection(str(tmp_path / "treering.db"), flags=apsw.SQLITE_OPEN_READONLY) as db:
        stored = list(db.execute("SELECT secret, tools_secret FROM rollout"))
    assert stored == [(keys.digest(rollout["secret"]), keys.digest(rollout["tools_secret"]))]
    for name in ("treering.db", "treering.db-wal"):
        data = (tmp_path / name).read_bytes()
        for secret in (rollout["secret"], rollout["tools_secret"]):
            assert secret.encode() not in data
            assert secret.encode().hex().encode() not in data.lower()


async def test_a_key_is_looked_up_by_its_digest_and_compared_in_constant_time(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capture import rollouts

    rollout = await home.rollout()
    compared = []
    real = rollouts.hmac.compare_digest
    monkeypatch.setattr(rollouts.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    async with home.chat(rollout) as answer:
        assert answer.status == 200
    digest = keys.digest(rollout["secret"])
    assert (digest, digest) in compared


# A key in content

CHAT = ("/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}]})
DIALECTS = {
    "chat": CHAT,
    "completions": ("/v1/completions", lambda text: {"prompt": text}),
    "responses": ("/v1/responses", lambda text: {"input": text}),
    "messages": (
        "/v1/messages",
        lambda text: {"max_tokens": 50, "messages": [{"role": "user", "content": text}]},
    ),
    "gemini": (
        "/v1beta/models/m:generateContent",
        lambda text: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
    ),
}


def says(text: str) -> Any:
    """An engine's reply with this text, a piece a token where it is streamed."""
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]

    def body(request: dict[str, Any], piece: str, finish: str | None, n: int) -> dict[str, Any]:
        ids = {"token_ids": [n], "logprobs": {"content": [{"token": "x", "logprob": -0.5, "bytes": [120]}]}}
        if "prompt" in request:
            logprobs = {"token_logprobs": [-0.5], "tokens": ["x"], "text_offset": [0], "top_logprobs": [None]}
            choice = {"index": 0, "text": piece, "finish_reason": finish, "token_ids": [n], "logprobs": logprobs}
            return {"object": "text_completion", "choices": [{**choice, "prompt_token_ids": [1, 2]}]}
        return {
            "object": "chat.completion.chunk", "prompt_token_ids": [1, 2],
            "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": finish, **ids}],
        }  # fmt: skip

    async def reply(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        usage = {"prompt_tokens": 2, "completion_tokens": len(pieces), "total_tokens": 2 + len(pieces)}
        head = {"id": "chatcmpl-9", "created": 1, "model": "tiny"}
        if asked.get("stream"):
            last = len(pieces) - 1
            chunks = [
                {**head, **body(asked, piece, "stop" if n == last else None, n)} for n, piece in enumerate(pieces)
            ]
            events = [json.dumps(chunk) for chunk in [*chunks, {**head, "choices": [], "usage": usage}]]
            stream = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
            return web.Response(body=stream.encode(), content_type="text/event-stream")
        form = whole(list(range(len(pieces))))
        form["choices"][0]["message"]["content"] = text
        if "prompt" in asked:
            form = {**head, **body(asked, text, "stop", 0), "usage": usage}
        return web.json_response(form)

    return reply


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("where", ["asked", "said", "nowhere", "other"])
async def test_an_agent_that_prints_its_key_is_told_of(
    engine: WireEngine, home: House, dialect: str, where: str, streamed: bool
) -> None:
    path, form = DIALECTS[dialect]
    rollout, another = await home.rollout(), await home.rollout()
    secret = {"other": another["secret"], "nowhere": "sk-treering-"}.get(where, rollout["secret"])
    printed = f"$ env\nOPENAI_API_KEY={secret}\nHOME=/root"
    engine.reply = says("fine, thank you" if where == "asked" else printed)
    body = {"model": "m", **form(printed if where == "asked" else "hello")}
    if dialect == "gemini":
        del body["model"]
        path = path.replace("generate", "streamGenerate") + "?alt=sse" if streamed else path
    elif streamed:
        body["stream"] = True
    headers = {"Authorization": f"Bearer {rollout['secret']}", "anthropic-version": "2023-06-01"}
    async with home.session.post(home.appliance.data_url + path, json=body, headers=headers) as answer:
        text = await answer.read()
        assert answer.status == 200, text
    await home.idle(rollout)
    graph = await home.graph(rollout)
    (call,) = graph["calls"]
    assert call["status"] == "complete"
    found = [one["calls"] for one in graph["findings"] if one["code"] == "secret_in_content"]
    assert found == ([[0]] if where in ("asked", "said") else [])
    # Content is never altered.
    kept = await home.call(rollout, 0)
    if where == "asked":
        assert secret in json.dumps(kept["request"])
        assert secret.encode() in engine.seen[-1].body
    if where == "said":
        assert secret in json.dumps(kept["reply"])


async def test_a_tool_servers_key_and_tool_calls_count_as_well(engine: WireEngine, home: House) -> None:
    rollout = await home.rollout()
    form = whole([5, 6])
    call = {"name": "bash", "arguments": json.dumps({"command": f"curl -H 'x: {rollout['tools_secret']}'"})}
    form["choices"][0]["message"] = {
        "role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}],
    }  # fmt: skip

    async def reply(request: web.Request) -> web.Response:
        return web.json_response(form)

    engine.reply = reply
    async with home.chat(rollout) as answer:
        assert answer.status == 200
    await home.idle(rollout)
    assert "secret_in_content" in {one["code"] for one in (await home.graph(rollout))["findings"]}


async def test_no_header_with_a_secret_goes_to_the_engine_or_into_the_record(engine: WireEngine, home: House) -> None:
    rollout = await home.rollout()
    headers = {
        "Authorization": f"Bearer {rollout['secret']}", "X-Custom-Auth": f"token {rollout['secret']}",
        "Referer": f"http://x/r/{rollout['tools_secret']}/", "x-treering-label": f"run {rollout['secret']}",
        "Cookie": "a=b", "X-Kept": "c",
    }  # fmt: skip
    async with home.session.post(rollout["base_url"] + "/chat/completions", json=ASK, headers=headers) as answer:
        assert answer.status == 200
    await home.idle(rollout)
    (seen,) = engine.seen
    assert ("x-kept", "c") in seen.headers
    assert "sk-treering" not in str(seen)
    call = await home.call(rollout, 0)
    assert call["hints"]["x-treering-label"] == "run sk-treering-…"
    assert rollout["secret"] not in json.dumps(call)


async def test_case_56_a_secret_opens_its_rollout_wherever_it_stands_and_goes_no_further(
    engine: WireEngine, home: House, caplog: pytest.LogCaptureFixture
) -> None:
    found = case(56)
    expected = found["expected"]
    rollout = await home.rollout()

    def spelt(text: str) -> str:
        return text.replace(expected["upstream_never_contains"], rollout["secret"])

    engine.reply = says("fine")
    with caplog.at_level(logging.DEBUG):
        for request in found["requests"]:
            path = spelt(request.get("path", "/v1/chat/completions"))
            headers = {name: spelt(value) for name, value in request["headers"].items()}
            body = ASK if "path" not in request else {"contents": [{"parts": [{"text": "Hello"}]}]}
            url = URL(home.appliance.data_url + path, encoded=True)
            async with home.session.post(url, json=body, headers=headers) as answer:
                await answer.read()
                assert answer.status == 200
        seen = len(engine.seen)
        for headers in ({}, {"Authorization": "Bearer S3CRET"}):
            url = URL(home.appliance.data_url + "/v1/chat/completions")
            async with home.session.post(url, json=ASK, headers=headers) as answer:
                assert answer.status == expected["missing_or_unknown"]
        assert len(engine.seen) == seen
    await home.idle(rollout)
    graph = await home.graph(rollout)
    assert (len(graph["calls"]) == len(found["requests"])) == expected["all_map_to_same_rollout"]
    assert not any(rollout["secret"] in str(each) for each in engine.seen)
    written = [json.dumps(graph), json.dumps(await home.control("GET", f"/rollouts/{rollout['id']}/sequences?open=1"))]
    written += [json.dumps(await home.call(rollout, n)) for n in range(len(graph["calls"]))]
    for text in (*written, caplog.text):
        assert rollout["secret"] not in text
