"""Against what a real vLLM 0.32 answered: the same keys and types, the same order of events, the same errors.

The recorded exchanges lie in tests/fixtures/vllm_wire/, with long arrays shortened. Their requests are in
tests/real/wire_requests.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capture.scripted import ScriptedEngine, parse_rules
from tests.real.wire_requests import CHAT, MAX_MODEL_LEN, MODEL, REQUESTS, WireRequest, body_for
from tests.real.wire_shape import Exchange, differences, events, orders

RECORDED = Path(__file__).parents[2] / "fixtures" / "vllm_wire"

# What may differ, each with its reason.
ALLOWED = {
    "12-continue": {
        # The random model sampled an id beyond its tokenizer's, which has no text.
        "reply choices[].logprobs.content[].bytes: vllm array|empty array; scripted array",
    },
    "22-think-n": {
        # The recorded server ran with --enable-prompt-tokens-details.
        "reply usage.prompt_tokens_details: vllm object; scripted null",
    },
}


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def exchange(found: dict[str, Any]) -> Exchange:
    if "events" in found:
        lines = [event if isinstance(event, str) else json.dumps(event) for event in found["events"]]
        body = "".join(f"data: {line}\n\n" for line in lines)
    else:
        body = "" if found["body"] is None else json.dumps(found["body"])
    return Exchange(status=found["status"], content_type=found["content_type"] or "", body=body.encode())


async def ask(request: WireRequest) -> tuple[Exchange, dict[str, str]]:
    """Send one request to an engine of its own."""
    engine = ScriptedEngine(
        parse_rules(request.script), model=MODEL, max_model_len=MAX_MODEL_LEN, api_key=request.api_key
    )
    url = await engine.start()
    try:
        body = body_for(request, "scripted")
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **request.headers}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url + request.path, data=data, headers=headers) as answer,
        ):
            content = answer.headers.get("Content-Type", "").replace(
                "application/json; charset=utf-8", "application/json"
            )
            return Exchange(status=answer.status, content_type=content, body=await answer.read()), dict(answer.headers)
    finally:
        await engine.close()


def test_every_recorded_exchange_has_its_request():
    assert sorted(path.stem for path in RECORDED.glob("*.json")) == sorted(request.name for request in REQUESTS)


@pytest.mark.parametrize("request_", CHAT, ids=lambda request: request.name)
async def test_a_chat_reply_has_the_recorded_shape(request_):
    found = recorded(request_.name)
    want = exchange(found)
    got, _ = await ask(request_)
    if found.get("cut"):
        got = upto(want, got)
    assert set(differences(want, got)) == ALLOWED.get(request_.name, set())


def upto(want: Exchange, got: Exchange) -> Exchange:
    """Leave as many events of a stream as show the recorded order of kinds, where the recording was cut short."""
    order = orders(events(want))[0]
    blocks = got.body.split(b"\n\n")
    for end in range(len(blocks), 0, -1):
        cut = Exchange(status=got.status, content_type=got.content_type, body=b"\n\n".join(blocks[:end]) + b"\n\n")
        if orders(events(cut))[0] == order:
            return cut
    return got


REFUSED = [request for request in REQUESTS if recorded(request.name)["status"] >= 400]


@pytest.mark.parametrize("request_", REFUSED, ids=lambda request: request.name)
async def test_an_error_is_the_recorded_one_to_the_letter(request_):
    found = recorded(request_.name)
    got, _ = await ask(request_)
    assert (got.status, json.loads(got.body)) == (found["status"], found["body"])


OTHERS = [request for request in REQUESTS if request not in CHAT and request not in REFUSED]


@pytest.mark.parametrize("request_", OTHERS, ids=lambda request: request.name)
async def test_a_side_route_has_the_recorded_shape(request_):
    found = recorded(request_.name)
    got, _ = await ask(request_)
    if found["body"] is None:
        assert (got.status, got.body) == (200, b"")
    else:
        assert differences(exchange(found), got) == []


@pytest.mark.parametrize(("name", "reply_id"), [("54-both", "hdr-2"), ("54-ridbody", "body-1"), ("54-xrid", "hdr-1")])
async def test_a_given_request_id_becomes_the_replys_id_and_the_header_wins(name, reply_id):
    (request,) = [request for request in REQUESTS if request.name == name]
    got, _ = await ask(request)
    assert json.loads(got.body)["id"] == recorded(name)["body"]["id"] == f"chatcmpl-{reply_id}"


async def test_without_the_flags_a_stream_says_null_where_vllm_does():
    (request,) = [request for request in REQUESTS if request.name == "22-think-s"]
    body = {key: value for key, value in request.body.items() if key not in ("return_token_ids", "logprobs")}
    got, _ = await ask(WireRequest(name="no flags", body=body, script=request.script))
    # As vLLM 0.32 writes them: its serialiser keeps keys set to nothing. A chunk that shows nothing is not sent.
    chunks = [chunk for kind, chunk in events(got) if kind != "[DONE]"]
    assert [kind for kind, _ in events(got)][:2] == ["role", "reasoning"]
    assert "empty" not in [kind for kind, _ in events(got)]
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)
    assert chunks[0]["prompt_token_ids"] is None
    assert "token_ids" not in chunks[0]["choices"][0]
    assert all(chunk["choices"][0]["token_ids"] is None for chunk in chunks[1:])
