"""OpenAI's own client against a whole appliance on the scripted engine: what it reads is what the engine said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.house import House, house

RULES = r"""
noncanonical = 0.0

[[rule]]
match = { text = '^Think' }
reply = { thinking = "I know this one.", text = "It is four." }

[[rule]]
match = { text = '^Look', turn = 0 }
[rule.reply]
thinking = "Two places."
text = "I look."
call = [
  { tool = "look", arguments = { place = "é", deep = 2.0 } },
  { tool = "wait" },
]

[[rule]]
match = { role = "tool" }
reply = { text = "{last} and done." }

[[rule]]
match = { text = '^Say much' }
reply = { text = "one two three four five six seven eight nine ten" }

[[rule]]
match = { text = '^Be busy' }
reply = { failure = { status = 503, message = "All seats are taken.", retry_after = 1 } }

[[rule]]
match = { text = '^Know me not' }
reply = { failure = { status = 401, message = "Who are you?" } }

[[rule]]
match = { text = '^Die' }
reply = { text = "one two three four five six", failure = { error_event_after_tokens = 3 } }

[[rule]]
match = { text = '^Break' }
reply = { text = "one two three four five six", failure = { cut_after_tokens = 3 } }

[[rule]]
match = { text = '^Pause' }
reply = { text = "one two three four five six", failure = { abort_after_tokens = 3 } }
"""

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "deep": {"type": "number"}},
            "required": ["place", "deep"],
            "additionalProperties": False,
        },
    },
}
WAIT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "wait",
        "strict": True,
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    },
}
TOOLS: list[Any] = [LOOK, WAIT]

# Behind its thinking an engine streams the empty line that it leaves out of a whole reply.
PLAIN: dict[str, Any] = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}


class Title(BaseModel):
    title: str


@contextlib.asynccontextmanager
async def speaking(tmp_path: Path, **rollout: Any) -> AsyncIterator[tuple[House, dict[str, Any], AsyncOpenAI]]:
    """An appliance, a rollout on it, and the client that its agent would use."""
    (tmp_path / "rules.toml").write_text(RULES)
    async with house(f"scripted={tmp_path}/rules.toml", tmp_path) as home:
        registered = await home.rollout(**rollout)
        async with AsyncOpenAI(base_url=registered["base_url"], api_key=registered["secret"], max_retries=0) as client:
            yield home, registered, client


def asks(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def both(client: AsyncOpenAI, **fields: Any) -> tuple[ChatCompletion, ChatCompletion]:
    """Ask whole and through the streaming helper; the two may differ in nothing but their ids."""
    fields = {"model": "asked", **fields}
    whole = await client.chat.completions.create(**fields)
    async with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        chunks = [event.chunk async for event in stream if event.type == "chunk"]
        try:
            streamed: ChatCompletion = await stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            # The helper's way to say that it parses nothing of it.
            streamed = cut.completion
    assert {chunk.model for chunk in chunks} == {whole.model} == {"asked"}
    assert {chunk.id for chunk in chunks} == {streamed.id}
    assert streamed.id != whole.id
    finishes = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert len(finishes) == len(whole.choices)
    assert [(chunk.choices, chunk.usage) for chunk in chunks if chunk.usage] == [([], whole.usage)]
    assert _shown(streamed) == _shown(whole)
    return whole, streamed


def _shown(reply: ChatCompletion) -> list[dict[str, Any]]:
    return [
        {
            "index": choice.index,
            "finish": choice.finish_reason,
            "role": choice.message.role,
            "content": choice.message.content or "",
            "reasoning": getattr(choice.message, "reasoning", None),
            # Ids of calls are drawn anew; the client adds what it parsed.
            "calls": [_called(call) for call in choice.message.tool_calls or []],
            "logprobs": _scores(choice.logprobs),
        }
        for choice in reply.choices
    ]


def _called(call: Any) -> tuple[str, str, str]:
    return call.type, call.function.name, call.function.arguments


def _scores(logprobs: Any) -> list[Any] | None:
    if logprobs is None or not logprobs.content:
        return None
    return [(each.token, each.logprob, len(each.top_logprobs)) for each in logprobs.content]


async def chunks_of(client: AsyncOpenAI, **fields: Any) -> AsyncIterator[ChatCompletionChunk]:
    async for chunk in await client.chat.completions.create(model="asked", stream=True, **fields):
        yield chunk


async def test_text_and_thinking(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        whole, streamed = await both(client, messages=asks("Think: what is 2 + 2?"))
        (choice,) = whole.choices
        assert choice.finish_reason == "stop"
        assert (choice.message.content or "").strip() == "It is four."
        assert choice.message.to_dict()["reasoning"].strip() == "I know this one."  # type: ignore[attr-defined] # text
        # Nothing of what capture asked for.
        assert choice.logprobs is None
        assert not {"prompt_token_ids", "token_ids"} & {k for k, v in whole.to_dict().items() if v is not None}

        await home.idle(rollout)
        for n, reply in enumerate((whole, streamed)):
            call = await home.call(rollout, n)
            assert (call["id"], call["dialect"], call["status"]) == (reply.id, "chat", "complete")
            assert reply.usage is not None
            assert len(call["sampled_ids"]) == reply.usage.completion_tokens
            assert len(call["prompt_ids"]) == reply.usage.prompt_tokens
            assert len(call["logprobs"]) == len(call["sampled_ids"])
            assert call["reply"]["choices"][0]["message"]["content"] == reply.choices[0].message.content


async def test_a_client_that_waits_reads_the_same(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, rollout, client):

        def ask() -> tuple[str, str, list[str]]:
            with OpenAI(base_url=rollout["base_url"], api_key=rollout["secret"], max_retries=0) as waiting:
                whole = waiting.chat.completions.create(model="asked", messages=asks("Say much."), **PLAIN)
                with waiting.chat.completions.stream(model="asked", messages=asks("Say much."), **PLAIN) as stream:
                    deltas = [event.delta for event in stream if event.type == "content.delta"]
                    streamed = stream.get_final_completion()
            return whole.choices[0].message.content or "", streamed.choices[0].message.content or "", deltas

        whole, streamed, deltas = await asyncio.to_thread(ask)
        assert whole == streamed == "".join(deltas) == "one two three four five six seven eight nine ten"
        assert len(deltas) > 5
        reply = await client.chat.completions.create(model="asked", messages=asks("Say much."), **PLAIN)
        assert reply.choices[0].message.content == whole


async def test_a_tool_loop_goes_on_from_what_was_said(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        whole, streamed = await both(client, messages=asks("Look around."), tools=TOOLS, parallel_tool_calls=True)
        assert whole.choices[0].finish_reason == "tool_calls"
        message = streamed.choices[0].message
        look, wait = message.tool_calls or []
        assert (_called(look)[1:], _called(wait)[1:]) == (("look", '{"place": "é", "deep": 2.0}'), ("wait", "{}"))
        assert look.id != wait.id
        assert look.to_dict()["function"]["parsed_arguments"] == {"place": "é", "deep": 2.0}  # type: ignore[index] # a dict

        said = {"role": "assistant", "content": message.content, "reasoning": getattr(message, "reasoning", None)}
        calls = [
            {"id": each.id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for each in (look, wait)
            for _, name, arguments in [_called(each)]
        ]
        turn: list[Any] = [
            *asks("Look around."),
            {**said, "tool_calls": calls},
            {"role": "tool", "tool_call_id": look.id, "content": "A door."},
            {"role": "tool", "tool_call_id": wait.id, "content": "Time."},
        ]
        answer = await client.chat.completions.create(model="asked", messages=turn, tools=TOOLS)
        assert (answer.choices[0].message.content or "").strip() == "Time. and done."

        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [(call["n"], call["parent"]) for call in graph["calls"]] == [(0, None), (1, None), (2, 1)]


async def test_forced_and_forbidden_tools(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        fields: dict[str, Any] = {"messages": asks("Hello."), "tools": TOOLS, **PLAIN}
        whole, _ = await both(client, **fields, tool_choice={"type": "function", "function": {"name": "wait"}})
        assert [_called(call)[1] for call in whole.choices[0].message.tool_calls or []] == ["wait"]
        whole, _ = await both(client, **fields, tool_choice="none")
        assert not whole.choices[0].message.tool_calls
        assert whole.choices[0].finish_reason == "stop"


async def test_several_choices(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        whole, streamed = await both(client, messages=asks("Say much."), n=2, **PLAIN)
        for reply in (whole, streamed):
            assert [choice.index for choice in reply.choices] == [0, 1]
            assert {choice.message.content for choice in reply.choices} == {
                "one two three four five six seven eight nine ten"
            }
        await home.idle(rollout)
        calls = (await home.graph(rollout))["calls"]
        assert [(call["id"], call["choice"]) for call in calls] == [
            (reply.id, choice) for reply in (whole, streamed) for choice in (0, 1)
        ]
        assert whole.usage is not None
        assert sum(call["n_sampled"] for call in calls[:2]) == whole.usage.completion_tokens


async def test_limits_and_stop_strings(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        fields: dict[str, Any] = {"messages": asks("Say much."), **PLAIN}
        whole, _ = await both(client, **fields, max_completion_tokens=3)
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 3
        whole, _ = await both(client, **fields, stop=["seven", " four"])
        assert (whole.choices[0].finish_reason, whole.choices[0].message.content) == ("stop", "one two three")


async def test_logprobs_for_who_asks(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        fields: dict[str, Any] = {"messages": asks("Say much."), **PLAIN}
        whole, streamed = await both(client, **fields, logprobs=True, top_logprobs=2)
        await home.idle(rollout)
        for n, reply in enumerate((whole, streamed)):
            logprobs = reply.choices[0].logprobs
            assert logprobs is not None
            assert logprobs.content is not None
            recorded = (await home.call(rollout, n))["logprobs"]
            assert [entry.logprob for entry in logprobs.content] == pytest.approx(recorded, abs=1e-6)
            assert {len(entry.top_logprobs) for entry in logprobs.content} == {2}
        whole, _ = await both(client, **fields, logprobs=True)
        assert whole.choices[0].logprobs is not None
        assert {len(entry.top_logprobs) for entry in whole.choices[0].logprobs.content or []} == {0}


async def test_usage_in_a_stream_is_for_who_asks(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        fields: dict[str, Any] = {"messages": asks("Think."), "max_tokens": 20}
        plain = [chunk async for chunk in chunks_of(client, **fields)]
        assert all(chunk.usage is None and chunk.choices for chunk in plain)
        counted = [chunk async for chunk in chunks_of(client, **fields, stream_options={"include_usage": True})]
        assert [bool(chunk.usage) for chunk in counted] == [False] * (len(counted) - 1) + [True]
        assert counted[-1].choices == []


async def test_a_schema(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        parsed = await client.chat.completions.parse(
            model="asked", messages=asks("Hello."), response_format=Title, **PLAIN
        )
        assert isinstance(parsed.choices[0].message.parsed, Title)
        async with client.chat.completions.stream(
            model="asked", messages=asks("Hello."), response_format=Title, **PLAIN
        ) as stream:
            streamed = await stream.get_final_completion()
        assert streamed.choices[0].message.parsed == parsed.choices[0].message.parsed
        await home.idle(rollout)
        assert [call["constrained"] for call in (await home.graph(rollout))["calls"]] == [True, True]


async def test_models(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        (model,) = [model async for model in client.models.list()]
        assert model.object == "model"
        assert await client.models.retrieve(model.id) == model


async def test_errors_are_the_client_s_own(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        create = client.chat.completions.create
        untyped: Any = "Hello."
        with pytest.raises(openai.BadRequestError, match="messages") as bad:
            await create(model="asked", messages=untyped)
        assert bad.value.param == "messages"
        with pytest.raises(openai.BadRequestError, match="10000000"):
            await create(model="asked", messages=asks("hi"), max_completion_tokens=10_000_000, stream=True)
        with pytest.raises(openai.APIStatusError, match=r"All seats are taken\.") as busy:
            await create(model="asked", messages=asks("Be busy."), stream=True)
        assert (busy.value.status_code, busy.value.response.headers["retry-after"]) == (503, "1")
        # The engine knows Treering not; the agent's own key is right.
        with pytest.raises(openai.InternalServerError) as refused:
            await create(model="asked", messages=asks("Know me not."))
        assert (refused.value.status_code, refused.value.code) == (502, "engine_refused")
        with pytest.raises(openai.AuthenticationError) as stranger:
            await client.with_options(api_key="nobody").chat.completions.create(model="m", messages=asks("hi"))
        assert stranger.value.status_code == 401
        assert stranger.value.code
        with pytest.raises(openai.NotFoundError) as nowhere:
            await client.files.list()
        assert nowhere.value.status_code == 404
        assert nowhere.value.code


@pytest.mark.parametrize(
    ("ask", "broken", "status"),
    [
        ("Die.", r"EngineCore encountered an issue", "error"),
        ("Break.", r"Connection error", "aborted"),
        ("Pause.", r"Connection error", "aborted"),
    ],
)
async def test_a_stream_that_breaks_never_looks_finished(tmp_path: Path, ask: str, broken: str, status: str) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        fields: dict[str, Any] = {"model": "asked", "messages": asks(ask), **PLAIN}
        seen: list[ChatCompletionChunk] = []

        async def read() -> None:
            async for chunk in await client.chat.completions.create(**fields, stream=True):
                seen.append(chunk)  # noqa: PERF401 - what came before it broke is to be kept

        async def assemble() -> ChatCompletion:
            async with client.chat.completions.stream(**fields) as stream:
                return await stream.get_final_completion()

        with pytest.raises(openai.APIError, match=broken):
            await read()
        assert seen
        assert not any(choice.finish_reason for chunk in seen for choice in chunk.choices)
        with pytest.raises(openai.APIError, match=broken):
            await assemble()
        await home.idle(rollout)
        assert [call["status"] for call in (await home.graph(rollout))["calls"]] == [status, status]


@pytest.mark.parametrize(("ask", "status"), [("Die.", 500), ("Break.", 502), ("Pause.", 503)])
async def test_a_whole_reply_that_breaks_is_an_error(tmp_path: Path, ask: str, status: int) -> None:
    async with speaking(tmp_path) as (_, _, client):
        with pytest.raises(openai.InternalServerError) as broken:
            await client.chat.completions.create(model="asked", messages=asks(ask))
        assert broken.value.status_code == status


async def test_the_last_reply_at_a_limit(tmp_path: Path) -> None:
    async with speaking(tmp_path, limits={"max_calls": 1}) as (_, _, client):
        fields: dict[str, Any] = {"messages": asks("Think."), "tools": TOOLS}
        await client.chat.completions.create(model="asked", **fields)
        whole, _ = await both(client, **fields)
        (choice,) = whole.choices
        assert choice.finish_reason == "stop"
        assert "max_calls=1" in (choice.message.content or "")
        assert not choice.message.tool_calls
