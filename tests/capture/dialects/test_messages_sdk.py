"""Anthropic's own client against a whole appliance on the scripted engine: what it reads is what the engine said."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageParam, ToolParam
from pydantic import BaseModel

from capture.dialects.messages_blocks import signature
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
match = { text = '^Die' }
reply = { text = "one two three four five six", failure = { error_event_after_tokens = 3 } }

[[rule]]
match = { text = '^Break' }
reply = { text = "one two three four five six", failure = { cut_after_tokens = 3 } }
"""

TOOLS: list[ToolParam] = [
    {"name": "look", "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}}},
    {"name": "wait", "description": "Wait.", "input_schema": {"type": "object", "properties": {}}},
]


@contextlib.asynccontextmanager
async def speaking(tmp_path: Path, **rollout: Any) -> AsyncIterator[tuple[House, dict[str, Any], AsyncAnthropic]]:
    """An appliance, a rollout on it, and the client that its agent would use."""
    (tmp_path / "rules.toml").write_text(RULES)
    async with house(f"scripted={tmp_path}/rules.toml", tmp_path) as home:
        registered = await home.rollout(**rollout)
        async with AsyncAnthropic(base_url=registered["url"], api_key=registered["secret"], max_retries=0) as client:
            yield home, registered, client


def asks(text: str) -> list[MessageParam]:
    return [{"role": "user", "content": text}]


async def both(client: AsyncAnthropic, **fields: Any) -> tuple[Message, Message]:
    """Ask whole and streamed; the two may differ in nothing but their ids."""
    fields = {"model": "asked", "max_tokens": 200, **fields}
    whole = await client.messages.create(**fields)
    async with client.messages.stream(**fields) as stream:
        events = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    assert _shown(whole) == _shown(streamed)
    return whole, streamed


def _shown(message: Message) -> dict[str, Any]:
    # Of a stream the client adds fields of its own, which are null.
    shown = message.to_dict(exclude_none=True)
    shown.pop("id")
    for block in shown["content"]:  # type: ignore[attr-defined] # a list, in every message
        # Ids of calls are drawn anew; the client adds what it parsed.
        block.pop("id", None)
        block.pop("parsed_output", None)
    return shown


async def test_text_and_thinking(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        whole, streamed = await both(client, system="You know things.", messages=asks("Think: what is 2 + 2?"))
        thinking, text = whole.content
        assert thinking.type == "thinking"
        assert (thinking.thinking.strip(), thinking.signature) == ("I know this one.", signature(thinking.thinking))
        assert text.type == "text"
        assert text.text.strip() == "It is four."
        assert (whole.stop_reason, whole.stop_sequence, whole.model) == ("end_turn", None, "asked")

        await home.idle(rollout)
        for n, message in enumerate((whole, streamed)):
            call = await home.call(rollout, n)
            assert (call["id"], call["dialect"], call["status"]) == (message.id, "messages", "complete")
            assert len(call["sampled_ids"]) == message.usage.output_tokens
            assert len(call["prompt_ids"]) == message.usage.input_tokens
            assert call["reply"]["content"][0]["signature"] == thinking.signature


async def test_a_tool_loop_goes_on_from_what_was_said(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        whole, streamed = await both(client, messages=asks("Look around."), tools=TOOLS)
        assert whole.stop_reason == "tool_use"
        assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
        look, wait = [block for block in streamed.content if block.type == "tool_use"]
        assert (look.name, look.input) == ("look", {"place": "é", "deep": 2.0})
        assert (wait.name, wait.input) == ("wait", {})
        assert look.id != wait.id

        turn: list[MessageParam] = [
            *asks("Look around."),
            {"role": "assistant", "content": streamed.content},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": look.id, "content": "A door."},
                    {"type": "tool_result", "tool_use_id": wait.id, "content": [{"type": "text", "text": "Time."}]},
                ],
            },
        ]
        answer = await client.messages.create(model="asked", max_tokens=200, messages=turn, tools=TOOLS)
        assert answer.content[-1].type == "text"
        assert answer.content[-1].text.strip() == "Time. and done."

        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [(call["n"], call["parent"]) for call in graph["calls"]] == [(0, None), (1, None), (2, 1)]


async def test_limits_and_stop_sequences(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        whole, _ = await both(client, messages=asks("Say much."), max_tokens=3)
        assert whole.stop_reason == "max_tokens"
        assert whole.usage.output_tokens == 3
        # Engines hold text back that may become a stop string, and then tell thinking from text less well in a stream.
        plain: dict[str, Any] = {"messages": asks("Say much."), "thinking": {"type": "disabled"}}
        whole, _ = await both(client, **plain, stop_sequences=["seven", " four"])
        assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", " four")


async def test_a_forced_tool_and_a_schema(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        # Behind its thinking an engine streams the empty line that it leaves out of a whole reply.
        plain: dict[str, Any] = {"messages": asks("Hello."), "tools": TOOLS, "thinking": {"type": "disabled"}}
        whole, _ = await both(client, **plain, tool_choice={"type": "tool", "name": "wait"})
        assert whole.stop_reason == "tool_use"
        assert [block.name for block in whole.content if block.type == "tool_use"] == ["wait"]
        whole, _ = await both(client, **plain, tool_choice={"type": "none"})
        assert whole.stop_reason == "end_turn"

        class Title(BaseModel):
            title: str

        parsed = await client.messages.parse(
            model="asked", max_tokens=200, messages=asks("Hello."), output_format=Title
        )
        assert isinstance(parsed.parsed_output, Title)


async def test_thinking_is_switched_off_where_that_is_asked_for(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        whole, _ = await both(client, messages=asks("Think: what is 2 + 2?"), thinking={"type": "disabled"})
        assert [block.type for block in whole.content] == ["text"]
        whole, _ = await both(client, messages=asks("Think: what is 2 + 2?"), thinking={"type": "adaptive"})
        assert [block.type for block in whole.content] == ["thinking", "text"]


async def test_a_reply_that_has_begun_is_gone_on_with(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        begun: list[MessageParam] = [*asks("Hello."), {"role": "assistant", "content": "The answer is ("}]
        whole, _ = await both(client, messages=begun, thinking={"type": "disabled"})
        assert whole.content[0].type == "text"
        await home.idle(rollout)
        sent = (await home.call(rollout, 0))["sent"]
        assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


async def test_counts_are_the_engine_s(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        fields: dict[str, Any] = {"model": "asked", "messages": asks("Think."), "system": "Know.", "tools": TOOLS}
        counted = await client.messages.count_tokens(**fields)
        whole = await client.messages.create(**fields, max_tokens=50)
        assert counted.input_tokens == whole.usage.input_tokens > 0
        await home.idle(rollout)
        assert len((await home.graph(rollout))["calls"]) == 1


async def test_models(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        (model,) = [model async for model in client.models.list()]
        assert model.type == "model"
        assert await client.models.retrieve(model.id) == model
        assert model.created_at.year >= 1970


async def test_errors_are_the_client_s_own(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        untyped: Any = [{"role": "user", "content": [{"text": "hi"}]}]
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0\.type") as bad:
            await client.messages.create(model="asked", max_tokens=9, messages=untyped)
        assert bad.value.type == "invalid_request_error"
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await client.messages.create(model="asked", max_tokens=10_000_000, messages=asks("hi"), stream=True)
        with pytest.raises(anthropic.APIStatusError, match=r"All seats are taken\.") as busy:
            await client.messages.create(model="asked", max_tokens=9, messages=asks("Be busy."), stream=True)
        assert (busy.value.status_code, busy.value.type) == (503, "overloaded_error")
        assert busy.value.response.headers["retry-after"] == "1"
        with pytest.raises(anthropic.AuthenticationError) as stranger:
            await client.with_options(api_key="nobody").messages.create(model="m", max_tokens=9, messages=asks("hi"))
        assert stranger.value.type == "authentication_error"
        with pytest.raises(anthropic.NotFoundError) as nowhere:
            await client.post("/v1/messages/batches", cast_to=object, body={})
        assert nowhere.value.type == "not_found_error"


async def test_a_stream_that_breaks_is_no_message(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        fields: dict[str, Any] = {"model": "asked", "max_tokens": 50}
        with pytest.raises(anthropic.APIStatusError) as died:
            async with client.messages.stream(**fields, messages=asks("Die.")) as stream:
                await stream.until_done()
        assert died.value.type == "api_error"
        with pytest.raises(Exception, match=r"(?i)peer closed|incomplete|payload|disconnect"):
            async with client.messages.stream(**fields, messages=asks("Break.")) as stream:
                await stream.until_done()
        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [call["status"] for call in graph["calls"]] == ["error", "aborted"]


async def test_the_last_reply_at_a_limit(tmp_path: Path) -> None:
    async with speaking(tmp_path, limits={"max_calls": 1}) as (_, _, client):
        fields: dict[str, Any] = {"model": "asked", "max_tokens": 50, "messages": asks("Think."), "tools": TOOLS}
        await client.messages.create(**fields)
        whole, _ = await both(client, **fields)
        assert whole.stop_reason == "end_turn"
        assert [block.type for block in whole.content] == ["text"]


async def test_an_agent_s_first_words(tmp_path: Path) -> None:
    """claude-code asks `HEAD /` before anything, without a key, and sends a query with each call."""
    async with speaking(tmp_path) as (home, rollout, client):
        async with home.session.head(rollout["url"] + "/") as answer:
            assert answer.status == 200
        beta = await client.beta.messages.create(
            model="asked", max_tokens=50, messages=[{"role": "user", "content": "Think."}], betas=["some-feature-2025"]
        )
        assert beta.content[-1].type == "text"
