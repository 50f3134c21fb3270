"""OpenAI's own client against a whole appliance on the scripted engine: what it reads is what the engine said."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
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
  { tool = "look", arguments = { place = "é" } },
  { tool = "agents__spawn" },
  { tool = "patch", arguments = { input = "*** Begin\n+é \"x\"\n" } },
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

[[rule]]
match = { text = '^And then' }
reply = { text = "Turn {turn}." }
"""

LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": False,
}
SPAWN: dict[str, Any] = {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}}
TOOLS: list[Any] = [
    LOOK,
    {"type": "namespace", "name": "agents", "description": "Others.", "tools": [SPAWN]},
    {"type": "custom", "name": "patch", "description": "Patch files."},
    {"type": "web_search"},
]


@contextlib.asynccontextmanager
async def speaking(tmp_path: Path, **rollout: Any) -> AsyncIterator[tuple[House, dict[str, Any], AsyncOpenAI]]:
    """An appliance, a rollout on it, and the client that its agent would use."""
    (tmp_path / "rules.toml").write_text(RULES)
    async with house(f"scripted={tmp_path}/rules.toml", tmp_path) as home:
        registered = await home.rollout(**rollout)
        async with AsyncOpenAI(base_url=registered["base_url"], api_key=registered["secret"], max_retries=0) as client:
            yield home, registered, client


async def streamed(client: AsyncOpenAI, **fields: Any) -> tuple[list[str], Response]:
    """Ask for a stream; return its events' types and the response that ends it."""
    kinds: list[str] = []
    last: Response | None = None
    async with client.responses.stream(**{"model": "asked", **fields}) as stream:
        async for event in stream:
            assert event.sequence_number == len(kinds)
            kinds.append(event.type.removeprefix("response."))
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                last = event.response
    assert last is not None
    assert kinds[:2] == ["created", "in_progress"]
    return kinds, last


async def both(client: AsyncOpenAI, **fields: Any) -> tuple[Response, Response]:
    """Ask whole and streamed; the two may differ in nothing but their ids and times."""
    whole = await client.responses.create(**{"model": "asked", **fields})
    kinds, told = await streamed(client, **fields)
    assert kinds[-1] == whole.status
    assert _shown(whole) == _shown(told)
    return whole, told


