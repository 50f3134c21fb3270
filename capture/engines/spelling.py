"""The text of single tokens, as an engine spells them: what to ask, and what the answer says. Sans-I/O.

Rules
1. The engine's own `/detokenize` says it, and nothing here: a token's text is not in the engine's replies, where
   several ids may share a chunk and half a character waits for its other half.
2. Many ids are asked for at once, each between two marks whose text is known, and taken apart at the marks. An answer
   that doesn't come apart as it must is asked for again in halves, and an id that is left over by itself.
3. A token that is only part of a character has no text: alone it decodes to U+FFFD, which says nothing. (A mark begins
   and ends with a line feed, so that no half of a character meets another.)

Why not one question an id: a page of 2,048 tokens has some 700 different ones, and each question costs this loop, which
relays agents' streams, as much as all of them together do. Why not a prefix and one more id: that is quadratic. Why
marks and not ids alone behind each other: text can't be cut where ids were, and a decoder of SentencePiece's drops the
space that a first token begins with; between marks none is first.

Formats: vLLM 0.32 `{"model", "tokens"}` → `{"prompt"}`; SGLang 0.5 the same → `{"text"}`, without special tokens
unless asked for; llama.cpp `{"tokens"}` → `{"content"}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from capture.engines.base import Ask
from capture.errors import EngineError

SIGN = "\u00b6"
"""What a mark is known by. Where a token's own text has it, that token is asked for alone."""

MARK = f"\n{SIGN}\n"

BATCH = 256
"""Ids in one question; with the marks between them some thousand tokens, which an engine decodes in a millisecond."""

PARTIAL = "\ufffd"
"""What half a character decodes to."""


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of engine is asked."""

    # Whether it is told the model's name.
    named: bool = True
    # The text to tokenise, and what says that nothing is to be added to it.
    content: str = "prompt"
    plainly: dict[str, Any]
    # The answer's text, and what else a question says.
    text: str = "prompt"
    more: dict[str, Any] = {}

    def tokenise(self, text: str, model: str | None) -> Ask:
        """Ask for a text's ids."""
        return self._ask("/tokenize", {self.content: text, **self.plainly}, model)

    def detokenise(self, ids: Sequence[int], model: str | None) -> Ask:
        """Ask for the text of ids, one behind the other."""
        return self._ask("/detokenize", {"tokens": list(ids), **self.more}, model)

    def ids(self, body: bytes) -> list[int]:
        """Read a text's ids. Raises `EngineError` `engine_garbled`."""
        try:
            return msgspec.json.decode(body, type=_Tokens).tokens
        except msgspec.DecodeError as error:
            raise EngineError("engine_garbled", "The engine gave no ids for a text.") from error

    def told(self, body: bytes) -> str:
        """Read the text of ids. Raises `EngineError` `engine_garbled`."""
        try:
            return msgspec.convert(msgspec.json.decode(body, type=dict[str, Any])[self.text], str)
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            raise EngineError("engine_garbled", "The engine gave no text for ids.") from error

    def _ask(self, path: str, fields: dict[str, Any], model: str | None) -> Ask:
        named = {"model": model} if self.named and model is not None else {}
        return Ask(path=path, body=msgspec.json.encode({**named, **fields}))


SPELLINGS: dict[str, Spelling] = {
    "vllm": Spelling(plainly={"add_special_tokens": False}),
    "sglang": Spelling(plainly={"add_special_tokens": False}, text="text", more={"skip_special_tokens": False}),
    "llamacpp": Spelling(
        named=False, content="content", plainly={"add_special": False, "parse_special": True}, text="content"
    ),
}
"""By the adapter's kind; another kind of engine has no such route."""


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of a mark, and what of its text stands before and behind its sign."""

    ids: tuple[int, ...]
    before: str
    behind: str

    def question(self, ids: Sequence[int]) -> list[int]:
        """Return ids with a mark before and behind each."""
        out = list(self.ids)
        for one in ids:
            out += (one, *self.ids)
        return out

    def pieces(self, text: str, count: int) -> list[str] | None:
        """Return the texts of `count` ids from the answer; None where it doesn't come apart."""
        parts = text.split(SIGN)[1:-1]
        if len(parts) != count:
            return None
        least = len(self.behind) + len(self.before)
        if not all(
            len(part) >= least and part.startswith(self.behind) and part.endswith(self.before) for part in parts
        ):
            return None
        return [part[len(self.behind) : len(part) - len(self.before)] for part in parts]


def marks(ids: Sequence[int], twice: str) -> Marks | None:
    """Return the marks of an engine, from the ids of `MARK` and the text of these ids twice; None if it can't have any.

    What stands around a sign is read from the answer: a decoder may put a space before a word, but not before a first.
    """
    parts = twice.split(SIGN)
    if not ids or len(parts) != 3:
        return None
    _, between, behind = parts
    if not between.startswith(behind) or not behind.startswith("\n") or not between.endswith("\n"):
        return None
    return Marks(ids=tuple(ids), before=between[len(behind) :], behind=behind)


def shown(text: str) -> str | None:
    """Return a token's text; None where it is only part of a character."""
    return None if PARTIAL in text else text


class _Tokens(msgspec.Struct):
    tokens: list[int]
