"""Each dialect's official client, behind one face: ask, whole or streamed, and go on from what was said.

What a client understood is told in the same words for every dialect, so that one test can be played in all of them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar, NamedTuple

from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI, LengthFinishReasonError

QUESTION = "What is the weather in Paris?"
RESULT = '{"sky": "grey"}'
TOOL = "get_weather"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class Said(NamedTuple):
    """What a client understood of one reply."""

    text: str
    # Name and arguments of each tool call.
    calls: list[tuple[str, Any]]
    # The dialect's own word for how it ended.
    finish: str
    # Tokens of the prompt and of the reply.
    usage: tuple[int, int]
    # The reply as an agent puts it into its history, and the ids of its tool calls.
    echo: list[Any]
    call_ids: list[str]

    def same(self) -> tuple[Any, ...]:
        """What must not differ between a reply whole and streamed: ids are drawn anew."""
        return self.text, self.calls, self.finish, self.usage


class Chat:
    """OpenAI's client on Chat Completions."""

    tools: ClassVar[dict[str, Any]] = {
        "tools": [{"type": "function", "function": {"name": TOOL, "parameters": PARAMETERS}}]
    }
    named: ClassVar[dict[str, Any]] = {"tool_choice": {"type": "function", "function": {"name": TOOL}}}
    required: ClassVar[dict[str, Any]] = {"tool_choice": "required"}

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    def history(self, *said: Said) -> list[Any]:
        """The question, and each reply with the result of its tool calls."""
        results = [
            [{"role": "tool", "tool_call_id": call_id, "content": RESULT} for call_id in one.call_ids] for one in said
        ]
        turns = [turn for one, result in zip(said, results, strict=True) for turn in (*one.echo, *result)]
        return [{"role": "user", "content": QUESTION}, *turns]

    async def ask(self, history: list[Any], *, stream: bool, limit: int, extra: dict[str, Any], **more: Any) -> Said:
        """Ask, with `extra` for the engine alone."""
        asked = {
            "model": "asked", "messages": history, "max_tokens": limit, "temperature": 1.0, "extra_body": extra, **more
        }  # fmt: skip
        if stream:
            options = {"include_usage": True}
            async with self._client.chat.completions.stream(**asked, stream_options=options) as events:
                try:
                    reply: Any = await events.get_final_completion()
                except LengthFinishReasonError as cut:
                    # The client's helper will not parse a reply that is cut; it hands it over all the same.
                    reply = cut.completion
        else:
            reply = await self._client.chat.completions.create(**asked)
        (choice,) = reply.choices
        calls = choice.message.tool_calls or []
        echoed = {
            "role": "assistant", "content": choice.message.content,
            "tool_calls": [
                {
                    "id": call.id, "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in calls
            ],
        }  # fmt: skip
        return Said(
            text=choice.message.content or "",
            calls=[(call.function.name, json.loads(call.function.arguments)) for call in calls],
            finish=choice.finish_reason,
            usage=(reply.usage.prompt_tokens, reply.usage.completion_tokens),
            echo=[{name: value for name, value in echoed.items() if value}],
            call_ids=[call.id for call in calls],
        )


class Responses:
    """OpenAI's client on Responses."""

    tools: ClassVar[dict[str, Any]] = {
        "tools": [{"type": "function", "name": TOOL, "parameters": PARAMETERS, "strict": False}]
    }
    named: ClassVar[dict[str, Any]] = {"tool_choice": {"type": "function", "name": TOOL}}
    required: ClassVar[dict[str, Any]] = {"tool_choice": "required"}

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    def history(self, *said: Said) -> list[Any]:
        results = [
            [{"type": "function_call_output", "call_id": call_id, "output": RESULT} for call_id in one.call_ids]
            for one in said
        ]
        turns = [turn for one, result in zip(said, results, strict=True) for turn in (*one.echo, *result)]
        return [{"role": "user", "content": QUESTION}, *turns]

    async def ask(self, history: list[Any], *, stream: bool, limit: int, extra: dict[str, Any], **more: Any) -> Said:
        asked = {
            "model": "asked", "input": history, "max_output_tokens": limit, "temperature": 1.0, "extra_body": extra,
            **more,
        }  # fmt: skip
        if stream:
            async with self._client.responses.stream(**asked) as events:
                last: Any = None
                async for event in events:
                    last = event
                # A reply cut by its limit ends as incomplete, which the client's helper takes for no end.
                assert last.type in ("response.completed", "response.incomplete")
                reply: Any = last.response
        else:
            reply = await self._client.responses.create(**asked)
        calls = [item for item in reply.output if item.type == "function_call"]
        return Said(
            text=reply.output_text,
            calls=[(call.name, json.loads(call.arguments)) for call in calls],
            finish=reply.status,
            usage=(reply.usage.input_tokens, reply.usage.output_tokens),
            echo=[item.to_dict() for item in reply.output],
            call_ids=[call.call_id for call in calls],
        )


class Messages:
    """Anthropic's client."""

    tools: ClassVar[dict[str, Any]] = {"tools": [{"name": TOOL, "input_schema": PARAMETERS}]}
    named: ClassVar[dict[str, Any]] = {"tool_choice": {"type": "tool", "name": TOOL}}
    required: ClassVar[dict[str, Any]] = {"tool_choice": {"type": "any"}}

    def __init__(self, client: AsyncAnthropic) -> None:
        self._client = client

    def history(self, *said: Said) -> list[Any]:
        turns: list[Any] = [{"role": "user", "content": QUESTION}]
        for one in said:
            results = [{"type": "tool_result", "tool_use_id": each, "content": RESULT} for each in one.call_ids]
            turns += [{"role": "assistant", "content": one.echo}, {"role": "user", "content": results}]
        return turns

    async def ask(self, history: list[Any], *, stream: bool, limit: int, extra: dict[str, Any], **more: Any) -> Said:
        asked = {
            "model": "asked", "messages": history, "max_tokens": limit, "extra_body": {"temperature": 1.0, **extra},
            **more,
        }  # fmt: skip
        if stream:
            async with self._client.messages.stream(**asked) as events:
                reply: Any = await events.get_final_message()
        else:
            reply = await self._client.messages.create(**asked)
        calls = [block for block in reply.content if block.type == "tool_use"]
        return Said(
            text="".join(block.text for block in reply.content if block.type == "text"),
            calls=[(call.name, call.input) for call in calls],
            finish=reply.stop_reason,
            usage=(reply.usage.input_tokens, reply.usage.output_tokens),
            echo=reply.to_dict(exclude_none=True)["content"],
            call_ids=[call.id for call in calls],
        )


class Gemini:
    """Google's client."""

    tools: ClassVar[dict[str, Any]] = {
        "tools": [{"function_declarations": [{"name": TOOL, "parameters_json_schema": PARAMETERS}]}]
    }
    named: ClassVar[dict[str, Any]] = {
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": [TOOL]}}
    }
    required: ClassVar[dict[str, Any]] = {"tool_config": {"function_calling_config": {"mode": "ANY"}}}

    def __init__(self, client: Any) -> None:
        self._client = client

    def history(self, *said: Said) -> list[Any]:
        turns: list[Any] = [{"role": "user", "parts": [{"text": QUESTION}]}]
        for one in said:
            results = [
                {"function_response": {"name": TOOL, "id": each, "response": {"output": RESULT}}}
                for each in one.call_ids
            ]
            turns += [{"role": "model", "parts": one.echo}, {"role": "user", "parts": results}]
        return turns

    async def ask(self, history: list[Any], *, stream: bool, limit: int, extra: dict[str, Any], **more: Any) -> Said:
        config = types.GenerateContentConfig(
            max_output_tokens=limit, temperature=1.0, http_options=types.HttpOptions(extra_body=extra), **more
        )
        asked = {"model": "asked", "contents": history, "config": config}
        if stream:
            replies = [each async for each in await self._client.models.generate_content_stream(**asked)]
        else:
            replies = [await self._client.models.generate_content(**asked)]
        parts = [part for reply in replies for part in reply.candidates[0].content.parts or ()]
        calls = [part.function_call for part in parts if part.function_call is not None]
        usage = replies[-1].usage_metadata
        return Said(
            text="".join(part.text or "" for part in parts),
            calls=[(call.name, call.args) for call in calls],
            finish=replies[-1].candidates[0].finish_reason,
            usage=(usage.prompt_token_count, usage.candidates_token_count),
            echo=[part.model_dump(exclude_none=True) for part in parts if part.text or part.function_call],
            call_ids=[call.id for call in calls],
        )


class Completions:
    """OpenAI's client on Completions: a text goes on, and knows no tools."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def ask(self, prompt: str | list[int], *, stream: bool, limit: int, extra: dict[str, Any]) -> Said:
        asked: Any = {"model": "asked", "prompt": prompt, "max_tokens": limit, "temperature": 1.0, "extra_body": extra}
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
            events: Any = await self._client.completions.create(**asked)
            replies = [event async for event in events]
        else:
            replies = [await self._client.completions.create(**asked)]
        choices = [choice for reply in replies for choice in reply.choices]
        usage = replies[-1].usage
        return Said(
            text="".join(choice.text for choice in choices),
            calls=[],
            finish=choices[-1].finish_reason,
            usage=(usage.prompt_tokens, usage.completion_tokens),
            echo=[],
            call_ids=[],
        )


Speaker = Chat | Responses | Messages | Gemini


@contextlib.asynccontextmanager
async def speaking(dialect: str, rollout: dict[str, Any]) -> AsyncIterator[Any]:
    """The speaker of a dialect, with the key of a rollout."""
    base, key = rollout["base_url"], rollout["secret"]
    if dialect == "messages":
        async with AsyncAnthropic(base_url=rollout["url"], api_key=key, max_retries=0) as anthropic:
            yield Messages(anthropic)
    elif dialect == "gemini":
        google = genai.Client(api_key=key, vertexai=False, http_options=types.HttpOptions(base_url=rollout["url"]))
        try:
            yield Gemini(google.aio)
        finally:
            await google.aio.aclose()
            google.close()
    else:
        async with AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as openai:
            yield {"chat": Chat, "responses": Responses, "completions": Completions}[dialect](openai)
