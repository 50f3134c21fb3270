"""The API's schemas to JSON schemas."""

from typing import Any

import pytest

from capture.dialects.gemini_schema import json_schema
from capture.errors import ClientError


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": ["STRING", "null"]}, {"type": ["string", "null"]}),
        ({"type": "TYPE_UNSPECIFIED", "description": "d"}, {"description": "d"}),
        ({"type": "INTEGER", "nullable": True}, {"type": ["integer", "null"]}),
        ({"type": "STRING", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"anyOf": [{"type": "STRING"}], "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "STRING", "nullable": False}, {"type": "string"}),
        ({"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": "2"},
         {"type": "array", "items": {"type": "number"}, "minItems": 2}),
        ({"type": "STRING", "max_length": 5, "example": "x"}, {"type": "string", "maxLength": 5, "examples": ["x"]}),
        ({"any_of": [{"type": "NULL"}]}, {"anyOf": [{"type": "null"}]}),
        ({"defs": {"A": {"type": "STRING"}}, "ref": "#/$defs/A"},
         {"$defs": {"A": {"type": "string"}}, "$ref": "#/$defs/A"}),
        ({"additionalProperties": {"type": "BOOLEAN"}}, {"additionalProperties": {"type": "boolean"}}),
        ({"additionalProperties": False, "$ref": "#", "vendor": 1},
         {"additionalProperties": False, "$ref": "#", "vendor": 1}),
        ({"type": None, "default": None}, {"default": None}),
    ],
)  # fmt: skip
def test_schemas(given: dict[str, Any], made: dict[str, Any]) -> None:
    assert json_schema(given, "parameters") == made


def test_properties_keep_their_names_and_take_the_order_that_is_asked_for() -> None:
    made = json_schema(
        {
            "type": "OBJECT",
            "properties": {"max_length": {"type": "STRING"}, "any_of": {"type": "OBJECT"}, "type": {"type": "NUMBER"}},
            "propertyOrdering": ["type", "any_of", "gone"],
            "required": ["type"],
        },
        "parameters",
    )
    assert made == {
        "type": "object",
        "properties": {"type": {"type": "number"}, "any_of": {"type": "object"}, "max_length": {"type": "string"}},
        "required": ["type"],
    }
    assert list(made["properties"]) == ["type", "any_of", "max_length"]


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (5, "s"),
        ({"type": 5}, "s.type"),
        ({"type": ["STRING", 5]}, "s.type"),
        ({"properties": []}, "s.properties"),
        ({"properties": {"a": 5}}, "s.properties.a"),
        ({"any_of": {}}, "s.anyOf"),
        ({"anyOf": [{}, 5]}, "s.anyOf[1]"),
        ({"items": {"type": {}}}, "s.items.type"),
        ({"property_ordering": 5}, "s.propertyOrdering"),
    ],
)
def test_faults_are_named(given: Any, at: str) -> None:
    with pytest.raises(ClientError) as wrong:
        json_schema(given, "s")
    assert wrong.value.param == at
