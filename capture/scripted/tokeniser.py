"""Text to token ids and back: a small byte-level tokeniser of the engine's own.

Rules
1. Every text has ids and `decode(encode(text)) == text`: ids 0 to 255 are the bytes, the merges of `vocabulary`
   follow, the special tokens come last.
2. The text of a special token is that token wherever it stands, in a user's message too, as with real chat
   tokenisers.
3. Merges never cross a piece (a word with its leading sign, a digit, a run of signs, a run of blanks). So text that
   ends in a special token, or begins with one, can be encoded apart and joined: `template` renders and encodes by
   message.
4. Most pieces have several tokenisations. `encode` gives the canonical one, lowest rank first; `resplit` gives
   another. Both decode to the same text. That is what makes drift real: a reply sampled one way is tokenised
   another way when it comes back as history.

Costs: a known piece is one dict lookup, so 100,000 tokens take well under a second; a new piece of n bytes costs n²
comparisons with n at most 100.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from capture.scripted import vocabulary

_BYTES = 256

_PIECE = re.compile(
    r"'(?:[sdmt]|ll|ve|re)(?![^\W\d_])"  # what an apostrophe contracts
    r"|(?:[^\w\r\n]|_)?[^\W\d_]{1,24}"  # a word, with the blank or sign before it
    r"|\d"
    r"| ?[^\w\s]{1,16}[\r\n]{0,2}"  # signs, with the line's end
    r"|_{1,4}"
    r"|[^\S\r\n]{0,16}[\r\n]{1,4}"
    r"|[^\S\r\n]{1,16}(?!\S)"  # blanks but the last, which goes with the next word
    r"|\s|\w"
)

# How many different pieces are remembered. A rollout's texts use some tens of thousands.
_PIECES_KEPT = 200_000

ENDOFTEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
THINK = "<think>"
THINK_END = "</think>"
TOOL_CALL = "<tool_call>"
TOOL_CALL_END = "</tool_call>"

# Qwen3's names, since the template is in its manner and vLLM's parsers look for these.
_SPECIALS = (
    ENDOFTEXT,
    IM_START,
    IM_END,
    THINK,
    THINK_END,
    TOOL_CALL,
    TOOL_CALL_END,
    "<tool_response>",
    "</tool_response>",
)


class Tokeniser:
    """Encode, decode and split anew; holds the vocabulary and a cache of known pieces, and no other state."""

    def __init__(self) -> None:
        """Build the tables, in a few milliseconds."""
        merged = vocabulary.merges()
        self._bytes: list[bytes] = [bytes([value]) for value in range(_BYTES)]
        self._bytes.extend(merged)
        self._first_special = len(self._bytes)
        self._bytes.extend(name.encode() for name in _SPECIALS)
        self._rank = {token: _BYTES + n for n, token in enumerate(merged)}
        self._id = {token: n for n, token in enumerate(self._bytes[: self._first_special])}
        self._special = {name: self._first_special + n for n, name in enumerate(_SPECIALS)}
        self._split_specials = re.compile("(" + "|".join(re.escape(name) for name in _SPECIALS) + ")")
        self._longest = max(map(len, merged))
        self._known: dict[str, tuple[int, ...]] = {}

    def __repr__(self) -> str:
        return f"Tokeniser({self.size} tokens, {len(self._special)} special, {len(self._known)} pieces known)"

    @property
    def size(self) -> int:
        """The number of ids; every id is below it."""
        return len(self._bytes)

    def special(self, name: str) -> int:
        """Give a special token's id by its text; KeyError if there is none."""
        return self._special[name]

    def is_special(self, token: int) -> bool:
        """Say whether an id is a special token's."""
        return token >= self._first_special

    def encode(self, text: str) -> list[int]:
        """Give the canonical ids. A lone surrogate, which no UTF-8 can hold, becomes `?`."""
        ids: list[int] = []
        for kind, piece in self.pieces(text):
            if kind:
                ids.append(kind)
            else:
                ids.extend(self.encode_piece(piece))
        return ids

    def pieces(self, text: str) -> Iterable[tuple[int, str]]:
        """Cut text into pieces: (id, text) for a special token, whose id is never 0; (0, text) for others."""
        for n, part in enumerate(self._split_specials.split(text)):
            if n % 2:
                yield self._special[part], part
            elif part:
                for piece in _PIECE.findall(part):
                    yield 0, piece

    def encode_piece(self, piece: str) -> tuple[int, ...]:
        """Give one piece's canonical ids."""
        ids = self._known.get(piece)
        if ids is None:
            ids = self._merge(piece.encode("utf-8", "replace"))
            if len(self._known) >= _PIECES_KEPT:
                self._known.clear()
            self._known[piece] = ids
        return ids

    def _merge(self, data: bytes) -> tuple[int, ...]:
        parts = [data[n : n + 1] for n in range(len(data))]
        none = len(self._bytes)
        while len(parts) > 1:
            ranks = [self._rank.get(left + right, none) for left, right in pairwise(parts)]
            best = min(ranks)
            if best == none:
                break
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return tuple(self._id[part] for part in parts)

    def resplit(self, piece: str, draw: Callable[[int], int]) -> tuple[int, ...]:
        """Give a tokenisation of one piece that is not the canonical one, or the canonical one if there is no other.

        `draw(n)` gives a number from 0 to n - 1; longer tokens are likelier, as they are from a real model.
        """
        canonical = self.encode_piece(piece)
        data = b"".join(self._bytes[token] for token in canonical)
        if len(data) < 2 or all(token < _BYTES for token in canonical):
            return canonical
        for _ in range(2):
            ids: list[int] = []
            at = 0
            while at < len(data):
                fits = [
                    self._id[data[at:end]]
                    for end in range(at + 1, min(len(data), at + self._longest) + 1)
                    if data[at:end] in self._id
                ]
                token = fits[max(draw(len(fits)), draw(len(fits)))]
                ids.append(token)
                at += len(self._bytes[token])
            if tuple(ids) != canonical:
                return tuple(ids)
        at = next(n for n, token in enumerate(canonical) if token >= _BYTES)
        head = self._bytes[canonical[at]]
        return (*canonical[:at], *(self._id[head[n : n + 1]] for n in range(len(head))), *canonical[at + 1 :])

    def token_bytes(self, token: int) -> bytes:
        """Give an id's bytes; IndexError outside the vocabulary."""
        if token < 0:
            raise IndexError(token)
        return self._bytes[token]

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Join the bytes of ids, special tokens included."""
        return b"".join([self._bytes[token] for token in ids])

    def decode(self, ids: Sequence[int]) -> str:
        """Give the text of ids, special tokens included; bytes that are no UTF-8 show as U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")
