"""The short way of a stream of `/v1/completions`: the event of one token of plain text, read by one expression.

As `stamp` has it for chat, and by its rules: a stamp is made from an event that was read in full, and serves those that
begin with the very same bytes, up to the value of `text`, and go on as vLLM writes a token's (completion/protocol.py,
0.32.0). Whatever is in doubt is `None`, and nothing has changed: the full reader reads. 1 us in place of 25.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from capture.engines.stamp import FLOAT, ID, begin_of, read_text, renamed
from capture.rawjson import ASCII, TEXT

_CHOICE = ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"]
"""A choice's fields, in the order in which vLLM writes them."""

# Fields beside the choices that the reader looks at each time, or that say something of their own.
_TELLING = frozenset({"usage", "error"})

# The token is spelled as the text, or in ASCII.
_token = re.compile(
    rb'"(' + TEXT + rb')","logprobs":\{"text_offset":\[(?:0|[1-9][0-9]{0,8})\],"token_logprobs":\[(' + FLOAT +
    rb')\],"tokens":\["(?:\1"|' + ASCII + rb'")\],"top_logprobs":\[(?:null|\{"(?:\1"|' + ASCII + rb'"):' + FLOAT +
    rb'\})\]\},"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":\[(' + ID + rb")\]\}\]\}\n\n"
).fullmatch  # fmt: skip

_NULLS = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'


class Token(NamedTuple):
    """What a token's event says, and what the client gets of it."""

    shown: bytes
    text: str
    logprob: float
    id: int


class Stamp:
    """What all events of a stream with one choice begin with; for a client that gets neither ids nor logprobs."""

    def __init__(self, begin: bytes, *, shown: bytes) -> None:
        """`begin` is as the engine sends it, `shown` as the client gets it; both end where the text begins."""
        self._lead = b"data: " + begin
        self._n_lead = len(self._lead)
        self._before = b"data: " + shown + b'"'

    def __repr__(self) -> str:
        return f"<Stamp {self._lead!r}>"

    def maybe_token(self, raw: bytes) -> Token | None:
        """Read what came if it is the event of one token of plain text."""
        if not raw.startswith(self._lead):
            return None
        found = _token(raw, self._n_lead)
        if found is None:
            return None
        text, logprob, token = found.groups()
        try:
            said = read_text(text)
        except ValueError:
            # No UTF-8.
            return None
        return Token(b"%b%b%b" % (self._before, text, _NULLS), said, float(logprob), int(token))


def maybe_stamp(
    data: bytes, top: dict[str, bytes], choices: Sequence[dict[str, bytes]], *, model: bytes | None
) -> Stamp | None:
    """Return the stamp of an event, None if none can be made of it; `model`, raw, is shown in place of the engine's.

    `top` and `choices` are its fields as they came.
    """
    if len(choices) != 1 or list(choices[0]) != _CHOICE or next(reversed(top)) != "choices" or _TELLING & top.keys():
        return None
    begin = begin_of(top, choices[0], value=b"text")
    if not data.startswith(begin):
        return None
    return Stamp(begin, shown=begin_of(renamed(top, model), choices[0], value=b"text"))
