"""A Gemini body to the chat request that the engine gets.

Rules
1. A field of the API that cannot change the reply passes over silently (`IGNORED`); one that could, and that no engine
   has, stays out under a repair's name: `tool:googleSearch`, `generationConfig.mediaResolution`. What would leave the
   model blind, or free to do what it must not, is refused.
2. A field that is not the API's goes to the engine as it came (`chat_template_kwargs`, `structured_outputs`), but for
   those that say what this dialect says in its own way.
3. Thinking is switched off by a budget of 0 and on by a positive one, and left to the engine's template else.
4. Contents that end with the model's own text are to be gone on with.

Sources: the request types of google-genai 3.6 and the v1beta reference; the traffic is gemini-cli's (0.61).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from capture.dialects import messages_fields as field
from capture.dialects.chat import MAX_CHOICES
from capture.dialects.gemini_content import Note, chat_messages
from capture.dialects.gemini_fields import Node, camel
from capture.dialects.gemini_schema import json_schema
from capture.dialects.repeats import Known, Repairs, ToolList, is_open
from capture.errors import ClientError

IGNORED = {
    "model": "the path says it",
    "safetySettings": "what the API's own filters let through; an engine has none",
    "labels": "names a request to the API",
    "store": "whether the API keeps the exchange",
    "serviceTier": "a price of the API's",
    "modelArmorConfig": "the API's own filters",
}
"""Fields that cannot change the reply, each with the reason."""

_READ = frozenset(("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent"))

_OURS = frozenset(("messages", "stream", "stream_options", "n", "tool_choice", "response_format", "logprobs"))
"""Of the chat dialect, what a Gemini body says in its own way."""

_FUNCTION_IGNORED = {
    "behavior": "when a live session goes on",
}
"""Fields of a declared function that change nothing here, each with the reason."""

_FUNCTION_READ = frozenset(("name", "description", "parameters", "parametersJsonSchema"))

_CONFIG_READ = frozenset(
    (
        "temperature",
        "topP",
        "topK",
        "maxOutputTokens",
        "stopSequences",
        "seed",
        "candidateCount",
        "presencePenalty",
        "frequencyPenalty",
        "responseMimeType",
        "responseSchema",
        "responseJsonSchema",
        "responseModalities",
        "thinkingConfig",
        "responseLogprobs",
        "logprobs",
    )
)
_MODES = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}
_LEVELS = ("MINIMAL", "LOW", "MEDIUM", "HIGH")
_JSON, _TEXT, _ENUM = "application/json", "text/plain", "text/x.enum"


def chat_request(
    body: Node, *, model: str | None, streamed: bool, known: Known | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the chat request of a body, and the names of the repairs that it took.

    What is `known` of it is raw JSON in the request, and not looked at in `body`. Raises `ClientError` naming the field
    for what cannot be taken.
    """
    repairs = Repairs(() if known is None else known.repairs)
    note = repairs.note
    chat: dict[str, Any] = {} if model is None else {"model": model}
    chat["messages"] = chat_messages(body, note) if known is None else known.messages
    if body.get("cachedContent") is not None:
        raise field.untranslatable(body.path("cachedContent"), "contents that the API keeps", hint="Send them.")
    _others(chat, body)
    if known is None:
        names: Collection[str] = _tools(chat, body, note)
    else:
        names = known.tools.names
        if known.tools.raw is not None:
            chat["tools"] = known.tools.raw
        for repair in known.tools.repairs:
            note(repair)
    _tool_choice(chat, body, names, note)
    if (config := body.node("generationConfig")) is not None:
        _sampling(chat, config)
        _output(chat, config)
        _thinking(chat, config, note)
        for name in config.names():
            if name not in _CONFIG_READ:
                note(f"generationConfig.{name[:64]}")
    if is_open(chat["messages"]) if known is None else known.is_open:
        chat["continue_final_message"] = True
        chat["add_generation_prompt"] = False
    if streamed:
        chat["stream"] = True
        chat["stream_options"] = {"include_usage": True}
    return chat, repairs


def shows_thoughts(body: Node) -> bool:
    """Say if the client asked to see thoughts; the API keeps them to itself else."""
    config = body.node("generationConfig")
    thinking = None if config is None else config.node("thinkingConfig")
    return thinking is not None and thinking.flag("includeThoughts")


def tool_list(tools: Any) -> ToolList:
    """Return a body's `tools` as the engine gets them. Raises `ClientError`."""
    chat: dict[str, Any] = {}
    repairs = Repairs()
    names = _tools(chat, Node({"tools": tools}, ""), repairs.note)
    raw = msgspec.json.encode(chat["tools"]) if "tools" in chat else None
    return ToolList(raw=raw, names=frozenset(names), repairs=tuple(repairs))


def _others(chat: dict[str, Any], body: Node) -> None:
    """Hand on what is not the API's."""
    for name in body.fields:
        if name in _OURS:
            raise ClientError("unknown_field", f"The field '{name}' is none of this dialect's.", param=name)
    chat |= {name: value for name, value in body.fields.items() if camel(name) not in {*_READ, *IGNORED}}


def _sampling(chat: dict[str, Any], config: Node) -> None:
    for name, chats in (
        ("temperature", "temperature"),
        ("topP", "top_p"),
        ("presencePenalty", "presence_penalty"),
        ("frequencyPenalty", "frequency_penalty"),
    ):
        if (value := config.number(name)) is not None:
            chat[chats] = value
    for name, chats, least, most in (
        ("topK", "top_k", -1, None),
        ("maxOutputTokens", "max_tokens", 1, None),
        ("seed", "seed", -(2**63), 2**63 - 1),
        ("candidateCount", "n", 1, MAX_CHOICES),
    ):
        if (whole := config.whole(name, least=least, most=most)) is not None:
            chat[chats] = whole
    if stops := config.texts("stopSequences"):
        chat["stop"] = stops
    top = config.whole("logprobs", least=0, most=20)
    if config.flag("responseLogprobs"):
        chat["logprobs"] = True
        chat["top_logprobs"] = top or 0


