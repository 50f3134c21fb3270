"""Plain messages: a role and a text, and what a tool's result answers. Their bytes alone say what is asked of them.

Rules
1. A value that is a plain message has one spelling, as JavaScript's and Python's writers have it where they leave no
   spaces: the role first, then the text, then what it answers.
2. What `unspelled` doesn't name is that spelling of some plain message, and so strict JSON. It may name one that is,
   which is then to be read.

So of nearly all messages nothing needs to be decoded, nor written anew, to know which value they are.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from capture.compiled import maybe_compiled
from capture.rawjson import TEXT

compiled = maybe_compiled("capture.dialects._plain")
"""The same in C; None where it was not built, and the expression serves."""

_spelling = re.compile(
    rb'\{"role":"[a-z_]*+","content":"' + TEXT + rb'"(?:,"tool_call_id":"' + TEXT + rb'")?\}'
).fullmatch  # fmt: skip

_encode = msgspec.json.encode


def unspelled(raws: list[bytes]) -> list[int]:
    """Return the places of those that are no plain message in its one spelling, as far as is said here."""
    if compiled is not None:
        found: list[int] = compiled.unspelled(raws)
        return found
    return [at for at, raw in enumerate(raws) if not _is_spelled(raw)]


def _is_spelled(raw: bytes) -> bool:
    if _spelling(raw) is None:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def maybe_spelled(value: Any) -> bytes | None:
    """Return the spelling of a value, as parsed from JSON; None for one that is no plain message.

    Raises UnicodeEncodeError for half a surrogate pair.
    """
    if type(value) is not dict or not 2 <= len(value) <= 3:
        return None
    role, text, answers = value.get("role"), value.get("content"), value.get("tool_call_id")
    if type(role) is not str or type(text) is not str:
        return None
    if len(value) == 2:
        return b'{"role":%b,"content":%b}' % (_encode(role), _encode(text))
    if type(answers) is not str:
        return None
    return b'{"role":%b,"content":%b,"tool_call_id":%b}' % (_encode(role), _encode(text), _encode(answers))
