"""An Anthropic Messages body to the chat request that the engine gets.

Rules
1. What the prompt is made of is what the agent asked for: thinking is switched off or on where the body says
   `disabled` or `enabled`, and left to the engine's template where it says `adaptive` or nothing.
2. A field of the API that cannot change the reply passes over silently (`IGNORED`); one that could, and that no engine
   has, stays out under a repair's name. Tools that the API runs itself are such: an agent offers them beside its own.
3. A field that is not the API's goes to the engine as it came (`chat_template_kwargs`, `seed`, `structured_outputs`):
   vLLM 0.32 takes some on its own Messages route, and it judges them.
4. A conversation that ends with the assistant's own text is to be gone on with: the API calls that a prefill.

Sources: the request types of anthropic 2.14, and vLLM 0.32's own translation (`entrypoints/anthropic/serving.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import msgspec

from capture.dialects import messages_fields as field
from capture.dialects.messages_content import Note, chat_messages
from capture.dialects.repeats import Known, Repairs, ToolList, is_open
from capture.errors import ClientError

IGNORED = {
    "metadata": "names the user to the API",
    "service_tier": "a price of the API's",
    "speed": "a price of the API's",
    "inference_geo": "where the API computes",
    "cache_control": "says how the API caches",
    "context_management": "asks the API to shorten the history; the engine gets all of it",
    "diagnostics": "asks why the API's cache missed",
    "betas": "names features of the API",
    "anthropic_version": "a version of the API",
    "anthropic_beta": "names features of the API",
    "user_profile_id": "names the user to the API",
    "workspace_id": "names the user to the API",
}
"""Fields that cannot change the reply, each with the reason."""

LEFT_OUT = {
    "container": "where the API's own tools run",
    "mcp_servers": "servers that the API calls itself",
}
"""Fields for tools that the API runs itself; the repair has the field's name."""

TOOL_IGNORED = {
    "cache_control": "says how the API caches",
    "eager_input_streaming": "arguments are streamed as they come in any case",
    "allowed_callers": "names callers of the API's own",
    "defer_loading": "the API's own search would load it; the engine sees the tool from the start",
}
"""Fields of a tool that change nothing here, each with the reason."""

