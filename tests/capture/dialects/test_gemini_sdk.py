"""Google's own client against a whole appliance on the scripted engine: what it reads is what the engine said."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from capture.dialects.gemini_signature import thought_of
from tests.house import House, house

# The client's own: it makes a class of aiohttp's session.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

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

PLACE = types.Schema(type=types.Type.OBJECT, properties={"place": types.Schema(type=types.Type.STRING)})
TOOLS: list[Any] = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(name="look", description="Look.", parameters=PLACE),
            types.FunctionDeclaration(name="wait", parameters_json_schema={"type": "object", "properties": {}}),
        ]
    )
]
THOUGHTS = types.ThinkingConfig(include_thoughts=True)
PLAIN = types.ThinkingConfig(thinking_budget=0)
"""Behind its thinking an engine streams the empty line that it leaves out of a whole reply."""


@contextlib.asynccontextmanager
async def speaking(tmp_path: Path, **rollout: Any) -> AsyncIterator[tuple[House, dict[str, Any], Any]]:
    """An appliance, a rollout on it, and the client that its agent would use (untyped: all its fields are optional)."""
    (tmp_path / "rules.toml").write_text(RULES)
    async with house(f"scripted={tmp_path}/rules.toml", tmp_path) as home:
        registered = await home.rollout(**rollout)
        async with client_of(registered["url"], registered["secret"]) as client:
            yield home, registered, client


@contextlib.asynccontextmanager
async def client_of(url: str, key: str) -> AsyncIterator[Any]:
    client = genai.Client(api_key=key, vertexai=False, http_options=types.HttpOptions(base_url=url))
    try:
        yield client.aio
    finally:
        await client.aio.aclose()
        client.close()


async def both(client: Any, contents: Any, **config: Any) -> tuple[Any, list[Any]]:
    """Ask whole and streamed; put together the two may differ in nothing but their ids."""
    asked = types.GenerateContentConfig(**config)
    whole = await client.models.generate_content(model="asked", contents=contents, config=asked)
    stream = await client.models.generate_content_stream(model="asked", contents=contents, config=asked)
    chunks = [chunk async for chunk in stream]
    assert [bool(chunk.candidates[0].finish_reason) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert _shown([whole]) == _shown(chunks)
    return whole, chunks


def _shown(chunks: list[Any]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    out: dict[str, Any] = {}
    for chunk in chunks:
        (candidate,) = chunk.candidates
        for part in candidate.content.parts:
            told = part.model_dump(exclude_none=True)
            # Drawn anew in each reply.
            told.get("function_call", {}).pop("id", None)
            last = parts[-1] if parts else {}
            if "text" in told and "text" in last and told.get("thought") == last.get("thought"):
                parts[-1] = {**last, **told, "text": last["text"] + told["text"]}
            else:
                parts.append(told)
        assert candidate.content.role == "model"
        out = {
            "finish": candidate.finish_reason,
            "usage": chunk.usage_metadata,
            "model": chunk.model_version,
        }
    return {"parts": [part for part in parts if part != {"text": ""}], **out}


async def drained(client: Any, contents: str, **more: Any) -> None:
    """Read a stream to its end; none of these has one."""
    async for chunk in await client.models.generate_content_stream(model="asked", contents=contents, **more):
        assert not any(candidate.finish_reason for candidate in chunk.candidates or ())


def parts(reply: Any) -> list[Any]:
    found: list[Any] = reply.candidates[0].content.parts
    return found


async def test_text_and_thinking(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        whole, chunks = await both(
            client, "Think: what is 2 + 2?", system_instruction="You know things.", thinking_config=THOUGHTS
        )
        thought, text = parts(whole)
        assert (thought.thought, thought.text.strip()) == (True, "I know this one.")
        assert (text.thought, text.text.strip()) == (None, "It is four.")
        assert whole.text.strip() == "It is four."
        assert (whole.candidates[0].finish_reason, whole.model_version) == (types.FinishReason.STOP, "asked")
        assert len(chunks) > 4

        await home.idle(rollout)
        for n, reply in enumerate((whole, chunks[-1])):
            call = await home.call(rollout, n)
            assert (call["id"], call["dialect"], call["status"]) == (reply.response_id, "gemini", "complete")
            usage = reply.usage_metadata
            assert len(call["sampled_ids"]) == usage.candidates_token_count + (usage.thoughts_token_count or 0)
            assert len(call["prompt_ids"]) == usage.prompt_token_count
            assert call["reply"]["candidates"][0]["content"]["parts"][0]["thought"] is True


async def test_thoughts_are_sealed_for_a_client_that_did_not_ask_for_them(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        whole, _ = await both(client, "Think: what is 2 + 2?")
        (text,) = parts(whole)
        assert (text.text.strip(), text.thought) == ("It is four.", None)
        raw = json.loads(text.model_dump_json(include={"thought_signature"}))["thought_signature"]
        assert thought_of(raw).strip() == "I know this one."


async def test_a_tool_loop_goes_on_from_what_was_said(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        whole, _ = await both(client, "Look around.", tools=TOOLS)
        assert [name for part in parts(whole) for name in part.model_fields_set if name != "thought_signature"] == [
            "text", "function_call", "function_call",
        ]  # fmt: skip
        look, wait = whole.function_calls
        assert (look.name, look.args) == ("look", {"place": "é", "deep": 2.0})
        assert (wait.name, wait.args) == ("wait", {})
        assert look.id != wait.id

        turn = [
            types.UserContent("Look around."),
            whole.candidates[0].content,
            types.UserContent(
                [
                    types.Part(
                        function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": said})
                    )
                    for call, said in ((look, "A door."), (wait, "Time."))
                ]
            ),
        ]
        config = types.GenerateContentConfig(tools=TOOLS)
        answer = await client.models.generate_content(model="asked", contents=turn, config=config)
        assert answer.text.strip() == "Time. and done."

        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [(call["n"], call["parent"]) for call in graph["calls"]] == [(0, None), (1, None), (2, 0)]
        first, _, last = [await home.call(rollout, n) for n in range(3)]
        assert first["sent"]["messages"] == last["sent"]["messages"][:1]
        assert last["sent"]["messages"][1]["reasoning"].strip() == "Two places."


async def test_a_chat_of_the_client_s_own(tmp_path: Path) -> None:
    """It keeps each chunk of a stream as a content of its own."""
    async with speaking(tmp_path) as (home, rollout, client):
        chat = client.chats.create(model="asked", config=types.GenerateContentConfig(thinking_config=THOUGHTS))
        async for _ in await chat.send_message_stream("Think: what is 2 + 2?"):
            pass
        async for _ in await chat.send_message_stream("Say much."):
            pass
        assert len(chat.get_history(curated=True)) > 6
        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [(call["n"], call["parent"]) for call in graph["calls"]] == [(0, None), (1, 0)]
        messages = (await home.call(rollout, 1))["sent"]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert messages[1]["reasoning"].strip() == "I know this one."


async def test_limits_and_stop_sequences(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        whole, _ = await both(client, "Say much.", max_output_tokens=3, thinking_config=PLAIN)
        assert whole.candidates[0].finish_reason is types.FinishReason.MAX_TOKENS
        assert whole.usage_metadata.candidates_token_count == 3
        whole, _ = await both(client, "Say much.", stop_sequences=["seven", " four"], thinking_config=PLAIN)
        assert (whole.candidates[0].finish_reason, whole.text.strip()) == (types.FinishReason.STOP, "one two three")


async def test_forced_functions_and_schemas(tmp_path: Path) -> None:
    def choose(mode: str, *names: str) -> types.ToolConfig:
        calling = types.FunctionCallingConfig(
            mode=types.FunctionCallingConfigMode(mode), allowed_function_names=list(names) or None
        )
        return types.ToolConfig(function_calling_config=calling)

    async with speaking(tmp_path) as (_, _, client):
        fields: dict[str, Any] = {"tools": TOOLS, "thinking_config": PLAIN}
        whole, _ = await both(client, "Hello.", **fields, tool_config=choose("ANY", "wait"))
        assert [call.name for call in whole.function_calls] == ["wait"]
        whole, _ = await both(client, "Hello.", **fields, tool_config=choose("NONE"))
        assert whole.function_calls is None

        class Title(BaseModel):
            title: str

        json_mode: dict[str, Any] = {"response_mime_type": "application/json", "thinking_config": PLAIN}
        whole, _ = await both(client, "Hello.", **json_mode, response_schema=Title)
        assert isinstance(whole.parsed, Title)
        whole, _ = await both(client, "Hello.", **json_mode, response_json_schema=Title.model_json_schema())
        assert Title.model_validate_json(whole.text)


async def test_several_candidates_and_logprobs(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        config = types.GenerateContentConfig(
            candidate_count=2, response_logprobs=True, logprobs=2, seed=1, thinking_config=PLAIN
        )
        whole = await client.models.generate_content(model="asked", contents="Say much.", config=config)
        assert [candidate.index for candidate in whole.candidates] == [0, 1]
        for candidate in whole.candidates:
            chosen, top = candidate.logprobs_result.chosen_candidates, candidate.logprobs_result.top_candidates
            assert len(chosen) == len(top) > 3
            assert candidate.avg_logprobs < 0
        stream = await client.models.generate_content_stream(model="asked", contents="Say much.", config=config)
        scored = [0, 0]
        async for chunk in stream:
            for candidate in chunk.candidates:
                if candidate.logprobs_result is not None:
                    scored[candidate.index] += len(candidate.logprobs_result.chosen_candidates)
        assert scored == [len(candidate.logprobs_result.chosen_candidates) for candidate in whole.candidates]


async def test_counts_are_the_engine_s(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        counted = await client.models.count_tokens(model="asked", contents="Think.")
        whole = await client.models.generate_content(model="asked", contents="Think.")
        assert counted.total_tokens == whole.usage_metadata.prompt_token_count > 0
        await home.idle(rollout)
        assert len((await home.graph(rollout))["calls"]) == 1


async def test_models(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        (model,) = [model async for model in await client.models.list()]
        assert model.name.startswith("models/")
        assert model.supported_actions == ["generateContent", "countTokens"]
        assert await client.models.get(model=model.name) == model


async def test_errors_are_the_client_s_own(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, rollout, client):
        file = types.Part.from_uri(file_uri="gs://bucket/a.png", mime_type="image/png")
        with pytest.raises(errors.ClientError, match=r"contents\[0\]\.parts\[0\]\.fileData\.fileUri") as bad:
            await client.models.generate_content(model="asked", contents=[file])
        assert (bad.value.code, bad.value.status) == (400, "INVALID_ARGUMENT")
        long = types.GenerateContentConfig(max_output_tokens=10_000_000)
        with pytest.raises(errors.ClientError, match="max_tokens"):
            await drained(client, "hi", config=long)
        with pytest.raises(errors.ServerError, match=r"All seats are taken\.") as busy:
            await drained(client, "Be busy.")
        assert (busy.value.code, busy.value.status) == (503, "UNAVAILABLE")
        async with client_of(rollout["url"], "nobody") as stranger:
            with pytest.raises(errors.ClientError) as refused:
                await stranger.models.generate_content(model="asked", contents="hi")
        assert (refused.value.code, refused.value.status) == (401, "UNAUTHENTICATED")


async def test_a_stream_that_breaks_is_no_reply(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        with pytest.raises(errors.ServerError, match="EngineCore") as died:
            await drained(client, "Die.")
        assert (died.value.code, died.value.status) == (500, "INTERNAL")
        with pytest.raises(aiohttp.ClientPayloadError):
            await drained(client, "Break.")
        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [call["status"] for call in graph["calls"]] == ["error", "aborted"]


async def test_the_last_reply_at_a_limit(tmp_path: Path) -> None:
    async with speaking(tmp_path, limits={"max_calls": 1}) as (_, _, client):
        await client.models.generate_content(model="asked", contents="Think.")
        whole, _ = await both(client, "Think.", tools=TOOLS)
        assert whole.candidates[0].finish_reason is types.FinishReason.STOP
        assert "max_calls=1" in whole.text


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stream_without_alt_sse_is_one_list(tmp_path: Path, streamed: bool) -> None:
    async with speaking(tmp_path) as (home, rollout, _):
        verb = "streamGenerateContent" if streamed else "generateContent"
        url = f"{rollout['url']}/v1beta/models/asked:{verb}?key={rollout['secret']}"
        async with home.session.post(url, json={"contents": {"parts": {"text": "Say much."}}}) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json")
            told = await answer.json()
        chunks = told if streamed else [told]
        assert (len(chunks) > 5) == streamed
        assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"
        assert "usageMetadata" in chunks[-1]
