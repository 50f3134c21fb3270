"""llama.cpp's wire, end to end over HTTP against a stand-in: ids from the logprobs, and the prompt's by asking."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from capture import rawjson
from capture.dialects.base import with_fields
from capture.dialects.chat import Chat
from capture.engines.base import Adapter, Inquirer, Reader
from capture.engines.llamacpp import Llamacpp
from capture.errors import EngineError
from tests.house import House, house
from tests.llamacpp_standin import LlamacppStandIn, llamacpp, tokenise
from tests.playbook import body, data_of

adapter: Adapter = Llamacpp()

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
PROMPT = tokenise("0<user>Hello<assistant>", special=True)


@pytest.fixture
async def server() -> AsyncIterator[LlamacppStandIn]:
    async with llamacpp() as one:
        yield one


@pytest.fixture
async def home(server: LlamacppStandIn, tmp_path: Path) -> AsyncIterator[House]:
    async with house(f"llamacpp={server.url}", tmp_path) as one:
        server.asked.clear()
        yield one


def added(**fields: Any) -> dict[str, Any]:
    """What capture adds to a body."""
    request = Chat().read(body(**fields))
    form: dict[str, Any] = json.loads(rawjson.join(with_fields(request.fields, adapter.inject(request))))
    return {name: value for name, value in form.items() if json.loads(body(**fields)).get(name) != value}


async def said(home: House, rollout: dict[str, Any], **asked: Any) -> Any:
    async with home.chat(rollout, **asked) as answer:
        raw = await answer.read()
        assert answer.status == 200, raw
        return data_of(raw) if asked.get("stream") else json.loads(raw)


async def codes(home: House, rollout: dict[str, Any]) -> set[str]:
    return {one["code"] for one in (await home.graph(rollout))["findings"]}


# -- what is asked for


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"logprobs": True, "top_logprobs": 1}),
        ({"logprobs": False}, {"logprobs": True, "top_logprobs": 1}),
        ({"tools": TOOLS}, {"logprobs": True, "top_logprobs": 1}),
        ({"stream": True}, {"logprobs": True, "top_logprobs": 1, "stream_options": {"include_usage": True}}),
        (
            {"stream": True, "tools": []},
            {"logprobs": True, "top_logprobs": 1, "stream_options": {"include_usage": True}},
        ),
        # Refused by the server, so not asked for.
        ({"stream": True, "tools": TOOLS}, {"stream_options": {"include_usage": True}}),
        # The client's own.
        ({"logprobs": True}, {}),
        ({"logprobs": True, "top_logprobs": 3}, {}),
        ({"top_logprobs": 3}, {}),
        ({"logprobs": 5}, {}),
    ],
    ids=str,
)
def test_logprobs_are_asked_for_where_the_server_gives_them(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert added(**fields) == expected


# -- the tier


async def test_streams_that_leave_the_end_token_out_are_found_out(home: House) -> None:
    (engine,) = home.appliance.fleet.engines
    assert engine.tier == "eval"
    assert engine.tier_reason == (
        "in a streamed reply, the sampled token ids were missing "
        "(usage counted 4 sampled tokens and 3 ids came: which are missing can't be told)"
    )


async def test_the_tier_is_train_where_all_ids_come(tmp_path: Path) -> None:
    async with llamacpp(cut=True) as server, house(f"llamacpp={server.url}", tmp_path) as home:
        (engine,) = home.appliance.fleet.engines
        assert engine.tier == "train"
        assert engine.tier_reason.endswith("though no reply came to its end within 64 tokens")


async def test_train_may_be_required(server: LlamacppStandIn, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        async with house(f"llamacpp={server.url}", tmp_path, require_tier="train"):
            pass
    assert caught.value.code == "tier_too_low"


# -- end to end


async def test_a_whole_reply_has_exact_ids(home: House, server: LlamacppStandIn) -> None:
    rollout = await home.rollout()
    await said(home, rollout)
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["prompt_ids"], call["sampled_ids"], call["logprobs"]) == (PROMPT, server.ids(), server.scores())
    assert "unreadable_body" not in await codes(home, rollout)


async def test_a_stream_has_exact_ids_where_all_of_them_come(tmp_path: Path) -> None:
    async with llamacpp(cut=True) as server, house(f"llamacpp={server.url}", tmp_path) as home:
        rollout = await home.rollout()
        await said(home, rollout, stream=True)
        await home.idle(rollout)
        call = await home.call(rollout, 0)
        assert (call["prompt_ids"], call["sampled_ids"], call["logprobs"]) == (PROMPT, server.ids(), server.scores())


async def test_a_stream_that_lost_an_id_has_none(home: House) -> None:
    rollout = await home.rollout()
    await said(home, rollout, stream=True)
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["prompt_ids"] == PROMPT
    assert "sampled_ids" not in call
    assert "logprobs" not in call
    assert "unreadable_body" in await codes(home, rollout)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "asked", [{}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True}, {"tools": TOOLS}], ids=str
)
async def test_the_agent_sees_what_the_engine_sends_without_our_asking(
    home: House, server: LlamacppStandIn, asked: dict[str, Any], streamed: bool
) -> None:
    rollout = await home.rollout()
    fields = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": streamed, **asked}
    through = await said(home, rollout, **fields)
    async with home.session.post(server.url + "/v1/chat/completions", json=fields) as answer:
        raw = await answer.read()
    assert through == (data_of(raw) if streamed else json.loads(raw))


async def test_a_stream_with_tools_is_not_refused_and_has_no_ids(home: House) -> None:
    rollout = await home.rollout()
    await said(home, rollout, stream=True, tools=TOOLS)
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["status"] == "complete"
    assert call["prompt_ids"] == tokenise("1<user>Hello<assistant>", special=True)
    assert "sampled_ids" not in call
    assert "injection_refused" not in await codes(home, rollout)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"template": (500, b"no")}, "answered 500"),
        ({"template": (200, b"[]")}, "no rendering"),
        ({"tokens": (404, b"")}, "answered 404"),
        ({"tokens": (200, b'{"tokens": [-1]}')}, "did not tell"),
        ({"extra": 3}, f"usage counted {len(PROMPT) + 3} tokens of prompt, and its rendering has {len(PROMPT)}"),
    ],
    ids=str,
)
async def test_a_prompt_that_cannot_be_true_is_unknown_and_it_is_said(
    home: House, server: LlamacppStandIn, fault: dict[str, Any], says: str
) -> None:
    for name, value in fault.items():
        setattr(server, name, value)
    rollout = await home.rollout()
    await said(home, rollout)
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert call["status"] == "complete"
    assert "prompt_ids" not in call
    assert call["sampled_ids"] == server.ids()
    (finding,) = [one for one in (await home.graph(rollout))["findings"] if one["code"] == "unreadable_body"]
    assert says in json.dumps(finding)


async def test_tokens_are_counted_by_the_engine(home: House) -> None:
    rollout = await home.rollout()
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    url = rollout["base_url"] + "/messages/count_tokens"
    async with home.session.post(url, json=ask, headers={"x-api-key": rollout["secret"]}) as answer:
        assert await answer.json() == {"input_tokens": len(PROMPT)}


async def test_an_error_of_the_engine_keeps_its_status(home: House) -> None:
    rollout = await home.rollout()
    async with home.chat(rollout, top_logprobs=3) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"] == "top_logprobs requires logprobs to be set to true"


# -- single values


def read_whole(entries: str) -> Reader:
    read = adapter.reader(Chat().read(body()))
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop", "logprobs": "HERE"}
    read.whole(json.dumps({"choices": [choice]}).replace('"HERE"', entries).encode())
    return read


@pytest.mark.parametrize(
    ("entries", "ids"),
    [
        ('{"content": [{"id": 5, "logprob": -0.5}, {"id": 6, "logprob": null}]}', [5, 6]),
        ('{"content": [{"id": 5, "logprob": NaN}]}', [5]),
        ('{"content": [{"id": 5, "logprob": -0.5}, {"logprob": -0.5}]}', None),
        ('{"content": [{"id": -5, "logprob": -0.5}]}', None),
        ('{"content": []}', None),
        ("null", None),
    ],
)
def test_entries_without_an_id_make_no_ids(entries: str, ids: list[int] | None) -> None:
    (choice,) = read_whole(entries).choices()
    assert (None if choice.sampled_ids is None else choice.sampled_ids.tolist()) == ids


def test_the_prompt_is_asked_for_as_the_call_is_made() -> None:
    read = adapter.reader(
        Chat().read(body(stream=True, n=1, logprobs=True, tools=TOOLS, chat_template_kwargs={"a": 1}))
    )
    assert isinstance(read, Inquirer)
    ask = read.question()
    assert ask.path == "/apply-template"
    assert set(json.loads(ask.body)) == {"model", "messages", "tools", "chat_template_kwargs"}
    assert ask.then is not None
    then = ask.then(b'{"prompt": "<s>x"}')
    assert (then.path, then.then) == ("/tokenize", None)
    assert json.loads(then.body) == {"content": "<s>x", "add_special": True, "parse_special": True}
    read.answered(200, b'{"tokens": [1, 2]}')
    assert read.prompt_ids is not None
    assert read.prompt_ids.tolist() == [1, 2]
