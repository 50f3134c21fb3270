"""Fields of a Messages body, and the chat request that they make."""

from typing import Any

import pytest

from capture.dialects.messages_request import IGNORED, LEFT_OUT, TOOL_IGNORED, chat_request
from capture.errors import ClientError

BODY: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
CHAT: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def made(*, streamed: bool = False, **fields: Any) -> dict[str, Any]:
    chat, repairs = chat_request({**BODY, **fields}, streamed=streamed)
    assert repairs == []
    return chat


MAPPED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.5, "top_p": 1, "top_k": 5}, {"temperature": 0.5, "top_p": 1, "top_k": 5}),
    ({"temperature": None, "stop_sequences": None, "tools": None, "thinking": None, "system": None}, {}),
    ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
    ({"stop_sequences": []}, {}),
    ({"tools": []}, {}),
    ({"tools": [], "tool_choice": {"type": "auto"}}, {}),
    ({"tools": [TOOL]}, {"tools": [FUNCTION]}),
    ({"tools": [{**TOOL, "type": "custom"}]}, {"tools": [FUNCTION]}),
    ({"tools": [{**TOOL, **dict.fromkeys(TOOL_IGNORED, True)}]}, {"tools": [FUNCTION]}),
    (
        {"tools": [{"name": "f", "input_schema": {}, "strict": True}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}]},
    ),
    ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tools": [FUNCTION], "tool_choice": "auto"}),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tools": [FUNCTION], "tool_choice": "required"}),
    ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tools": [FUNCTION], "tool_choice": "none"}),
    (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}},
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tools": [FUNCTION], "tool_choice": "auto", "parallel_tool_calls": False},
    ),
    ({"thinking": {"type": "adaptive", "display": "summarized"}}, {}),
    ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
    ({"thinking": {"type": "enabled"}}, {"chat_template_kwargs": {"enable_thinking": True}}),
    (
        {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True, "x": 1}},
        {"chat_template_kwargs": {"enable_thinking": True, "x": 1}},
    ),
    ({"output_config": {"effort": "xhigh"}}, {"reasoning_effort": "xhigh"}),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}},
    ),
    (
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}},
    ),
    ({name: {"any": "thing"} for name in IGNORED}, {}),
    ({"container": None, "mcp_servers": []}, {}),
    ({"seed": 5, "structured_outputs": {"choice": ["a"]}}, {"seed": 5, "structured_outputs": {"choice": ["a"]}}),
    ({"stream_options": {"include_usage": False}}, {}),
]


@pytest.mark.parametrize(("fields", "expected"), MAPPED, ids=[", ".join(row[0]) or "nothing" for row in MAPPED])
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert made(**fields) == {**CHAT, **expected}


def test_a_stream_counts_its_usage() -> None:
    assert made(streamed=True) == {**CHAT, "stream": True, "stream_options": {"include_usage": True}}


def test_a_reply_that_has_begun_is_gone_on_with() -> None:
    begun = [*BODY["messages"], {"role": "assistant", "content": [{"type": "text", "text": "The answer is ("}]}]
    chat = made(messages=begun)
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
    for last in (called, {"role": "assistant", "content": ""}, {"role": "user", "content": "go on"}):
        assert "continue_final_message" not in made(messages=[*begun, last])


REPAIRED: list[tuple[dict[str, Any], list[str]]] = [
    ({"tools": [TOOL, SEARCH]}, ["tool:web_search_20250305"]),
    ({"tools": [SEARCH, SEARCH]}, ["tool:web_search_20250305"]),
    ({"tools": [{**TOOL, "input_examples": [{}]}]}, ["tool.input_examples"]),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, ["thinking.budget_tokens"]),
    ({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}, ["output_config.task_budget"]),
    *(({name: {"any": "thing"}}, [name]) for name in LEFT_OUT),
]


@pytest.mark.parametrize(("fields", "names"), REPAIRED, ids=[row[1][0] for row in REPAIRED])
def test_what_no_engine_has_stays_out_by_name(fields: dict[str, Any], names: list[str]) -> None:
    chat, repairs = chat_request({**BODY, **fields}, streamed=False)
    assert repairs == names
    assert [tool["function"]["name"] for tool in chat.get("tools", [])] in ([], ["f"])
    assert not set(chat) & set(LEFT_OUT)


def test_tools_of_the_api_alone_are_no_tools() -> None:
    chat, _ = chat_request({**BODY, "tools": [SEARCH], "tool_choice": {"type": "auto"}}, streamed=False)
    assert chat == CHAT


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": float("nan")}, "top_p"),
    ({"top_k": 0.5}, "top_k"),
    ({"stop_sequences": "a"}, "stop_sequences"),
    ({"stop_sequences": ["a", 1]}, "stop_sequences.1"),
    ({"system": 5}, "system"),
    ({"tools": {}}, "tools"),
    ({"tools": ["f"]}, "tools.0"),
    ({"tools": [TOOL, {"input_schema": {}}]}, "tools.1.name"),
    ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
    ({"tools": [{"name": "f", "input_schema": "x"}]}, "tools.0.input_schema"),
    ({"tools": [{**TOOL, "description": 5}]}, "tools.0.description"),
    ({"tools": [{**TOOL, "type": 5}]}, "tools.0.type"),
    ({"tools": [{**TOOL, "strict": "yes"}]}, "tools.0.strict"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice.type"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
    ({"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ({"thinking": True}, "thinking"),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled"}, "chat_template_kwargs": 5}, "chat_template_kwargs"),
    ({"output_config": []}, "output_config"),
    ({"output_config": {"effort": 5}}, "output_config.effort"),
    ({"output_config": {"format": "json"}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema", "schema": 5}}, "output_format.schema"),
    ({"n": 2}, "n"),
]


@pytest.mark.parametrize(("fields", "param"), FAULTS, ids=[f"{i}-{row[1]}" for i, row in enumerate(FAULTS)])
def test_a_fault_is_named_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        chat_request({**BODY, **fields}, streamed=False)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert param in caught.value.message


@pytest.mark.parametrize("name", ["model", "max_tokens", "messages"])
def test_a_field_that_must_be_there(name: str) -> None:
    with pytest.raises(ClientError) as caught:
        chat_request({key: value for key, value in BODY.items() if key != name}, streamed=False)
    assert (caught.value.code, caught.value.param) == ("missing_field", name)


def test_a_count_has_no_limit() -> None:
    body = {key: value for key, value in BODY.items() if key != "max_tokens"}
    chat, _ = chat_request({**body, "tools": [TOOL], "thinking": {"type": "disabled"}}, streamed=False, counting=True)
    assert chat == {
        "model": "m",
        "messages": CHAT["messages"],
        "tools": [FUNCTION],
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_each_rule_has_a_reason() -> None:
    assert all(reason for table in (IGNORED, LEFT_OUT, TOOL_IGNORED) for reason in table.values())
