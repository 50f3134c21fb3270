"""Tools of the Responses dialect as functions, and function calls as this dialect's calls again.

Rules
1. A function stays one. A custom tool (free text, for codex's patches) becomes a function with one string, `input`;
   its grammar is told in the description, since no engine holds a call to it.
2. A namespace is flattened: its tools are named `namespace__name`. What it says of itself goes in front of its first
   tool's description.
3. A built-in tool is left out, and a repair names it; one that isn't known is refused.
4. A call is translated back by the table that was made on the way in. A name that isn't in it, which a model may well
   invent, stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from capture.dialects.responses_refusals import list_at, maybe_text_in, object_at, text_in, unsupported, wrong
from capture.dialects.responses_tables import LEFT_OUT_TOOLS

INPUT = "input"
"""The one argument of a custom tool's function."""

# What of a function OpenAI's chat dialect knows too. The rest (`defer_loading`, `allowed_callers`, `output_schema`,
# `async`) is about tools that OpenAI's servers call.
_FUNCTION_FIELDS = ("description", "parameters", "strict")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a function was in the client's own list."""

    name: str
    namespace: str | None = None
    custom: bool = False


class Tools:
    """A request's tools: as the engine gets them, and the way back."""

    def __init__(self, listed: Any = None) -> None:
        """Read a request's `tools`. Raises `ClientError` naming what can't be translated."""
        self.chat: list[dict[str, Any]] = []
        self.repairs: list[str] = []
        self._origins: dict[str, Origin] = {}
        self._names: dict[tuple[str | None, str], str] = {}
        tools = [] if listed is None else list_at(listed, "tools")
        # Names that stand by themselves come first, so that a flattened one never takes theirs.
        taken = (tool.get("name") for tool in tools if isinstance(tool, Mapping) and tool.get("type") != "namespace")
        self._taken = {name for name in taken if isinstance(name, str)}
        for i, tool in enumerate(tools):
            self._add(object_at(tool, f"tools[{i}]"), f"tools[{i}]")

    def __repr__(self) -> str:
        return f"<Tools {', '.join(self._origins) or 'none'}>"

    def origin(self, name: str) -> Origin:
        """Return what the client calls a function."""
        return self._origins.get(name) or Origin(name=name)

    def flat(self, name: str, namespace: str | None) -> str:
        """Return what the engine calls a client's tool, whether or not it is listed now."""
        return self._names.get((namespace, name)) or _joined(namespace, name)

    def choice(self, value: Any) -> Any:
        """Return a request's `tool_choice` for the engine, None where there is nothing to say.

        May leave tools out (`allowed_tools`). Raises `ClientError` for one that can't be translated.
        """
        if isinstance(value, str):
            if value not in ("none", "auto", "required"):
                raise wrong("tool_choice", '"none", "auto", "required" or an object')
            return self._mode(value)
        if value is None:
            return None
        form = object_at(value, "tool_choice")
        kind = text_in(form, "type", "tool_choice")
        if kind in ("function", "custom"):
            return {"type": "function", "function": {"name": self._named(form, "tool_choice")}}
        if kind == "allowed_tools":
            return self._allow(form)
        raise unsupported(
            "tool_choice.type",
            f"The engine can't be made to call a tool of the type '{kind}'.",
            hint="Name a function.",
        )

    def _mode(self, mode: str) -> str | None:
        if self.chat:
            return mode
        if mode == "required":
            raise unsupported("tool_choice", "A call is required, and there is no tool that the engine could call.")
        # Without tools it says nothing, and vLLM refuses it.
        return None

    def _allow(self, form: Mapping[str, Any]) -> str | None:
        mode = form.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise wrong("tool_choice.mode", '"auto" or "required"')
        names = set()
        for i, tool in enumerate(list_at(form.get("tools"), "tool_choice.tools")):
            where = f"tool_choice.tools[{i}]"
            if object_at(tool, where).get("type") in ("function", "custom"):
                names.add(self._named(tool, where))
        self.chat = [tool for tool in self.chat if tool["function"]["name"] in names]
        return self._mode(mode)

    def _named(self, form: Mapping[str, Any], where: str) -> str:
        flat = self.flat(text_in(form, "name", where), maybe_text_in(form, "namespace", where))
        if flat not in self._origins:
            raise unsupported(f"{where}.name", f"There is no tool named '{form['name']}' that the engine could call.")
        return flat

    def _add(self, tool: Mapping[str, Any], where: str) -> None:
        kind = text_in(tool, "type", where)
        if kind == "namespace":
            namespace = text_in(tool, "name", where)
            about = maybe_text_in(tool, "description", where)
            for i, inner in enumerate(list_at(tool.get("tools"), f"{where}.tools")):
                at = f"{where}.tools[{i}]"
                self._add_callable(object_at(inner, at), at, namespace, about)
                about = None
        elif kind in ("function", "custom"):
            self._add_callable(tool, where, None, None)
        elif kind in LEFT_OUT_TOOLS:
            self.repairs.append(f"tool_left_out:{kind}")
        else:
            raise unsupported(f"{where}.type", f"Tools of the type '{kind}' are not known here.")

    def _add_callable(self, tool: Mapping[str, Any], where: str, namespace: str | None, about: str | None) -> None:
        kind = text_in(tool, "type", where)
        name = text_in(tool, "name", where)
        if not name:
            raise wrong(f"{where}.name", "a name")
        if kind not in ("function", "custom"):
            raise unsupported(f"{where}.type", f"Tools of the type '{kind}' are not known in a namespace.")
        flat = _joined(namespace, name)
        while namespace is not None and flat in self._taken:
            flat += "_"
        self._taken.add(flat)
        self._origins[flat] = Origin(name=name, namespace=namespace, custom=kind == "custom")
        self._names[namespace, name] = flat
        function: dict[str, Any] = {"name": flat}
        description = maybe_text_in(tool, "description", where)
        if kind == "custom":
            description = self._with_grammar(description, tool.get("format"), where, name)
            function["description"] = ""
            function["parameters"] = {
                "type": "object",
                "properties": {INPUT: {"type": "string"}},
                "required": [INPUT],
                "additionalProperties": False,
            }
        else:
            function |= {field: tool[field] for field in _FUNCTION_FIELDS if tool.get(field) is not None}
            if "parameters" in function:
                object_at(function["parameters"], f"{where}.parameters")
        if about:
            description = f"{about}\n\n{description}" if description else about
        if description:
            function["description"] = description
        self.chat.append({"type": "function", "function": function})

    def _with_grammar(self, description: str | None, form: Any, where: str, name: str) -> str | None:
        if form is None or object_at(form, f"{where}.format").get("type") == "text":
            return description
        if form.get("type") != "grammar":
            raise unsupported(f"{where}.format.type", "A custom tool's format is text or a grammar.")
        syntax = maybe_text_in(form, "syntax", f"{where}.format") or ""
        definition = text_in(form, "definition", f"{where}.format")
        self.repairs.append(f"grammar_not_enforced:{name}")
        said = f"The input follows this {syntax} grammar:\n{definition}"
        return f"{description}\n\n{said}" if description else said


def as_arguments(text: str) -> str:
    """Return a custom call's text as a function's arguments, spelled as models mostly spell them."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def _joined(namespace: str | None, name: str) -> str:
    if not namespace:
        return name
    # codex's own namespaces for MCP servers end so already.
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
