"""The built-in rules: what the model says where no rule of the script matches.

In this order: what satisfies `structured_outputs` (a choice or a schema); with tools and no tool result last, or
where a call is demanded, one call, of the tool named or of the first, with arguments made from its schema's
required properties; what satisfies `response_format`; an answer, which quotes the last message.
"""

from __future__ import annotations

import json
from typing import Any

from capture.scripted.request import ChatRequest
from capture.scripted.rules import CallReply, Reply, Seen

# How deep a schema is followed. Deeper ones are recursive, and their optional parts are left out anyway.
_DEPTH = 12

_FORM = "The form of the answer is given. I fill it in."

# The most items or characters that a schema's least numbers are followed to.
_LONGEST = 1000

# How much of a message is quoted.
_QUOTE = 60


def answer(request: ChatRequest, seen: Seen) -> Reply:
    """Give the built-in reply to a request."""
    asked = request.structured_outputs
    if asked is not None and asked.choice:
        return Reply(thinking=_FORM, text=asked.choice[0])
    if asked is not None and asked.json is not None:
        return Reply(thinking=_FORM, text=_of_schema(asked.json))
    forced = seen.tool_choice in ("required", "named")
    if seen.tools and seen.tool_choice != "none" and (forced or seen.role != "tool"):
        name = request.forced_tool or seen.tools[0]
        tool = next(tool["function"] for tool in request.tools or () if tool["function"]["name"] == name)
        arguments = example(tool.get("parameters") or {})
        thought = f"The message calls for a tool. I use {name} and look at what it gives."
        return Reply(
            thinking=thought,
            call=(CallReply(tool=name, arguments=arguments if isinstance(arguments, dict) else {}),),
        )
    form = request.response_format or {}
    if form.get("type") == "json_schema" and isinstance(form.get("json_schema"), dict):
        return Reply(thinking=_FORM, text=_of_schema(form["json_schema"].get("schema", {})))
    if form.get("type") == "json_object":
        return Reply(thinking=_FORM, text="{}")
    if seen.role == "tool":
        return Reply(
            thinking="The tool has answered. That is enough to tell the user.",
            text=f"The tool gave this: {_quote(seen.text)}. With that, the work is done.",
        )
    return Reply(
        thinking="There is nothing to look up. I can answer at once.",
        text=f"You wrote this: {_quote(seen.text)}. That is all a script has to say to it.",
    )


def _of_schema(schema: Any) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            schema = {}
    return json.dumps(example(schema), ensure_ascii=False)


def _quote(text: str) -> str:
    """Quote a message's beginning, without `<`, so that no special token stands in a reply by accident."""
    line = " ".join(text.replace("<", " ").split())
    return json.dumps(line if len(line) <= _QUOTE else line[: _QUOTE - 1].rstrip() + "…", ensure_ascii=False)


def example(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """Make the smallest value that a JSON schema allows, as far as its common keywords say."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > _DEPTH:
        return "sample"
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if isinstance(schema.get("$ref"), str):
        # A reference counts double and more: one that leads back to itself branches at every step.
        return example(_resolve(root, schema["$ref"]), root, depth + _DEPTH // 4)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return example(schema[key][0], root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if kind == "object" or (kind is None and "properties" in schema):
        properties = schema.get("properties")
        inner = properties if isinstance(properties, dict) else {}
        return {name: example(inner.get(name, {}), root, depth + 1) for name in _names(schema)}
    if kind == "array":
        return [example(schema.get("items", {}), root, depth + 1)] * _bound(schema.get("minItems"))
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    if kind in ("boolean", "null"):
        return False if kind == "boolean" else None
    longest = _bound(schema.get("maxLength"), _LONGEST)
    return "sample".ljust(_bound(schema.get("minLength")), ".")[:longest]


def _names(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _bound(value: Any, otherwise: int = 0) -> int:
    return min(value, _LONGEST) if isinstance(value, int) and value >= 0 else otherwise


def _resolve(root: Any, reference: str) -> Any:
    for name in filter(None, reference.removeprefix("#").split("/")):
        root = root.get(name) if isinstance(root, dict) else None
    return root
