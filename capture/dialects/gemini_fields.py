"""Objects of a Gemini body: looked into by name, checked, each fault named by its field's path.

Rules
1. A field has two spellings, `inlineData` and `inline_data`, as in any JSON that stands for a protocol buffer; paths
   name the first. Keys of a tool's own arguments and schemas are no such fields and stay as they are.
2. Null is as good as absent, and one object where a list is due is a list of one: the API takes both, and its own
   examples have the second (`"parts": {"text": "…"}`).

Paths are written as Google's errors write them: `contents[2].parts[0].text`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from capture.dialects import messages_fields as field

_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_LARGEST = 2**64
"""No field takes more, and a float can't hold every integer that JSON can."""
_UNDERSCORE = re.compile(r"_([a-z0-9])")


@lru_cache(maxsize=512)  # the same few dozen names in every body
def _snake(name: str) -> str:
    other = _CAPITAL.sub(lambda match: "_" + match.group(1).lower(), name)
    return name if other == name else other


@lru_cache(maxsize=512)
def camel(name: str) -> str:
    """Return the first spelling of a field's name: `inline_data` is `inlineData`."""
    return _UNDERSCORE.sub(lambda match: match.group(1).upper(), name)


class Node:
    """An object of the body and the path to it, empty for the body itself."""

    def __init__(self, value: Any, at: str) -> None:
        """Raises `ClientError` for what is no object."""
        self.at = at
        self.fields = field.mapping(value, at)

    def __repr__(self) -> str:
        return f"<Node {self.at or 'body'} {', '.join(self.fields)}>"

    def path(self, name: str) -> str:
        """Return a field's path."""
        return f"{self.at}.{name}" if self.at else name

    def get(self, name: str) -> Any:
        """Return a field's value, None where it is absent or null."""
        value = self.fields.get(name)
        if value is None and (other := _snake(name)) is not name:
            return self.fields.get(other)
        return value

    def names(self) -> list[str]:
        """Return the names of the fields that are not null, in the first spelling."""
        return [camel(name) for name, value in self.fields.items() if value is not None]

    def required(self, name: str) -> Any:
        """Return a value that must be there."""
        value = self.get(name)
        return field.required({}, name, self.path(name)) if value is None else value

    def node(self, name: str) -> Node | None:
        """Return an object, None where it is absent."""
        value = self.get(name)
        return None if value is None else Node(value, self.path(name))

    def listed(self, name: str) -> list[tuple[Any, str]]:
        """Return a list's values, each with its path; nothing where the list is absent."""
        value = self.get(name)
        if value is None:
            return []
        path = self.path(name)
        if isinstance(value, dict):
            return [(value, path)]
        return [(item, f"{path}[{i}]") for i, item in enumerate(field.items(value, path))]

    def nodes(self, name: str) -> list[Node]:
        """Return a list's objects."""
        return [Node(value, path) for value, path in self.listed(name)]

    def text(self, name: str) -> str:
        """Return a string that must be there."""
        self.required(name)
        return self.optional_text(name)

    def optional_text(self, name: str) -> str:
        """Return a string; an absent one is as good as an empty one."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise field.wrong(self.path(name), "a string")
        return value or ""

    def texts(self, name: str) -> list[str]:
        """Return a list of strings."""
        for value, path in self.listed(name):
            if not isinstance(value, str):
                raise field.wrong(path, "a string")
        return self.get(name) or []

    def flag(self, name: str) -> bool:
        """Return a boolean; an absent one is false."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise field.wrong(self.path(name), "true or false")
        return bool(value)

    def number(self, name: str) -> float | None:
        """Return a finite number, None where it is absent."""
        value = self.get(name)
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise field.wrong(self.path(name), "a number")
        return None if value is None else field.number(value, self.path(name))

    def whole(self, name: str, *, least: int, most: int | None = None) -> int | None:
        """Return a whole number, None where it is absent; 64.0 is one, as the API has `topK`."""
        value = self.number(name)
        if value is None:
            return None
        if value != int(value) or value < least or (most is not None and value > most):
            raise field.wrong(
                self.path(name), f"a whole number, {least} or more" if most is None else f"{least} to {most}"
            )
        return int(value)
