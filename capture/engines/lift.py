"""Ids and logprobs lifted out of a whole reply of vLLM's, so that only the small rest of it is read field by field.

A reply to a prompt of 2,000 tokens has 34 KB: 18 of logprobs and 14 of ids. Its fields, then its choice's fields, then
each of those values are three passes over them. Here each is found by the bytes of its key, cut out, and read once.
`vllm` takes this way where the client asked for none of it, so that all three are cut anyway.

Rules
1. What is lifted stands where it should: in its place in the rest there is a mark, and the mark is what the rest, read
   as JSON, has under that key. A mark follows `"key":`, so it stands where a value is due; what it stands for is read
   as JSON by itself. So the reply as it came is JSON just where the rest is, and says the same.
2. Anything else is None: another order of keys, several choices, spaces, a list that is none, counts that differ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from capture import rawjson
from capture.engines import id_text
from capture.engines.id_text import maybe_parse
from capture.engines.sampled import NULL, decode_logprobs
from graph.records import FloatArray, IntArray

# As vLLM writes them, in this order. Their quotes are bare, so they are no text.
_LOGPROBS, _IDS, _PROMPT = b'"logprobs":', b'"token_ids":', b'"prompt_token_ids":'
_ENTRIES, _FIRST_ID, _FIRST_PROMPT_ID = _LOGPROBS + b'{"content":[', _IDS + b"[", _PROMPT + b"["
# Where the logprobs end: behind its second byte.
_END = b']},"finish_reason":'

# JSON, and nothing that an engine says.
_MARKS = [b'"\\u0000lifted %d"' % i for i in range(3)]


class Lifted(NamedTuple):
    """What was lifted out, and what is left."""

    # Fields, raw: of the reply, and of its choice. What was lifted is null there.
    top: dict[str, bytes]
    choice: dict[str, bytes]
    # Of the choice, int32 and float32, as many of the one as of the other.
    ids: IntArray
    logprobs: FloatArray
    # The reply, and where in it the list of the prompt's ids stands, from bracket to bracket: not read yet.
    body: bytes
    start: int
    end: int

    @property
    def prompt(self) -> bytes:
        """The list of the prompt's ids, copied out of the reply."""
        return self.body[self.start : self.end]


def maybe_lift(body: bytes) -> Lifted | None:
    """Take a whole reply apart; None for one that is for the ordinary reader."""
    entries = body.find(_ENTRIES)
    prompt = body.find(_FIRST_PROMPT_ID, entries) if entries >= 0 else -1
    end = body.rfind(_END, entries, prompt) if prompt >= 0 else -1
    ids = body.find(_FIRST_ID, end, prompt) if end >= 0 else -1
    if ids < 0:
        return None
    a, b, c = entries + len(_LOGPROBS), ids + len(_IDS), prompt + len(_PROMPT)
    to_a, to_b, to_c = end + 2, body.find(b"]", b) + 1, body.find(b"]", c) + 1
    rest = (body[:a], _MARKS[0], body[to_a:b], _MARKS[1], body[to_b:c], _MARKS[2], body[to_c:])
    try:
        top = rawjson.split(b"".join(rest))
        choices = rawjson.objects(top.get("choices", NULL))
        if len(choices) != 1:
            return None
        choice = choices[0]
        found = [choice.get("logprobs"), choice.get("token_ids"), top.get("prompt_token_ids")]
        sampled = maybe_parse(body[b + 1 : to_b - 1]) if found == _MARKS else None
        logprobs = None if sampled is None else _maybe_logprobs(body, a, to_a, len(sampled))
    except (ValueError, RecursionError):
        return None
    if sampled is None or logprobs is None:
        return None
    choice["logprobs"] = choice["token_ids"] = top["prompt_token_ids"] = NULL
    return Lifted(top, choice, sampled, logprobs, body, c, to_c)


def _maybe_logprobs(body: bytes, start: int, end: int, n: int) -> FloatArray | None:
    """Return logprobs, float32; None unless there are `n` of them. Raises as `decode_logprobs` does."""
    if id_text.compiled is not None:
        begin = start + len(_ENTRIES) - len(_LOGPROBS)
        found = id_text.compiled.logprobs(body, begin, end - 2, n)
        if found is not None:
            return np.frombuffer(found, np.float32)
    read = decode_logprobs(body[start:end])
    return None if read is None or len(read) != n else np.array(read, dtype=np.float32)
