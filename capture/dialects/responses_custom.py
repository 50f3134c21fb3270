"""The free text of a custom tool, read out of a function's arguments as they stream in.

The function that stands for a custom tool has one string, `input`: the model writes `{"input": "…"}`, and the client
gets what is between the quotes, unescaped, piece by piece. Half an escape waits for its other half; a first half of a
surrogate pair for its second. What a model writes in another form comes whole, at the end.
"""

from __future__ import annotations

import json
import re

from capture import rawjson
from capture.dialects.responses_tools import INPUT

_HEAD = re.compile(r'\s*\{\s*"' + INPUT + r'"\s*:\s*"')
# Whole characters and escapes of a string, up to its end or to where the text has come.
_INSIDE = re.compile(r'[^"\\]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*+)*')
_FIRST_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
# What is still no character when the arguments end: perhaps a first half, perhaps the start of an escape.
_HALF = re.compile(r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?")


class InputText:
    """The text of one custom call."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        # What has come and was not read: before the string begins, all of it.
        self._rest = ""
        self._inside = False
        self._ended = False

    def __repr__(self) -> str:
        return f"<InputText {'ended' if self._ended else 'inside' if self._inside else 'before'}>"

    def feed(self, piece: str) -> str:
        """Take the next piece of the arguments; return the text that it brought."""
        self._arguments.append(piece)
        if self._ended:
            return ""
        self._rest += piece
        if not self._inside:
            head = _HEAD.match(self._rest)
            if head is None:
                return ""
            self._inside = True
            self._rest = self._rest[head.end() :]
        match = _INSIDE.match(self._rest)
        assert match is not None
        text, rest = match.group(), self._rest[match.end() :]
        if rest.startswith('"'):
            self._ended = True
        elif half := _FIRST_HALF.search(text):
            # Its second half may follow; if something else does, it is a lone one, and goes out with that.
            text, rest = text[: half.start()], text[half.start() :] + rest
        self._rest = rest
        return _unescaped(text)

    def end(self) -> str:
        """Return what is still owed at the end of the arguments."""
        if self._inside:
            # Cut off by a limit, or, with an escape that JSON doesn't have, never ended: the rest as it is.
            return "" if self._ended or _HALF.fullmatch(self._rest) else self._rest
        whole = "".join(self._arguments)
        try:
            value = json.loads(whole)
        except (ValueError, RecursionError):
            return whole
        text = value.get(INPUT) if isinstance(value, dict) else None
        return str(rawjson.mended(text)) if isinstance(text, str) else whole


def _unescaped(text: str) -> str:
    # Not strict: models write line ends as they are.
    return str(rawjson.mended(json.loads(f'"{text}"', strict=False))) if text else ""
