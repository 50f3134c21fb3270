"""Tools of the Responses dialect: as the engine gets them, and the way back."""

from typing import Any

import pytest

from capture.dialects.responses_tables import LEFT_OUT_TOOLS
from capture.dialects.responses_tools import Origin, Tools, as_arguments
from capture.errors import ClientError
from tests.capture.dialects.responses_wire import CUSTOM, FUNCTION, NAMESPACE, chat, read

FREE = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def functions(*tools: dict[str, Any]) -> list[Any]:
    listed = Tools(list(tools)).chat
    assert all(tool["type"] == "function" for tool in listed)
    return [tool["function"] for tool in listed]


def test_a_function_keeps_what_the_chat_dialect_knows() -> None:
    given = {**FUNCTION, "description": "Looks.", "strict": False, "defer_loading": True, "output_schema": None}
    assert functions(given) == [
        {"name": "look", "description": "Looks.", "parameters": FUNCTION["parameters"], "strict": False}
    ]
    assert functions({"type": "function", "name": "look", "parameters": None, "strict": None}) == [{"name": "look"}]


def test_free_text_is_a_function_with_one_string() -> None:
    assert functions(CUSTOM) == [{"name": "patch", "description": "Patch files.", "parameters": FREE}]
    assert Tools([CUSTOM]).origin("patch") == Origin(name="patch", custom=True)
    assert as_arguments('"é"\n') == '{"input": "\\"é\\"\\n"}'


def test_a_grammar_is_told_and_named() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    tools = Tools([{**CUSTOM, "format": grammar}, {"type": "custom", "name": "b", "format": {"type": "text"}}])
    said = "Patch files.\n\nThe input follows this lark grammar:\nstart: /x/"
    assert [tool["function"].get("description") for tool in tools.chat] == [said, ""]
    assert tools.repairs == ["grammar_not_enforced:patch"]


def test_a_namespace_is_flattened_and_found_again() -> None:
    two = {**NAMESPACE, "tools": [*NAMESPACE["tools"], {**CUSTOM, "name": "write"}]}
    tools = Tools([two, FUNCTION])
    assert [tool["function"]["name"] for tool in tools.chat] == ["agents__spawn", "agents__write", "look"]
    assert [tool["function"].get("description") for tool in tools.chat] == ["Others.", "Patch files.", None]
    assert tools.origin("agents__spawn") == Origin(name="spawn", namespace="agents")
    assert tools.origin("agents__write") == Origin(name="write", namespace="agents", custom=True)
    assert tools.origin("invented") == Origin(name="invented")
    # codex's namespaces for MCP servers.
    assert Tools([{**NAMESPACE, "name": "mcp__x__"}]).chat[0]["function"]["name"] == "mcp__x__spawn"


@pytest.mark.parametrize("plain_first", [True, False])
def test_a_flattened_name_never_takes_anothers(plain_first: bool) -> None:
    plain = {**FUNCTION, "name": "agents__spawn"}
    tools = Tools([plain, NAMESPACE] if plain_first else [NAMESPACE, plain])
    assert tools.origin("agents__spawn") == Origin(name="agents__spawn")
    assert tools.origin("agents__spawn_") == Origin(name="spawn", namespace="agents")
    assert tools.flat("spawn", "agents") == "agents__spawn_"


@pytest.mark.parametrize("kind", LEFT_OUT_TOOLS)
def test_a_built_in_tool_is_left_out_and_named(kind: str) -> None:
    request = read(tools=[{"type": kind}, FUNCTION])
    assert request.tool_names == ("look",)
    assert request.repairs == (f"tool_left_out:{kind}",)
    # Alone it leaves nothing to choose from.
    assert not {"tools", "tool_choice"} & set(chat(tools=[{"type": kind}], tool_choice="auto"))


@pytest.mark.parametrize(
    ("choice", "sent", "names"),
    [
        ("none", "none", ["look", "patch", "agents__spawn"]),
        ("auto", "auto", ["look", "patch", "agents__spawn"]),
        ("required", "required", ["look", "patch", "agents__spawn"]),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}, None),
        ({"type": "custom", "name": "patch"}, {"type": "function", "function": {"name": "patch"}}, None),
        ({"type": "function", "name": "spawn", "namespace": "agents"},
         {"type": "function", "function": {"name": "agents__spawn"}}, None),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
         "required", ["patch"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, None, []),
    ],
)  # fmt: skip
def test_a_choice_becomes_a_choice(choice: Any, sent: Any, names: list[str] | None) -> None:
    found = chat(tools=[FUNCTION, CUSTOM, NAMESPACE], tool_choice=choice, parallel_tool_calls=False)
    assert found.get("tool_choice") == sent
    if names is not None:
        assert [tool["function"]["name"] for tool in found.get("tools", [])] == names
    assert found.get("parallel_tool_calls") is (None if names == [] else False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["look"]}, "tools[0]"),
        ({"tools": [{"name": "look"}]}, "tools[0].type"),
        ({"tools": [{"type": "telepathy"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tools": [{**FUNCTION, "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{**FUNCTION, "description": 3}]}, "tools[0].description"),
        ({"tools": [{**CUSTOM, "format": {"type": "xml"}}]}, "tools[0].format.type"),
        ({"tools": [{**CUSTOM, "format": {"type": "grammar"}}]}, "tools[0].format.definition"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "shell", "name": "b"}]}]},
         "tools[0].tools[0].type"),
        ({"tool_choice": 3}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [], "mode": "none"}}, "tool_choice.mode"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [], "mode": "required"}}, "tool_choice"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        read(**fields)
    assert (caught.value.param, caught.value.status) == (param, 400)
