"""HTTP as agents and engines really speak it: faults that users of such systems have met, byte by byte."""

import base64
import gzip
import json
import time
import zlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from tests.engine import STREAM, whole
from tests.house import ASK, House, house
from tests.playbook import case, data_of
from tests.wire import WireEngine, head, wire, wired

INJECTED = {"return_token_ids", "logprobs", "top_logprobs", "stream_options"}


@pytest.fixture
async def engine():
    async with wired() as one:
        yield one


@pytest.fixture
async def home(engine: WireEngine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


def key(rollout: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {rollout['secret']}"}


async def ask(home: House, path: str, *, method: str = "POST", **options: Any) -> tuple[int, Any, bytes]:
    url = aiohttp.client.URL(home.appliance.data_url + path, encoded=True)
    async with home.session.request(method, url, **options) as answer:
        return answer.status, answer.headers, await answer.read()


def plain(body: bytes) -> dict[str, Any]:
    """What the engine was sent, but for what capture asks with."""
    return {name: value for name, value in json.loads(body).items() if name not in INJECTED}


# What an agent says, and in which order


async def test_case_60_roles_and_their_order_pass_and_the_engines_400_comes_back(engine, home: House) -> None:
    found = case(60)
    expected, upstream = found["expected"], found["upstream_response"]
    body = json.dumps(upstream["body"], indent=1).encode()

    async def refuses(request: web.Request) -> web.Response:
        return web.Response(body=body, status=upstream["status"], content_type="application/json")

    engine.reply = refuses
    rollout = await home.rollout()
    request = found["client_request"]
    status, _, answer = await ask(home, request["path"], json=request["body"], headers=key(rollout))
    assert (status, answer) == (expected["client_status"], body)
    (seen,) = engine.seen
    assert len(engine.seen) - 1 == expected["proxy_retries"]
    messages = plain(seen.body)["messages"]
    assert messages == request["body"]["messages"]
    assert messages[2]["content"] is None
    await home.idle(rollout)
    graph = await home.graph(rollout)
    assert [call["conversation"] is not None for call in graph["calls"]] == [expected["node_created"]]
    assert (await home.call(rollout, 0))["repairs"] == []


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_case_62_both_names_of_reasoning_pass_both_ways(engine, home: House, name: str) -> None:
    found = case(62)
    messages = json.loads(json.dumps(found["client_request"]["body"]["messages"]).replace("reasoning_content", name))
    wanted = json.loads(json.dumps(found["expected"]["upstream_message_1"]).replace("reasoning_content", name))
    reply = whole([5, 6, 7])
    del reply["choices"][0]["message"]["reasoning"]
    reply["choices"][0]["message"][name] = "because"

    async def reasons(request: web.Request) -> web.Response:
        return web.json_response(reply)

    engine.reply = reasons
    rollout = await home.rollout()
    _, _, answer = await ask(home, "/v1/chat/completions", json={**ASK, "messages": messages}, headers=key(rollout))
    assert json.loads(answer)["choices"][0]["message"] == reply["choices"][0]["message"]
    (seen,) = engine.seen
    assert plain(seen.body)["messages"][1] == wanted
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["request"]["messages"][1] == wanted
    assert call["reply"]["choices"][0]["message"][name] == "because"
    assert call["repairs"] == []


# Connections


@pytest.mark.parametrize("prefix", ["", "/any/prefix"])
async def test_case_64_a_websocket_is_refused_at_once(engine, home: House, prefix: str) -> None:
    found = case(64)
    expected, request = found["expected"], found["client_request"]
    rollout = await home.rollout()
    took = []
    # The best of a few tries: what is meant is that nothing is waited for, not that the machine is never busy.
    for _ in range(3):
        async with wire(home.appliance.data_url) as client:
            began = time.monotonic()
            headers = {"Host": "x", **key(rollout), **request["headers"]}
            answer = await client.ask(request["method"], prefix + request["path"], *headers.items())
            took.append(time.monotonic() - began)
            assert await client.closed()
        assert answer.status == expected["status"]
        assert ("connection", "close") in answer.headers
        assert json.loads(answer.body)["error"]["code"] == "no_websocket"
    assert min(took) * 1000 < expected["max_latency_ms"]
    assert bool(engine.seen) == expected["forwarded"]
    assert bool((await home.graph(rollout))["calls"]) == expected["recorded"]
    # The same path without an upgrade is no WebSocket.
    assert (await ask(home, prefix + request["path"], method="GET", headers=key(rollout)))[0] in (404, 405)


@pytest.mark.parametrize("coding", ["zstd", "gzip", "deflate"])
async def test_case_65_a_compressed_request_is_read(engine, home: House, coding: str) -> None:
    found = case(65)
    request, expected = found["client_request"], found["expected"]
    text = request["body_plain"].encode()
    packed = {
        "zstd": base64.b64decode(request["body_b64"]),
        "gzip": base64.b64decode(found["variants"][0]["body_b64"]),
        "deflate": zlib.compress(text),
    }[coding]
    stream = STREAM

    async def streams(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"".join(stream), content_type="text/event-stream")

    engine.reply = streams
    rollout = await home.rollout()
    headers = {**key(rollout), **request["headers"]}
    assert (await ask(home, request["path"], data=packed, headers={**headers, "Content-Encoding": coding}))[0] == 200
    del headers["Content-Encoding"]
    assert (await ask(home, request["path"], data=text, headers=headers))[0] == 200
    coded, uncoded = engine.seen
    assert coded.body == uncoded.body
    assert expected["upstream_headers_absent"] == ["Content-Encoding"]
    assert "content-encoding" not in coded.names()
    assert ("content-length", str(len(coded.body))) in coded.headers
    await home.idle(rollout)
    assert (await home.call(rollout, 0))["request"] == json.loads(text)
    # In the engine's own dialect the body itself passes.
    chat = json.dumps({**ASK, "stream": True, "user": "x" * 500}).encode()
    assert (await ask(home, "/v1/chat/completions", data=gzip.compress(chat), headers={
        **headers, "Content-Encoding": "gzip"}))[0] == 200  # fmt: skip
    assert plain(engine.seen[-1].body) == json.loads(chat)


@pytest.mark.parametrize("at", [1, 2])
async def test_case_65_a_coding_that_is_unknown_or_broken_is_refused(engine, home: House, at: int) -> None:
    found = case(65)
    variant = found["variants"][at]
    rollout = await home.rollout()
    headers = {**key(rollout), **found["client_request"]["headers"], "Content-Encoding": variant["Content-Encoding"]}
    packed = base64.b64decode(variant.get("body_b64", found["client_request"]["body_b64"]))
    status, _, body = await ask(home, found["client_request"]["path"], data=packed, headers=headers)
    assert (status, bool(json.loads(body)["error"]["message"])) == (variant["expected_status"], True)
    assert engine.seen == []


async def test_case_88_a_client_that_waits_for_100_gets_it(engine, home: House) -> None:
    expected = case(88)["expected"]
    rollout = await home.rollout()
    body = json.dumps(ASK).encode()
    fields = {"Host": "x", **key(rollout), "Content-Type": "application/json", "Expect": "100-continue"}
    async with wire(home.appliance.data_url) as client:
        began = time.monotonic()
        length = ("Content-Length", str(len(body)))
        await client.write(head("POST", "/v1/chat/completions", *fields.items(), length))
        assert (await client.line()).split(" ")[1] == "100"
        assert time.monotonic() - began < expected["got_100_within_s"]
        assert await client.line() == ""
        assert engine.seen == []
        await client.write(body)
        assert (await client.answer()).status == expected["final_status"]
    (seen,) = engine.seen
    assert ("expect" in seen.names()) == expected["upstream_has_expect"]


# Routes


async def test_case_68_requests_that_sample_nothing_are_no_calls(engine, home: House) -> None:
    found = case(68)
    expected = found["expected"]
    rollout = await home.rollout()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    statuses = {}
    for method, path in found["requests"]:
        options = {"json": body} if method == "POST" else {}
        statuses[path], _, _ = await ask(home, path, method=method, headers=key(rollout), **options)
    # The engine under this test has no embeddings: its own 404 comes back. `/health` is ours to say, and is not said.
    assert statuses == {
        "/v1/messages/count_tokens?beta=true": 200, "/v1/models": 200, "/tokenize": 200, "/health": 404, "/": 200,
        "/v1/embeddings": 404,
    }  # fmt: skip
    assert len((await home.graph(rollout))["calls"]) == expected["recorded_calls"]
    assert [seen.path for seen in engine.seen] == ["/tokenize", "/tokenize"]
    for seen in engine.seen:
        assert bool(INJECTED & json.loads(seen.body).keys()) == expected["injected"]
        assert rollout["secret"] not in str(seen)


async def test_case_68_a_relayed_requests_query_is_kept_but_for_the_key(engine, home: House) -> None:
    assert case(68)["expected"]["query_string_kept"]
    rollout = await home.rollout()
    path = f"/tokenize?a=1&b=%2F+&key={rollout['secret']}&c"
    status, _, body = await ask(home, path, json={"model": "gpt-9", "prompt": "x"})
    assert (status, json.loads(body)["asked"]) == (200, {"model": "tiny", "prompt": "x"})
    assert [seen.path for seen in engine.seen] == ["/tokenize?a=1&b=%2F+&c"]


async def test_case_70_geminis_paths_are_understood(engine, home: House) -> None:
    found = case(70)

    async def answers(request: web.Request) -> web.Response:
        if b'"stream":true' in (await request.read()).replace(b" ", b""):
            return web.Response(body=b"".join(STREAM), content_type="text/event-stream")
        return web.json_response(whole([5, 6, 7]))

    engine.reply = answers
    rollout = await home.rollout()
    contents = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    replies = []
    for request in found["requests"]:
        path = request["path"].replace("key=S", f"key={rollout['secret']}")
        headers = dict.fromkeys(request["headers"], rollout["secret"])
        replies.append(await ask(home, path, json=contents, headers=headers))
    (streamed, kind, stream), (status, _, body) = replies
    assert ((streamed, status) == (200, 200)) == found["expected"]["rollout_found"]
    assert kind["Content-Type"].startswith("text/event-stream")
    assert [form["modelVersion"] for form in data_of(stream.replace(b"\r\n", b"\n"))] == ["qwen"] * stream.count(
        b"data:"
    )
    assert json.loads(body)["modelVersion"] == "org/qwen"
    assert not any(rollout["secret"] in str(seen) for seen in engine.seen)


@pytest.mark.xfail(
    reason="no engine gives token ids on Gemini's routes: each request becomes a chat completion instead", strict=True
)
async def test_case_70_geminis_paths_at_the_engine(engine, home: House) -> None:
    found = case(70)
    rollout = await home.rollout()
    for request in found["requests"]:
        await ask(home, request["path"], json={"contents": [{"parts": [{"text": "hi"}]}]}, headers={
            "x-goog-api-key": rollout["secret"]})  # fmt: skip
    assert [seen.path for seen in engine.seen] == found["expected"]["upstream_paths"]


# Replies


def undone(headers: Any, body: bytes) -> bytes:
    """Decode a body by the headers that came with it, as a client does."""
    for coding in reversed([part.strip() for part in headers.get("Content-Encoding", "").split(",") if part.strip()]):
        assert coding == "gzip"
        body = gzip.decompress(body)
    return body


@pytest.mark.parametrize("variant", [None, 0], ids=["once", "twice"])
async def test_case_80_a_compressed_reply_is_what_its_headers_say(engine, home: House, variant: int | None) -> None:
    found = case(80)
    expected = found["expected"]
    upstream = found["upstream_response"] if variant is None else found["variants"][variant]
    coded = base64.b64decode(upstream["body_b64"])

    async def compressed(request: web.Request) -> web.Response:
        return web.Response(body=coded, headers={"Content-Type": "application/json", **upstream["headers"]})

    engine.reply = compressed
    rollout = await home.rollout()
    async with wire(home.appliance.data_url) as client:
        body = json.dumps(ASK).encode()
        fields = {"Host": "x", **key(rollout), "Accept-Encoding": "gzip", "Content-Length": str(len(body))}
        status, headers, got = await client.ask("POST", "/v1/chat/completions", *fields.items(), body=body)
    assert status == found["upstream_response"]["status"]
    assert [len(dict(headers)), expected["consistent_headers"], expected["no_double_decode"]] == [
        len(headers),
        True,
        True,
    ]
    assert undone(CIMultiDict(headers), got).decode() == expected["client_decoded_body"]


async def test_case_80_the_engine_is_asked_for_an_uncoded_reply(engine, home: House) -> None:
    variant = case(80)["variants"][1]
    rollout = await home.rollout()
    asked = {**key(rollout), "Accept-Encoding": variant["client_accept_encoding"]}
    assert (await ask(home, "/v1/chat/completions", json=ASK, headers=asked))[0] == 200
    (seen,) = engine.seen
    assert [value for name, value in seen.headers if name == "accept-encoding"] == [variant["upstream_accept_encoding"]]


async def test_case_81_headers_of_one_hop_stay_on_it_and_all_others_pass(engine, home: House) -> None:
    found = case(81)
    request, expected, upstream = found["client_request"], found["expected"], found["upstream_response"]["headers"]

    async def answers(incoming: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=CIMultiDict((name, value) for name, value in upstream))
        response.headers["Content-Type"] = "application/json"
        del response.headers["Transfer-Encoding"]
        response.enable_chunked_encoding()
        await response.prepare(incoming)
        await response.write(json.dumps(whole([5])).encode())
        await response.write_eof()
        return response

    engine.reply = answers
    rollout = await home.rollout()
    async with wire(home.appliance.data_url) as client:
        headers = [*map(tuple, request["headers"]), *key(rollout).items()]
        status, got, body = await client.ask("POST", "/v1/chat/completions", *headers, body=request["body"].encode())
        assert (status, json.loads(body)["id"]) == (200, "chatcmpl-1")
        # The engine closes its connection; the agent's stays open.
        assert ("connection", "close") not in got
        assert (await client.ask("GET", "/healthz", ("Host", "x"))).status == 200
    (seen,) = engine.seen
    assert {name.lower() for name in expected["upstream_absent"]} & seen.names() == set()
    for name, value in expected["upstream_present"]:
        assert (name.lower(), value) in seen.headers
    assert dict(seen.headers)["host"] == engine.url.removeprefix("http://")
    assert ("content-length", str(len(seen.body))) in seen.headers
    assert plain(seen.body)["messages"] == []
    for name, value in expected["client_present"]:
        assert (name.lower(), value) in got
