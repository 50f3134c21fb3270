"""SGLang's wire, end to end over HTTP against a stand-in: what is asked, what is recorded, what the agent sees."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capture import rawjson
from capture.dialects.base import with_fields
from capture.dialects.chat import Chat
from capture.dialects.completions import Completions
from capture.engines.base import Adapter, Reader
from capture.engines.sglang import Sglang
from capture.errors import EngineError
from tests.house import House, house
from tests.playbook import body, data_of
from tests.sglang_standin import END, Say, SglangStandIn, render, sglang

adapter: Adapter = Sglang()

USER = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
OURS = ("meta_info", "prompt_token_ids", "response_token_ids", "sglext", "input_ids", "output_ids", "token_id")


@pytest.fixture
async def server() -> AsyncIterator[SglangStandIn]:
    async with sglang() as one:
        yield one


@pytest.fixture
async def home(server: SglangStandIn, tmp_path: Path) -> AsyncIterator[House]:
    async with house(f"sglang={server.url}", tmp_path) as one:
        server.asked.clear()
        yield one


def sent(**fields: Any) -> dict[str, Any]:
    """The body that goes to the engine."""
    request = Chat().read(body(**fields))
    form: dict[str, Any] = json.loads(rawjson.join(with_fields(request.fields, adapter.inject(request))))
    return form


def reader(**fields: Any) -> Reader:
    return adapter.reader(Chat().read(body(**fields)))


async def said(home: House, rollout: dict[str, Any], **asked: Any) -> Any:
    """Ask as an agent, and read the whole answer: a form, or the data of the events."""
    async with home.chat(rollout, **asked) as answer:
        raw = await answer.read()
        assert answer.status == 200, raw
        return data_of(raw) if asked.get("stream") else json.loads(raw)


def assembled(events: list[Any], index: int = 0) -> tuple[str, str, str | None]:
    """Reasoning, text and finish of a choice, as a client would put them together."""
    reasoning = text = ""
    finish = None
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) else ():
            if choice["index"] == index:
                reasoning += choice["delta"].get("reasoning_content") or ""
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
    return reasoning, text, finish


# -- what is asked for


def test_a_whole_reply_and_a_stream_are_asked_differently() -> None:
    assert sent() == json.loads(body()) | {
        "logprobs": True, "return_prompt_token_ids": True, "return_meta_info": True,
    }  # fmt: skip
    assert sent(stream=True) == json.loads(body(stream=True)) | {
        "logprobs": True, "return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
def test_routed_experts_are_left_where_the_client_looks_for_them(streamed: bool) -> None:
    form = sent(return_routed_experts=True, stream=streamed)
    assert "return_meta_info" not in form
    assert form["return_output_ids_in_sglext"] is True


def test_what_the_engine_refuses_is_left_to_it() -> None:
    assert sent(logprobs=5, return_meta_info="yes")["logprobs"] == 5
    assert sent(logprobs=5, return_meta_info="yes")["return_meta_info"] == "yes"


def test_messages_cannot_be_counted() -> None:
    with pytest.raises(EngineError) as caught:
        adapter.count(Chat().read(body()), model="tiny")
    assert (caught.value.code, caught.value.status) == ("count_unsupported", 404)


# -- end to end


async def test_the_engine_is_good_enough_to_train_on(home: House) -> None:
    (engine,) = home.appliance.fleet.engines
    assert (engine.tier, engine.kind) == ("train", "sglang")
    assert engine.tier_reason == "token ids and logprobs came back, one to one, plain and streamed"


@pytest.mark.parametrize("streamed", [False, True])
async def test_case_94_ids_are_captured_and_no_request_is_refused(
    home: House, server: SglangStandIn, streamed: bool
) -> None:
    rollout = await home.rollout()
    say = Say(text="Hello there.")
    server.says = [[say]]
    seen = await said(home, rollout, stream=streamed)
    (asked,) = server.asked
    assert "return_token_ids" not in asked
    if streamed:
        assert assembled(seen) == ("", "Hello there.", "stop")
        assert seen[-1] == "[DONE]"
    else:
        assert seen["choices"][0]["message"]["content"] == "Hello there."
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["status"] == "complete"
    assert call["prompt_ids"] == render(USER)
    assert call["sampled_ids"] == say.ids()
    assert call["logprobs"] == say.logprobs()
    assert call["usage"]["completion_tokens"] == len(say.ids())
    assert call["engine"] == f"sglang={server.url}"
    assert await codes(home, rollout) == set()


async def codes(home: House, rollout: dict[str, Any]) -> set[str]:
    """Findings that say something went wrong."""
    found = (await home.graph(rollout))["findings"]
    return {one["code"] for one in found if one["level"] != "info"} - {"sampling_unpinned", "logprob_mode_unknown"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"return_input_ids_in_sglext": True},
        {"return_output_ids_in_sglext": True, "return_routed_experts": True},
        {"return_routed_experts": True},
        {"tools": TOOLS},
    ],
    ids=str,
)
async def test_the_agent_sees_what_the_engine_sends_without_our_asking(
    home: House, server: SglangStandIn, asked: dict[str, Any], streamed: bool
) -> None:
    rollout = await home.rollout()
    saying = [Say(text="Two.", reasoning="One?", calls=(("add", '{"a": 1}'),) if "tools" in asked else ())]
    server.says = [saying, saying]
    fields = {"model": "tiny", "messages": USER, "stream": streamed, **asked}
    streamed = fields["stream"]
    through = await said(home, rollout, **fields)
    async with home.session.post(server.url + "/v1/chat/completions", json=fields) as answer:
        raw = await answer.read()
    direct = data_of(raw) if streamed else json.loads(raw)
    # The reply's id is the one thing in which two replies differ.
    assert without_ids(through) == without_ids(direct)


def without_ids(form: Any) -> Any:
    if isinstance(form, list):
        return [without_ids(one) for one in form]
    return {name: value for name, value in form.items() if name != "id"} if isinstance(form, dict) else form


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_asks_for_it_gets_it(home: House, server: SglangStandIn, streamed: bool) -> None:
    rollout = await home.rollout()
    say = Say()
    server.says = [[say]]
    if streamed:
        seen = await said(home, rollout, stream=True, return_input_ids_in_sglext=True, return_output_ids_in_sglext=True)
        (ext,) = [event["sglext"] for event in seen if "sglext" in event]
        assert ext == {"input_ids": render(USER), "output_ids": [say.ids()]}
    else:
        asked = {"return_meta_info": True, "return_token_ids": True, "return_output_ids_in_sglext": True}
        seen = await said(home, rollout, **asked)
        (choice,) = seen["choices"]
        ext = seen["sglext"]
        assert ext == {"output_ids": [say.ids()]}
        assert choice["prompt_token_ids"] == render(USER)
        assert choice["response_token_ids"] == say.ids()
        assert choice["meta_info"]["output_token_logprobs"][-1][1] == END
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["sampled_ids"], call["logprobs"]) == (say.ids(), say.logprobs())
    assert call["reply"]["sglext"] == ext


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("return_token_ids", " on /v1/chat/completions"),
        ("return_prompt_token_ids", ""),
        ("return_meta_info", ""),
    ],
)
async def test_the_stand_in_refuses_what_sglang_refuses(server: SglangStandIn, name: str, where: str) -> None:
    ask = {"model": "tiny", "messages": USER, name: True}
    url = server.url + "/v1/chat/completions"
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json={**ask, "stream": True}) as answer:
            assert answer.status == 400
            assert await answer.json() == {
                "object": "error", "type": "BadRequestError", "param": None, "code": 400,
                "message": f"{name} is not supported with streaming{where}. "
                f"Please set stream=false when using {name}=true.",
            }  # fmt: skip
        async with session.post(url, json=ask) as answer:
            assert answer.status == 200


async def test_a_client_that_asks_a_stream_for_vllms_field_gets_sglangs_own_answer(
    home: House, server: SglangStandIn
) -> None:
    rollout = await home.rollout()
    async with home.chat(rollout, stream=True, return_token_ids=True) as answer:
        assert answer.status == 400
        assert (await answer.json())["message"].startswith(
            "return_token_ids is not supported with streaming on /v1/chat"
        )
    (engine,) = home.appliance.fleet.engines
    assert engine.refused == set()


@pytest.mark.parametrize("streamed", [False, True])
async def test_reasoning_and_tool_calls(home: House, server: SglangStandIn, streamed: bool) -> None:
    rollout = await home.rollout()
    say = Say(text="Now.", reasoning="Add them.", calls=(("add", '{"a": 1}'), ("sub", "{}")))
    server.says = [[say]]
    seen = await said(home, rollout, stream=streamed, tools=TOOLS)
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["finish_reason"] == "tool_calls"
    assert (call["sampled_ids"], call["logprobs"]) == (say.ids(), say.logprobs())
    message = call["reply"]["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Add them.", "Now.")
    calls = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message["tool_calls"]]
    assert calls == [("add", {"a": 1}), ("sub", {})]
    if streamed:
        assert assembled(seen) == ("Add them.", "Now.", "tool_calls")
    assert not any(name in json.dumps(seen) for name in OURS)


@pytest.mark.parametrize("streamed", [False, True])
async def test_two_choices_have_their_own_ids(home: House, server: SglangStandIn, streamed: bool) -> None:
    rollout = await home.rollout()
    says = [Say(text="One."), Say(text="The other one", finish="length", per_step=3)]
    server.says = [says]
    await said(home, rollout, stream=streamed, n=2)
    await home.idle(rollout)
    for n, say in enumerate(says):
        call = await home.call(rollout, n)
        assert (call["choice"], call["finish_reason"], call["status"]) == (n, say.finish, "complete")
        assert (call["sampled_ids"], call["logprobs"]) == (say.ids(), say.logprobs())
        assert call["prompt_ids"] == render(USER)


async def test_turns_chain_exactly(home: House, server: SglangStandIn) -> None:
    rollout = await home.rollout()
    server.says = [[Say(text="Hi.")], [Say(text="Bye.")]]
    await said(home, rollout, stream=True)
    history = [*USER, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And now?"}]
    await said(home, rollout, messages=history)
    await home.idle(rollout)
    graph = await home.graph(rollout)
    assert [(call["link"], call["parent"]) for call in graph["calls"]] == [("root", None), ("exact", 0)]


async def test_a_stream_is_relayed_as_it_comes(home: House, server: SglangStandIn) -> None:
    rollout = await home.rollout()
    go = asyncio.Event()
    server.says = [[Say(text="Hello", until=go)]]
    async with home.chat(rollout, stream=True) as answer:
        seen = b""
        async with asyncio.timeout(10):
            while b'"o"' not in seen:
                seen += await answer.content.readany()
        assert assembled(data_of(seen))[1] == "Hello"
        go.set()
        assert b"[DONE]" in await answer.read()


async def test_a_client_that_hangs_up_leaves_no_ids_and_drops_the_engine(home: House, server: SglangStandIn) -> None:
    rollout = await home.rollout()
    server.says = [[Say(text="Hello", until=asyncio.Event())]]
    async with home.chat(rollout, stream=True) as answer:
        await answer.content.readany()
        answer.close()
    async with asyncio.timeout(10):
        await server.dropped.wait()
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["status"] == "aborted"
    assert "sampled_ids" not in call


# -- what goes wrong


async def test_an_abort_gets_no_clean_end(home: House, server: SglangStandIn) -> None:
    rollout = await home.rollout()
    say = Say(text="Half a", finish="abort")
    server.says = [[say], [say]]
    async with home.chat(rollout) as answer:
        assert answer.status == 503
        assert "Retry-After" in answer.headers
    async with home.chat(rollout, stream=True) as answer:
        with pytest.raises(Exception, match=r"payload|closed|Closed"):
            await answer.read()
    await home.idle(rollout)
    for n in (0, 1):
        call = await home.call(rollout, n)
        assert (call["status"], call["finish_reason"]) == ("aborted", "abort")
        assert call["sampled_ids"] == say.ids()


async def test_an_error_inside_a_stream_passes_and_leaves_no_ids(home: House, server: SglangStandIn) -> None:
    rollout = await home.rollout()
    server.says = [[Say(text="Half a", finish="error")]]
    seen = await said(home, rollout, stream=True)
    assert [event["error"]["message"] for event in seen if "error" in event] == ["Out of memory."]
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["error"]["blame"], call["error"]["message"]) == ("error", "engine", "Out of memory.")
    assert "sampled_ids" not in call


async def test_an_error_before_the_reply_keeps_its_status(home: House, server: SglangStandIn) -> None:
    rollout = await home.rollout()
    server.says = [[Say(finish="error")]]
    async with home.chat(rollout) as answer:
        assert answer.status == 500
        assert (await answer.json())["message"] == "Out of memory."
    async with home.chat(rollout, logprobs=5) as answer:
        assert answer.status == 400
        assert "logprobs" in (await answer.json())["message"]
    await home.idle(rollout)
    assert (await home.call(rollout, 0))["error"]["blame"] == "engine"
    assert (await home.call(rollout, 1))["error"]["blame"] == "client"


async def test_a_field_that_an_older_server_refuses_is_left_out_and_said(home: House, server: SglangStandIn) -> None:
    rollout = await home.rollout()
    server.refused = {"return_meta_info"}
    assert (await said(home, rollout))["choices"][0]["message"]["content"] == "Hi."
    await home.idle(rollout)
    assert "injection_refused" in {one["code"] for one in (await home.graph(rollout))["findings"]}
    call = await home.call(rollout, 0)
    assert call["prompt_ids"] == render(USER)
    assert "sampled_ids" not in call


# -- weights


async def test_versions_of_the_weights_are_recorded(home: House, server: SglangStandIn) -> None:
    rollout = await home.rollout()
    server.version = "step-8"
    server.says = [[Say(text="Hello", finish="length")]] * 3
    seen = await said(home, rollout)
    # SGLang sends it unasked.
    assert seen["metadata"] == {"weight_version": "step-8"}
    server.spans = [{"version": "step-7", "start": 0, "end": 3}, {"version": "step-8", "start": 3, "end": 5}]
    await said(home, rollout)
    # Asked without `meta_info`.
    await said(home, rollout, return_routed_experts=True)
    await home.idle(rollout)
    calls = (await home.graph(rollout))["calls"]
    assert calls[2]["weights"] == calls[1]["weights"]
    assert calls[0]["weights"] == {"start": None, "end": "step-8", "spans": []}
    assert calls[1]["weights"] == {"start": "step-7", "end": "step-8", "spans": server.spans}


# -- a server without parsers loses the logprobs of tokens without text


async def test_a_server_whose_streams_lose_logprobs_is_found_out(tmp_path: Path) -> None:
    async with sglang(parser=False) as server:
        with pytest.raises(EngineError) as caught:
            async with house(f"sglang={server.url}", tmp_path):
                pass
        assert caught.value.code == "tier_too_low"
        assert "in a streamed reply, logprobs were missing (4 ids and 3 logprobs came in" in caught.value.message


async def test_logprobs_that_cannot_be_paired_are_unknown_not_shifted(tmp_path: Path) -> None:
    async with sglang(parser=False) as server, house(f"sglang={server.url}", tmp_path, require_tier="eval") as home:
        rollout = await home.rollout()
        say = Say(text="Hello")
        server.says = [[say]]
        await said(home, rollout, stream=True)
        await home.idle(rollout)
        call = await home.call(rollout, 0)
        assert call["sampled_ids"] == say.ids()
        assert call["logprobs"] == [None] * len(say.ids())
        assert "unreadable_body" in {one["code"] for one in (await home.graph(rollout))["findings"]}


# -- completions: the one route with ids in the choices of both modes


@pytest.mark.parametrize("streamed", [False, True])
async def test_completions(server: SglangStandIn, streamed: bool) -> None:
    ask = {"model": "tiny", "prompt": "Say", "stream": streamed}
    request = Completions().read(json.dumps(ask).encode())
    read = adapter.reader(request)
    form = json.loads(rawjson.join(with_fields(request.fields, adapter.inject(request))))
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + "/v1/completions", json=form) as answer,
    ):
        raw = await answer.read()
    if streamed:
        shown = b"".join(read.event(json.dumps(event).encode()).data or b"" for event in data_of(raw)[:-1])
    else:
        shown = read.whole(raw).data or b""
    assert numbers(read) == (Say().ids(), Say().logprobs())
    assert read.prompt_ids is not None
    assert read.prompt_ids.tolist() == [1000 + ord(char) for char in "Say"]
    assert b"-0.25" not in shown
    assert str(1000 + ord("H")).encode() not in shown
    assert b"Hi." in shown


# -- single values that can't be read spoil themselves alone


def whole(**choice: Any) -> dict[str, Any]:
    made = {"index": 0, "message": {"role": "assistant", "content": "x"}, "logprobs": None, "finish_reason": "stop"}
    return {"id": "1", "choices": [{**made, **choice}], "usage": None}


def numbers(read: Reader) -> tuple[Any, Any]:
    (choice,) = read.choices()
    ids, logprobs = choice.sampled_ids, choice.logprobs
    return (
        None if ids is None else ids.tolist(),
        None if logprobs is None else [None if math.isnan(x) else float(x) for x in logprobs],
    )


@pytest.mark.parametrize(
    ("meta", "expected", "doubt"),
    [
        ('{"output_token_logprobs": [[-0.5, 7, "a"], [null, 8, null]]}', ([7, 8], [-0.5, None]), ""),
        ('{"output_token_logprobs": [[NaN, 7, "a"], [-0.5, 8, "b"]]}', ([7, 8], [None, -0.5]), "not strict"),
        ('{"output_token_logprobs": [[-0.5, -7, "a"]]}', (None, None), "out of range"),
        ('{"output_token_logprobs": [[-0.5, "7"]]}', (None, None), "can't be read"),
        ('{"output_token_logprobs": []}', ([], []), ""),
        ('{"output_token_logprobs": null}', (None, None), ""),
        ("[]", (None, None), "meta_info can't be read"),
    ],
)
def test_pairs_of_id_and_logprob(meta: str, expected: Any, doubt: str) -> None:
    read = reader()
    read.whole(json.dumps(whole(meta_info="META")).replace('"META"', meta).encode())
    assert numbers(read) == expected
    assert doubt in " ".join(read.undecoded)
    assert bool(doubt) == bool(read.undecoded)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [({}, False), ({"return_prompt_token_ids": True}, True), ({"return_token_ids": True}, True)],
    ids=str,
)
def test_the_prompts_ids_stay_for_a_client_that_asked(asked: dict[str, Any], kept: bool) -> None:
    read = reader(**asked)
    seen = read.whole(json.dumps(whole(prompt_token_ids=[1, 2])).encode())
    assert seen.data is not None
    assert ("prompt_token_ids" in json.loads(seen.data)["choices"][0]) == kept
    assert read.prompt_ids is not None
    assert read.prompt_ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("ext", "doubt"),
    [
        ({"output_ids": [[5], [6]]}, "the ids of 2 choices, and 1 came"),
        ({"output_ids": []}, "the ids of 0 choices, and 1 came"),
        ({"output_ids": 7}, "can't be read"),
        ({"output_ids": [["x"]]}, "can't be read"),
        ({"input_ids": "x"}, "can't be read"),
        (7, "sglext can't be read"),
    ],
    ids=str,
)
def test_ids_that_cannot_be_read_are_said(ext: Any, doubt: str) -> None:
    read = reader(stream=True)
    chunk = {
        "id": "1",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "x"}, "finish_reason": None}],
    }
    read.event(json.dumps(chunk).encode())
    read.event(json.dumps({"id": "1", "choices": [], "sglext": ext}).encode())
    assert doubt in " ".join(read.undecoded)


@pytest.mark.parametrize(
    "weights",
    [
        {"weight_version": 7, "weight_versions": [{"version": "a", "start": 0, "end": 1}]},
        {"weight_version": "a", "weight_versions": "x"},
        {"weight_version": "a", "weight_versions": []},
    ],
    ids=str,
)
def test_versions_that_cannot_be_read_leave_the_rest(weights: dict[str, Any]) -> None:
    read = reader()
    pairs = [[-0.5, 7, "a"]]
    read.whole(json.dumps(whole(meta_info={"output_token_logprobs": pairs, **weights})).encode())
    assert numbers(read) == ([7], [-0.5])
    (choice,) = read.choices()
    assert choice.weights is not None
    assert choice.weights.end == "a"
