"""What the agents say and the engine answers: one long line of tokens, cut anywhere. Pure.

Theory of operation
Token i has an id, a text of 4.5 bytes in the mean, and a logprob, all fixed by the seed, so that the load generator and
the upstream, two processes, know the same corpus without talking. A prompt is the span [start, start + n) of it, the
reply to it the next 200 tokens, and the prompt that continues them simply a longer span: so ids chain exactly, and the
messages of each request begin with those of the one before. Prompts that begin at different places have nothing in
common. A span is a slice of one text, which makes a prompt of 100,000 ids cost a copy and nothing else.

Ids are drawn below 151,936 (Qwen's vocabulary), as JSON 6.3 bytes each with the comma.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

N_TOKENS = 1_000_000
"""Enough for a prompt of 600,000 and its conversation, and for others that begin elsewhere."""

REPLY_TOKENS = 200
"""Sampled tokens of each reply: the median of tool calls and short answers."""

ASKED_TOKENS = 300
"""Tokens of each user message: what a tool printed."""

TURN_TOKENS = REPLY_TOKENS + ASKED_TOKENS
VOCABULARY = 151_936

_WORDS = (  # noqa: SIM905 - sixty quoted words would be harder to read
    "the of and to in is that for with as on be at by this from are it was or an if not class def return self None "
    "import value result error file path test data model token string function object request response assert index "
    "count update create config handler module argument parameter implementation documentation configuration"
).split()


class Corpus:
    """The tokens."""

    def __init__(self, n_tokens: int = N_TOKENS, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.n_tokens = n_tokens
        # int32
        self.ids = rng.integers(0, VOCABULARY, n_tokens, dtype=np.int32)
        # Sampled tokens of a model that is fairly sure: most near 0, a long tail.
        self.logprobs: list[float] = (-rng.exponential(0.6, n_tokens)).tolist()
        # Short words are frequent, as in text; the odd line break is an escape in JSON, as in code.
        ranks = np.minimum(rng.exponential(16.0, n_tokens).astype(int), len(_WORDS) - 1)
        breaks = rng.random(n_tokens) < 0.08
        self.texts = ["\n" if b else " " + _WORDS[r] for r, b in zip(ranks.tolist(), breaks.tolist(), strict=True)]
        numbers = [b"%d" % i for i in self.ids.tolist()]
        self._ids_json = b",".join(numbers)
        self._ids_at = [0, *accumulate(len(number) + 1 for number in numbers)]
        self._text = "".join(self.texts)
        self._text_at = [0, *accumulate(map(len, self.texts))]

    def __repr__(self) -> str:
        return f"<Corpus {self.n_tokens} tokens, {len(self._text) / self.n_tokens:.2f} bytes each>"

    def ids_json(self, start: int, end: int) -> bytes:
        """Return the ids of a span as JSON without its brackets."""
        return self._ids_json[self._ids_at[start] : self._ids_at[end] - 1]

    def text(self, start: int, end: int) -> str:
        """Return the text of a span."""
        return self._text[self._text_at[start] : self._text_at[end]]


def split_prompt(start: int, n_prompt: int) -> list[tuple[str, int, int]]:
    """Return the messages of a prompt: role, start and end of each in the corpus.

    A system and a user message, then as many turns (reply, user) as there is room for. A prompt that is longer by
    whole turns begins with the messages of the shorter one. Raises ValueError for less than a turn.
    """
    if n_prompt < TURN_TOKENS:
        raise ValueError(f"a prompt has at least {TURN_TOKENS} tokens, not {n_prompt}")
    at = start + REPLY_TOKENS + n_prompt % TURN_TOKENS
    spans = [("system", start, at), ("user", at, at + ASKED_TOKENS)]
    at += ASKED_TOKENS
    while at < start + n_prompt:
        spans.append(("assistant", at, at + REPLY_TOKENS))
        spans.append(("user", at + REPLY_TOKENS, at + TURN_TOKENS))
        at += TURN_TOKENS
    return spans


def request_body(corpus: Corpus, start: int, n_prompt: int, *, streamed: bool) -> bytes:
    """Return the JSON body of a chat request, in the shape and order that coding agents send."""
    messages = [{"role": role, "content": corpus.text(a, b)} for role, a, b in split_prompt(start, n_prompt)]
    body = {"model": "bench", "max_tokens": 4096, "temperature": 1.0, "messages": messages, "tools": TOOLS}
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


def _tool(name: str, what: str, **arguments: str) -> dict[str, Any]:
    properties = {each: {"type": "string", "description": meaning} for each, meaning in arguments.items()}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": what, "parameters": parameters}}


TOOLS = [
    _tool("read", "Read a file of the project.", path="The file, from the project's root."),
    _tool("write", "Write a file of the project.", path="The file.", content="All that it shall hold."),
    _tool("bash", "Run a command and return what it printed.", command="The command line.", reason="Why it is run."),
]