def _shown(response: Response) -> dict[str, Any]:
    Response.model_validate(response.to_dict())
    # Of a stream the client adds fields of its own, which are null.
    shown: dict[str, Any] = response.to_dict(exclude_none=True)
    del shown["id"], shown["created_at"]
    for item in shown["output"]:
        item.pop("id")
        item.pop("call_id", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content", []):
            part.pop("parsed", None)
    return shown


async def test_text_and_reasoning(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        whole, told = await both(client, instructions="You know things.", input="Think: what is 2 + 2?")
        reasoning, message = whole.output
        assert reasoning.type == "reasoning"
        assert reasoning.content is not None
        assert reasoning.content[0].text.strip() == "I know this one."
        assert message.type == "message"
        assert whole.output_text.strip() == "It is four."
        assert (whole.model, whole.status, whole.instructions) == ("asked", "completed", "You know things.")

        await home.idle(rollout)
        for n, response in enumerate((whole, told)):
            call = await home.call(rollout, n)
            assert (call["id"], call["dialect"], call["status"]) == (response.id, "responses", "complete")
            assert response.usage is not None
            assert len(call["sampled_ids"]) == response.usage.output_tokens
            assert len(call["prompt_ids"]) == response.usage.input_tokens
            assert call["reply"]["output"][1]["content"][0]["text"] == response.output_text
            assert (await client.responses.retrieve(response.id)).to_dict() == call["reply"]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_tool_loop_goes_on_from_what_was_said(tmp_path: Path, stored: bool) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        _, told = await both(client, input="Look around.", tools=TOOLS)
        calls = [item for item in told.output if item.type in ("function_call", "custom_tool_call")]
        look, spawn, patch = calls
        assert look.type == spawn.type == "function_call"
        assert (look.name, look.namespace, look.arguments) == ("look", None, '{"place": "é"}')
        assert (spawn.name, spawn.namespace, spawn.arguments) == ("spawn", "agents", "{}")
        assert patch.type == "custom_tool_call"
        assert (patch.name, patch.input) == ("patch", '*** Begin\n+é "x"\n')
        assert len({call.call_id for call in calls}) == 3

        results: list[Any] = [
            {"type": f"{call.type}_output", "call_id": call.call_id, "output": f"Result {n}."}
            for n, call in enumerate(calls)
        ]
        if stored:
            answer = await client.responses.create(
                model="asked", input=results, tools=TOOLS, previous_response_id=told.id
            )
            assert answer.previous_response_id == told.id
        else:
            echoed: list[Any] = [item.to_dict() for item in told.output]
            answer = await client.responses.create(
                model="asked", input=[{"role": "user", "content": "Look around."}, *echoed, *results], tools=TOOLS
            )
        assert answer.output_text.strip() == "Result 2. and done."

        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [(call["n"], call["parent"]) for call in graph["calls"]] == [(0, None), (1, None), (2, 1)]
        assert graph["calls"][0]["repairs"] == ["tool_left_out:web_search"]
        assert "request_repaired" in {finding["code"] for finding in graph["findings"]}
        sent = (await home.call(rollout, 2))["sent"]
        assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool", "tool", "tool"]
        assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"place": "é"}'


async def test_a_conversation_by_its_last_response(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        last = None
        for n in range(4):
            response = await client.responses.create(
                model="asked", input=f"And then {n}?", previous_response_id=last, reasoning={"effort": "low"}
            )
            assert response.output_text.strip() == f"Turn {n}."
            last = response.id
        # The same by items that are named, as some clients do.
        names: list[Any] = [
            {"role": "user", "content": "And then 0?"},
            {"type": "item_reference", "id": (await client.responses.retrieve(last or "")).output[-1].id},
            {"role": "user", "content": "And then what?"},
        ]
        named = await client.responses.create(model="asked", input=names)
        assert named.output_text.strip() == "Turn 1."

        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [call["parent"] for call in graph["calls"]][:4] == [None, 0, 1, 2]
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.responses.create(model="asked", input="And?", previous_response_id="resp_x")
        assert (unknown.value.code, unknown.value.param) == ("previous_response_not_found", "previous_response_id")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_x")


async def test_a_limit_of_tokens(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        whole, _ = await both(client, input="Say much.", max_output_tokens=3)
        assert whole.status == "incomplete"
        assert whole.incomplete_details is not None
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert whole.usage is not None
        assert whole.usage.output_tokens == 3


async def test_a_forced_tool_and_a_schema(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        forms: list[tuple[Any, str, str]] = [
            ({"type": "function", "name": "look"}, "function_call", "look"),
            ({"type": "custom", "name": "patch"}, "custom_tool_call", "patch"),
            ("required", "function_call", "look"),
        ]
        for choice, kind, name in forms:
            whole = await client.responses.create(model="asked", input="Hello.", tools=TOOLS, tool_choice=choice)
            found: list[Any] = [item for item in whole.output if item.type == kind]
            assert [item.name for item in found] == [name]

        class Title(BaseModel):
            title: str

        parsed = await client.responses.parse(model="asked", input="Hello.", text_format=Title)
        assert isinstance(parsed.output_parsed, Title)
        async with client.responses.stream(model="asked", input="Hello.", text_format=Title) as stream:
            assert (await stream.get_final_response()).output_parsed == parsed.output_parsed


async def test_logprobs_of_the_text(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        whole = await client.responses.create(
            model="asked", input="Think.", include=["message.output_text.logprobs"], top_logprobs=2
        )
        message = whole.output[-1]
        assert message.type == "message"
        part = message.content[0]
        assert part.type == "output_text"
        assert part.logprobs
        assert "".join(entry.token for entry in part.logprobs).strip() == part.text.strip()
        assert {len(entry.top_logprobs) for entry in part.logprobs} == {2}


async def test_errors_are_the_clients_own(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (_, _, client):
        untyped: Any = [{"role": "user", "content": [{"text": "hi"}]}]
        with pytest.raises(openai.BadRequestError) as bad:
            await client.responses.create(model="asked", input=untyped)
        assert (bad.value.param, bad.value.code) == ("input[0].content[0].type", "missing_field")
        with pytest.raises(openai.BadRequestError) as much:
            await client.responses.create(model="asked", input="hi", max_output_tokens=10_000_000, stream=True)
        assert "max" in str(much.value)
        with pytest.raises(openai.InternalServerError, match=r"All seats are taken\.") as busy:
            await client.responses.create(model="asked", input="Be busy.", stream=True)
        assert busy.value.response.headers["retry-after"] == "1"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="nobody").responses.create(model="asked", input="hi")
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.create(model="asked", input="hi", background=True)


async def test_a_stream_that_breaks_is_no_response(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (home, rollout, client):
        kinds, failed = await streamed(client, input="Die.")
        assert kinds[-2:] == ["error", "failed"]
        assert failed.error is not None
        assert failed.error.code == "server_error"
        with pytest.raises(Exception, match=r"(?i)connection error"):
            await streamed(client, input="Break.")
        await home.idle(rollout)
        graph = await home.graph(rollout)
        assert [call["status"] for call in graph["calls"]] == ["error", "aborted"]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(graph["calls"][1]["id"])


async def test_the_last_reply_at_a_limit(tmp_path: Path) -> None:
    async with speaking(tmp_path, limits={"max_calls": 1}) as (_, _, client):
        await client.responses.create(model="asked", input="Think.", tools=TOOLS)
        whole, _ = await both(client, input="Think.", tools=TOOLS)
        assert [item.type for item in whole.output] == ["message"]
        assert whole.status == "completed"
