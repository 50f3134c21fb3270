"""Gemini's schemas (a subset of OpenAPI 3.0) to JSON schemas.

Types are lower-case, `nullable` becomes a type `null`, counts that came as text (int64 in a protocol buffer's JSON)
numbers; `propertyOrdering` orders the properties. What the API does not have passes as it is: agents write JSON schemas
into `parameters` too. Nothing is left out.
"""

from __future__ import annotations

from typing import Any

from capture.dialects import messages_fields as field
from capture.dialects.gemini_fields import camel

_COUNTS = frozenset(("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"))
_RENAMED = {"defs": "$defs", "ref": "$ref"}
_KNOWN = frozenset(
    (
        *_COUNTS,
        *_RENAMED,
        "type",
        "format",
        "title",
        "description",
        "nullable",
        "enum",
        "properties",
        "required",
        "pattern",
        "example",
        "anyOf",
        "propertyOrdering",
        "default",
        "items",
        "minimum",
        "maximum",
        "additionalProperties",
    )
)
"""The fields of the API's schema, as google-genai 3.6 has them; of these alone the second spelling is read."""


def json_schema(value: Any, at: str) -> dict[str, Any]:
    """Return the JSON schema for one of the API's. Raises `ClientError` naming the field at fault."""
    out: dict[str, Any] = {}
    nullable = False
    order: list[Any] = []
    for given, inner in field.mapping(value, at).items():
        name = camel(given) if camel(given) in _KNOWN else given
        path = f"{at}.{name}"
        if inner is None and name != "default":
            continue
        if name == "type":
            if kind := _type(inner, path):
                out["type"] = kind
        elif name == "nullable":
            nullable = inner is True
        elif name == "propertyOrdering":
            order = field.items(inner, path)
        elif name == "example":
            out["examples"] = [inner]
        elif name in ("properties", "defs", "$defs"):
            inner = field.mapping(inner, path)
            out[_RENAMED.get(name, name)] = {key: json_schema(each, f"{path}.{key}") for key, each in inner.items()}
        elif name in ("anyOf", "oneOf", "allOf"):
            out[name] = [json_schema(each, f"{path}[{i}]") for i, each in enumerate(field.items(inner, path))]
        elif name in ("items", "additionalProperties") and isinstance(inner, dict):
            out[name] = json_schema(inner, path)
        elif name in _COUNTS and isinstance(inner, str) and inner.isascii() and inner.isdigit() and len(inner) < 20:
            out[name] = int(inner)
        else:
            out[_RENAMED.get(name, name)] = inner
    if order and isinstance(properties := out.get("properties"), dict):
        first = [name for name in order if isinstance(name, str) and name in properties]
        out["properties"] = {name: properties[name] for name in [*first, *properties]}
    return _with_null(out) if nullable else out


def _type(value: Any, at: str) -> Any:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return [each.lower() for each in value]
    if not isinstance(value, str):
        raise field.wrong(at, "a type's name")
    return "" if value == "TYPE_UNSPECIFIED" else value.lower()


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that takes null beside what it takes."""
    kind = schema.get("type")
    if isinstance(kind, str):
        out = schema | {"type": [kind, "null"]}
        if isinstance(enum := schema.get("enum"), list) and None not in enum:
            out["enum"] = [*enum, None]
        return out
    if isinstance(options := schema.get("anyOf"), list):
        return schema | {"anyOf": [*options, {"type": "null"}]}
    return schema