def _output(chat: dict[str, Any], config: Node) -> None:
    for i, modality in enumerate(config.texts("responseModalities")):
        if modality.upper() not in ("TEXT", "MODALITY_UNSPECIFIED"):
            raise field.untranslatable(config.path(f"responseModalities[{i}]"), f"the modality {modality!r}")
    schema: Any = None
    if (given := config.get("responseJsonSchema")) is not None:
        schema = field.mapping(given, config.path("responseJsonSchema"))
    elif (given := config.get("responseSchema")) is not None:
        schema = json_schema(given, config.path("responseSchema"))
    mime = config.optional_text("responseMimeType") or (_TEXT if schema is None else _JSON)
    if mime == _ENUM:
        choices = schema.get("enum") if schema is not None else None
        if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
            raise field.wrong(config.path("responseSchema"), "a list of texts, `enum`, to choose from")
        chat["structured_outputs"] = {"choice": choices}
    elif mime == _JSON:
        if schema is None:
            chat["response_format"] = {"type": "json_object"}
        else:
            chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    elif mime != _TEXT:
        raise field.untranslatable(config.path("responseMimeType"), f"the type {mime!r}")


def _thinking(chat: dict[str, Any], config: Node, note: Note) -> None:
    thinking = config.node("thinkingConfig")
    if thinking is None:
        return
    thinking.flag("includeThoughts")
    budget = thinking.whole("thinkingBudget", least=-1)
    if budget is not None and budget >= 0:
        if budget > 0:
            # vLLM refuses a budget unless it was started for one (0.32, `reasoning_config`), and one forces tokens.
            note("thinkingConfig.thinkingBudget")
        given = chat.get("chat_template_kwargs")
        asked = {} if given is None else field.mapping(given, "chat_template_kwargs")
        chat["chat_template_kwargs"] = {"enable_thinking": budget > 0, **asked}
    level = thinking.optional_text("thinkingLevel").upper()
    if level in _LEVELS:
        chat["reasoning_effort"] = level.lower()
    elif level not in ("", "THINKING_LEVEL_UNSPECIFIED"):
        raise field.wrong(thinking.path("thinkingLevel"), f"one of {', '.join(_LEVELS)}")


def _tools(chat: dict[str, Any], body: Node, note: Note) -> list[str]:
    """Translate the tools; return the names of those that the engine gets."""
    out: list[dict[str, Any]] = []
    for tool in body.nodes("tools"):
        for name in tool.names():
            if name != "functionDeclarations":
                note(f"tool:{name[:64]}")
        out += [{"type": "function", "function": _function(each, note)} for each in tool.nodes("functionDeclarations")]
    if out:
        # vLLM refuses an empty list.
        chat["tools"] = out
    return [tool["function"]["name"] for tool in out]


def _function(given: Node, note: Note) -> dict[str, Any]:
    function: dict[str, Any] = {"name": given.text("name")}
    if description := given.optional_text("description"):
        function["description"] = description
    if (schema := given.get("parametersJsonSchema")) is not None:
        function["parameters"] = field.mapping(schema, given.path("parametersJsonSchema"))
    elif (schema := given.get("parameters")) is not None:
        function["parameters"] = json_schema(schema, given.path("parameters"))
    else:
        # As the API means it; some templates take none for a fault.
        function["parameters"] = {"type": "object", "properties": {}}
    for name in given.names():
        if name not in _FUNCTION_READ and name not in _FUNCTION_IGNORED:
            note(f"function.{name[:64]}")
    return function


def _tool_choice(chat: dict[str, Any], body: Node, names: Collection[str], note: Note) -> None:
    config = body.node("toolConfig")
    if config is None:
        return
    for name in config.names():
        if name != "functionCallingConfig":
            # Of tools that the API runs itself.
            note(f"toolConfig.{name[:64]}")
    calling = config.node("functionCallingConfig")
    if calling is None:
        return
    mode = calling.optional_text("mode").upper()
    allowed = calling.texts("allowedFunctionNames")
    if mode not in (*_MODES, "", "MODE_UNSPECIFIED"):
        raise field.wrong(calling.path("mode"), f"one of {', '.join(_MODES)}")
    calling.flag("streamFunctionCallArguments")
    for i, name in enumerate(allowed):
        if name not in names:
            path = calling.path(f"allowedFunctionNames[{i}]")
            message = f"The field '{path}' names {name!r}, which is no function that the engine can be given."
            raise ClientError("unknown_tool", message, param=path)
    if mode == "ANY" and not names:
        raise ClientError(
            "unknown_tool",
            f"The field '{calling.path('mode')}' asks for a function, and the engine can be given none.",
            param=calling.path("mode"),
        )
    if not names:
        # Nothing to choose from: engines refuse a choice without tools.
        return
    if allowed and mode != "NONE" and set(allowed) != set(names):
        if mode != "ANY" or len(set(allowed)) > 1:
            raise field.untranslatable(
                calling.path("allowedFunctionNames"),
                "some of the functions, and not one alone under the mode ANY",
                hint="Declare those alone that may be called.",
            )
        chat["tool_choice"] = {"type": "function", "function": {"name": allowed[0]}}
    elif mode in _MODES:
        chat["tool_choice"] = _MODES[mode]
