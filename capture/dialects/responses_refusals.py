"""How a request of the Responses dialect is refused: by the path of the field at fault, in the client's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture.errors import ClientError


def wrong(param: str, what: str) -> ClientError:
    """Return the error for a field that is something else than `what`."""
    return ClientError("wrong_type", f"The field '{param}' must be {what}.", param=param)


def missing(param: str) -> ClientError:
    """Return the error for a field that must be there."""
    return ClientError("missing_field", f"The field '{param}' is missing.", param=param)


def unsupported(param: str, why: str, *, hint: str = "") -> ClientError:
    """Return the error for what has no counterpart that an engine could take."""
    return ClientError("unsupported", why, hint=hint, param=param)


def text_in(obj: Mapping[str, Any], name: str, where: str) -> str:
    """Return a text that an object must have. Raises `ClientError` naming its path."""
    value = obj.get(name)
    if isinstance(value, str):
        return value
    raise missing(f"{where}.{name}") if value is None else wrong(f"{where}.{name}", "a string")


def maybe_text_in(obj: Mapping[str, Any], name: str, where: str) -> str | None:
    """Return a text that an object may have; None where absent or null. Raises `ClientError` naming its path."""
    value = obj.get(name)
    if value is None or isinstance(value, str):
        return value
    raise wrong(f"{where}.{name}", "a string")


def object_at(value: Any, where: str) -> Mapping[str, Any]:
    """Return a value that must be an object. Raises `ClientError` naming its path."""
    if isinstance(value, Mapping):
        return value
    raise wrong(where, "an object")


def list_at(value: Any, where: str) -> list[Any]:
    """Return a value that must be a list. Raises `ClientError` naming its path."""
    if isinstance(value, list):
        return value
    raise wrong(where, "a list")