_READ = frozenset(
    (
        "model",
        "messages",
        "system",
        "max_tokens",
        "tools",
        "tool_choice",
        "stop_sequences",
        "temperature",
        "top_k",
        "top_p",
        "thinking",
        "output_config",
        "output_format",
        "stream",
        # Ours to say: what the engine must count, and how.
        "stream_options",
    )
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(
    values: Mapping[str, Any], *, streamed: bool, counting: bool = False, known: Known | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the chat request of a body, and the names of the repairs that it took.

    `counting` reads a body whose tokens are to be counted, which has no `max_tokens`. What is `known` of it is raw JSON
    in the request, and not looked at in `values`. Raises `ClientError` naming the field for what cannot be taken.
    """
    repairs = Repairs(() if known is None else known.repairs)
    note = repairs.note
    chat: dict[str, Any] = {"model": field.text(values, "model", "")}
    if known is None:
        chat["messages"] = chat_messages(values.get("system"), field.required(values, "messages", "messages"), note)
    else:
        chat["messages"] = known.messages
    for name, value in values.items():
        if name in LEFT_OUT and value:
            note(name)
        elif name not in _READ and name not in IGNORED and name not in LEFT_OUT:
            chat[name] = value
    if values.get("n", 1) not in (1, None):
        raise field.wrong("n", "1: a message has one reply")
    _sampling(chat, values, counting=counting)
    if known is None:
        names: Set[str] = _tools(chat, values.get("tools"), note)
    else:
        names = known.tools.names
        if known.tools.raw is not None:
            chat["tools"] = known.tools.raw
        for repair in known.tools.repairs:
            note(repair)
    _tool_choice(chat, values.get("tool_choice"), names)
    _thinking(chat, values.get("thinking"), note)
    _output(chat, values, note)
    if is_open(chat["messages"]) if known is None else known.is_open:
        chat["continue_final_message"] = True
        chat["add_generation_prompt"] = False
    if streamed:
        chat["stream"] = True
        chat["stream_options"] = {"include_usage": True}
    return chat, repairs


def tool_list(tools: Any) -> ToolList:
    """Return a body's `tools` as the engine gets them. Raises `ClientError`."""
    chat: dict[str, Any] = {}
    repairs = Repairs()
    names = _tools(chat, tools, repairs.note)
    raw = msgspec.json.encode(chat["tools"]) if "tools" in chat else None
    return ToolList(raw=raw, names=frozenset(names), repairs=tuple(repairs))


def _sampling(chat: dict[str, Any], values: Mapping[str, Any], *, counting: bool) -> None:
    limit = values.get("max_tokens") if counting else field.required(values, "max_tokens", "max_tokens")
    if limit is not None or not counting:
        chat["max_tokens"] = field.whole_number(limit, "max_tokens", least=1)
    for name in ("temperature", "top_p"):
        if values.get(name) is not None:
            chat[name] = field.number(values[name], name)
    if values.get("top_k") is not None:
        chat["top_k"] = field.whole_number(values["top_k"], "top_k", least=-1)
    stops = values.get("stop_sequences")
    if stops is not None:
        for i, stop in enumerate(field.items(stops, "stop_sequences")):
            if not isinstance(stop, str):
                raise field.wrong(f"stop_sequences.{i}", "a string")
        if stops:
            chat["stop"] = stops


def _tools(chat: dict[str, Any], tools: Any, note: Note) -> set[str]:
    """Translate the tools; return the names of those that the engine gets."""
    if tools is None:
        return set()
    out: list[dict[str, Any]] = []
    for i, given in enumerate(field.items(tools, "tools")):
        at = f"tools.{i}"
        tool = field.mapping(given, at)
        kind = field.optional_text(tool, "type", at) or "custom"
        if kind != "custom":
            note(f"tool:{kind[:64]}")
            continue
        function: dict[str, Any] = {"name": field.text(tool, "name", at)}
        if description := field.optional_text(tool, "description", at):
            function["description"] = description
        schema = field.required(tool, "input_schema", f"{at}.input_schema")
        function["parameters"] = field.mapping(schema, f"{at}.input_schema")
        if field.flag(tool, "strict", at):
            function["strict"] = True
        if tool.get("input_examples"):
            note("tool.input_examples")
        out.append({"type": "function", "function": function})
    if out:
        # vLLM refuses an empty list.
        chat["tools"] = out
    return {tool["function"]["name"] for tool in out}


def _tool_choice(chat: dict[str, Any], choice: Any, names: Set[str]) -> None:
    if choice is None:
        return
    fields = field.mapping(choice, "tool_choice")
    kind = field.text(fields, "type", "tool_choice")
    if kind not in ("auto", "any", "tool", "none"):
        raise field.wrong("tool_choice.type", "'auto', 'any', 'tool' or 'none'")
    if kind == "tool" and (name := field.text(fields, "name", "tool_choice")) not in names:
        raise ClientError(
            "unknown_tool",
            f"The field 'tool_choice.name' names {name!r}, which is no tool that the engine can be given.",
            param="tool_choice.name",
        )
    if kind == "any" and not names:
        raise ClientError(
            "unknown_tool",
            "The field 'tool_choice' asks for a tool, and the engine can be given none.",
            param="tool_choice",
        )
    alone = field.flag(fields, "disable_parallel_tool_use", "tool_choice")
    if not names:
        # Nothing to choose from: engines refuse a choice without tools.
        return
    chat["tool_choice"] = _CHOICES.get(kind) or {"type": "function", "function": {"name": fields["name"]}}
    if alone:
        chat["parallel_tool_calls"] = False


def _thinking(chat: dict[str, Any], thinking: Any, note: Note) -> None:
    if thinking is None:
        return
    fields = field.mapping(thinking, "thinking")
    kind = field.text(fields, "type", "thinking")
    if kind not in ("enabled", "disabled", "adaptive", "between_tools"):
        raise field.wrong("thinking.type", "'enabled', 'disabled' or 'adaptive'")
    if fields.get("budget_tokens") is not None:
        field.whole_number(fields["budget_tokens"], "thinking.budget_tokens", least=1)
        # vLLM refuses a budget unless it was started for one (0.32, `reasoning_config`), and one forces tokens.
        note("thinking.budget_tokens")
    if kind in ("enabled", "disabled"):
        given = chat.get("chat_template_kwargs")
        asked = {} if given is None else field.mapping(given, "chat_template_kwargs")
        chat["chat_template_kwargs"] = {"enable_thinking": kind == "enabled", **asked}


def _output(chat: dict[str, Any], values: Mapping[str, Any], note: Note) -> None:
    given = values.get("output_config")
    config = {} if given is None else field.mapping(given, "output_config")
    if effort := field.optional_text(config, "effort", "output_config"):
        chat["reasoning_effort"] = effort
    # Its older name, outside of `output_config`.
    for at, form in (("output_format", values.get("output_format")), ("output_config.format", config.get("format"))):
        if form is None:
            continue
        fields = field.mapping(form, at)
        if field.text(fields, "type", at) != "json_schema":
            raise field.wrong(f"{at}.type", "'json_schema'")
        schema = field.mapping(field.required(fields, "schema", f"{at}.schema"), f"{at}.schema")
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    for name, value in config.items():
        if name not in ("effort", "format") and value is not None:
            note(f"output_config.{name[:64]}")
