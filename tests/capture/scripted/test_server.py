"""Over real sockets: routes, the key, pace, every failure, and a client that hangs up."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from capture.scripted import ScriptedEngine, load_rules, parse_rules

USER = [{"role": "user", "content": "Go."}]
PLAIN = {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}}


@contextlib.asynccontextmanager
async def running(
    *rules: dict[str, Any], **options: Any
) -> AsyncIterator[tuple[ScriptedEngine, aiohttp.ClientSession]]:
    """An engine and a hand to ask it with."""
    engine = ScriptedEngine(parse_rules({"noncanonical": 0.0, "rule": list(rules)}), **options)
    url = await engine.start()
    try:
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=10)) as session:
            yield engine, session
    finally:
        await engine.close()


async def answer(response: Any) -> tuple[int, Any]:
    async with response as got:
        return got.status, json.loads(await got.read() or b"null")


def chat(session: aiohttp.ClientSession, **request: Any) -> Any:
    return session.post("/v1/chat/completions", json={**PLAIN, **request})


async def chunks(session: aiohttp.ClientSession, **request: Any) -> tuple[list[str], bool]:
    """Read a stream to its end, or to where it breaks; give its events and whether it ended well."""
    body = b""
    async with chat(session, stream=True, **request) as got:
        assert got.status == 200
        try:
            while part := await got.content.readany():
                body += part
        except aiohttp.ClientError:
            ended = False
        else:
            ended = True
    return [line[6:].decode() for line in body.splitlines() if line.startswith(b"data: ")], ended


def tokens(events: list[str]) -> list[int]:
    return [
        token
        for event in events
        if event != "[DONE]"
        for choice in json.loads(event).get("choices", ())
        for token in choice.get("token_ids") or ()
    ]


async def test_the_routes():
    async with running(model="m", max_model_len=500) as (engine, session):
        assert await answer(session.get("/health")) == (200, None)
        assert (await answer(session.get("/version"))) == (200, {"version": "scripted-1"})
        _, models = await answer(session.get("/v1/models"))
        assert [(each["id"], each["max_model_len"]) for each in models["data"]] == [("m", 500)]
        assert await answer(session.get("/v1/other")) == (404, {"detail": "Not Found"})
        assert await answer(session.get("/v1/chat/completions")) == (405, {"detail": "Method Not Allowed"})
        assert repr(engine) == "ScriptedEngine(ScriptedModel(m, 0 rules, 0 replies), 0 running)"


async def test_tokenising_is_the_chats_own_and_goes_both_ways():
    async with running() as (_, session):
        tools = [{"type": "function", "function": {"name": "look"}}]
        _, reply = await answer(chat(session, tools=tools, return_token_ids=True))
        _, counted = await answer(session.post("/tokenize", json={**PLAIN, "tools": tools, "return_token_strs": True}))
        assert counted["tokens"] == reply["prompt_token_ids"]
        assert counted["count"] == reply["usage"]["prompt_tokens"] == len(counted["token_strs"])
        _, text = await answer(session.post("/detokenize", json={"tokens": counted["tokens"]}))
        assert text["prompt"] == "".join(counted["token_strs"])
        _, plain = await answer(session.post("/tokenize", json={"prompt": text["prompt"]}))
        assert plain["tokens"] == counted["tokens"]
        assert plain["token_strs"] is None
        assert await answer(session.post("/detokenize", json={"tokens": [0x61, 10**7]})) == (200, {"prompt": "a"})


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "body.prompt"),
        ("/tokenize", {"messages": "x"}, "body.messages"),
        ("/detokenize", {"tokens": "x"}, "body.tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "body.tokens.1"),
        ("/detokenize", {"tokens": ["x"]}, "body.tokens.0"),
        ("/v1/chat/completions/batch", {"messages": USER}, "body.messages.0"),
        ("/v1/chat/completions/batch", {"messages": 1}, "body.messages"),
    ],
)
async def test_what_a_side_route_refuses(path, body, param):
    async with running() as (_, session):
        status, refused = await answer(session.post(path, json=body))
        assert (status, refused["error"]["param"]) == (400, param)


async def test_the_key_is_asked_for_under_v1_only():
    async with running(api_key="k") as (_, session):
        refused = (401, {"error": "Unauthorized"})
        assert await answer(session.get("/v1/models")) == refused
        assert await answer(session.get("/v1/models", headers={"Authorization": "Bearer é"})) == refused
        assert (await answer(session.get("/v1/models", headers={"Authorization": "Bearer k"})))[0] == 200
        assert (await answer(session.get("/health")))[0] == 200
        assert (await answer(session.post("/tokenize", json={"prompt": "x"})))[0] == 200


async def test_an_error_of_the_script():
    rule = {"reply": {"failure": {"status": 503, "message": "busy", "retry_after": 2}}, "times": 1}
    async with running(rule) as (_, session):
        async with chat(session) as got:
            assert (got.status, got.headers["Retry-After"]) == (503, "2")
            error = {"message": "busy", "type": "ServiceUnavailableError", "param": None, "code": 503}
            assert await got.json() == {"error": error}
        assert (await answer(chat(session)))[0] == 200


async def test_a_stream_that_is_cut():
    async with running({"reply": {"text": "the name is", "failure": {"cut_after_tokens": 2}}}) as (engine, session):
        events, ended = await chunks(session, return_token_ids=True)
        assert not ended
        assert "[DONE]" not in events
        assert len(tokens(events)) == 2
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer(chat(session))
    assert engine.running == 0


async def test_an_error_within_a_stream():
    rule = {"reply": {"text": "the name is", "failure": {"error_event_after_tokens": 2}, "tokens_per_chunk": 4}}
    async with running(rule) as (_, session):
        events, ended = await chunks(session, return_token_ids=True, stream_options={"include_usage": True})
        assert ended
        assert len(tokens(events)) == 2
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"]["code"] == 500
        assert '"finish_reason":"' not in "".join(events)
        status, body = await answer(chat(session))
        assert (status, body["error"]["type"]) == (500, "InternalServerError")


async def test_an_abort():
    async with running({"reply": {"text": "the name is", "failure": {"abort_after_tokens": 1}}}) as (_, session):
        events, ended = await chunks(session, return_token_ids=True)
        assert ended
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "abort"
        assert len(tokens(events)) == 1
        _, body = await answer(chat(session, return_token_ids=True))
        assert body["choices"][0]["finish_reason"] == "abort"
        assert len(body["choices"][0]["token_ids"]) == 1


@pytest.mark.parametrize("failure", [{"hang": True}, {"hang_after_tokens": 2}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_hang_lasts_until_the_client_leaves(failure, stream):
    async with running({"reply": {"text": "the name is", "failure": failure}}) as (engine, session):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), chat(session, stream=stream, return_token_ids=True) as got:
                await got.read()
        async with asyncio.timeout(1):
            await engine.hung()
            await engine.idle()
        assert engine.left == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_stops_the_reply(stream):
    async with running({"reply": {"text": "word " * 200, "pace_s": 0.01}}) as (engine, session):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), chat(session, stream=stream) as got:
                await got.read()
        async with asyncio.timeout(1):
            await engine.idle()
        assert (engine.left, engine.served) == (1, 0)


async def test_a_stream_comes_at_its_pace():
    async with running({"reply": {"text": "the name is"}}, pace_s=0.02) as (_, session):
        clock = asyncio.get_running_loop().time
        async with chat(session, stream=True, return_token_ids=True) as got:
            times = [clock() async for line in got.content if line.startswith(b"data: {")]
        # The role chunk at once, then four tokens.
        assert len(times) == 5
        assert times[-1] - times[0] >= 0.07


async def test_the_first_chunk_does_not_wait_for_the_last():
    rule = {"reply": {"text": "the name is", "failure": {"hang_after_tokens": 1}}}
    async with running(rule) as (_, session), chat(session, stream=True, return_token_ids=True) as got:
        async with asyncio.timeout(2):
            seen = b""
            while b'"token_ids":[' not in seen:
                seen += await got.content.readany()
        got.close()


async def test_a_prompt_of_100000_tokens_is_answered_at_once():
    async with running() as (_, session):
        content = " the" * 99_000
        async with asyncio.timeout(3):
            _, body = await answer(chat(session, messages=[{"role": "user", "content": content}], max_tokens=1))
        assert body["usage"]["prompt_tokens"] > 99_000


async def test_closing_does_not_wait_for_what_hangs():
    async with running({"reply": {"failure": {"hang": True}}}) as (engine, session):
        async with asyncio.timeout(2), chat(session, stream=True) as got:
            await engine.close()
            assert (engine.running, engine.left) == (0, 1)
            with pytest.raises(aiohttp.ClientError):
                await got.read()
        await engine.close()


async def test_a_taken_port_is_an_error():
    async with running() as (_, session):
        port = int(str(session._base_url).rsplit(":", 1)[1].strip("/"))
        with pytest.raises(OSError, match="address already in use"):
            await ScriptedEngine().start(port=port)


async def test_rules_from_a_file(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("[[rule]]\nmatch = { text = '^(Go)' }\nreply = { text = '{1} where, at turn {turn}?' }\n")
    engine = ScriptedEngine(load_rules(path))
    url = await engine.start()
    try:
        async with aiohttp.ClientSession(url) as session:
            _, body = await answer(chat(session))
    finally:
        await engine.close()
    assert body["choices"][0]["message"]["content"] == "Go where, at turn 0?"
